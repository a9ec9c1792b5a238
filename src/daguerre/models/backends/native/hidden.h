// From tokens to hidden states. Products run over the rows of all requests together, attention over each request's keys.
// Norms, rotations, softmax and everything else between products are in float32.

#pragma once

#include <vector>

#include "experts.h"

// Normalizes, scales and rotates query and key heads, and stores keys and values. `factors` is memory for two numbers a row.
template <class C> void place(const Model& m, const Layer& layer, const Batch& b, const std::vector<Keys>& keys, const int32_t* part_of,
                              int index, float* qkv, int stride, float* factors) {
  const int num = m.heads + m.kv_heads, half = m.rotary / 2;
  const Sizes<C> sizes(m.head);
  auto inverse = [&](const float* x, int size) { return 1 / std::sqrt(square_sum(x, size) / size + m.eps); };
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
      const float *cos = m.cos + b.position[row] * m.rotary, *sin = m.sin + b.position[row] * m.rotary;
      for (int j = 0; j < half; j++) {
        const float low = x[j], high = x[j + half];
        x[j] = low * cos[j] + high * sin[j];
        x[j + half] = high * cos[j + half] + low * sin[j + half];
      }
    }
    if (kv < 0) {
      if (m.query_scale)
        for (int j = 0; j < m.head; j++) x[j] *= m.query_scale[b.position[row]];
      continue;
    }
    const Part& part = b.parts[part_of[row]];
    const Keys& part_keys = keys[part_of[row]];
    const int at = row - part.first;
    float* value = x + m.kv_heads * m.head;
    if (at < part.clean) {
      keep<C>(x, value, Panels<C>(part_keys.cache, sizes, index, m.kv_heads, kv), sizes, part.past + at, m.head);
      continue;
    }
    if (part_keys.cache.scales)  // rounded as they would be in the cache
      for (float* y : {x, value}) {
        const float scale = scale_of<C>(y, m.head);
        for (int j = 0; j < m.head; j++) y[j] = code_of(y[j], scale) * scale;
      }
    keep<C>(x, value, Panels<C>(part_keys.noisy, sizes, 0, m.kv_heads, kv), sizes, at - part.clean, m.head);
  }
}

// Queries of one key head of a request, as many as attention processes at once.
struct Item { int part, kv, first, num; };

// The rows of a product that are rows of drafts, ascending, and memory for what the low-rank weights compute for them.
struct Drafts {
  const std::vector<int32_t>& rows;
  float* low;     // (draft rows, rank, padded): A x
  Inputs inputs;  // of the product with B
};

