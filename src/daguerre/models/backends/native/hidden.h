// From tokens to hidden states, in all models but DiffusionGemma. Products run over the rows of all requests together, attention
// over each request's keys. Norms, rotations, softmax and everything else between products are in float32.

#pragma once

#include "experts.h"
#include "keys.h"
#include "packer.h"

// Clips, normalizes, scales and rotates query and key heads, and stores keys and values. `factors` is memory for two numbers a row.
template <class C> void place(const Model& m, const Layer& layer, const Batch& b, const std::vector<Keys>& keys,
                              const std::vector<int32_t>& part_of, int index, float* qkv, int stride, float* factors) {
  const int num = m.heads + m.kv_heads, half = m.rotary / 2;
  const Heads heads = {m.heads, m.kv_heads, m.head};
  const Sizes<C> sizes(m.head);
  auto inverse = [&](const float* x, int size) { return inverse_norm(x, size, m.eps); };
  if (m.clip_qkv > 0) {
#pragma omp for schedule(static)
    for (int row = 0; row < b.rows; row++) {
      float* x = qkv + (size_t)row * stride;
      for (int j = 0; j < (num + m.kv_heads) * m.head; j++) x[j] = std::min(std::max(x[j], -m.clip_qkv), m.clip_qkv);
    }
  }
  if (m.qk_norm == ALL_HEADS) {
#pragma omp for schedule(static)
    for (int row = 0; row < b.rows; row++) {
      const float* x = qkv + (size_t)row * stride;
      factors[2 * row] = inverse(x, m.heads * m.head), factors[2 * row + 1] = inverse(x + m.heads * m.head, m.kv_heads * m.head);
    }
  }
#pragma omp for schedule(static)
  for (int i = 0; i < b.rows * num; i++) {
    const int row = i / num, head = i % num, kv = head - m.heads;
    float* x = qkv + (size_t)row * stride + head * m.head;
    const float factor = m.qk_norm == NO_HEAD ? 1 : m.qk_norm == EACH_HEAD ? inverse(x, m.head) : factors[2 * row + (kv >= 0)];
    const float* weight = layer.qk_weight + head * m.head;
    for (int j = 0; j < m.head; j++) x[j] *= factor * weight[j];
    if (m.cos) {
      const float *cos = (layer.sliding ? m.sliding_cos : m.cos) + b.position[row] * half;
      const float *sin = (layer.sliding ? m.sliding_sin : m.sin) + b.position[row] * half;
      for (int j = 0; j < half; j++) {
        const float low = x[j], high = x[j + half];
        x[j] = low * cos[j] - high * sin[j];
        x[j + half] = high * cos[j] + low * sin[j];
      }
    }
    if (kv < 0) {
      if (m.query_scale)
        for (int j = 0; j < m.head; j++) x[j] *= m.query_scale[b.position[row]];
      continue;
    }
    const Part& part = b.parts[part_of[row]];
    store_row<C>(part, keys[part_of[row]], sizes, index, heads, kv, row - part.first, x, x + m.kv_heads * m.head);
  }
}

// The rows of a product that are rows of drafts, ascending, and memory for what the low-rank weights compute for them.
struct Drafts {
  const std::vector<int32_t>& rows;
  float* low;     // (draft rows, rank, padded): A x
  Inputs inputs;  // of the product with B
  float* added;   // (draft rows, panels of the MLP's first matrix): B A x, which is added before activations
};

