// The keys of a batch's requests, whatever the stack: where they are stored, which rows see them, and attention over them.

#pragma once

#include <exception>
#include <vector>

#include "model.h"

// The heads of a layer: of queries, of keys, and the width of each.
struct Heads {
  int num, kv, width;
  int groups() const { return num / kv; }
};

inline float inverse_norm(const float* x, int num, float eps) { return 1 / std::sqrt(square_sum(x, num) / num + eps); }

// Stores the key and the value of a row: of a clean row in the request's cache, as numbers or codes, of a noisy one beside it.
template <class C>
void store_row(const Part& part, const Keys& keys, const Sizes<C>& sizes, int index, const Heads& heads, int kv, int at, float* key,
               float* value) {
  if (at < part.clean)
    return keep<C>(key, value, Panels<C>(keys.cache, sizes, index, heads.kv, kv), sizes, part.past + at, heads.width);
  if (keys.cache.codes)  // rounded as they would be in the cache
    for (float* y : {key, value}) {
      const float scale = scale_of<C>(y, heads.width);
      for (int j = 0; j < heads.width; j++) y[j] = code_of(y[j], scale) * scale;
    }
  keep<C>(key, value, Panels<C>(keys.noisy, sizes, 0, heads.kv, kv), sizes, at - part.clean, heads.width);
}

// Words of memory for keys and values that are not in a cache: those of clean rows without a cache, and of noisy rows.
template <class C> size_t words_kept(const Batch& b, const Heads& heads) {
  const Sizes<C> sizes(heads.width);
  size_t words = 0;
  for (int p = 0; p < b.num_parts; p++) {
    const Part& part = b.parts[p];
    const int clean = part.cache ? 0 : part.clean, noisy = part.rows - part.clean;
    words += (size_t)(round_up(clean, COLUMNS) + round_up(noisy, COLUMNS)) / COLUMNS * heads.kv *
             (sizes.key_panel + sizes.value_panel);
  }
  return words;
}

// The keys of every request, in cache number `kind` of each; those that are not in a cache are in `memory`.
template <class C> std::vector<Keys> keys_in(const Batch& b, const Heads& heads, uint32_t* memory, int kind = 0) {
  const Sizes<C> sizes(heads.width);
  auto panels = [&](int num) {
    const Cache out{nullptr, reinterpret_cast<char*>(memory), 1, 0};
    memory += (size_t)round_up(num, COLUMNS) / COLUMNS * heads.kv * (sizes.key_panel + sizes.value_panel);
    return out;
  };
  std::vector<Keys> out(b.num_parts);
  for (int p = 0; p < b.num_parts; p++) {
    const Part& part = b.parts[p];
    Keys& keys = out[p];
    keys.cache = part.cache ? part.cache[kind] : panels(part.clean);
    keys.noisy = panels(part.rows - part.clean);
    keys.num_clean = part.past + part.clean, keys.num_noisy = part.rows - part.clean;
    keys.begin = part.begin, keys.end = b.end + part.first;
    keys.mask = part.mask, keys.mask_width = part.mask ? part.mask_width : 0;
  }
  return out;
}

struct Gone : std::exception {};

// The same keys as rows of sliding layers see them: those at the last `window` positions up to a row's own. Noisy rows without a mask
// see one another, and what a clean row in the first noisy place would see (models/forward.py, `Layout.within`). `begin` and `mask`
// are memory for where the runs of rows begin, and for their masks. Throws `Gone` where a row sees keys whose page was let go.
inline std::vector<Keys> in_windows(const Batch& b, std::vector<Keys> keys, int window, std::vector<int32_t>& begin,
                                    std::vector<uint8_t>& mask) {
  size_t masked = 0;
  for (int p = 0; p < b.num_parts; p++) masked += (size_t)b.parts[p].rows * keys[p].mask_width;
  begin.resize(b.rows), mask.resize(masked);
  uint8_t* to = mask.data();
  for (int p = 0; p < b.num_parts; p++) {
    const Part& part = b.parts[p];
    const int64_t* position = b.position + part.first;
    const int width = keys[p].mask_width, base = part.past + part.rows - width;  // the first key that the mask is about
    int lowest = keys[p].mask ? base : part.past;
    for (int i = 0; i < part.rows; i++) {
      const int64_t place = keys[p].mask ? position[i] : part.past + std::min(i, part.clean);
      begin[part.first + i] = std::max((int)(place + 1 - window), keys[p].first(i));
      lowest = std::min(lowest, begin[part.first + i]);
      for (int j = 0; j < width; j++) {
        const int key = base + j;
        const int64_t at = key < part.past ? key : position[key - part.past];
        to[(size_t)i * width + j] = keys[p].mask[(size_t)i * width + j] && at > place - window;
      }
    }
    char* const* pages = keys[p].cache.pages;
    for (int panel = lowest / COLUMNS; pages && panel * COLUMNS < part.past; panel++)
      if (!pages[panel]) throw Gone();
    keys[p].begin = begin.data() + part.first;
    if (keys[p].mask) keys[p].mask = to, to += (size_t)part.rows * width;
  }
  return keys;
}

