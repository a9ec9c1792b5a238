// Products with matrices in the block types of GGUF files: the numbers of the file, no bit of which is lost.
//
// A matrix is packed in panels of four quarters of 16 columns, as in products.h, and each quarter has a type of its own. A chunk is
// 64 inputs of a column, or 256 in the K types: HEAD words of scales and minima, and then GROUPS groups of 32 inputs of GROUP_WORDS
// words each. The words of the 16 columns for the same inputs are adjacent. A chunk has the bits of the file's blocks in
// another order (Q6_K 16 more), so rows are made from it again (`column_of_blocks`).
//
// Of a group the first four words hold the low four bits of codes: a word's byte b has that of input 8 word + b in its low half, and
// of the input four behind it in its high half. A fifth bit is bit p of byte b of a fifth word, for input 4 p + b; upper two bits
// are bits 2 (p % 4) of the words behind the fourth. Codes of 8 bits are bytes, 128 more than the file's.
//
// Inputs are rounded to codes from -127 to 127 in groups of 32, each with a scale of its own, for all types: finer than
// llama.cpp, which has one scale for 256 inputs of the K types. The sum of a group is exact, and multiplied by scales that are
// exact, too; it is rounded once, and then added in the order of groups, and behind it what a group's minimum adds. So the bits are
// the same alone and in a batch, and on every processor that multiplies and adds in one step.

#pragma once

#include "vectors.h"

#if (defined(WIDE) && defined(__AVX512VNNI__)) || (defined(MIDDLE) && defined(__AVXVNNI__)) || defined(__ARM_FEATURE_MATMUL_INT8)
#define UNSIGNED_BY_SIGNED  // one instruction adds products of four unsigned and four signed 8-bit numbers
#elif defined(WIDE) || defined(MIDDLE)
#define PAIRS_OF_PRODUCTS   // the same of two, in 16 bits, which hold a few of them
#else
#define SIGNED_BY_SIGNED    // products of four signed numbers, in one instruction or in several
#endif

// Where a quarter's words begin, counted from those of its matrix, and its type by ggml's number. One more tells where they end.
struct Quarter { int64_t at; int32_t type, none; };