template <class T, class C> struct Stack {
  const Model& m;
  const Batch& b;
  const int width = round_up(m.width, COLUMNS), all_heads = round_up(m.heads * m.head, COLUMNS), inner = round_up(m.inner, COLUMNS);

  // Hidden states (A, stride of D) of the wanted rows.
  void hidden(float* out) const {
    const int rows = b.rows, some = b.num_wanted, most = std::max(rows, some), qkv_width = m.layers[0].qkv.panels * COLUMNS;
    const int longest = std::max({width, all_heads, inner, round_up(m.experts.shared, COLUMNS)});
    const Heads heads = {m.heads, m.kv_heads, m.head};
    const size_t kept = words_kept<C>(b, heads);
    const std::vector<int32_t> draft_rows = rows_of_drafts(false), last_draft_rows = rows_of_drafts(true);
    const int num_drafts = std::max(draft_rows.size(), last_draft_rows.size());
    const int rank = num_drafts ? draft_panels() * COLUMNS : 0;
    const size_t room_rows = round_up(most, BLOCK) + (num_drafts ? BLOCK : 0), draft_room_rows = round_up(num_drafts, BLOCK);
    const size_t numbers_added = (size_t)num_drafts * m.layers[0].up_draft.b.panels * COLUMNS;
    static thread_local Scratch room;
    room.begin(4 * ((size_t)most * (2 * width + all_heads + inner + qkv_width + 1) + room_rows * longest * T::PARTS + 2 * rows + kept +
                    draft_room_rows * (rank + rank * T::PARTS + 1) + numbers_added) + 64 * 15);
    float *x = room.take<float>((size_t)most * width), *units = room.take<float>((size_t)most * width);
    float *y = room.take<float>((size_t)most * all_heads), *h = room.take<float>((size_t)most * inner);
    float* qkv = room.take<float>((size_t)rows * qkv_width);
    const Inputs inputs = {room.take<uint32_t>(room_rows * longest * T::PARTS), room.take<float>(most)};
    float* low = room.take<float>(draft_room_rows * rank);
    const Inputs low_inputs = {room.take<uint32_t>(draft_room_rows * rank * T::PARTS), room.take<float>(draft_room_rows)};
    float* added = room.take<float>(numbers_added);
    const Drafts drafts = {draft_rows, low, low_inputs, added}, last_drafts = {last_draft_rows, low, low_inputs, added};
    float* factors = room.take<float>(2 * rows);
    uint32_t* memory = room.take<uint32_t>(kept);
    std::memset(y, 0, (size_t)most * all_heads * 4);
    std::memset(h, 0, (size_t)most * inner * 4);
    std::memset(memory, 0, kept * 4);
    static thread_local Scratch experts_room;
    const Mixture<T> mixture(m, most, experts_room);

    const int others = m.window ? 1 : 0;  // the number of the caches of layers that do not slide
    const std::vector<Keys> keys = keys_in<C>(b, heads, memory, others);
    std::vector<int32_t> begin;
    std::vector<uint8_t> mask;
    const std::vector<Keys> within = m.window ? in_windows(b, keys_in<C>(b, heads, memory), m.window, begin, mask) : std::vector<Keys>();
    const Queries every(b, heads, false), last(b, heads, true);
    const std::vector<int32_t> part_of = parts_of(b, false), part_of_wanted = parts_of(b, true);
    const Norm norm = {m.centered != 0, m.eps};
    const int seen = m.pre_norm ? m.width : 0;  // how many numbers of a row the norms before products use; 0: none
    Shortage shortage;
#pragma omp parallel num_threads(b.threads)
    {
      const Worker worker;
      embed(part_of, x);
      int next[2] = {0, 0};  // of other layers, and of sliding ones: the number of the next in its caches
      for (int index = 0; index < m.num_layers; index++) {
        const Layer& layer = m.layers[index];
        const std::vector<Keys>& seen_keys = layer.sliding ? within : keys;
        const int number = next[layer.sliding != 0]++;
        const bool end = index == m.num_layers - 1;
        const int num = end ? some : rows;
        const std::vector<int32_t>& part_of_num = end ? part_of_wanted : part_of;
        prepare<T>(x, rows, width, layer.qkv, inputs, units, seen, norm,
                   weighted(layer.before_attention, part_of, 6 * index));
        multiply(worker, layer.qkv, layer.qkv_draft, inputs, rows, drafts, qkv, qkv_width, false);
        place<C>(m, layer, b, seen_keys, part_of, number, qkv, qkv_width, factors);
        (end ? last : every).template attend<C>(worker, seen_keys, number, qkv, qkv_width, y, all_heads, shortage);
        if (end) {
#pragma omp single
          gather_wanted(b, width, x, units);
        }
        const Drafts& here = end ? last_drafts : drafts;
        const bool apart = m.post_norm || m.adaptive;
        float* branch = apart ? units : x;
        prepare<T>(y, num, all_heads, layer.out, inputs);
        multiply(worker, layer.out, layer.out_draft, inputs, num, here, branch, width, !apart);
        if (m.post_norm) add_normalized(m, units, num, width, layer.attention_weight, layer.attention_bias, x);
        if (m.adaptive) add_gated(units, num, part_of_num, 6 * index + 2, x);
        const bool mixed = layer.router.panels > 0;
        prepare<T>(x, num, width, mixed ? *layer.expert_up : layer.up, inputs, units, seen, norm,
                   weighted(layer.before_mlp, part_of_num, 6 * index + 3));
        if (mixed) mixture.gather(worker, layer, m.pre_norm ? units : x, inputs, num);
        if (layer.up.panels) {
          float* inside = mixed ? mixture.shared : h;
          const int stride = mixed ? mixture.shared_stride : inner;
          const int added_stride = layer.up_draft.b.panels * COLUMNS;
          std::vector<int32_t> draft_of;  // the number of each row among those of drafts, or -1; empty where nothing is added
          if (add_before(worker, layer.up_draft, inputs, here)) {
            draft_of.assign(num, -1);
            for (int i = 0; i < (int)here.rows.size(); i++) draft_of[here.rows[i]] = i;
          }
          product<T>(worker, layer.up, inputs, num, [&](int row, int panel, const F* v) {
            F sum[VECTORS];
            if (!draft_of.empty() && draft_of[row] >= 0) {
              const float* more = here.added + (size_t)draft_of[row] * added_stride + panel * COLUMNS;
              for (int j = 0; j < VECTORS; j++) sum[j] = v[j] + load<F>(more + j * LANES);
              v = sum;
            }
            if (m.gated) return gate(v, m.activation, inside + (size_t)row * stride + panel * (COLUMNS / 2));
            float* to = inside + (size_t)row * stride + panel * COLUMNS;
            for (int j = 0; j < VECTORS; j++) store(to + j * LANES, activated(v[j], m.activation));
          });
          prepare<T>(inside, num, stride, layer.down, inputs);
          multiply(worker, layer.down, layer.down_draft, inputs, num, here, branch, width, !apart);
        } else if (m.post_norm) {
#pragma omp for schedule(static)
          for (int row = 0; row < num; row++) std::memset(branch + (size_t)row * width, 0, width * 4);
        }
        if (mixed) mixture.add(worker, layer, num, branch);
        if (m.post_norm) add_normalized(m, units, num, width, layer.mlp_weight, layer.mlp_bias, x);
        if (m.adaptive) add_gated(units, num, part_of_num, 6 * index + 5, x);
      }
#pragma omp for schedule(static)
      for (int row = 0; row < some; row++) {
        float* to = out + (size_t)row * width;
        normalize(x + (size_t)row * width, m.width, width, m.centered, m.eps, to);
        if (m.adaptive) {
          weighted(nullptr, part_of_wanted, 6 * m.num_layers)(row, to);
          continue;
        }
        for (int i = 0; i < m.width; i++) to[i] = to[i] * m.final_weight[i] + (m.final_bias ? m.final_bias[i] : 0);
      }
    }
    shortage.check();
    experts_room.end();
    room.end();
  }

  // The most panels of the low-rank weights' first matrices; 0 if there are none.
  int draft_panels() const {
    const Layer& layer = m.layers[0];
    return std::max({layer.qkv_draft.a.panels, layer.out_draft.a.panels, layer.up_draft.a.panels, layer.down_draft.a.panels});
  }

  // The rows of drafts, ascending: as rows of the batch, or, for the last layer, of its wanted rows.
  std::vector<int32_t> rows_of_drafts(bool wanted) const {
    std::vector<int32_t> out;
    if (!draft_panels()) return out;
    for (int p = 0; p < b.num_parts; p++) {
      const Part& part = b.parts[p];
      if (!part.drafting) continue;
      const int first = wanted ? part.first_wanted : part.first, num = wanted ? part.num_wanted : part.rows;
      for (int i = first; i < first + num; i++)
        if ((wanted ? b.wanted[i] : i - first) >= part.clean) out.push_back(i);
    }
    return out;
  }

  // The product of all rows with a matrix, and, for rows of drafts, with its low-rank weights: `to` (rows, stride) is
  // replaced by it, or with `add` increased. A x is computed beside the product with the matrix, B A x behind it.
  void multiply(const Worker& worker, const Linear& matrix, const LowRank& draft, const Inputs& inputs, int rows, const Drafts& drafts,
                float* to, int stride, bool add) const {
    const int num = draft.a.panels ? drafts.rows.size() : 0, some = num > 0;
#pragma omp for schedule(static)
    for (int i = 0; i < matrix.panels + some; i++) {
      if (i >= some) {
        multiply_panel<T>(worker, matrix, inputs, 0, rows, i - some, [&](int row, int panel, const F* v) {
          float* at = to + (size_t)row * stride + panel * COLUMNS;
          for (int j = 0; j < VECTORS; j++) store(at + j * LANES, add ? load<F>(at + j * LANES) + v[j] : v[j]);
        });
        continue;
      }
      multiply_low(worker, draft, inputs, drafts);
    }
    if (!some) return;
    const NarrowTiles tiles(worker, draft.b.words);
    product<T>(worker, draft.b, drafts.inputs, num, [&](int row, int panel, const F* v) {
      float* at = to + (size_t)drafts.rows[row] * stride + panel * COLUMNS;
      for (int j = 0; j < VECTORS; j++) store(at + j * LANES, load<F>(at + j * LANES) + v[j]);
    });
  }

  // A x of the rows of drafts, as inputs of the product with B; by one thread.
  void multiply_low(const Worker& worker, const LowRank& draft, const Inputs& inputs, const Drafts& drafts) const {
    const int num = drafts.rows.size(), rank = draft.a.panels * COLUMNS;
    for (int from = 0, end; from < num; from = end) {  // adjacent rows at once
      for (end = from + 1; end < num && drafts.rows[end] == drafts.rows[end - 1] + 1;) end++;
      const int shift = drafts.rows[from] - from;
      for (int panel = 0; panel < draft.a.panels; panel++)
        multiply_panel<T>(worker, draft.a, inputs, drafts.rows[from], end - from, panel, [&](int row, int panel, const F* v) {
          float* low = drafts.low + (size_t)(row - shift) * rank + panel * COLUMNS;
          std::memcpy(low, v, draft.quarters * QUARTER * 4);
          std::fill(low + draft.quarters * QUARTER, low + COLUMNS, 0.0f);
        }, draft.quarters);
    }
    for (int row = 0; row < num; row++) put_row<T>(drafts.low + (size_t)row * rank, draft.b, drafts.inputs, row);
  }

  // B A x of the rows of drafts, into `Drafts::added`, for a matrix whose results are not kept as they are; false if there is none.
  bool add_before(const Worker& worker, const LowRank& draft, const Inputs& inputs, const Drafts& drafts) const {
    const int num = draft.a.panels ? drafts.rows.size() : 0, stride = draft.b.panels * COLUMNS;
    if (!num) return false;
#pragma omp single
    multiply_low(worker, draft, inputs, drafts);
    const NarrowTiles tiles(worker, draft.b.words);
    product<T>(worker, draft.b, drafts.inputs, num, [&](int row, int panel, const F* v) {
      float* at = drafts.added + (size_t)row * stride + panel * COLUMNS;
      for (int j = 0; j < VECTORS; j++) store(at + j * LANES, v[j]);
    });
    return true;
  }

  // The rows' embeddings, padded with zeros to the stride.
  void embed(const std::vector<int32_t>& part_of, float* x) const {
#pragma omp for schedule(static)
    for (int row = 0; row < b.rows; row++) {
      float* to = x + (size_t)row * width;
      const C* from = static_cast<const C*>(m.embedding) + b.tokens[row] * (int64_t)m.width;
      const Part& part = b.parts[part_of[row]];
      const float *added = m.adaptive ? nullptr : part.added, *learned = m.learned ? m.learned + b.position[row] * m.width : nullptr;
      if (m.embedding) {
        for (int i = 0; i < width; i += LANES) store(to + i, i < m.width ? widen(from + i, m.width - i) : F{});
      } else {
        unpack_column<HeadOf<T>>(m.tokens, b.tokens[row], m.width, to);
        std::fill(to + m.width, to + width, 0.0f);
      }
      if (m.embedding_scale != 1)
        for (int i = 0; i < m.width; i++) to[i] *= m.embedding_scale;
      if (m.draft_row && part.drafting && row - part.first >= part.clean) std::memcpy(to, m.draft_row, (size_t)m.width * 4);
      for (const float* more : {added, learned})
        if (more)
          for (int i = 0; i < m.width; i++) to[i] += more[i];
    }
  }

  // Vector `number` of those that a part's noise level gives to an adaptive model.
  const float* vector(int part, int number) const { return b.parts[part].added + (size_t)number * m.width; }

  // What changes the normalized numbers of a row: the weights of the norm; in an adaptive model the bias, which is vector `number`
  // of the row's part, and the weight, the one after it.
  auto weighted(const float* weights, const std::vector<int32_t>& part_of, int number) const {
    return [this, weights, &part_of, number](int row, float* unit) {
      if (!m.adaptive) return weigh(unit, weights, m.width);
      const float *bias = vector(part_of[row], number), *weight = bias + m.width;
      for (int i = 0; i < m.width; i++) unit[i] = unit[i] * weight[i] + bias[i];
    };
  }

  // Adds the output of a residual branch to x, multiplied by a gate, which is vector `number` of the row's part.
  void add_gated(const float* branch, int rows, const std::vector<int32_t>& part_of, int number, float* x) const {
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      const float *from = branch + (size_t)row * width, *gate = vector(part_of[row], number);
      float* to = x + (size_t)row * width;
      for (int i = 0; i < m.width; i++) to[i] += from[i] * gate[i];
    }
  }
};
