// Mixtures of experts: a router chooses a few experts for each row, rows are gathered by expert, and each expert computes all of
// its rows at once. The router is in float32, whatever the numbers of the products. A row's results are added in the order of
// its experts' numbers, so its bits do not depend on the other rows.
//
// Letters: R rows, E experts, K experts of a row. An entry is a row of an expert: there are R K of them, sorted by expert.

#pragma once

#include <sys/mman.h>

#include <algorithm>

#include "model.h"

// Replaces a router's logits (E, padded) by scores.
inline void score(const Experts& e, float* x) {
  const int size = round_up(e.num, COLUMNS);
  std::fill(x + e.num, x + size, NEVER);
  F most = all(NEVER), total{};
  for (int i = 0; i < size; i += LANES) most = larger(most, load<F>(x + i));
  const F top = all(greatest(most));
  for (int i = 0; i < size; i += LANES) {
    const F v = load<F>(x + i), made = e.sigmoid ? 1.0f / (1.0f + exponential(-v)) : exponential(v - top);
    store(x + i, made), total += made;
  }
  const F factor = all(1 / sum(total));
  for (int i = 0; i < size && !e.sigmoid; i += LANES) store(x + i, load<F>(x + i) * factor);
}

constexpr float TAKEN = std::numeric_limits<float>::quiet_NaN();  // in place of a number that was chosen

// The first of the largest numbers that are not TAKEN; 0 if there is none.
inline int first_largest(const float* x, int num) {
  int best = -1;
  for (int i = 0; i < num; i++)
    if (!std::isnan(x[i]) && (best < 0 || x[i] > x[best])) best = i;
  return std::max(best, 0);
}

// Sets biased scores (E,) to NEVER but for those of the groups whose two best have the largest sums. `sums`: memory (groups,).
inline void keep_groups(const Experts& e, float* biased, float* sums) {
  const int size = e.num / e.groups;
  for (int group = 0; group < e.groups; group++) {
    float first = NEVER, second = NEVER;
    for (int i = group * size; i < (group + 1) * size; i++) {
      if (biased[i] > first) second = first, first = biased[i];
      else if (biased[i] > second) second = biased[i];
    }
    sums[group] = first + second;
  }
  for (int i = 0; i < e.kept_groups; i++) sums[first_largest(sums, e.groups)] = TAKEN;
  for (int i = 0; i < e.num; i++)
    if (!std::isnan(sums[i / size])) biased[i] = NEVER;
}

// The experts of a row, ascending, and their weights (K,) each, from the router's logits (E, padded), which are replaced by
// scores. `room`: memory for twice as many numbers.
inline void choose(const Experts& e, const float* bias, float* scores, float* room, int32_t* chosen, float* weights) {
  score(e, scores);
  for (int i = 0; i < e.num; i++) room[i] = bias ? scores[i] + bias[i] : scores[i];
  if (e.kept_groups < e.groups) keep_groups(e, room, room + e.num);
  for (int i = 0; i < e.per_token; i++) room[chosen[i] = first_largest(room, e.num)] = TAKEN;
  std::sort(chosen, chosen + e.per_token);
  float total = 1e-20f;
  for (int i = 0; i < e.per_token; i++) total += weights[i] = scores[chosen[i]];
  const float factor = e.normalized ? e.scale / total : e.scale;
  for (int i = 0; i < e.per_token; i++) weights[i] *= factor;
}