template <class T, class C> struct Stack {
  const Model& m;
  const Batch& b;
  const int width = round_up(m.width, COLUMNS), all_heads = round_up(m.heads * m.head, COLUMNS), inner = round_up(m.inner, COLUMNS);
  const int vocab = round_up(m.vocab, COLUMNS);

  // Hidden states (A, stride of D) of the wanted rows.
  void hidden(float* out) const {
    const int rows = b.rows, some = b.num_wanted, most = std::max(rows, some), qkv_width = m.layers[0].qkv.panels * COLUMNS;
    const int longest = std::max({width, all_heads, inner, round_up(m.experts.shared, COLUMNS)});
    const int groups = m.heads / m.kv_heads;
    const Sizes<C> sizes(m.head);
    const size_t kept = words_kept(sizes);
    const std::vector<int32_t> draft_rows = rows_of_drafts(false), last_draft_rows = rows_of_drafts(true);
    const int num_drafts = std::max(draft_rows.size(), last_draft_rows.size());
    const int rank = num_drafts ? draft_panels() * COLUMNS : 0;
    const size_t room_rows = round_up(most, BLOCK) + (num_drafts ? BLOCK : 0), draft_room_rows = round_up(num_drafts, BLOCK);
    static thread_local Scratch room;
    room.begin(4 * ((size_t)most * (2 * width + all_heads + inner + qkv_width + 1) + room_rows * longest * T::PARTS + 3 * rows + kept +
                    draft_room_rows * (rank + rank * T::PARTS + 1)) + 64 * 15);
    float *x = room.take<float>((size_t)most * width), *units = room.take<float>((size_t)most * width);
    float *y = room.take<float>((size_t)most * all_heads), *h = room.take<float>((size_t)most * inner);
    float* qkv = room.take<float>((size_t)rows * qkv_width);
    const Inputs inputs = {room.take<uint32_t>(room_rows * longest * T::PARTS), room.take<float>(most)};
    float* low = room.take<float>(draft_room_rows * rank);
    const Inputs low_inputs = {room.take<uint32_t>(draft_room_rows * rank * T::PARTS), room.take<float>(draft_room_rows)};
    const Drafts drafts = {draft_rows, low, low_inputs}, last_drafts = {last_draft_rows, low, low_inputs};
    int32_t* part_of = room.take<int32_t>(rows);
    float* factors = room.take<float>(2 * rows);
    uint32_t* memory = room.take<uint32_t>(kept);
    std::memset(y, 0, (size_t)most * all_heads * 4);
    std::memset(h, 0, (size_t)most * inner * 4);
    std::memset(memory, 0, kept * 4);
    static thread_local Scratch experts_room;
    const Mixture<T> mixture(m, most, experts_room);

    const std::vector<Keys> keys = keys_in(memory, sizes);
    const std::vector<Item> every = items(&Part::rows), last = items(&Part::num_wanted);
    std::vector<int32_t> all_rows, part_of_wanted;
    for (int p = 0; p < b.num_parts; p++) {
      for (int i = 0; i < b.parts[p].rows; i++) {
        part_of[b.parts[p].first + i] = p;
        if (i == (int)all_rows.size()) all_rows.push_back(i);
      }
      part_of_wanted.resize(part_of_wanted.size() + b.parts[p].num_wanted, p);
    }

    const Norm norm = {m.centered != 0, m.eps};
    const int seen = m.post_norm ? 0 : m.width;  // how many numbers of a row the norms before products use; 0: none
#pragma omp parallel num_threads(b.threads)
    {
      const Worker worker;
      embed(part_of, x);
      for (int index = 0; index < m.num_layers; index++) {
        const Layer& layer = m.layers[index];
        const bool end = index == m.num_layers - 1;
        const int num = end ? some : rows;
        const int32_t* part_of_num = end ? part_of_wanted.data() : part_of;
        prepare<T>(x, rows, width, layer.qkv.words, inputs, units, seen, norm, modulated(part_of, 6 * index));
        multiply(worker, layer.qkv, layer.qkv_draft, inputs, rows, drafts, qkv, qkv_width, false);
        place<C>(m, layer, b, keys, part_of, index, qkv, qkv_width, factors);
        const std::vector<Item>& items = end ? last : every;
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < items.size(); i++) {
          const Item& item = items[i];
          const Part& part = b.parts[item.part];
          const int32_t* wanted = end ? b.wanted + part.first_wanted : all_rows.data();
          float* to = y + (size_t)(end ? part.first_wanted : part.first) * all_heads;
          attend<C>(worker, keys[item.part], index, m.kv_heads, item.kv, groups, m.head, wanted, item.first, item.num,
                    qkv + (size_t)part.first * qkv_width, qkv_width, to, all_heads);
        }
        if (end) {
#pragma omp single
          gather(x, units);
        }
        const Drafts& here = end ? last_drafts : drafts;
        const bool apart = m.post_norm || m.adaptive;
        float* branch = apart ? units : x;
        prepare<T>(y, num, all_heads, layer.out.words, inputs);
        multiply(worker, layer.out, layer.out_draft, inputs, num, here, branch, width, !apart);
        if (m.post_norm) add_normalized(units, num, layer.attention_weight, layer.attention_bias, x);
        if (m.adaptive) add_gated(units, num, part_of_num, 6 * index + 2, x);
        const bool mixed = layer.router.panels > 0;
        prepare<T>(x, num, width, mixed ? layer.expert_up->words : layer.up.words, inputs, units, seen, norm,
                   modulated(part_of_num, 6 * index + 3));
        if (mixed) mixture.gather(worker, layer, m.post_norm ? x : units, inputs, num);
        if (layer.up.panels) {
          float* inside = mixed ? mixture.shared : h;
          const int stride = mixed ? mixture.shared_stride : inner;
          product<T>(worker, layer.up, inputs, num, [&](int row, int panel, const F* v) {
            if (m.gated) return gate(v, m.activation, inside + (size_t)row * stride + panel * (COLUMNS / 2));
            float* to = inside + (size_t)row * stride + panel * COLUMNS;
            for (int j = 0; j < VECTORS; j++) store(to + j * LANES, activated(v[j], m.activation));
          });
          prepare<T>(inside, num, stride, layer.down.words, inputs);
          multiply(worker, layer.down, layer.down_draft, inputs, num, here, branch, width, !apart);
        } else if (m.post_norm) {
#pragma omp for schedule(static)
          for (int row = 0; row < num; row++) std::memset(branch + (size_t)row * width, 0, width * 4);
        }
        if (mixed) mixture.add(worker, layer, num, branch);
        if (m.post_norm) add_normalized(units, num, layer.mlp_weight, layer.mlp_bias, x);
        if (m.adaptive) add_gated(units, num, part_of_num, 6 * index + 5, x);
      }
#pragma omp for schedule(static)
      for (int row = 0; row < some; row++) {
        float* to = out + (size_t)row * width;
        normalize(x + (size_t)row * width, m.width, width, m.centered, m.eps, to);
        if (m.adaptive) {
          modulated(part_of_wanted.data(), 6 * m.num_layers)(row, to);
          continue;
        }
        for (int i = 0; i < m.width; i++) to[i] = to[i] * m.final_weight[i] + (m.final_bias ? m.final_bias[i] : 0);
      }
    }
    experts_room.end();
    room.end();
  }

  // Panels of the low-rank weights' first matrices, which have one rank; 0 if there are none.
  int draft_panels() const {
    const Layer& layer = m.layers[0];
    return std::max({layer.qkv_draft.a.panels, layer.out_draft.a.panels, layer.down_draft.a.panels});
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
    const int num = draft.a.panels ? drafts.rows.size() : 0, some = num > 0, rank = draft.a.panels * COLUMNS;
#pragma omp for schedule(static)
    for (int i = 0; i < matrix.panels + some; i++) {
      if (i >= some) {
        multiply_panel<T>(worker, matrix, inputs, 0, rows, i - some, [&](int row, int panel, const F* v) {
          float* at = to + (size_t)row * stride + panel * COLUMNS;
          for (int j = 0; j < VECTORS; j++) store(at + j * LANES, add ? load<F>(at + j * LANES) + v[j] : v[j]);
        });
        continue;
      }
      for (int from = 0, end; from < num; from = end) {  // adjacent rows at once
        for (end = from + 1; end < num && drafts.rows[end] == drafts.rows[end - 1] + 1;) end++;
        const int shift = drafts.rows[from] - from;
        for (int panel = 0; panel < draft.a.panels; panel++)
          multiply_panel<T>(worker, draft.a, inputs, drafts.rows[from], end - from, panel, [&](int row, int panel, const F* v) {
            std::memcpy(drafts.low + (size_t)(row - shift) * rank + panel * COLUMNS, v, COLUMNS * 4);
          }, draft.quarters);
      }
      for (int row = 0; row < num; row++)
        drafts.inputs.scale[row] = T::row(drafts.low + (size_t)row * rank, draft.b.words * T::PER,
                                          drafts.inputs.rows + (size_t)row * draft.b.words * T::PARTS);
    }
    if (!some) return;
    const NarrowTiles tiles(worker, draft.b.words);
    product<T>(worker, draft.b, drafts.inputs, num, [&](int row, int panel, const F* v) {
      float* at = to + (size_t)drafts.rows[row] * stride + panel * COLUMNS;
      for (int j = 0; j < VECTORS; j++) store(at + j * LANES, load<F>(at + j * LANES) + v[j]);
    });
  }

  // Words of memory for keys and values that are not in a cache: those of clean rows without a cache, and of noisy rows.
  size_t words_kept(const Sizes<C>& sizes) const {
    size_t words = 0;
    for (int p = 0; p < b.num_parts; p++) {
      const Part& part = b.parts[p];
      const int clean = part.cache ? 0 : part.clean, noisy = part.rows - part.clean;
      words += (size_t)(round_up(clean, COLUMNS) + round_up(noisy, COLUMNS)) / COLUMNS * m.kv_heads *
               (sizes.key_panel + sizes.value_panel);
    }
    return words;
  }

  // The keys of every request; those that are not in a cache are in `memory`.
  std::vector<Keys> keys_in(uint32_t* memory, const Sizes<C>& sizes) const {
    auto panels = [&](int num) {
      const size_t all_panels = (size_t)round_up(num, COLUMNS) / COLUMNS * m.kv_heads;
      uint32_t *keys = memory, *values = memory + all_panels * sizes.key_panel;
      memory = values + all_panels * sizes.value_panel;
      return Cache{keys, values, nullptr, round_up(num, COLUMNS), 1};
    };
    std::vector<Keys> out(b.num_parts);
    for (int p = 0; p < b.num_parts; p++) {
      const Part& part = b.parts[p];
      Keys& keys = out[p];
      keys.cache = part.cache ? *part.cache : panels(part.clean);
      keys.noisy = panels(part.rows - part.clean);
      keys.num_clean = part.past + part.clean, keys.num_noisy = part.rows - part.clean;
      keys.begin = part.begin, keys.end = b.end + part.first;
      keys.mask = part.mask, keys.mask_width = part.mask ? part.mask_width : 0;
    }
    return out;
  }

  // The queries of all requests; `num_rows` is the field of a part with its number of rows.
  std::vector<Item> items(int32_t Part::*num_rows) const {
    std::vector<Item> out;
    const int groups = m.heads / m.kv_heads;
    for (int p = 0; p < b.num_parts; p++)
      for (int kv = 0; kv < m.kv_heads; kv++)
        for (int i = 0, num = b.parts[p].*num_rows * groups; i < num; i += QUERIES)
          out.push_back({p, kv, i, std::min(QUERIES, num - i)});
    return out;
  }

  // The rows' embeddings, padded with zeros to the stride.
  void embed(const int32_t* part_of, float* x) const {
#pragma omp for schedule(static)
    for (int row = 0; row < b.rows; row++) {
      float* to = x + (size_t)row * width;
      const C* from = static_cast<const C*>(m.embedding) + b.tokens[row] * (int64_t)m.width;
      const float *added = m.adaptive ? nullptr : b.parts[part_of[row]].added, *learned = m.learned ? m.learned + b.position[row] * m.width : nullptr;
      for (int i = 0; i < width; i += LANES) store(to + i, i < m.width ? widen(from + i, m.width - i) : F{});
      for (const float* more : {added, learned})
        if (more)
          for (int i = 0; i < m.width; i++) to[i] += more[i];
    }
  }

  // Replaces the rows of x by the wanted rows.
  void gather(float* x, float* room) const {
    for (int p = 0; p < b.num_parts; p++)
      for (int i = b.parts[p].first_wanted; i < b.parts[p].first_wanted + b.parts[p].num_wanted; i++)
        std::memcpy(room + (size_t)i * width, x + (size_t)(b.parts[p].first + b.wanted[i]) * width, width * 4);
    std::memcpy(x, room, (size_t)b.num_wanted * width * 4);
  }

  // Vector `number` of those that a part's noise level gives to an adaptive model.
  const float* vector(int part, int number) const { return b.parts[part].added + (size_t)number * m.width; }

  // What changes the normalized numbers of a row of an adaptive model: the bias, which is vector `number` of the row's part, and
  // the weight, the one after it. No change in other models.
  auto modulated(const int32_t* part_of, int number) const {
    return [this, part_of, number](int row, float* unit) {
      if (!m.adaptive) return;
      const float *bias = vector(part_of[row], number), *weight = bias + m.width;
      for (int i = 0; i < m.width; i++) unit[i] = unit[i] * weight[i] + bias[i];
    };
  }

  // Adds the output of a residual branch to x, multiplied by a gate, which is vector `number` of the row's part.
  void add_gated(const float* branch, int rows, const int32_t* part_of, int number, float* x) const {
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      const float *from = branch + (size_t)row * width, *gate = vector(part_of[row], number);
      float* to = x + (size_t)row * width;
      for (int i = 0; i < m.width; i++) to[i] += from[i] * gate[i];
    }
  }

  // Adds the normalized output of a residual branch to x (post-norm).
  void add_normalized(float* branch, int rows, const float* weight, const float* bias, float* x) const {
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      float *from = branch + (size_t)row * width, *to = x + (size_t)row * width;
      normalize(from, m.width, width, m.centered, m.eps, from);
      for (int i = 0; i < m.width; i++) to[i] += from[i] * weight[i] + (bias ? bias[i] : 0);
    }
  }
};
