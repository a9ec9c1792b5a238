// What the kernels are compared with: plain loops in float64, and matrices packed as Python packs them.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>

#include "forward.cpp"

inline void expect(bool right, const char* what, double got = 0, double want = 0) {
  if (right) return;
  std::printf("%s: %.9g in place of %.9g\n", what, got, want);
  std::exit(1);
}
inline void near(double got, double want, double limit, const char* what) {
  expect(std::fabs(got - want) <= limit, what, got, want);  // false for what is not a number
}

typedef std::vector<float> Row;
typedef std::vector<Row> Rows;

inline Rows random_rows(int num, int size, int seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Rows out(num, Row(size));
  for (Row& row : out)
    for (float& x : row) x = normal(random) * scale;
  return out;
}

inline float to_bfloat16(float x) {  // to the nearest, ties to even, one number at a time
  uint32_t u = bits<uint32_t>(x);
  const uint32_t rest = u & 0xffff;
  u &= 0xffff0000u;
  if (rest > 0x8000 || (rest == 0x8000 && (u & 0x10000))) u += 0x10000;
  return bits<float>(u);
}

// A matrix (out, in) rounded to numbers of T, and what `product` reads.
template <class T> struct Matrix {
  int num_in, num_out;
  Rows matrix;  // of Int8 codes
  std::vector<uint32_t> words;
  Row bias, scale;
  std::vector<int32_t> offset;
  Linear linear;

  explicit Matrix(const Rows& given, bool biased = false)
      : num_in((int)given[0].size()), num_out((int)given.size()), matrix(given) {
    const int num_words = round_up(round_up(num_in, T::PER) / T::PER, WORDS), panels = round_up(num_out, COLUMNS) / COLUMNS;
    words.assign((size_t)panels * COLUMNS * num_words, 0);
    bias.assign((size_t)panels * COLUMNS, 0), scale.assign(bias.size(), 0), offset.assign(bias.size(), 0);
    for (int row = 0; row < num_out; row++) {
      if (T::PER == 2)
        for (float& x : matrix[row]) x = to_bfloat16(x);
      if (T::PER == 4) {
        float largest = 1e-30f;
        for (float x : matrix[row]) largest = std::max(largest, std::fabs(x));
        scale[row] = largest / 127;
        for (float& x : matrix[row]) offset[row] += 128 * (int)(x = std::nearbyint(x / scale[row]));
      }
      if (biased) bias[row] = (row % 7 - 3) * 0.1f;
      for (int i = 0; i < num_in; i++) put(row, i, num_words);
    }
    linear = {words.data(), biased ? bias.data() : nullptr, scale.data(), offset.data(), num_words, panels};
  }

  void put(int row, int i, int num_words) {
    const int column = row % COLUMNS, per = T::PER;
    const size_t panel = (size_t)(row / COLUMNS) * COLUMNS * num_words;
    uint32_t& word = words[panel + ((size_t)(column / QUARTER) * num_words + i / per) * QUARTER + column % QUARTER];
    const float x = matrix[row][i];
    if (per == 1) word = bits<uint32_t>(x);
    else if (per == 2) word |= (bits<uint32_t>(x) >> 16) << (16 * (i % 2));
    else word |= (uint32_t)(uint8_t)(int8_t)x << (8 * (i % 4));
  }

  // The inputs as they are multiplied, in the matrix's scale: for Int8 whole numbers and their step.
  static Row rounded(const Row& x, float* step) {
    float largest = 0;
    for (float v : x) largest = std::max(largest, std::fabs(v));
    Row out = x;
    *step = T::PER == 4 ? largest / 127 : 1;
    if (T::PER == 4)
      for (float& v : out) v = largest ? std::floor(v * (127 / largest) + 128.5f) - 128 : 0;
    return out;
  }
  Row of(const Row& x) const {
    float step;
    const Row input = rounded(x, &step);
    Row out(num_out);
    for (int row = 0; row < num_out; row++) {
      double sum = 0;
      for (int i = 0; i < num_in; i++) sum += (double)input[i] * matrix[row][i];
      out[row] = (float)(sum * step * (T::PER == 4 ? scale[row] : 1) + bias[row]);
    }
    return out;
  }
};

// The weights (experts,) of a row, 0 of those that are not chosen, from the router's logits.
inline std::vector<double> chosen_weights(const Experts& e, const Row& logits, const Row& bias) {
  std::vector<double> scores, biased, sums, out(e.num);
  double total = 0, top = *std::max_element(logits.begin(), logits.begin() + e.num);
  for (int i = 0; i < e.num; i++) total += std::exp(logits[i] - top);
  for (int i = 0; i < e.num; i++) scores.push_back(e.sigmoid ? 1 / (1 + std::exp(-(double)logits[i])) : std::exp(logits[i] - top) / total);
  for (int i = 0; i < e.num; i++) biased.push_back(scores[i] + (bias.empty() ? 0 : bias[i]));
  const int size = e.num / e.groups;
  for (int group = 0; group < e.groups; group++) {
    std::vector<double> own(biased.begin() + group * size, biased.begin() + (group + 1) * size);
    std::sort(own.rbegin(), own.rend());
    sums.push_back(own[0] + (size > 1 ? own[1] : 0));
  }
  auto place = [](const std::vector<double>& of, int index) {  // how many are larger, or are equal and come first
    return std::count_if(of.begin(), of.end(), [&](double other) { return other > of[index]; }) +
           std::count(of.begin(), of.begin() + index, of[index]);
  };
  for (int i = 0; i < e.num; i++)
    if (place(sums, i / size) >= e.kept_groups) biased[i] = -INFINITY;
  double chosen = 0;
  for (int i = 0; i < e.num; i++)
    if (place(biased, i) < e.per_token) chosen += out[i] = scores[i];
  for (double& weight : out) weight *= e.scale / (e.normalized ? chosen : 1);
  return out;
}

// What a query gathers from the keys and values that it sees.
inline Row attended(const Row& q, const Rows& keys, const Rows& values, const std::vector<bool>& seen) {
  std::vector<double> scores(keys.size()), out(q.size());
  double largest = -INFINITY, total = 0;
  for (size_t i = 0; i < keys.size(); i++) {
    for (size_t j = 0; j < q.size(); j++) scores[i] += (double)q[j] * keys[i][j];
    if (seen[i]) largest = std::max(largest, scores[i]);
  }
  for (size_t i = 0; i < keys.size(); i++) {
    if (!seen[i]) continue;
    const double weight = std::exp(scores[i] - largest);
    total += weight;
    for (size_t j = 0; j < q.size(); j++) out[j] += weight * values[i][j];
  }
  Row result(q.size());
  for (size_t j = 0; j < q.size(); j++) result[j] = total > 0 ? (float)(out[j] / total) : 0;
  return result;
}