namespace blocks {

constexpr int COLS = 16, QV = COLS / LANES;  // columns of a quarter, and their vectors
constexpr int IN_GROUP = 32, UNITS = 8;      // inputs of a group, and how many times four
constexpr int PARTS = 12;                    // words of a group of inputs: codes, and these four
constexpr int SCALE = 8, LOW = 9, SUM = 10, SUMS = 11;  // scale; scale times the sum of codes; this sum; those of both halves
constexpr int SLICE = 8;                     // groups that are unpacked at a time for many rows
constexpr int FAR = 64;                      // prefetch distance in words

#if defined(PAIRS_OF_PRODUCTS)
constexpr int EIGHT = 2;                     // parts of a code of 8 bits that are multiplied one by one
#else
constexpr int EIGHT = 1;
#endif

// ZERO: the exponent of the code that means zero, or 0 where codes have a minimum. HALVES: each 16 inputs have a scale.
template <int NUMBER_, int BITS_, int HEAD_, int GROUPS_, int ZERO_, bool MINIMUM_, bool HALVES_> struct Type {
  static constexpr int NUMBER = NUMBER_, BITS = BITS_, HEAD = HEAD_, GROUPS = GROUPS_, ZERO = ZERO_;
  static constexpr bool MINIMUM = MINIMUM_, HALVES = HALVES_;
  static constexpr bool K = GROUPS == 8;
  static constexpr int GROUP_WORDS = BITS, WORDS = HEAD + GROUPS * BITS;  // 32 codes of so many bits
  static constexpr int PLANES = BITS == 8 ? EIGHT : 1;
  static constexpr int ADDED = BITS == 5 ? 4 : BITS == 6 ? 2 : 8;  // pairs of products that 16 bits hold
};
typedef Type<2, 4, 1, 2, 3, false, false> Q4_0;
typedef Type<3, 4, 2, 2, 0, true, false> Q4_1;
typedef Type<6, 5, 1, 2, 4, false, false> Q5_0;
typedef Type<7, 5, 2, 2, 0, true, false> Q5_1;
typedef Type<8, 8, 1, 2, 7, false, false> Q8_0;
typedef Type<12, 4, 4, 8, 0, true, false> Q4_K;
typedef Type<13, 5, 4, 8, 0, true, false> Q5_K;
typedef Type<14, 6, 5, 8, 5, false, true> Q6_K;
typedef Type<-1, 8, 8, 2, 7, true, true> Wide;  // what all others are widened to: scales and minima are float32

// Calls function(type) for the type of a number.
template <class Function> inline void by_number(int number, Function function) {
  switch (number) {
    case 2: return function(Q4_0{});
    case 3: return function(Q4_1{});
    case 6: return function(Q5_0{});
    case 7: return function(Q5_1{});
    case 8: return function(Q8_0{});
    case 12: return function(Q4_K{});
    case 13: return function(Q5_K{});
    case 14: return function(Q6_K{});
    default: return function(Wide{});
  }
}

inline I bytes(uint32_t x) { return I{} + (int32_t)x; }

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

// The scales and minima of a chunk; of a type with HALVES those of both halves of a group are adjacent. In Q6_K `scale` is that of the
// whole block, and `factor` has what halves' sums are multiplied by.
template <class Q> struct Head {
  static constexpr int NUM = Q::GROUPS * (Q::HALVES && !Q::K ? 2 : 1);
  F scale[NUM][QV], low[Q::MINIMUM ? NUM : 1][QV];
  I factor[Q::HALVES && Q::K ? 3 * Q::GROUPS : 1][QV];

  static I word(const uint32_t* from, int number, int j) { return load<I>(from + number * COLS + j * LANES); }
  static F half(I word, int number) { return bits<F>(((number ? word : word << 16) >> 3) & bytes(0x8fffe000)) * 0x1p112f; }
  static F number(I x) { return __builtin_convertvector(x, F); }

  void read(const uint32_t* from) {
#pragma GCC unroll 4
    for (int j = 0; j < QV; j++) {
      if constexpr (Q::NUMBER < 0) {
        for (int i = 0; i < NUM; i++) scale[i][j] = bits<F>(word(from, i, j)), low[i][j] = bits<F>(word(from, NUM + i, j));
      } else if constexpr (Q::HALVES) {
        bytes_of_scales(from, j);
      } else if constexpr (Q::K) {
        sixes(from, j);
      } else {
#pragma GCC unroll 2
        for (int i = 0; i < NUM; i++) {
          scale[i][j] = half(word(from, 0, j), i);
          if constexpr (Q::MINIMUM) low[i][j] = half(word(from, 1, j), i);
        }
      }
    }
  }

  // Sixteen fields of six bits, five in a word, and the last one of what is left of the three: scales, then minima.
  void sixes(const uint32_t* from, int j) {
    const I both = word(from, 0, j), mask = bytes(63), three[] = {word(from, 1, j), word(from, 2, j), word(from, 3, j)};
    const F unit = half(both, 0), below = -half(both, 1);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      I field = three[std::min(i / 5, 2)] >> (6 * (i % 5)) & mask;
      if (i == 15) field = (three[0] >> 30 & bytes(3)) | (three[1] >> 28 & bytes(12)) | (three[2] >> 26 & bytes(48));
      if (i < 8) scale[i][j] = number(field) * unit;
      else low[i - 8][j] = number(field) * below;
    }
  }

  void bytes_of_scales(const uint32_t* from, int j) {
    const F unit = half(word(from, 0, j), 0);
#pragma GCC unroll 8
    for (int i = 0; i < Q::GROUPS; i++) {
      const I four = word(from, 1 + i / 2, j), first = four << (i % 2 ? 8 : 24) >> 24, second = four << (i % 2 ? 0 : 16) >> 24;
      scale[i][j] = unit;
#if defined(PAIRS_OF_PRODUCTS)
      const I low_half = bytes(0xffff);
      factor[3 * i][j] = (first & low_half) | first << 16, factor[3 * i + 1][j] = (second & low_half) | second << 16;
      factor[3 * i + 2][j] = (first & low_half) | second << 16;
#else
      factor[3 * i][j] = first, factor[3 * i + 1][j] = second;
#endif
    }
  }
};

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

