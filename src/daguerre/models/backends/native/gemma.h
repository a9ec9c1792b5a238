// From tokens to hidden states in DiffusionGemma, whose layers differ from those of `Stack` in nearly every step; what they
// compute is said in models/core/gemma.py. The weights of the router's norm are multiplied into its matrix, which is in float32.

#pragma once

#include "experts.h"
#include "keys.h"

enum LayerKind { SLIDING, GLOBAL };

// Cosines and sines (R, pairs) of the angles of rows, in one kind of layers.
struct Angles {
  int pairs;
  float *cos, *sin;

  void fill(const Batch& b, const float* turns) const {
#pragma omp for schedule(static)
    for (int row = 0; row < b.rows; row++)
      for (int i = 0; i < pairs; i++) {
        const float angle = (float)b.position[row] * turns[i];
        cos[(size_t)row * pairs + i] = std::cos(angle), sin[(size_t)row * pairs + i] = std::sin(angle);
      }
  }

  // Rotates a head of a row: number i with the one half a head behind it.
  void turn(float* x, int width, int row) const {
    const float *c = cos + (size_t)row * pairs, *s = sin + (size_t)row * pairs;
    for (int i = 0, half = width / 2; i < pairs; i++) {
      const float low = x[i], high = x[i + half];
      x[i] = low * c[i] - high * s[i], x[i + half] = high * c[i] + low * s[i];
    }
  }
};