// Queries of one key head of a request, as many as attention processes at once.
struct Item { int part, kv, first, num; };

// The queries of all rows of a batch, or of its wanted rows, in the order in which attention processes them.
struct Queries {
  const Batch& b;
  const Heads heads;
  const bool wanted;
  std::vector<Item> items;
  std::vector<int32_t> all_rows;

  Queries(const Batch& b, const Heads& heads, bool wanted) : b(b), heads(heads), wanted(wanted) {
    for (int p = 0; p < b.num_parts; p++) {
      const int rows = wanted ? b.parts[p].num_wanted : b.parts[p].rows;
      for (int kv = 0; kv < heads.kv; kv++)
        for (int i = 0, num = rows * heads.groups(); i < num; i += QUERIES) items.push_back({p, kv, i, std::min(QUERIES, num - i)});
      for (int i = all_rows.size(); i < rows; i++) all_rows.push_back(i);
    }
  }

  // Results y (rows, stride) of qkv (all rows, stride of qkv). `index`: the layer's number in the caches.
  template <class C>
  void attend(const Worker& worker, const std::vector<Keys>& keys, int index, const float* qkv, int qkv_stride, float* y,
              int stride, Shortage& shortage) const {
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < items.size(); i++) {
      const Item& item = items[i];
      const Part& part = b.parts[item.part];
      const int32_t* rows = wanted ? b.wanted + part.first_wanted : all_rows.data();
      float* to = y + (size_t)(wanted ? part.first_wanted : part.first) * stride;
      shortage.guard([&] {
        ::attend<C>(worker, keys[item.part], index, heads.kv, item.kv, heads.groups(), heads.width, rows, item.first, item.num,
                    qkv + (size_t)part.first * qkv_stride, qkv_stride, to, stride);
      });
    }
  }
};

// The part of each row, or of each wanted row.
inline std::vector<int32_t> parts_of(const Batch& b, bool wanted) {
  std::vector<int32_t> out;
  for (int p = 0; p < b.num_parts; p++) out.resize(out.size() + (wanted ? b.parts[p].num_wanted : b.parts[p].rows), p);
  return out;
}

// Replaces the rows of x (rows, stride) by the wanted rows.
inline void gather_wanted(const Batch& b, int stride, float* x, float* room) {
  for (int p = 0; p < b.num_parts; p++)
    for (int i = b.parts[p].first_wanted; i < b.parts[p].first_wanted + b.parts[p].num_wanted; i++)
      std::memcpy(room + (size_t)i * stride, x + (size_t)(b.parts[p].first + b.wanted[i]) * stride, stride * 4);
  std::memcpy(x, room, (size_t)b.num_wanted * stride * 4);
}

// Adds the normalized output of a residual branch to x (post-norm).
inline void add_normalized(const Model& m, float* branch, int rows, int stride, const float* weight, const float* bias, float* x) {
#pragma omp for schedule(static)
  for (int row = 0; row < rows; row++) {
    float *from = branch + (size_t)row * stride, *to = x + (size_t)row * stride;
    normalize(from, m.width, stride, m.centered, m.eps, from);
    for (int i = 0; i < m.width; i++) to[i] += from[i] * weight[i] + (bias ? bias[i] : 0);
  }
}