// A group's codes, four inputs at a time, from its words.
template <class Q> struct Stored {
  const uint32_t* from;
  void operator()(int p, I (&to)[Q::PLANES][QV]) const {
#pragma GCC unroll 4
    for (int j = 0; j < QV; j++) {
      const uint32_t* at = from + j * LANES;
      if constexpr (Q::BITS == 8) {
        const I word = load<I>(at + p * COLS);
#if defined(PAIRS_OF_PRODUCTS)
        to[0][j] = word & bytes(0x0f0f0f0f), to[1][j] = word >> 4 & bytes(0x0f0f0f0f);
#elif defined(UNSIGNED_BY_SIGNED)
        to[0][j] = word;
#else
        to[0][j] = word ^ bytes(0x80808080);
#endif
      } else {
        const I word = load<I>(at + p / 2 * COLS);
        I code = (p % 2 ? word >> 4 : word) & bytes(0x0f0f0f0f);
        if constexpr (Q::BITS == 5) {
          const I high = load<I>(at + 4 * COLS);
          code |= (p < 4 ? high << (4 - p) : high >> (p - 4)) & bytes(0x10101010);
        } else if constexpr (Q::BITS == 6) {
          const I high = load<I>(at + (4 + p / 4) * COLS);
          code |= (p % 4 < 2 ? high << (4 - 2 * (p % 4)) : high >> (2 * (p % 4) - 4)) & bytes(0x30303030);
        }
        to[0][j] = code;
      }
    }
  }
};

