// Packs matrices into the layout of products.h and grouped.h: the same bits as `slow_linear` of models/backends/panels.py, many times
// faster and without copies of the matrix.

#pragma once

#include <vector>

#include "block_packer.h"
#include "products.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

// A matrix (out, in) of float32 or bfloat16, and where it is packed to. Padding is written, too.
struct Unpacked {
  const void* weight;
  int64_t out, in;
  int32_t is_bfloat16, product;  // `product`: see Model
  uint32_t* to;                  // (panels, 4, words, 16)
  float* scale;                  // (panels * 64,), int8 only
  int32_t* offset;               // (panels * 64,), int8 only
  int32_t words, panels;
};

inline F nearest(F x) { return (x + 12582912.0f) - 12582912.0f; }  // ties to even; of numbers below 2^22

// The nearest 16-bit float, ties to even; the largest one in place of infinity.
inline uint16_t to_half(float x) {
  const uint32_t sign = bits<uint32_t>(x) >> 16 & 0x8000u;
  const float size = std::min(std::fabs(x), 65504.0f);
  if (size < 0x1p-14f) return (uint16_t)(sign | (uint32_t)std::nearbyint(size * 0x1p24f));
  const uint32_t u = bits<uint32_t>(size) - (112u << 23);
  return (uint16_t)(sign | (u + 0xfffu + (u >> 13 & 1)) >> 13);
}

// Asks for large pages for memory that nothing was written to, which are read faster.
inline void use_large_pages(void* from, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr size_t page = 2 << 20;
  char* const start = static_cast<char*>(from) + (page - reinterpret_cast<uintptr_t>(from) % page) % page;
  char* const end = static_cast<char*>(from) + size;
  if (start + page <= end) madvise(start, (end - start) / page * page, MADV_HUGEPAGE);
#endif
}

struct Packer {
  const Unpacked& m;
  const int room = round_up((int)m.in, Int4::INPUTS);

  // A row in float32, padded with zeros; all zeros behind the last one.
  void read(int64_t row, float* to) const {
    if (row >= m.out) {
      std::memset(to, 0, room * 4);
      return;
    }
    for (int i = 0; i < room; i += LANES) {
      const int some = std::max(0, std::min(LANES, (int)m.in - i));
      F v{};
      if (some) v = m.is_bfloat16 ? widen(static_cast<const uint16_t*>(m.weight) + row * m.in + i, some)
                                  : widen(static_cast<const float*>(m.weight) + row * m.in + i, some);
      store(to + i, v);
    }
  }

  void panel(int number) const {
    const int size = std::max(m.words, room);
    std::vector<float> row(room);
    std::vector<uint32_t> columns((size_t)QUARTER * size);
    for (int quarter = 0; quarter < 4; quarter++) {
      const int first = number * COLUMNS + quarter * QUARTER;
      for (int column = 0; column < QUARTER; column++) {
        uint32_t* words = &columns[(size_t)column * size];
        read(first + column, row.data());
        std::fill(words, words + size, 0u);
        pack(row.data(), first + column, words);
      }
      uint32_t* to = m.to + ((size_t)number * 4 + quarter) * m.words * QUARTER;
      for (int i = 0; i < m.words; i++)
        for (int column = 0; column < QUARTER; column++) *to++ = columns[(size_t)column * size + i];
    }
  }

  // The words of a column, which are zeros before, from a row of the matrix.
  void pack(const float* x, int column, uint32_t* words) const {
    if (m.product == 2) return whole_row(x, column, words);
    if (column >= m.out) return;
    if (m.product == 0) std::memcpy(words, x, room * 4);
    else if (m.product == 1) for (int i = 0; i < room; i += LANES) narrow(load<F>(x + i), reinterpret_cast<uint16_t*>(words) + i);
    else for (int chunk = 0; chunk < m.words / Int4::CHUNK; chunk++) groups(x + chunk * Int4::INPUTS, words + chunk * Int4::CHUNK);
  }

  void whole_row(const float* x, int at, uint32_t* words) const {
    F most{};
    for (int i = 0; i < room; i += LANES) {
      const F v = load<F>(x + i), size = v < 0 ? -v : v;
      most = larger(most, size);
    }
    const float scale = std::max(greatest(most), std::numeric_limits<float>::min()) / 127;
    I total{};
    for (int i = 0; i < room; i += LANES) {
      const I code = __builtin_convertvector(nearest(load<F>(x + i) / scale), I);
      total += code;
      store(reinterpret_cast<char*>(words) + i, low_bytes(code));
    }
    int32_t sum_of_codes = 0;
    for (int i = 0; i < LANES; i++) sum_of_codes += total[i];
    m.scale[at] = at < m.out ? scale : 0, m.offset[at] = 128 * sum_of_codes;
  }

  // A chunk of a column in 4 bits.
  static void groups(const float* x, uint32_t* words) {
    for (int group = 0; group < 2; group++, x += Int4::IN_GROUP) {
      F high{}, low{};
      for (int i = 0; i < Int4::IN_GROUP; i += LANES) high = larger(high, load<F>(x + i)), low = larger(low, -load<F>(x + i));
      const float above = greatest(high), below = greatest(low), largest = above >= below ? above : -below;
      const uint16_t half = to_half(largest / -8 + 0.0f);  // no zero is negative
      const float step = Int4::scales(I{} + half, 0)[0], some = step != 0;
      uint32_t codes[Int4::IN_GROUP / 4];  // of a byte each
      for (int i = 0; i < Int4::IN_GROUP; i += LANES) {
        F v = nearest(load<F>(x + i) / (some ? step : 1)) * some;
        v = v < all(-8) ? all(-8) : v > all(7) ? all(7) : v;
        store(codes + i / 4, low_bytes(__builtin_convertvector(v, I) + 8));
      }
      for (int i = 0; i < 4; i++) words[4 * group + i] = codes[2 * i] | codes[2 * i + 1] << 4;
      words[8] |= (uint32_t)half << (16 * group);
    }
  }
};

template <class T> void unpack_numbers(const Linear& m, int64_t column, int width, float* to) {
  const uint32_t* from = m.weight + ((size_t)(column / QUARTER) * m.words) * QUARTER + column % QUARTER;
  for (int i = 0; i < width; i++) {
    const uint32_t word = from[(size_t)(i / T::PER) * QUARTER];
    if constexpr (T::PER == 1) to[i] = bits<float>(word);
    else if constexpr (T::PER == 2) to[i] = bits<float>(i % 2 ? word & 0xffff0000u : word << 16);
    else to[i] = (int8_t)(word >> (8 * (i % 4))) * m.scale[column];
  }
}

// The number of a column for each input, (width,), of a packed matrix of any kind but Int4: a row of the matrix as it was. Of
// blocks, numbers are written up to the next multiple of 64.
template <class T> void unpack_column(const Linear& m, int64_t column, int width, float* to) {
  if constexpr (is_blocks<T>) return column_of_blocks(m.quarters[column / QUARTER], m.weight, column % QUARTER, m.words, to);
  else if constexpr (is_mixed<T>) return by_kind<T>(m, [&](auto type) { unpack_column<decltype(type)>(m, column, width, to); });
  else unpack_numbers<T>(m, column, width, to);
}