// The mixtures of a model, and memory for those of one layer at a time, of at most so many rows. Without experts there is none.
template <class T> struct Mixture {
  const Model& m;
  const Experts& e = m.experts;
  const int width = round_up(m.width, COLUMNS), logits = round_up(e.num, COLUMNS), inner = round_up(e.inner, COLUMNS);
  const int shared_stride = round_up(e.shared, COLUMNS);
  float *scores, *weights, *weight_of, *inside;  // (R, 3 logits), (R, K), (entries,), (entries, inner)
  float* shared;                                 // (R, shared_stride): activations of the shared expert
  int32_t *chosen, *row_of;                      // (R, K), (entries,)
  int32_t *starts, *hit, *num_hit;  // (E + 1,) first entries of experts; (E,) those that have entries, and how many these are
  Inputs exact, inputs;             // of the router; of the experts

  Mixture(const Model& m, int rows, Scratch& room) : m(m) {
    const Layer& last = m.layers[m.num_layers - 1];  // has experts if any layer has
    const bool some = last.router.panels > 0;
    const size_t num = some ? rows : 0, entries = num * e.per_token, router = (size_t)round_up((int)num, BLOCK) * last.router.words;
    const size_t words = some ? (entries + BLOCK) * std::max(row_words<T>(*last.expert_up), row_words<T>(*last.expert_down)) : 0;
    room.begin(4 * (num * (3 * logits + shared_stride + 1) + entries * (inner + 5) + 3 * e.num + 2 + router + words) + 64 * 14);
    scores = room.take<float>(num * 3 * logits), weights = room.take<float>(entries), weight_of = room.take<float>(entries);
    inside = room.take<float>(entries * inner), shared = room.take<float>(num * shared_stride);
    chosen = room.take<int32_t>(entries), row_of = room.take<int32_t>(entries);
    starts = room.take<int32_t>(2 * e.num + 1), hit = room.take<int32_t>(e.num), num_hit = room.take<int32_t>(1);
    exact = {room.take<uint32_t>(router), room.take<float>(num)}, inputs = {room.take<uint32_t>(words), room.take<float>(entries)};
    std::memset(inside, 0, entries * inner * 4);
    std::memset(shared, 0, num * shared_stride * 4);
  }

  // Chooses the experts of rows of x (R, stride of D), and gathers the rows as inputs of products by expert.
  void gather(const Worker& worker, const Layer& layer, const float* x, const Inputs& from, int rows) const {
    const int blocks = (rows + BLOCK - 1) / BLOCK;
    prepare<Float32>(x, rows, width, layer.router, exact);
#pragma omp for schedule(static)
    for (int i = 0; i < blocks * layer.router.panels; i++) {
      const int first = i / layer.router.panels * BLOCK;
      const int panel = i % layer.router.panels, num = std::min(BLOCK, rows - first);
      multiply_panel<Float32>(worker, layer.router, exact, first, num, panel, [&](int row, int panel, const F* v) {
        std::memcpy(scores + (size_t)row * 3 * logits + panel * COLUMNS, v, COLUMNS * 4);
      });
    }
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      float* own = scores + (size_t)row * 3 * logits;
      choose(e, layer.expert_bias, own, own + logits, chosen + (size_t)row * e.per_token, weights + (size_t)row * e.per_token);
    }
#pragma omp single
    {
      sort(rows * e.per_token);
      for (int i = 0; e.on_disk && i < *num_hit; i++) fetch(layer.expert_up[hit[i]]), fetch(layer.expert_down[hit[i]]);
    }
    const size_t size = row_words<T>(*layer.expert_up);
#pragma omp for schedule(static)
    for (int i = 0; i < rows * e.per_token; i++) {
      std::memcpy(inputs.rows + i * size, from.rows + row_of[i] * size, size * 4);
      inputs.scale[i] = from.scale[row_of[i]];
    }
  }

  // Has the system read a matrix from its file, if it must, while others are multiplied.
  static void fetch(const Linear& matrix) {
    const size_t words = matrix.quarters ? matrix.quarters[4 * matrix.panels].at : (size_t)matrix.panels * COLUMNS * matrix.words;
    posix_madvise(const_cast<uint32_t*>(matrix.weight), words * 4, POSIX_MADV_WILLNEED);
  }

  // Sorts the chosen experts by their numbers, and those of the same number by rows.
  void sort(int entries) const {
    int32_t* next = starts + e.num + 1;
    std::memset(starts, 0, (e.num + 1) * 4);
    for (int i = 0; i < entries; i++) starts[chosen[i] + 1]++;
    *num_hit = 0;
    for (int i = 0; i < e.num; i++) {
      if (starts[i + 1]) hit[(*num_hit)++] = i;
      next[i] = starts[i], starts[i + 1] += starts[i];
    }
    for (int i = 0; i < entries; i++) {
      const int at = next[chosen[i]]++;
      row_of[at] = i / e.per_token, weight_of[at] = weights[i];
    }
  }

  // Adds the weighted results of the gathered rows' experts to rows of `to` (R, stride of D).
  void add(const Worker& worker, const Layer& layer, int rows, float* to) const {
    const int panels = layer.expert_up->panels;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < *num_hit * panels; i++)
      multiply(worker, layer.expert_up, hit[i / panels], i % panels, [&](int entry, int panel, const F* v) {
        gate(v, m.activation, inside + (size_t)entry * inner + panel * (COLUMNS / 2));
      });
    prepare<T>(inside, rows * e.per_token, inner, *layer.expert_down, inputs);
#pragma omp for schedule(static)
    for (int panel = 0; panel < layer.expert_down->panels; panel++)
      for (int i = 0; i < *num_hit; i++)
        multiply(worker, layer.expert_down, hit[i], panel, [&](int entry, int panel, const F* v) {
          float* at = to + (size_t)row_of[entry] * width + panel * COLUMNS;
          for (int j = 0; j < VECTORS; j++) store(at + j * LANES, fused(all(weight_of[entry]), v[j], load<F>(at + j * LANES)));
        });
  }

  // A panel of an expert's matrix, for its entries.
  template <class Finish> void multiply(const Worker& worker, const Linear* matrices, int expert, int panel, Finish finish) const {
    multiply_panel<T>(worker, matrices[expert], inputs, starts[expert], starts[expert + 1] - starts[expert], panel, finish);
  }
};
