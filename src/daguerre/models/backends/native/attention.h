// Attention of the rows of many requests, each over the keys of its request.
//
// Keys and values are stored in panels of COLUMNS rows, packed like matrices, so that they are multiplied in place. Clean
// rows are stored in the request's cache or, without one, in memory of the call; noisy rows, which are not cached, separately.
// A key's place depends only on its index, so a row sums over its keys in the same order with and without a cache, and
// whatever the noisy rows.

#pragma once

#include <atomic>
#include <memory>
#include <new>

#include "products.h"

constexpr size_t KEPT = (size_t)64 << 20;  // bytes that each `Scratch` of a thread keeps from one call to the next
constexpr int QUERIES = 2 * BLOCK;         // queries of a key head for which keys and values are read once

// Memory for one call, reused by the next calls of the same thread.
struct Scratch {
  std::unique_ptr<char[]> bytes;
  size_t size = 0, used = 0;
  void begin(size_t num) {
    if (size < num + 64) {
      bytes.reset(), size = 0;  // and so it stays if there is no memory
      bytes.reset(new char[num + 64]), size = num + 64;
    }
    used = (64 - reinterpret_cast<uintptr_t>(bytes.get()) % 64) % 64;
  }
  template <class X> X* take(size_t num) {
    const size_t start = used;
    used = start + (num * sizeof(X) + 63) / 64 * 64;
    return reinterpret_cast<X*>(bytes.get() + start);
  }
  void end() {  // memory for a long prompt is freed
    if (size > KEPT) bytes.reset(), size = 0;
  }
};

// Whether threads ran out of memory: an exception must not leave a parallel region, so it is thrown after it.
struct Shortage {
  std::atomic<bool> any{false};
  template <class Function> void guard(Function function) {
    try {
      function();
    } catch (const std::bad_alloc&) {
      any = true;
    }
  }
  void check() const {
    if (any) throw std::bad_alloc();
  }
};

// Maps the type of a cache's numbers (float, or uint16_t for bfloat16) to the type of their products.
template <class C> struct Stored { typedef Float32 Product; };
template <> struct Stored<uint16_t> { typedef Bfloat16 Product; };

// Keys and values of one request, in pages of COLUMNS rows. A page has a panel of keys for each head of each layer, then as many of
// values, and with `codes`, where its numbers are 8-bit codes in the same order, the scales (heads of all layers, COLUMNS, 2).
struct Cache {
  char* const* pages;  // one for each panel, null once no row sees it; null: they follow one another in `memory`
  char* memory;
  int32_t layers;  // 1: each layer may overwrite the one before
  int32_t codes;
};

// Sizes of panels, in words.
template <class C> struct Sizes {
  static constexpr int PER = 4 / sizeof(C), KEYS = COLUMNS / PER;  // KEYS: words of a column of values in a panel
  int words, wide;                                                // words of a key; columns of a value, rounded up
  size_t key_panel, value_panel;
  explicit Sizes(int head)
      : words(round_up(round_up(head, PER) / PER, WORDS)), wide(round_up(head, COLUMNS)), key_panel((size_t)words * COLUMNS),
        value_panel((size_t)KEYS * round_up(head, COLUMNS)) {}
};

// The panels of one key head of one layer.
template <class C> struct Panels {
  const Cache& cache;
  size_t page_size, key_at, value_at, scale_at;  // in bytes; in a cache of codes a word takes PER of them
  Panels(const Cache& cache, const Sizes<C>& sizes, int layer, int heads, int head) : cache(cache) {
    const size_t word = cache.codes ? sizes.PER : 4, all_heads = (size_t)cache.layers * heads;
    const size_t at = (size_t)(cache.layers > 1 ? layer : 0) * heads + head;
    key_at = at * sizes.key_panel * word, value_at = (all_heads * sizes.key_panel + at * sizes.value_panel) * word;
    const size_t numbers = all_heads * (sizes.key_panel + sizes.value_panel) * word;
    scale_at = numbers + at * COLUMNS * 2 * sizeof(float);
    page_size = numbers + (cache.codes ? all_heads * COLUMNS * 2 * sizeof(float) : 0);
  }
  char* page(int panel) const { return cache.pages ? cache.pages[panel] : cache.memory + panel * page_size; }
  uint32_t* keys(int panel) const { return reinterpret_cast<uint32_t*>(page(panel) + key_at); }
  uint32_t* values(int panel) const { return reinterpret_cast<uint32_t*>(page(panel) + value_at); }
  float* scales(int panel) const { return reinterpret_cast<float*>(page(panel) + scale_at); }
};

