// 4-bit weights in groups: a column's weights for 32 consecutive inputs are codes from 0 to 15, where 8 means zero, times the
// group's scale, a 16-bit float. These are the numbers of llama.cpp's Q4_0. Inputs are rounded to 8 bits in the same groups, each
// with a scale of its own, so one large input does not cost the others their precision. A group's sum is exact; groups are added
// in their order, in float32.
//
// A chunk of 64 inputs takes CHUNK words of a column. Eight hold codes: a word's byte b has that of input 8 word + b in its low
// half, and of the input four behind it in its high half. The ninth holds the scales of both groups.

#pragma once

#if (defined(WIDE) && defined(__AVX512VNNI__)) || (defined(MIDDLE) && defined(__AVXVNNI__)) || defined(__ARM_FEATURE_MATMUL_INT8)
#define FOUR_AT_ONCE  // products of four unsigned and four signed 8-bit numbers
#elif defined(WIDE) || defined(MIDDLE)
#define TWO_AT_ONCE   // the same of two, added in 16 bits: a group's sums do not exceed 16 * 15 * 127
#endif

struct Int4 {
  typedef F Sum;
  static constexpr int PER = 8, CHUNK = 9, INPUTS = 64, IN_GROUP = 32;  // PER: codes in a word
#if defined(FOUR_AT_ONCE) || defined(TWO_AT_ONCE)
  static constexpr int PARTS = 3, CODES = 16;  // CODES: words of a chunk's inputs; the scales of its groups follow, and the start
                                               // of their sums, -8 times the sum of their codes
#else
  static constexpr int PARTS = 4, CODES = 32;  // inputs as pairs of 16-bit numbers
#endif

  // How many vectors of columns are processed at a time with so many rows: there are two sums of each, and both stay in registers.
  static constexpr int columns_for(int rows) {
#if defined(WIDE)
    return rows > 4 ? 1 : rows > 2 ? 2 : 4;
#elif defined(__ARM_NEON)
    return rows == 1 ? 4 : rows == 2 ? 2 : 1;
#else
    return rows == 1 ? 2 : 1;
#endif
  }

  static float row(const float* x, int num, uint32_t* to) {
    for (int start = 0; start < num; start += INPUTS, to += CHUNK * PARTS)
      for (int group = 0; group < 2; group++) {
        int8_t codes[IN_GROUP];
        const float* from = x + start + group * IN_GROUP;
        F most{};
        for (int i = 0; i < IN_GROUP; i += LANES) {
          const F v = load<F>(from + i), size = v < 0 ? -v : v;
          most = larger(most, size);
        }
        const float largest = greatest(most), inverse = largest > 0 ? 127 / largest : 0, scale = largest / 127;
        I total{};
        for (int i = 0; i < IN_GROUP; i += LANES) {
          const I code = __builtin_convertvector(fused(load<F>(from + i), all(inverse), all(128.5f)), I) - 128;
          total += code;
          store(codes + i, low_bytes(code));
        }
        int32_t start_of_sum = 0;
        for (int i = 0; i < LANES; i++) start_of_sum -= 8 * total[i];
        put(codes, to + group * (CODES / 2));
        std::memcpy(to + CODES + group, &scale, 4);
        std::memcpy(to + CODES + 2 + group, &start_of_sum, 4);
      }
    return 1;
  }

  // The codes of a group of inputs, in the order in which a matrix's words are unpacked.
  static void put(const int8_t* codes, uint32_t* to) {
    if (CODES == 16) {
      std::memcpy(to, codes, IN_GROUP);
      return;
    }
    constexpr int first[] = {0, 4, 1, 5};
    for (int i = 0; i < IN_GROUP / 2; i++) {
      const int8_t* one = codes + i / 4 * 8 + first[i % 4];
      to[i] = (uint16_t)(int16_t)one[0] | (uint32_t)(uint16_t)(int16_t)one[2] << 16;
    }
  }

  // The scales of a chunk's first or second group, from 16-bit floats, without a rounding.
  static F scales(I word, int group) {
    const I half = (group ? word : word << 16) >> 3 & (I{} + (int32_t)0x8fffe000);
    return bits<F>(half) * 0x1p112f;
  }

