// Matrices of 4-bit weights in groups: packed as Python packs them, and multiplied by plain loops to the same bits.

#pragma once

#include "plain.h"

// A 16-bit float, rounded to the nearest; of numbers that it can hold without a denormal.
inline uint16_t half_of(float x) {
  const uint32_t u = bits<uint32_t>(x), shifted = (u & 0x7fffffffu) - (112u << 23) + 0xfffu + (u >> 13 & 1);
  return (uint16_t)(u >> 16 & 0x8000u | shifted >> 13);
}
inline float of_half(uint16_t h) {
  const double size = std::ldexp(h >> 10 & 31 ? 1024 + (h & 1023) : h & 1023, std::max(1, h >> 10 & 31) - 25);
  return (float)(h >> 15 ? -size : size);
}

template <> struct Matrix<Int4> {
  static constexpr int SIZE = Int4::IN_GROUP;
  int num_in, num_out, groups;
  Rows matrix, scale;  // codes less 8; scales of groups
  std::vector<uint32_t> words;
  Row bias;
  Linear linear;

  explicit Matrix(const Rows& given, bool biased = false)
      : num_in((int)given[0].size()), num_out((int)given.size()), groups(round_up(num_in, Int4::INPUTS) / SIZE) {
    const int num_words = groups / 2 * Int4::CHUNK, panels = round_up(num_out, COLUMNS) / COLUMNS;
    words.assign((size_t)panels * COLUMNS * num_words, 0), bias.assign((size_t)panels * COLUMNS, 0);
    for (int row = 0; row < num_out; row++) {
      if (biased) bias[row] = (row % 7 - 3) * 0.1f;
      Row codes(groups * SIZE), scales(groups);
      for (int group = 0; group < groups; group++) {
        float largest = 0;
        for (int i = group * SIZE; i < std::min(num_in, (group + 1) * SIZE); i++)
          if (std::fabs(given[row][i]) > std::fabs(largest)) largest = given[row][i];
        const uint16_t half = largest ? half_of(largest / -8) : 0;
        scales[group] = of_half(half);
        at(row, group / 2 * Int4::CHUNK + 8, num_words) |= (uint32_t)half << (16 * (group % 2));
        for (int i = group * SIZE; i < (group + 1) * SIZE; i++) {
          const float x = i < num_in && largest ? given[row][i] / scales[group] : 0;
          codes[i] = std::min(7.0f, std::max(-8.0f, std::nearbyint(x)));
          const int word = i / 64 * Int4::CHUNK + i % 64 / 8, shift = 8 * (i % 4) + 4 * (i / 4 % 2);
          at(row, word, num_words) |= (uint32_t)(codes[i] + 8) << shift;
        }
      }
      matrix.push_back(codes), scale.push_back(scales);
    }
    linear = {words.data(), biased ? bias.data() : nullptr, nullptr, nullptr, num_words, panels};
  }

  uint32_t& at(int row, int word, int num_words) {
    const int column = row % COLUMNS;
    return words[(size_t)(row / COLUMNS) * COLUMNS * num_words + ((size_t)(column / QUARTER) * num_words + word) * QUARTER + column % QUARTER];
  }

  Row of(Row x) const {
    Row out(num_out);
    x.resize(groups * SIZE);
    for (int row = 0; row < num_out; row++) {
      float total = 0;
      for (int group = 0; group < groups; group++) {
        float largest = 0;
        for (int i = 0; i < SIZE; i++) largest = std::max(largest, std::fabs(x[group * SIZE + i]));
        int sum = 0;
        for (int i = group * SIZE; i < (group + 1) * SIZE && largest; i++)
          sum += ((int)fused(all(x[i]), all(127 / largest), all(128.5f))[0] - 128) * (int)matrix[row][i];
        total = fused(all((float)sum * scale[row][group]), all(largest / 127), all(total))[0];
      }
      out[row] = total + bias[row];
    }
    return out;
  }
};

// Shapes that fill no chunk and no panel, and inputs of which one is far larger than the others of its group; rows alone and beside
// others. Every bit is that of the plain loops.
inline void check_grouped(int num_in, int num_out) {
  Rows given = random_rows(num_out, num_in, num_in, 0.02f);
  for (int row = 0; row < num_out; row++)
    for (int i = 0; i < num_in; i++) given[row][i] *= row % 5 == 4 && i < 40 ? 0 : row % 3 == 1 ? -50 : 1;
  const Matrix<Int4> packed(given, true);
  const Linear& linear = packed.linear;
  const int most = 40, stride = inputs_of<Int4>(linear.words), width = linear.panels * COLUMNS;
  Rows inputs = random_rows(most, num_in, 1);
  for (int i = 0; i < num_in; i++) inputs[3][i] = 0, inputs[4][i] *= i ? 1 : 4000, inputs[5][i] = i % 2 ? 1 : -1;
  std::vector<float> x((size_t)most * stride, 0), scales(most);
  for (int row = 0; row < most; row++) std::copy(inputs[row].begin(), inputs[row].end(), x.begin() + (size_t)row * stride);
  std::vector<uint32_t> rows((size_t)round_up(most, BLOCK) * linear.words * Int4::PARTS);
  const Worker worker;
  for (int num : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33, most}) {
    std::vector<float> out((size_t)num * width, -1.0f);
    prepare<Int4>(x.data(), num, stride, linear, {rows.data(), scales.data()});
    product<Int4>(worker, linear, {rows.data(), scales.data()}, num, [&](int row, int panel, const F* v) {
      std::memcpy(out.data() + (size_t)row * width + panel * COLUMNS, v, COLUMNS * 4);
    });
    for (int row = 0; row < num; row++) {
      const Row want = packed.of(inputs[row]);
      for (int column = 0; column < width; column++) {
        const float got = out[(size_t)row * width + column];
        expect(got == (column < num_out ? want[column] : 0), "a product of 4-bit numbers", got, column < num_out ? want[column] : 0);
      }
    }
  }
}