// The index, within a panel of `words` words, of number `number` of the row in column `column`.
template <class C> inline size_t place_of(int words, int number, int column) {
  constexpr int per = 4 / sizeof(C);
  return (((size_t)(column / QUARTER) * words + number / per) * QUARTER + column % QUARTER) * per + number % per;
}

// The scale with which the largest 8-bit code of a row is 127, rounded to the type of the cache's numbers.
template <class C> inline float scale_of(const float* x, int num) {
  float largest = 0;
  for (int j = 0; j < num; j++) largest = std::max(largest, std::fabs(x[j]));
  return narrowed(largest / 127, static_cast<C*>(nullptr));
}
inline float code_of(float x, float scale) {
  return std::max(-127.0f, std::min(127.0f, std::nearbyint(x / std::max(scale, std::numeric_limits<float>::min()))));
}

// Stores a row's key, or value, in a panel: as row `column` of a panel of keys, or as number `column` of each row of a panel of
// values.
template <class C> void put_key(const float* x, C* panel, int words, int column, int head) {
  constexpr int per = 4 / sizeof(C);
  alignas(64) C numbers[LANES];
  for (int j = 0; j < head; j += LANES) {
    narrow(widen(x + j, head - j), numbers, LANES);
    C* to = panel + place_of<C>(words, j, column);
    for (int i = 0; i < LANES; i += per) std::memcpy(to + (size_t)i * QUARTER, numbers + i, 4);
  }
}
template <class C> void put_value(const float* x, C* panel, int column, int head) {
  constexpr int keys = COLUMNS * (int)sizeof(C) / 4;
  alignas(64) C numbers[LANES];
  for (int j = 0; j < head; j += LANES) {
    narrow(widen(x + j, head - j), numbers, LANES);
    C* to = panel + (size_t)(j / COLUMNS) * COLUMNS * COLUMNS;
    for (int i = 0; i < std::min(LANES, head - j); i++) to[place_of<C>(keys, column, (j + i) % COLUMNS)] = numbers[i];
  }
}

// Stores a row of a request in its cache, as numbers or codes.
template <class C> void keep(const float* key, const float* value, const Panels<C>& to, const Sizes<C>& sizes, int row, int head) {
  const int panel = row / COLUMNS, column = row % COLUMNS;
  if (!to.cache.codes) {
    put_key(key, reinterpret_cast<C*>(to.keys(panel)), sizes.words, column, head);
    put_value(value, reinterpret_cast<C*>(to.values(panel)), column, head);
    return;
  }
  float* scales = to.scales(panel) + 2 * column;
  scales[0] = scale_of<C>(key, head), scales[1] = scale_of<C>(value, head);
  int8_t *key_codes = reinterpret_cast<int8_t*>(to.keys(panel)), *value_codes = reinterpret_cast<int8_t*>(to.values(panel));
  for (int j = 0; j < head; j++) {
    key_codes[place_of<C>(sizes.words, j, column)] = code_of(key[j], scales[0]);
    value_codes[(size_t)(j / COLUMNS) * COLUMNS * COLUMNS + place_of<C>(sizes.KEYS, column, j % COLUMNS)] = code_of(value[j], scales[1]);
  }
}

// Converts the next LANES codes to numbers.
template <class C> inline void decode_some(const int8_t*& codes, F scale, C*& to) {
  narrow(widen(codes) * scale, to);
  codes += LANES, to += LANES;
}