  // A group's sums with a quarter's four words of codes.
  template <int NUM, int NUM_VECTORS>
  static inline void add_group(const uint32_t* a, int stride, const uint32_t* const* from, I (*sums)[NUM_VECTORS]) {
    I low = I{} + 0x0f0f0f0f;
#if defined(TWO_AT_ONCE)
    I pairs[NUM][NUM_VECTORS] = {};
#endif
#pragma GCC unroll 4
    for (int word = 0; word < 4; word++) {
      I packed[NUM_VECTORS];
#pragma GCC unroll 8
      for (int j = 0; j < NUM_VECTORS; j++) packed[j] = load<I>(from[j] + word * QUARTER);
#if defined(FOUR_AT_ONCE) || defined(TWO_AT_ONCE)
#pragma GCC unroll 2
      for (int p = 0; p < 2; p++) {
        I part[NUM_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < NUM_VECTORS; j++) part[j] = (p ? packed[j] >> 4 : packed[j]) & low;
#pragma GCC unroll 8
        for (int row = 0; row < NUM; row++) {
          const I input = I{} + (int32_t)a[row * stride + 2 * word + p];
#pragma GCC unroll 8
          for (int j = 0; j < NUM_VECTORS; j++)
#if defined(FOUR_AT_ONCE)
            sums[row][j] = dot(sums[row][j], part[j], input);
#else
            pairs[row][j] = add_pairs(pairs[row][j], part[j], input);
#endif
        }
      }
#else
      low = I{} + 0x000f000f;
#pragma GCC unroll 4
      for (int p = 0; p < 4; p++) {
        I part[NUM_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < NUM_VECTORS; j++) part[j] = packed[j] >> (4 * p) & low;
#pragma GCC unroll 8
        for (int row = 0; row < NUM; row++) {
          const I input = I{} + (int32_t)a[row * stride + 4 * word + p];
#pragma GCC unroll 8
          for (int j = 0; j < NUM_VECTORS; j++) sums[row][j] = Int8::dot(sums[row][j], input, part[j]);
        }
      }
#endif
    }
#if defined(TWO_AT_ONCE)
    for (int row = 0; row < NUM; row++)
      for (int j = 0; j < NUM_VECTORS; j++) sums[row][j] += added(pairs[row][j]);
#endif
  }

#if defined(FOUR_AT_ONCE)
  static I dot(I s, I codes, I inputs) {
#if defined(WIDE)
    return (I)_mm512_dpbusd_epi32((__m512i)s, (__m512i)codes, (__m512i)inputs);
#elif defined(MIDDLE)
    return (I)_mm256_dpbusd_avx_epi32((__m256i)s, (__m256i)codes, (__m256i)inputs);
#else
    return (I)vusdotq_s32((int32x4_t)s, bits<uint8x16_t>(codes), bits<int8x16_t>(inputs));
#endif
  }
#elif defined(WIDE)
  static I add_pairs(I s, I codes, I inputs) {
    return (I)_mm512_add_epi16((__m512i)s, _mm512_maddubs_epi16((__m512i)codes, (__m512i)inputs));
  }
  static I added(I pairs) { return (I)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1)); }
#elif defined(MIDDLE)
  static I add_pairs(I s, I codes, I inputs) {
    return (I)_mm256_add_epi16((__m256i)s, _mm256_maddubs_epi16((__m256i)codes, (__m256i)inputs));
  }
  static I added(I pairs) { return (I)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1)); }
#endif

  template <int NUM, int NUM_VECTORS>
  static void multiply_rows(const uint32_t* a, const uint32_t* w, int words, int first, F (*out)[VECTORS]) {
    F sums[NUM][NUM_VECTORS] = {};
    const uint32_t* from[NUM_VECTORS];
    for (int j = 0; j < NUM_VECTORS; j++) {
      const int column = (first + j) * LANES;
      from[j] = w + (size_t)(column / QUARTER) * words * QUARTER + column % QUARTER;
    }
    const int stride = words * PARTS;
    for (int word = 0; word < words; word += CHUNK, a += CHUNK * PARTS) {
      I both[NUM_VECTORS];
#pragma GCC unroll 8
      for (int j = 0; j < NUM_VECTORS; j++) both[j] = load<I>(from[j] + 8 * QUARTER);
#pragma GCC unroll 8
      for (int j = 0; j < NUM_VECTORS; j += QUARTER / LANES)
        for (int ahead = 0; ahead < CHUNK; ahead++) __builtin_prefetch(from[j] + (AHEAD + ahead) * QUARTER, 0, 2);
#pragma GCC unroll 2
      for (int group = 0; group < 2; group++) {
        I exact[NUM][NUM_VECTORS];
        const uint32_t* about = a + CODES + group;
#pragma GCC unroll 8
        for (int row = 0; row < NUM; row++)
          for (int j = 0; j < NUM_VECTORS; j++) exact[row][j] = I{} + (int32_t)about[row * stride + 2];
        add_group<NUM, NUM_VECTORS>(a + group * (CODES / 2), stride, from, exact);
        F scale[NUM_VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < NUM_VECTORS; j++) scale[j] = scales(both[j], group), from[j] += 4 * QUARTER;
#pragma GCC unroll 8
        for (int row = 0; row < NUM; row++)
#pragma GCC unroll 8
          for (int j = 0; j < NUM_VECTORS; j++)
            sums[row][j] = fused(__builtin_convertvector(exact[row][j], F) * scale[j], all(bits<float>(about[row * stride])), sums[row][j]);
      }
#pragma GCC unroll 8
      for (int j = 0; j < NUM_VECTORS; j++) from[j] += QUARTER;
    }
    for (int row = 0; row < NUM; row++)
      for (int j = 0; j < NUM_VECTORS; j++) out[row][first + j] = sums[row][j];
  }
};