template <class T, class C> struct GemmaStack {
  const Model& m;
  const Batch& b;
  const Gemma& g = *m.gemma;
  const int width = round_up(m.width, COLUMNS), inner = round_up(m.inner, COLUMNS);
  const Heads heads[2] = {{m.heads, m.kv_heads, m.head}, {m.heads, g.kv_heads, g.head}};
  const int strides[2] = {round_up(m.heads * m.head, COLUMNS), round_up(m.heads * g.head, COLUMNS)};
  const int qkv_width = std::max(qkv_stride(heads[SLIDING]), qkv_stride(heads[GLOBAL]));
  const Norm norm = {false, m.eps};

  // Memory of a call. Strides: D; `strides` of y; the inner width of MLPs; qkv_width.
  struct Memory {
    float *x, *units, *branch, *y[2], *inside, *qkv;
    uint32_t* keys[2];
    Angles angles[2];
    Inputs inputs;
  };

  static int qkv_stride(const Heads& h) { return round_up((h.num + 2 * h.kv) * h.width, COLUMNS); }

  // Hidden states (A, stride of D) of the wanted rows.
  void hidden(float* out) const {
    const int most = std::max(b.rows, b.num_wanted);
    static thread_local Scratch room, experts_room;
    const Memory memory = memory_in(room, most);
    const Mixture<T> mixture(m, most, experts_room);
    std::vector<int32_t> begin;
    std::vector<uint8_t> mask;
    const std::vector<Keys> keys[2] = {in_windows(b, keys_in<C>(b, heads[SLIDING], memory.keys[SLIDING], SLIDING), m.window, begin, mask),
                                       keys_in<C>(b, heads[GLOBAL], memory.keys[GLOBAL], GLOBAL)};
    const Queries every[2] = {{b, heads[SLIDING], false}, {b, heads[GLOBAL], false}};
    const Queries last[2] = {{b, heads[SLIDING], true}, {b, heads[GLOBAL], true}};
    const std::vector<int32_t> part_of = parts_of(b, false), roles = roles_of(false), last_roles = roles_of(true);
    const std::vector<Told> told = told_rows();
    Shortage shortage;
#pragma omp parallel num_threads(b.threads)
    {
      const Worker worker;
      embed(worker, memory, roles, told);
      for (int kind : {SLIDING, GLOBAL}) memory.angles[kind].fill(b, g.turns[kind]);
      for (int index = 0; index < m.num_layers; index++) {
        const Layer& layer = m.layers[index];
        const int kind = g.layers[index].global, number = g.layers[index].number;
        const bool end = index == m.num_layers - 1;
        prepare<T>(memory.x, b.rows, width, layer.qkv, memory.inputs, memory.units, m.width, norm,
                   weighted(layer.before_attention));
        multiply(worker, layer.qkv, memory.inputs, b.rows, memory.qkv, qkv_width);
        place(layer, kind, number, keys[kind], part_of, memory);
        const Queries& queries = (end ? last : every)[kind];
        queries.template attend<C>(worker, keys[kind], number, memory.qkv, qkv_width, memory.y[kind], strides[kind], shortage);
        if (end) {
#pragma omp single
          gather_wanted(b, width, memory.x, memory.units);
        }
        finish(worker, index, memory, mixture, end ? b.num_wanted : b.rows, end ? last_roles : roles);
      }
#pragma omp for schedule(static)
      for (int row = 0; row < b.num_wanted; row++) {
        float* to = out + (size_t)row * width;
        normalize(memory.x + (size_t)row * width, m.width, width, false, m.eps, to);
        for (int i = 0; i < m.width; i++) to[i] *= m.final_weight[i];
      }
    }
    shortage.check();
    experts_room.end();
    room.end();
  }

  // `most`: rows of the batch or wanted rows, whichever are more.
  Memory memory_in(Scratch& room, int most) const {
    const int longest = std::max({width, strides[SLIDING], strides[GLOBAL], inner});
    const size_t rows = most, words = (size_t)round_up(most, BLOCK) * longest * T::PARTS;
    const size_t kept[2] = {words_kept<C>(b, heads[SLIDING]), words_kept<C>(b, heads[GLOBAL])};
    const int pairs = g.pairs[SLIDING] + g.pairs[GLOBAL];
    room.begin(4 * (rows * (3 * width + strides[SLIDING] + strides[GLOBAL] + inner + qkv_width + 2 * pairs + 1) + words +
                    kept[SLIDING] + kept[GLOBAL]) + 64 * 16);
    Memory out;
    for (float** each : {&out.x, &out.units, &out.branch}) *each = room.take<float>(rows * width);
    for (int kind : {SLIDING, GLOBAL}) {
      out.y[kind] = room.take<float>(rows * strides[kind]), out.keys[kind] = room.take<uint32_t>(kept[kind]);
      const size_t num = rows * g.pairs[kind];
      out.angles[kind] = {g.pairs[kind], room.take<float>(num), room.take<float>(num)};
      std::memset(out.y[kind], 0, rows * strides[kind] * 4);
      std::memset(out.keys[kind], 0, kept[kind] * 4);
    }
    out.inside = room.take<float>(rows * inner), out.qkv = room.take<float>(rows * qkv_width);
    out.inputs = {room.take<uint32_t>(words), room.take<float>(rows)};
    std::memset(out.inside, 0, rows * inner * 4);
    return out;
  }

  // Of each row, or of each wanted row: 0 if it is clean, 1 if it is noisy.
  std::vector<int32_t> roles_of(bool wanted) const {
    std::vector<int32_t> out;
    for (int p = 0; p < b.num_parts; p++) {
      const Part& part = b.parts[p];
      for (int i = 0; i < (wanted ? part.num_wanted : part.rows); i++)
        out.push_back((wanted ? b.wanted[part.first_wanted + i] : i) >= part.clean);
    }
    return out;
  }

  // The noisy rows that have conditioning, and it (D,).
  struct Told { int row; const float* conditioning; };
  std::vector<Told> told_rows() const {
    std::vector<Told> out;
    for (int p = 0; p < b.num_parts; p++) {
      const Part& part = b.parts[p];
      for (int i = part.clean; i < part.rows && part.conditioning; i++)
        out.push_back({part.first + i, part.conditioning + (size_t)(i - part.clean) * m.width});
    }
    return out;
  }

  // The rows' embeddings, those of noisy rows mixed with their conditioning, padded with zeros to the stride.
  void embed(const Worker& worker, const Memory& to, const std::vector<int32_t>& roles, const std::vector<Told>& told) const {
    const int num = told.size();
#pragma omp for schedule(static)
    for (int row = 0; row < b.rows; row++) {
      float* x = to.x + (size_t)row * width;
      const C* from = static_cast<const C*>(m.embedding) + b.tokens[row] * (int64_t)m.width;
      for (int i = 0; i < width; i += LANES) store(x + i, i < m.width ? widen(from + i, m.width - i) * g.scale : F{});
    }
    if (num) {
#pragma omp for schedule(static)
      for (int i = 0; i < num; i++) {
        float* row = to.branch + (size_t)i * width;
        std::fill(std::copy(told[i].conditioning, told[i].conditioning + m.width, row), row + width, 0.0f);
      }
      prepare<T>(to.branch, num, width, g.up, to.inputs, to.units, m.width, norm, weighted(g.before));
      mlp(worker, g.up, g.down, to, num);
    }
#pragma omp for schedule(static)
    for (int i = 0; i < num; i++) add(to.branch + (size_t)i * width, to.x + (size_t)told[i].row * width);
#pragma omp for schedule(static)
    for (int row = 0; row < b.rows; row++) {
      float* x = to.x + (size_t)row * width;
      if (roles[row]) normalize(x, m.width, width, false, m.eps, x);
    }
  }

  // What multiplies the normalized numbers of a row by the weights of their norm.
  auto weighted(const float* weights) const {
    return [this, weights](int, float* unit) { weigh(unit, weights, m.width); };
  }

  void add(const float* from, float* to) const {
    for (int i = 0; i < width; i += LANES) store(to + i, load<F>(to + i) + load<F>(from + i));
  }

  // The product of rows, which are inputs, with a matrix: `to` (rows, stride).
  void multiply(const Worker& worker, const Linear& matrix, const Inputs& inputs, int rows, float* to, int stride) const {
    product<T>(worker, matrix, inputs, rows, [&](int row, int panel, const F* v) {
      std::memcpy(to + (size_t)row * stride + panel * COLUMNS, v, COLUMNS * 4);
    });
  }

  // What an MLP makes of the inputs, in `branch`.
  void mlp(const Worker& worker, const Linear& up, const Linear& down, const Memory& at, int rows) const {
    product<T>(worker, up, at.inputs, rows, [&](int row, int panel, const F* v) {
      gate(v, m.activation, at.inside + (size_t)row * inner + panel * (COLUMNS / 2));
    });
    prepare<T>(at.inside, rows, inner, down, at.inputs);
    multiply(worker, down, at.inputs, rows, at.branch, width);
  }

  // Normalizes and rotates query and key heads, and stores keys and values. Values of global layers are their keys before.
  void place(const Layer& layer, int kind, int number, const std::vector<Keys>& keys, const std::vector<int32_t>& part_of,
             const Memory& at) const {
    const Heads& h = heads[kind];
    const Sizes<C> sizes(h.width);
#pragma omp for schedule(static)
    for (int i = 0; i < b.rows * (h.num + h.kv); i++) {
      const int row = i / (h.num + h.kv), head = i % (h.num + h.kv), kv = head - h.num, part = part_of[row];
      float *x = at.qkv + (size_t)row * qkv_width + head * h.width, *value = x + h.kv * h.width;
      if (kv >= 0) {
        if (kind == GLOBAL) std::memcpy(value, x, h.width * 4);
        scale(value, inverse_norm(value, h.width, m.eps), nullptr, h.width);
      }
      scale(x, inverse_norm(x, h.width, m.eps), layer.qk_weight + head * h.width, h.width);
      at.angles[kind].turn(x, h.width, row);
      if (kv >= 0) store_row<C>(b.parts[part], keys[part], sizes, number, h, kv, row - b.parts[part].first, x, value);
    }
  }

  static void scale(float* x, float factor, const float* weight, int num) {
    for (int i = 0; i < num; i++) x[i] *= weight ? factor * weight[i] : factor;
  }

  // All of a layer behind its attention, whose results are in y.
  void finish(const Worker& worker, int index, const Memory& at, const Mixture<T>& mixture, int rows,
              const std::vector<int32_t>& roles) const {
    const Layer& layer = m.layers[index];
    const GemmaLayer& more = g.layers[index];
    prepare<T>(at.y[more.global], rows, strides[more.global], layer.out, at.inputs);
    multiply(worker, layer.out, at.inputs, rows, at.units, width);
    add_normalized(m, at.units, rows, width, layer.attention_weight, nullptr, at.x);
    prepare<T>(at.x, rows, width, *layer.expert_up, at.inputs, at.units, m.width, norm, [&](int row, float* unit) {
      std::memcpy(at.branch + (size_t)row * width, unit, width * 4);  // which the router reads
      weigh(unit, more.before_experts, m.width);
    });
    mixture.gather(worker, layer, at.branch, at.inputs, rows);
    prepare<T>(at.x, rows, width, layer.up, at.inputs, at.units, m.width, norm, weighted(layer.before_mlp));
    mlp(worker, layer.up, layer.down, at, rows);
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) std::memset(at.units + (size_t)row * width, 0, width * 4);
    mixture.add(worker, layer, rows, at.units);
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      float *x = at.x + (size_t)row * width, *one = at.branch + (size_t)row * width, *other = at.units + (size_t)row * width;
      normalize(one, m.width, width, false, m.eps, one);
      normalize(other, m.width, width, false, m.eps, other);
      for (int i = 0; i < m.width; i++) one[i] = one[i] * layer.mlp_weight[i] + other[i] * more.experts_weight[i];
      normalize(one, m.width, width, false, m.eps, one);
      for (int i = 0; i < m.width; i++) x[i] = (x[i] + one[i] * more.sum_weight[i]) * more.scale[roles[row]];
    }
  }
};