// Converts a panel of codes to numbers. QUARTER words of a panel hold PER numbers each of as many columns.
template <class C> void decode(const Panels<C>& from, const Sizes<C>& sizes, int panel, uint32_t* keys, uint32_t* values) {
  constexpr int PER = Sizes<C>::PER, SOME = QUARTER * PER / LANES;
  const float* scales = from.scales(panel);
  const int8_t* codes = reinterpret_cast<const int8_t*>(from.keys(panel));
  C* to = reinterpret_cast<C*>(keys);
  alignas(64) F scale[SOME];
  const auto put = [&](int place, float number) { reinterpret_cast<float*>(scale)[place] = number; };
  for (int quarter = 0; quarter < COLUMNS / QUARTER; quarter++) {  // a column is a key, with a scale for all of its words
    for (int i = 0; i < QUARTER * PER; i++) put(i, scales[2 * (quarter * QUARTER + i / PER)]);
    for (int word = 0; word < sizes.words; word++)
      for (int i = 0; i < SOME; i++) decode_some(codes, scale[i], to);
  }
  codes = reinterpret_cast<const int8_t*>(from.values(panel));
  to = reinterpret_cast<C*>(values);
  for (int quarter = 0; quarter < sizes.wide / QUARTER; quarter++)  // a word has the numbers of PER keys
    for (int word = 0; word < sizes.KEYS; word++) {
      for (int i = 0; i < LANES; i++) put(i, scales[2 * (word * PER + i % PER) + 1]);
      for (int i = 0; i < SOME; i++) decode_some(codes, scale[0], to);
    }
}

// The state of a query's online softmax: the largest score so far, and the sum of weights relative to it, by lane.
struct SoftmaxState {
  float largest = NEVER, factor = 1;  // factor: rescales the sums so far
  F total{};
};

// Which keys of a panel a row sees: the run [first, last) of its columns, and those for which `mask` is true.
struct Visible {
  int first, last, num;  // num: columns that hold a key
  const uint8_t* mask;   // indexed by column, valid from column `from` on; or null
  int from;
};

inline uint64_t below(int bit) { return bit < 64 ? ((uint64_t)1 << bit) - 1 : ~(uint64_t)0; }

// Replaces a query's scores on the keys of a panel by their weights.
inline void online_softmax(F* s, SoftmaxState& of, const Visible& seen) {
  const auto nothing = [&] {
    for (int j = 0; j < VECTORS; j++) s[j] = F{};
    of.factor = 1;
  };
  if (seen.first > 0 || seen.last < COLUMNS) {
    uint64_t columns = below(seen.last) & ~below(seen.first);  // a bit for each
    if (seen.mask)
      for (int i = seen.from; i < seen.num; i++) columns |= (uint64_t)(seen.mask[i] != 0) << i;
    if (!columns) return nothing();
    for (int j = 0; j < VECTORS; j++) {
      const I some = I{} + (int32_t)(columns >> j * LANES);
      s[j] = ((some >> LANE) & 1) != 0 ? s[j] : all(NEVER);
    }
  }
  F most = s[0];
  for (int j = 1; j < VECTORS; j++) most = larger(most, s[j]);
  const float largest = std::max(of.largest, greatest(most));
  if (largest == NEVER) return nothing();
  of.factor = of.largest == largest ? 1 : exponential(all(of.largest - largest))[0];
  of.largest = largest;
  F total{};
  for (int j = 0; j < VECTORS; j++) {
    s[j] = exponential(s[j] - largest);
    total += s[j];
  }
  of.total = of.total * of.factor + total;
}

// The keys of one request in a forward.
struct Keys {
  Cache cache;            // its clean rows, including those of this forward
  Cache noisy;            // its noisy rows of this forward, in one layer
  int32_t num_clean;      // keys in the cache, this forward's included
  int32_t num_noisy;
  const int32_t *begin, *end;  // of each row: the run of keys that it sees; begin may be null: from 0 on
  const uint8_t* mask;         // (rows, mask_width): which of the last keys it sees in addition; or null
  int32_t mask_width;
  int32_t first(int row) const { return begin ? begin[row] : 0; }
};

