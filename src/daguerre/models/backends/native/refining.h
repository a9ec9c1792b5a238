// What a `Refinement` asks for (models/forward.py): a token by one uniform number, the most likely token, the entropy, and the
// mean embedding of the distribution. The reference is `refine` in answering.py. In float32, but for sums.

#pragma once

#include <vector>

#include "model.h"

struct Refined {
  Drawn drawn;
  int64_t best;
  double best_probability;
};

typedef float Few __attribute__((vector_size(4 * PAIRS)));

inline double sum_of(const float* x, int num) {  // `num` is a multiple of LANES
  D total{};
  for (int i = 0; i < num; i += PAIRS) total += __builtin_convertvector(load<Few>(x + i), D);
  double out = 0;
  for (int i = 0; i < PAIRS; i++) out += total[i];
  return out;
}

// The first token whose cumulative weight exceeds `target`, which is below the sum of all weights; `sums` are those of panels.
inline int64_t inverse_cdf(const float* weights, int vocab, const std::vector<double>& sums, double target) {
  size_t panel = 0;
  double below = 0;
  while (panel + 1 < sums.size() && !(below + sums[panel] > target)) below += sums[panel++];
  int64_t last = 0;
  for (int i = panel * COLUMNS; i < vocab; i++) {
    if (!(weights[i] > 0)) continue;
    below += weights[last = i];
    if (below > target) break;
  }
  return last;
}

// `logits` (vocab, padded to COLUMNS with minus infinity) are replaced by the probabilities at the temperature of the rules, or
// by zeros if no token is allowed.
inline Refined refined(const Rules& r, float* logits, int vocab, int64_t position) {
  static thread_local std::vector<float> weights;
  static thread_local std::vector<double> sums;
  weights.resize(vocab), sums.resize(vocab / COLUMNS);
  for (int i = 0; i < r.num_bias; i++) logits[r.bias_tokens[i]] += (float)r.bias_values[i];
  forbid(r, position, logits, vocab);
  F most = all(NEVER);
  for (int i = 0; i < vocab; i += LANES) most = larger(most, load<F>(logits + i));
  const float top = greatest(most), temperature = (float)r.temperature, warm_top = top / temperature;
  if (!(top > NEVER && top < -NEVER)) {
    std::fill(logits, logits + vocab, 0.0f);
    return {{-1, 0, 0}, 0, 0};
  }
  double mass = 0, total = 0, weighed = 0;  // mass: at temperature 1
  for (int panel = 0; panel < vocab / COLUMNS; panel++) {
    F of_mass{}, of_weighed{};
    for (int i = panel * COLUMNS; i < (panel + 1) * COLUMNS; i += LANES) {
      const F x = load<F>(logits + i), below = x / temperature - warm_top, e = exponential(below);
      store(weights.data() + i, e);
      of_mass += exponential(x - top), of_weighed += e > 0 ? e * below : F{};
    }
    mass += sum(of_mass), weighed += sum(of_weighed);
    total += sums[panel] = sum_of(weights.data() + panel * COLUMNS, COLUMNS);
  }
  const double u = (hashed(r, position) >> 11) * 0x1p-53;
  const int64_t token = inverse_cdf(weights.data(), vocab, sums, u * total), best = std::find(logits, logits + vocab, top) - logits;
  const double probability = exponential(all(logits[token] - top))[0] / mass;
  const F factor = all((float)(1 / total));
  for (int i = 0; i < vocab; i += LANES) store(logits + i, load<F>(weights.data() + i) * factor);
  return {{token, probability, std::log(total) - weighed / total}, best, 1 / mass};
}

// A distribution (V, padded), and where its mean embedding (D,) is written.
struct Mean {
  const float* probabilities;
  float* to;
};

// The mean embeddings of distributions, multiplied by the scale of embeddings; a matrix of tokens after the other, so that these
// stay in the cache for all rows.
template <class Y> void mean_embeddings(const Model& m, const std::vector<Mean>& means, int threads) {
  const Gemma& g = *m.gemma;
  const int rows = (int)means.size(), width = round_up(m.width, COLUMNS), words = g.mean[0].words;
  static thread_local Scratch room;
  room.begin(((size_t)round_up(rows, BLOCK) * words * Y::PARTS + rows + (size_t)rows * width) * 4 + 64 * 3);
  const Inputs inputs = {room.take<uint32_t>((size_t)round_up(rows, BLOCK) * words * Y::PARTS), room.take<float>(rows)};
  float* sums = room.take<float>((size_t)rows * width);
  std::memset(sums, 0, (size_t)rows * width * 4);
#pragma omp parallel num_threads(threads)
  {
    const Worker worker;
    for (int first = 0; first < m.vocab; first += g.chunk) {
      const Linear& matrix = g.mean[first / g.chunk];
#pragma omp for schedule(static)
      for (int row = 0; row < rows; row++)
        inputs.scale[row] = Y::row(means[row].probabilities + first, inputs_of<Y>(matrix.words),
                                   inputs.rows + (size_t)row * matrix.words * Y::PARTS);
      product<Y>(worker, matrix, inputs, rows, [&](int row, int panel, const F* v) {
        float* at = sums + (size_t)row * width + panel * COLUMNS;
        for (int j = 0; j < VECTORS; j++) store(at + j * LANES, load<F>(at + j * LANES) + v[j]);
      });
    }
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++)
      for (int i = 0; i < m.width; i++) means[row].to[i] = sums[(size_t)row * width + i] * g.scale;
  }
  room.end();
}
