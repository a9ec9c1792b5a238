// Products of rows with matrices in the block types of GGUF files, whose layout is in block_types.h.
//
// Inputs are rounded to codes from -127 to 127 in groups of 32, each with a scale of its own, for all types: finer than
// llama.cpp, which has one scale for 256 inputs of the K types. The sum of a group is exact, and multiplied by scales that are
// exact, too; it is rounded once, and then added in the order of groups, and behind it what a group's minimum adds. So the bits are
// the same alone and in a batch, and on every processor that multiplies and adds in one step.

#pragma once

#include "block_types.h"

namespace blocks {

#if defined(PAIRS_OF_PRODUCTS)
#if defined(WIDE)
inline I pairs(I codes, I inputs) { return (I)_mm512_maddubs_epi16((__m512i)codes, (__m512i)inputs); }
inline I added_pairs(I a, I b) { return (I)_mm512_add_epi16((__m512i)a, (__m512i)b); }
inline I joined(I a, I b) { return (I)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
#else
inline I pairs(I codes, I inputs) { return (I)_mm256_maddubs_epi16((__m256i)codes, (__m256i)inputs); }
inline I added_pairs(I a, I b) { return (I)_mm256_add_epi16((__m256i)a, (__m256i)b); }
inline I joined(I a, I b) { return (I)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
#endif
// Keeps a sum in its register: without it GCC computes all products first and stores them until it adds them.
inline void settle(I& sum) { asm volatile("" : "+v"(sum)); }
#elif defined(UNSIGNED_BY_SIGNED)
inline I four(I s, I codes, I inputs) {
#if defined(WIDE)
  return (I)_mm512_dpbusd_epi32((__m512i)s, (__m512i)codes, (__m512i)inputs);
#elif defined(MIDDLE)
  return (I)_mm256_dpbusd_avx_epi32((__m256i)s, (__m256i)codes, (__m256i)inputs);
#else
  return (I)vusdotq_s32((int32x4_t)s, bits<uint8x16_t>(codes), bits<int8x16_t>(inputs));
#endif
}
#else
inline I four(I s, I codes, I inputs) {
#if defined(__ARM_FEATURE_DOTPROD)
  return (I)vdotq_s32((int32x4_t)s, bits<int8x16_t>(codes), bits<int8x16_t>(inputs));
#else
  for (int shift = 24; shift >= 0; shift -= 8) s += ((codes << shift) >> 24) * ((inputs << shift) >> 24);
  return s;
#endif
}
#endif

// Fetches the words so far behind these into the processor's second cache.
template <int NUM> inline void fetch(const uint32_t* w) {
#pragma GCC unroll 8
  for (int word = 0; word < NUM; word++) __builtin_prefetch(w + (FAR + word) * COLS, 0, 2);
}

// The words behind those that are multiplied: some are fetched with each group, as fast as memory brings them.
struct Ahead {
  const uint32_t* at;
  int lines;
  void fetch() {
    for (int line = 0; line < lines; line++, at += COLS) __builtin_prefetch(at, 0, 2);
  }
};

// Exact sums of codes times inputs, of units [FIRST, LAST) of a group; in Q6_K each half is multiplied by its factor.
template <class Q, int NUM, int FIRST, int LAST, class Codes>
inline void exact_sums(const uint32_t* a, int stride, const Codes& codes, const I (*factor)[QV], I (&exact)[NUM][QV]) {
#if defined(PAIRS_OF_PRODUCTS)
  constexpr int added = std::min(Q::ADDED, LAST - FIRST);
  I some[Q::PLANES][NUM][QV];
#pragma GCC unroll 8
  for (int p = FIRST; p < LAST; p++) {
    I code[Q::PLANES][QV];
    codes(p, code);
    if constexpr (NUM > 1 && Q::PLANES == 1)
      for (int j = 0; j < QV; j++) settle(code[0][j]);
#pragma GCC unroll 8
    for (int row = 0; row < NUM; row++) {
      const I input = bytes(a[row * stride + p]);
#pragma GCC unroll 2
      for (int plane = 0; plane < Q::PLANES; plane++)
#pragma GCC unroll 4
        for (int j = 0; j < QV; j++) {
          const I two = pairs(code[plane][j], input);
          some[plane][row][j] = (p - FIRST) % added ? added_pairs(some[plane][row][j], two) : two;
          if constexpr (NUM > 1) settle(some[plane][row][j]);
        }
    }
    if ((p - FIRST) % added < added - 1) continue;
#pragma GCC unroll 8
    for (int row = 0; row < NUM; row++)
#pragma GCC unroll 4
      for (int j = 0; j < QV; j++) {
        I whole = joined(some[0][row][j], Q::HALVES && Q::K ? factor[p / 4][j] : bytes(0x00010001));
        if constexpr (Q::PLANES == 2) whole += joined(some[1][row][j], bytes(0x00100010));
        exact[row][j] = p - FIRST < added ? whole : exact[row][j] + whole;
      }
  }
#else
  for (int row = 0; row < NUM; row++)
    for (int j = 0; j < QV; j++) exact[row][j] = I{};
#pragma GCC unroll 8
  for (int p = FIRST; p < LAST; p++) {
    I code[Q::PLANES][QV];
    codes(p, code);
#pragma GCC unroll 8
    for (int row = 0; row < NUM; row++) {
      const I input = bytes(a[row * stride + p]);
#pragma GCC unroll 4
      for (int j = 0; j < QV; j++) exact[row][j] = four(exact[row][j], code[0][j], input);
    }
  }
#endif
}

// The whole of a group, times all scales but that of its inputs, from exact sums: of the group, or of each half in types that have
// HALVES. Where pairs of products are summed, those of Q6_K come joined already.
template <class Q> inline I whole_of(const uint32_t* about, I first, I second, const I (*factor)[QV], int j) {
  if constexpr (!Q::HALVES) return first - shift_of_zero<Q>((int32_t)about[SUM]);
#if defined(PAIRS_OF_PRODUCTS)
  return first - (joined(bytes(about[SUMS]), factor[2][j]) << Q::ZERO);
#else
  return (first - shift_of_zero<Q>((int16_t)about[SUMS])) * factor[0][j] +
         (second - shift_of_zero<Q>((int16_t)(about[SUMS] >> 16))) * factor[1][j];
#endif
}

// Adds the exact sums of a group of inputs, `about` whose codes are words behind them, to a row's sums with vector j of columns.
template <class Q> inline void add_sums(const uint32_t* about, I first, I second, const Head<Q>& head, int group, int j, F& sum) {
  const float scale = bits<float>(about[SCALE]);
  if constexpr (Q::HALVES && !Q::K) {
    for (int half = 0; half < 2; half++) {
      const int of_inputs = (int16_t)(about[SUMS] >> (16 * half)), at = 2 * group + half;
      const F whole = __builtin_convertvector((half ? second : first) - shift_of_zero<Q>(of_inputs), F);
      sum = fused(whole * head.scale[at][j], all(scale), sum);
      sum = fused(head.low[at][j], all(scale * (float)of_inputs), sum);
    }
  } else {
    const I whole = whole_of<Q>(about, first, second, head.factor + (Q::HALVES ? 3 * group : 0), j);
    sum = fused(__builtin_convertvector(whole, F) * head.scale[group][j], all(scale), sum);
    if constexpr (Q::MINIMUM) sum = fused(head.low[group][j], all(bits<float>(about[LOW])), sum);
  }
}

// Adds a group to the sums of rows.
template <class Q, int NUM, class Codes>
inline void add_group(const uint32_t* a, int stride, const Codes& codes, const Head<Q>& head, int group, F (&sums)[NUM][QV]) {
#if defined(PAIRS_OF_PRODUCTS)
  constexpr bool halves = Q::HALVES && !Q::K;
#else
  constexpr bool halves = Q::HALVES;
#endif
  const I (*factor)[QV] = head.factor + (Q::HALVES && Q::K ? 3 * group : 0);
  I exact[1 + halves][NUM][QV];
  exact_sums<Q, NUM, 0, halves ? UNITS / 2 : UNITS>(a, stride, codes, factor, exact[0]);
  if constexpr (halves) exact_sums<Q, NUM, UNITS / 2, UNITS>(a, stride, codes, factor, exact[1]);
#pragma GCC unroll 8
  for (int row = 0; row < NUM; row++)
#pragma GCC unroll 4
    for (int j = 0; j < QV; j++) add_sums<Q>(a + row * stride, exact[0][row][j], exact[halves][row][j], head, group, j, sums[row][j]);
}

// Sums of a few rows with a quarter of so many groups, straight from its words.
template <class Q, int NUM>
[[gnu::noinline]] void multiply_few(const uint32_t* a, int stride, const uint32_t* w, int groups, F* out, int out_stride) {
  F sums[NUM][QV] = {};
  for (int first = 0; first < groups; first += Q::GROUPS) {
    Head<Q> head;
    head.read(w);
    fetch<Q::HEAD>(w);
    w += Q::HEAD * COLS;
    for (int group = 0; group < Q::GROUPS; group++, w += Q::GROUP_WORDS * COLS, a += PARTS) {
      fetch<Q::GROUP_WORDS>(w);
      add_group<Q, NUM>(a, stride, Stored<Q>{w}, head, group, sums);
    }
  }
  for (int row = 0; row < NUM; row++)
    for (int j = 0; j < QV; j++) out[row * out_stride + j] = sums[row][j];
}

// A slice of a quarter: codes of so many groups, unpacked for all rows.
template <class Q> struct Slice {
  static constexpr int GROUP = UNITS * Q::PLANES * COLS, CHUNKS = SLICE / Q::GROUPS;
  alignas(64) uint32_t codes[SLICE * GROUP];
  Head<Q> heads[CHUNKS];

  void unpack(const uint32_t* w, int chunks) {
    uint32_t* to = codes;
    for (int chunk = 0; chunk < chunks; chunk++, w += Q::WORDS * COLS) {
      heads[chunk].read(w);
      for (int group = 0; group < Q::GROUPS; group++) {
        const uint32_t* from = w + (Q::HEAD + group * Q::GROUP_WORDS) * COLS;
#pragma GCC unroll 8
        for (int p = 0; p < UNITS; p++) {
          I code[Q::PLANES][QV];
          Stored<Q>{from}(p, code);
          for (int plane = 0; plane < Q::PLANES; plane++)
            for (int j = 0; j < QV; j++, to += LANES) store(to, code[plane][j]);
        }
      }
    }
  }

  template <int NUM>
  [[gnu::noinline]] void add(const uint32_t* a, int stride, int chunks, bool begins, F* out, int out_stride, Ahead& ahead) const {
    F sums[NUM][QV];
    for (int row = 0; row < NUM; row++)
      for (int j = 0; j < QV; j++) sums[row][j] = begins ? F{} : out[row * out_stride + j];
    const uint32_t* from = codes;
    for (int chunk = 0; chunk < chunks; chunk++)
      for (int group = 0; group < Q::GROUPS; group++, from += GROUP, a += PARTS) {
        ahead.fetch();
        add_group<Q, NUM>(a, stride, Ready<Q>{from}, heads[chunk], group, sums);
      }
    for (int row = 0; row < NUM; row++)
      for (int j = 0; j < QV; j++) out[row * out_stride + j] = sums[row][j];
  }
};

}  // namespace blocks

#include "block_tiles.h"

namespace blocks {

// Sums of rows with a quarter; those of a row lie `out_stride` vectors behind those of the row before it. `tiles`: the thread's tiles
// are set up for `BlockTiles`, whose rows are read and written in whole, so that there has to be room for a multiple of them.
template <class Q>
[[gnu::noinline]] void multiply(const uint32_t* a, int stride, const uint32_t* w, int groups, int rows, F* out, int out_stride,
                                [[maybe_unused]] bool tiles = false) {
  constexpr int most = Q::PLANES == 2 ? 2 : 4;  // rows whose sums are kept in registers
  if constexpr (Q::NUMBER < 0) {
    for (int row = 0; row < rows; row++) multiply_few<Q, 1>(a + (size_t)row * stride, stride, w, groups, out + row * out_stride, out_stride);
    return;
  }
  if (rows == 1) return multiply_few<Q, 1>(a, stride, w, groups, out, out_stride);
  if (rows == 2) return multiply_few<Q, 2>(a, stride, w, groups, out, out_stride);
  Slice<Q> slice;
  for (int first = 0; first < groups; first += SLICE) {
    const int chunks = std::min(SLICE, groups - first) / Q::GROUPS;
    slice.unpack(w, chunks);
    w += (size_t)chunks * Q::WORDS * COLS;
    const uint32_t* from = a + (size_t)first * PARTS;
    const int at_once = tiles ? 16 : most, calls = (rows + at_once - 1) / at_once;
    Ahead ahead = {w, (chunks * Q::WORDS + SLICE * calls - 1) / (SLICE * calls)};
    int row = 0;
#ifdef TILES
    BlockTiles<Q> block;
    for (; tiles && rows - row >= TILED; row += block.ROWS)
      block.add(from + (size_t)row * stride, stride, slice.codes, slice.heads, chunks, first == 0, out + row * out_stride, out_stride, ahead);
#endif
    const auto add = [&](auto num) {
      slice.template add<num>(from + (size_t)row * stride, stride, chunks, first == 0, out + row * out_stride, out_stride, ahead);
      row += num;
    };
    while (row + most <= rows) add(std::integral_constant<int, most>());
    if (most > 2 && row + 2 <= rows) add(std::integral_constant<int, 2>());
    if (row < rows) add(std::integral_constant<int, 1>());
  }
}

}  // namespace blocks

struct Blocks {
  typedef F Sum;
  static constexpr int PARTS = blocks::PARTS, INPUTS = blocks::IN_GROUP;

  // Inputs from a row of `num` numbers. Groups that are smaller than the least scale are zeros.
  static float row(const float* x, int num, uint32_t* to) {
    constexpr float least = 0x1p-100f;
    for (int start = 0; start < num; start += INPUTS, to += PARTS) {
      F most{};
      for (int i = 0; i < INPUTS; i += LANES) {
        const F v = load<F>(x + start + i), size = v < 0 ? -v : v;
        most = larger(most, size);
      }
      const float largest = greatest(most), inverse = largest > least ? 127 / largest : 0, scale = largest / 127;
      int8_t codes[INPUTS];
      I sums[2] = {};
      for (int i = 0; i < INPUTS; i += LANES) {
        const I code = __builtin_convertvector(fused(load<F>(x + start + i), all(inverse), all(128.5f)), I) - 128;
        store(codes + i, low_bytes(code));
        sums[i / (INPUTS / 2)] += code;
      }
      int32_t halves[2];
      for (int half = 0; half < 2; half++) halves[half] = (int32_t)sum(__builtin_convertvector(sums[half], F));
      const int32_t total = halves[0] + halves[1];
      const float low = scale * (float)total;
      std::memcpy(to, codes, INPUTS);
      std::memcpy(to + blocks::SCALE, &scale, 4);
      std::memcpy(to + blocks::LOW, &low, 4);
      to[blocks::SUM] = (uint32_t)total;
      to[blocks::SUMS] = (uint32_t)(halves[0] & 0xffff) | (uint32_t)halves[1] << 16;
    }
    return 1;
  }
};