// Some queries of one key head of a request: y (rows, stride_y) from q (rows, stride). Keys are processed one panel at a
// time, with weights relative to the largest score so far (online softmax: Milakov and Gimelshein, arXiv 1805.02867).
template <class C>
void attend(const Worker& worker, const Keys& keys, int layer, int num_kv, int kv, int groups, int head, const int32_t* wanted,
            int first, int num, const float* q, int stride, float* y, int stride_y) {
  typedef typename Stored<C>::Product T;
  const Sizes<C> sizes(head);
  const int room = sizes.words * T::PER, total = keys.num_clean + keys.num_noisy, base = total - keys.mask_width;
  static thread_local Scratch memory;
  const size_t made = keys.cache.codes ? sizes.key_panel + sizes.value_panel : 0;
  memory.begin(4 * ((size_t)QUERIES * (sizes.words * T::PARTS + sizes.wide) + room + BLOCK * sizes.KEYS * T::PARTS + made) +
               QUERIES * sizeof(SoftmaxState) + 512);
  uint32_t *queries = memory.take<uint32_t>((size_t)QUERIES * sizes.words * T::PARTS);
  uint32_t *weights = memory.take<uint32_t>(BLOCK * sizes.KEYS * T::PARTS), *decoded = memory.take<uint32_t>(made);
  float *out = memory.take<float>((size_t)QUERIES * sizes.wide), *one = memory.take<float>(room);
  SoftmaxState* gathered = memory.take<SoftmaxState>(num);
  std::memset(one, 0, room * 4);
  std::memset(out, 0, (size_t)num * sizes.wide * 4);
  int rows[QUERIES], lowest = total, highest = 0;
  for (int i = 0; i < num; i++) {
    const int row = rows[i] = wanted[(first + i) / groups];
    gathered[i] = {};
    std::memcpy(one, q + (size_t)row * stride + (kv * groups + (first + i) % groups) * head, head * 4);
    T::row(one, room, queries + (size_t)i * sizes.words * T::PARTS);
    lowest = std::min(lowest, keys.mask ? std::min(keys.first(row), base) : keys.first(row));
    highest = std::max(highest, keys.mask ? total : std::min(total, keys.end[row]));
  }
  alignas(64) F sums[BLOCK][VECTORS];
  auto panel = [&](const uint32_t* panel_keys, const uint32_t* panel_values, int start, int held) {  // keys from `start` on
    for (int from = 0; from < num; from += BLOCK) {
      const int some = std::min(BLOCK, num - from);
      multiply_block<T>(worker, queries + (size_t)from * sizes.words * T::PARTS, panel_keys, sizes.words, some, sums);
      for (int i = 0; i < some; i++) {
        const int row = rows[from + i];
        Visible seen;
        seen.num = held;
        seen.first = std::max(0, std::min(held, keys.first(row) - start));
        seen.last = std::max(seen.first, std::min(held, keys.end[row] - start));
        seen.mask = keys.mask ? keys.mask + (ptrdiff_t)row * keys.mask_width + (start - base) : nullptr;
        seen.from = std::max(0, base - start);
        online_softmax(sums[i], gathered[from + i], seen);
        T::row(reinterpret_cast<float*>(sums[i]), COLUMNS, weights + (size_t)i * sizes.KEYS * T::PARTS);
      }
      for (int column = 0; column < sizes.wide; column += COLUMNS) {
        multiply_block<T>(worker, weights, panel_values + (size_t)sizes.KEYS * column, sizes.KEYS, some, sums);
        for (int i = 0; i < some; i++)
          for (int j = 0; j < VECTORS; j++) {
            float* to = out + (size_t)(from + i) * sizes.wide + column + j * LANES;
            store(to, fused(load<F>(to), all(gathered[from + i].factor), sums[i][j]));
          }
      }
    }
  };
  const Panels<C> clean(keys.cache, sizes, layer, num_kv, kv);
  for (int start = lowest / COLUMNS * COLUMNS; start < std::min(highest, keys.num_clean); start += COLUMNS) {
    const int number = start / COLUMNS, held = std::min(COLUMNS, keys.num_clean - start);
    if (keys.cache.codes) {
      decode(clean, sizes, number, decoded, decoded + sizes.key_panel);
      panel(decoded, decoded + sizes.key_panel, start, held);
    } else {
      panel(clean.keys(number), clean.values(number), start, held);
    }
  }
  if (highest > keys.num_clean) {
    const Panels<C> noisy(keys.noisy, sizes, 0, num_kv, kv);
    for (int start = 0; start < highest - keys.num_clean; start += COLUMNS) {
      const int number = start / COLUMNS;
      panel(noisy.keys(number), noisy.values(number), keys.num_clean + start, std::min(COLUMNS, keys.num_noisy - start));
    }
  }
  for (int i = 0; i < num; i++) {
    float* to = y + (size_t)((first + i) / groups) * stride_y + (kv * groups + (first + i) % groups) * head;
    const float weight = sum(gathered[i].total), factor = weight > 0 ? 1 / weight : 0;  // 0: a row that sees no key
    for (int j = 0; j < head; j += LANES) narrow(load<F>(out + (size_t)i * sizes.wide + j) * factor, to + j, head - j);
  }
}