// The same from where they were unpacked to.
template <class Q> struct Ready {
  const uint32_t* from;
  void operator()(int p, I (&to)[Q::PLANES][QV]) const {
#pragma GCC unroll 2
    for (int plane = 0; plane < Q::PLANES; plane++)
#pragma GCC unroll 4
      for (int j = 0; j < QV; j++) to[plane][j] = load<I>(from + (p * Q::PLANES + plane) * COLS + j * LANES);
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

// What is taken from the sum of a group or of a half, since a code means itself less 2^ZERO.
template <class Q> inline I shift_of_zero(int32_t sum) {
#if defined(SIGNED_BY_SIGNED)
  if constexpr (Q::BITS == 8) return I{};
#endif
  if constexpr (Q::ZERO > 0) return (I{} + sum) << Q::ZERO;
  else return I{};
}

// Adds a group to the sums of rows.
template <class Q, int NUM, class Codes>
inline void add_group(const uint32_t* a, int stride, const Codes& codes, const Head<Q>& head, int group, F (&sums)[NUM][QV]) {
  if constexpr (Q::HALVES && !Q::K) {
    I exact[2][NUM][QV];
    exact_sums<Q, NUM, 0, UNITS / 2>(a, stride, codes, head.factor, exact[0]);
    exact_sums<Q, NUM, UNITS / 2, UNITS>(a, stride, codes, head.factor, exact[1]);
    for (int row = 0; row < NUM; row++) {
      const uint32_t* about = a + row * stride;
      const float scale = bits<float>(about[SCALE]);
      for (int half = 0; half < 2; half++) {
        const int sum = (int16_t)(about[SUMS] >> (16 * half)), at = 2 * group + half;
        for (int j = 0; j < QV; j++) {
          const F whole = __builtin_convertvector(exact[half][row][j] - shift_of_zero<Q>(sum), F);
          sums[row][j] = fused(whole * head.scale[at][j], all(scale), sums[row][j]);
          sums[row][j] = fused(head.low[at][j], all(scale * (float)sum), sums[row][j]);
        }
      }
    }
    return;
  }
  I exact[NUM][QV];
  const I (*factor)[QV] = head.factor + (Q::HALVES ? 3 * group : 0);
#if defined(PAIRS_OF_PRODUCTS)
  exact_sums<Q, NUM, 0, UNITS>(a, stride, codes, factor, exact);
#else
  if constexpr (Q::HALVES) {
    I second[NUM][QV];
    exact_sums<Q, NUM, 0, UNITS / 2>(a, stride, codes, factor, exact);
    exact_sums<Q, NUM, UNITS / 2, UNITS>(a, stride, codes, factor, second);
    for (int row = 0; row < NUM; row++) {
      const uint32_t sums_of_halves = a[row * stride + SUMS];
      for (int j = 0; j < QV; j++)
        exact[row][j] = (exact[row][j] - shift_of_zero<Q>((int16_t)sums_of_halves)) * factor[0][j] +
                        (second[row][j] - shift_of_zero<Q>((int16_t)(sums_of_halves >> 16))) * factor[1][j];
    }
  } else {
    exact_sums<Q, NUM, 0, UNITS>(a, stride, codes, factor, exact);
  }
#endif
#pragma GCC unroll 8
  for (int row = 0; row < NUM; row++) {
    const uint32_t* about = a + row * stride;
#pragma GCC unroll 4
    for (int j = 0; j < QV; j++) {
      I whole = exact[row][j];
      if constexpr (!Q::HALVES) whole -= shift_of_zero<Q>((int32_t)about[SUM]);
#if defined(PAIRS_OF_PRODUCTS)
      else whole -= joined(bytes(about[SUMS]), factor[2][j]) << Q::ZERO;
#endif
      sums[row][j] = fused(__builtin_convertvector(whole, F) * head.scale[group][j], all(bits<float>(about[SCALE])), sums[row][j]);
      if constexpr (Q::MINIMUM) sums[row][j] = fused(head.low[group][j], all(bits<float>(about[LOW])), sums[row][j]);
    }
  }
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

// Sums of rows with a quarter; those of a row lie `out_stride` vectors behind those of the row before it.
template <class Q>
[[gnu::noinline]] void multiply(const uint32_t* a, int stride, const uint32_t* w, int groups, int rows, F* out, int out_stride) {
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
    const int calls = (rows + most - 1) / most;
    Ahead ahead = {w, (chunks * Q::WORDS + SLICE * calls - 1) / (SLICE * calls)};
    int row = 0;
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
        store(codes + i, __builtin_convertvector(code, Byte));
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

// Calls function(input, code, step, minimum) for the inputs of a column of a quarter of so many groups.
template <class Function>
inline void visit_column(int type, const uint32_t* w, int column, int groups, Function function) {
  using namespace blocks;
  by_number(type, [&](auto kind) {
    typedef decltype(kind) Q;
    const int vector = column / LANES, lane = column % LANES;
    for (int first = 0, input = 0; first < groups; first += Q::GROUPS, w += Q::WORDS * COLS) {
      Head<Q> head;
      head.read(w);
      for (int group = 0; group < Q::GROUPS; group++)
        for (int p = 0; p < UNITS; p++) {
          I planes[Q::PLANES][QV];
          Stored<Q>{w + (Q::HEAD + group * Q::GROUP_WORDS) * COLS}(p, planes);
          const uint32_t low = planes[0][vector][lane], high = Q::PLANES == 2 ? planes[Q::PLANES - 1][vector][lane] : 0;
          const int at = Q::HALVES && !Q::K ? 2 * group + p / 4 : group, zero = shift_of_zero<Q>(1)[0];
          float step = head.scale[at][vector][lane];
          if constexpr (Q::HALVES && Q::K) step *= (int16_t)head.factor[3 * group + p / 4][vector][lane];
          const float minimum = Q::MINIMUM ? head.low[Q::MINIMUM ? at : 0][vector][lane] : 0;
          for (int b = 0; b < 4; b++, input++) {
            int code = (low >> (8 * b) & 255) | (high >> (8 * b) & 15) << 4;
            if (Q::BITS == 8 && !zero) code = (int8_t)code;
            function(input, code - zero, step, minimum);
          }
        }
    }
  });
}

// A column as float32 numbers: a row of the matrix as it was.
inline void column_of_blocks(const Quarter& quarter, const uint32_t* weight, int column, int groups, float* to) {
  visit_column(quarter.type, weight + quarter.at, column, groups,
               [to](int input, int code, float step, float minimum) { to[input] = step * code + minimum; });
}
