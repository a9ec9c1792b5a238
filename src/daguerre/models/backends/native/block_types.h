// The block types of GGUF files as they are packed for products: the numbers of the file, no bit of which is lost.
//
// A matrix is packed in panels of four quarters of 16 columns, as in products.h, and each quarter has a type of its own. A chunk is
// 64 inputs of a column, or 256 in the K types: HEAD words of scales and minima, and then GROUPS groups of 32 inputs of GROUP_WORDS
// words each. The words of the 16 columns for the same inputs are adjacent. A chunk has the bits of the file's blocks in
// another order (Q6_K 16 more), so rows are made from it again (`column_of_blocks`).
//
// Of a group the first four words hold the low four bits of codes: a word's byte b has that of input 8 word + b in its low half, and
// of the input four behind it in its high half. A fifth bit is bit p of byte b of a fifth word, for input 4 p + b; upper two bits
// are bits 2 (p % 4) of the words behind the fourth. Codes of 8 bits are bytes, 128 more than the file's.

#pragma once

#include "vectors.h"

#if (defined(WIDE) && defined(__AVX512VNNI__)) || (defined(MIDDLE) && defined(__AVXVNNI__)) || defined(__ARM_FEATURE_MATMUL_INT8)
#define UNSIGNED_BY_SIGNED  // one instruction adds products of four unsigned and four signed 8-bit numbers
#elif defined(WIDE) || defined(MIDDLE)
#define PAIRS_OF_PRODUCTS   // the same of two, in 16 bits, which hold a few of them
#else
#define SIGNED_BY_SIGNED    // products of four signed numbers, in one instruction or in several
#endif

constexpr int TILED = 12;  // rows from which on AMX's tiles multiply 4-bit matrices, and blocks, faster than vectors; estimated of blocks

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

// What is taken from the sum of a group or of a half, since a code means itself less 2^ZERO.
template <class Q> inline I shift_of_zero(int32_t sum) {
#if defined(SIGNED_BY_SIGNED)
  if constexpr (Q::BITS == 8) return I{};
#endif
  if constexpr (Q::ZERO > 0) return (I{} + sum) << Q::ZERO;
  else return I{};
}

}  // namespace blocks

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
