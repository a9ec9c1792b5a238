// Matrices in the block types of GGUF files: random bytes as files have them, packed, read again, and multiplied by plain loops to
// the same bits.

#pragma once

#include "block_packer.h"
#include "grouped.h"

inline bool has_minimum(int number) { return number == 3 || number == 7 || number == 12 || number == 13; }

// A column of a type: its bytes as a file has them. Each number is finite; some scales are zero, subnormal or negative.
inline std::vector<uint8_t> random_column(int number, int num_in, std::mt19937& random) {
  const StoredType type = stored::type_of(number);
  std::vector<uint8_t> column((size_t)num_in / type.block * type.bytes);
  for (uint8_t& byte : column) byte = (uint8_t)random();
  const int first = number == 10 ? 80 : number == 11 ? 108 : number == 14 ? 208 : 0;  // where scales stand behind the codes
  const int halves = has_minimum(number) || number == 10 ? 2 : 1;
  const uint16_t scales[] = {0, 1, 0x03ff, 0x0400, 0x8001, 0x1c66, 0x9c66, 0x2a11, 0x2a12, 0x2a13};
  for (size_t at = 0; at < column.size(); at += type.bytes)
    for (int i = 0; i < halves; i++) {
      const uint16_t half = scales[random() % 10];
      std::memcpy(&column[at + first + 2 * i], &half, 2);
    }
  return column;
}

// A row times a column, in the order of groups: one sum for a group, or one for each half where these have scales of their own.
struct PlainColumn {
  int number;
  const std::vector<uint8_t>& bytes;
  std::vector<int> codes;
  Row steps, minima;

  float times(const uint32_t* inputs, int groups) const {
    const bool six = number == 14, wide = number < 0;
    float total = 0;
    for (int group = 0; group < groups; group++, inputs += blocks::PARTS) {
      const int8_t* given = reinterpret_cast<const int8_t*>(inputs);
      const float scale = bits<float>(inputs[blocks::SCALE]);
      int sums[2] = {}, inputs_of_half[2] = {};
      for (int i = 0; i < 32; i++) sums[i / 16] += codes[32 * group + i] * given[i], inputs_of_half[i / 16] += given[i];
      if (wide) {
        for (int half = 0; half < 2; half++) {
          const int at = 32 * group + 16 * half;
          total = fused(all((float)sums[half] * steps[at]), all(scale), all(total))[0];
          total = fused(all(minima[at]), all(scale * (float)inputs_of_half[half]), all(total))[0];
        }
        continue;
      }
      int exact = sums[0] + sums[1];
      float step = steps[32 * group];
      if (six) {
        const uint8_t* block = &bytes[(size_t)group / 8 * 210];
        const int8_t* factors = reinterpret_cast<const int8_t*>(block + 192) + group % 8 * 2;
        exact = sums[0] * factors[0] + sums[1] * factors[1], step = from_half(block + 208);
      }
      total = fused(all((float)exact * step), all(scale), all(total))[0];
      if (has_minimum(number)) total = fused(all(minima[32 * group]), all(scale * (float)(inputs_of_half[0] + inputs_of_half[1])), all(total))[0];
    }
    return total;
  }
};

// A quarter of 16 columns of a type; `packed` is the type that it is packed as, -1 where it is widened.
inline void check_blocks(int number, int packed, int num_in) {
  std::mt19937 random(number);
  std::vector<std::vector<uint8_t>> columns;
  std::vector<const uint8_t*> rows(COLUMNS, nullptr);
  std::vector<int32_t> types(COLUMNS, number);
  for (int i = 0; i < 13; i++) columns.push_back(random_column(number, num_in, random));
  for (int i = 0; i < 13; i++) rows[i] = columns[i].data();
  int words = 0, chunk = 2;
  blocks::by_number(packed, [&](auto type) { words = decltype(type)::WORDS, chunk = decltype(type)::GROUPS; });
  const int groups = round_up(num_in / 32, chunk);
  const int64_t size = (int64_t)groups / chunk * words * blocks::COLS;
  std::vector<uint32_t> to((size_t)size * 4 + 4096);
  const Quarter quarters[] = {{0, packed, 0}, {size, packed, 0}, {2 * size, packed, 0}, {3 * size, packed, 0}, {4 * size, 0, 0}};
  const blocks::BlockPacker packer = {{rows.data(), types.data(), to.data(), quarters, groups, 1, num_in}};
  for (int i = 0; i < 4; i++) packer.quarter(i);

  std::vector<PlainColumn> plain;
  for (int i = 0; i < 13; i++) {
    PlainColumn column = {packed, columns[i], std::vector<int>(32 * groups), Row(32 * groups), Row(32 * groups)};
    visit_column(packed, to.data(), i, groups, [&](int input, int code, float step, float minimum) {
      column.codes[input] = code, column.steps[input] = step, column.minima[input] = minimum;
    });
    const StoredType type = stored::type_of(number);
    Row want(num_in), got(32 * groups);
    for (int at = 0; at < num_in; at += type.block) type.read(&columns[i][(size_t)at / type.block * type.bytes], &want[at]);
    column_of_blocks(quarters[0], to.data(), i, groups, got.data());
    for (int at = 0; at < num_in; at++) expect(got[at] == want[at], "a number of a block", got[at], want[at]);
    plain.push_back(column);
  }

  const int most = 33, stride = groups * blocks::PARTS;
  Rows inputs = random_rows(most, 32 * groups, 1);
  for (int i = 0; i < num_in; i++) inputs[3][i] = 0, inputs[4][i] *= i ? 1 : 4000, inputs[5][i] = i % 2 ? 1 : -1, inputs[6][i] = 1e-38f;
  std::vector<uint32_t> codes((size_t)round_up(most, BLOCK) * stride);
  for (int row = 0; row < most; row++) {
    std::fill(inputs[row].begin() + num_in, inputs[row].end(), 0.0f);
    Blocks::row(inputs[row].data(), 32 * groups, &codes[(size_t)row * stride]);
  }
  const Linear linear = {to.data(), nullptr, nullptr, nullptr, groups, 1, quarters, 4};
  const Worker worker;
  for (int num : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 28, 30, BLOCK, most}) {
    std::vector<F> out((size_t)num * blocks::QV);
    multiply_panel<Blocks>(worker, linear, {codes.data(), nullptr}, 0, num, 0, [&](int row, int, const F* sums) {
      std::copy(sums, sums + blocks::QV, &out[(size_t)row * blocks::QV]);
    });
    for (int row = 0; row < num; row++)
      for (int i = 0; i < 13; i++) {
        const float got = out[row * blocks::QV + i / LANES][i % LANES], want = plain[i].times(&codes[(size_t)row * stride], groups);
        expect(bits<uint32_t>(got) == bits<uint32_t>(want), "a product with blocks", got, want);
      }
  }
}

inline void check_all_blocks() {
  for (int number : {2, 3, 6, 7, 8}) check_blocks(number, number, 96), check_blocks(number, number, 640);
  for (int number : {12, 13, 14}) check_blocks(number, number, 512);
  for (int number : {10, 11, 2, 14}) check_blocks(number, -1, 512);
}
