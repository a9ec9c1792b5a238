// The numbers of stored weights: the types of GGUF files (github.com/ggml-org/ggml, src/ggml-quants.c), by ggml's numbers.
//
// Products of a scale, which has 11 bits, with a scale of a group and a code are exact in float32 wherever something is added to
// them, so the numbers are those of any implementation, fused or not.

#pragma once

#include "vectors.h"

inline float from_half(const uint8_t* from) {
  uint16_t h;
  std::memcpy(&h, from, 2);
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return bits<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  const float size = rest < 0x400 ? (float)rest * 0x1p-24f : bits<float>((rest << 13) + (112u << 23));
  return bits<float>(sign | bits<uint32_t>(size));
}

// A type: numbers and bytes of a block, and the function that reads one.
struct StoredType {
  int block, bytes;
  void (*read)(const uint8_t*, float*);
};

namespace stored {

inline void float32(const uint8_t* from, float* to) { std::memcpy(to, from, 4); }
inline void float16(const uint8_t* from, float* to) { *to = from_half(from); }
inline void bfloat16(const uint8_t* from, float* to) {
  uint16_t h;
  std::memcpy(&h, from, 2);
  *to = bits<float>((uint32_t)h << 16);
}

inline void q4_0(const uint8_t* b, float* y) {
  const float d = from_half(b);
  for (int i = 0; i < 16; i++) y[i] = ((b[2 + i] & 15) - 8) * d, y[i + 16] = ((b[2 + i] >> 4) - 8) * d;
}
inline void q4_1(const uint8_t* b, float* y) {
  const float d = from_half(b), m = from_half(b + 2);
  for (int i = 0; i < 16; i++) y[i] = (b[4 + i] & 15) * d + m, y[i + 16] = (b[4 + i] >> 4) * d + m;
}

// Codes of five bits, whose fifth ones are a word of their own.
inline void five(const uint8_t* high, const uint8_t* low, int* codes) {
  uint32_t h;
  std::memcpy(&h, high, 4);
  for (int i = 0; i < 16; i++) {
    codes[i] = (low[i] & 15) | (h >> i & 1) << 4;
    codes[i + 16] = low[i] >> 4 | (h >> (i + 16) & 1) << 4;
  }
}
inline void q5_0(const uint8_t* b, float* y) {
  const float d = from_half(b);
  int codes[32];
  five(b + 2, b + 6, codes);
  for (int i = 0; i < 32; i++) y[i] = (codes[i] - 16) * d;
}
inline void q5_1(const uint8_t* b, float* y) {
  const float d = from_half(b), m = from_half(b + 2);
  int codes[32];
  five(b + 4, b + 8, codes);
  for (int i = 0; i < 32; i++) y[i] = codes[i] * d + m;
}
inline void q8_0(const uint8_t* b, float* y) {
  const float d = from_half(b);
  for (int i = 0; i < 32; i++) y[i] = (int8_t)b[2 + i] * d;
}

inline void q2_k(const uint8_t* b, float* y) {
  const uint8_t *scales = b, *q = b + 16;
  const float d = from_half(b + 80), least = from_half(b + 82);
  for (int half = 0; half < 2; half++, q += 32)
    for (int shift = 0; shift < 8; shift += 2)
      for (int part = 0; part < 2; part++, scales++, y += 16) {
        const float scale = d * (*scales & 15), below = least * (*scales >> 4);
        for (int i = 0; i < 16; i++) y[i] = scale * (q[16 * part + i] >> shift & 3) - below;
      }
}
inline void q3_k(const uint8_t* b, float* y) {
  const uint8_t *high = b, *q = b + 32, *packed = b + 96;
  const float d = from_half(b + 108);
  int8_t scales[16];
  for (int i = 0; i < 16; i++) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    scales[i] = (int8_t)((low | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32);
  }
  for (int half = 0, number = 0; half < 2; half++, q += 32)
    for (int shift = 0; shift < 8; shift += 2)
      for (int part = 0; part < 2; part++, number++, y += 16) {
        const float scale = d * scales[number];
        const int bit = 4 * half + shift / 2;
        for (int i = 0; i < 16; i++) y[i] = scale * ((q[16 * part + i] >> shift & 3) - (high[16 * part + i] >> bit & 1 ? 0 : 4));
      }
}

// Scale and offset, of six bits each, of a group of 32 of Q4_K and Q5_K.
inline void six(const uint8_t* packed, int group, int* scale, int* offset) {
  if (group < 4) {
    *scale = packed[group] & 63, *offset = packed[group + 4] & 63;
  } else {
    *scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4;
    *offset = packed[group + 4] >> 4 | (packed[group] >> 6) << 4;
  }
}
// Eight groups of 32; FIVE: the fifth bits of the codes stand before the others.
template <bool FIVE>
inline void groups_of_32(const uint8_t* b, float* y) {
  const float d = from_half(b), least = from_half(b + 2);
  const uint8_t *high = b + 16, *low = FIVE ? b + 48 : b + 16;
  for (int group = 0; group < 8; group++, y += 32) {
    int scale, offset;
    six(b + 4, group, &scale, &offset);
    const float step = d * scale, below = least * offset;
    const int shift = 4 * (group % 2);
    const uint8_t* of = low + 32 * (group / 2);
    for (int i = 0; i < 32; i++) {
      const int fifth = FIVE ? (high[i] >> group & 1) << 4 : 0;
      y[i] = step * ((of[i] >> shift & 15) | fifth) - below;
    }
  }
}
inline void q6_k(const uint8_t* b, float* y) {
  const uint8_t *low = b, *high = b + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(b + 192);
  const float d = from_half(b + 208);
  for (int half = 0; half < 2; half++, low += 64, high += 32)
    for (int part = 0; part < 4; part++)
      for (int group = 0; group < 2; group++, scales++, y += 16) {
        const float step = d * *scales;
        const uint8_t *l = low + 32 * (part % 2) + 16 * group, *h = high + 16 * group;
        const int from = 4 * (part / 2), bit = 2 * part;
        for (int i = 0; i < 16; i++) y[i] = step * (((l[i] >> from & 15) | (h[i] >> bit & 3) << 4) - 32);
      }
}

inline StoredType type_of(int number) {
  switch (number) {
    case 0: return {1, 4, float32};
    case 1: return {1, 2, float16};
    case 2: return {32, 18, q4_0};
    case 3: return {32, 20, q4_1};
    case 6: return {32, 22, q5_0};
    case 7: return {32, 24, q5_1};
    case 8: return {32, 34, q8_0};
    case 10: return {256, 84, q2_k};
    case 11: return {256, 110, q3_k};
    case 12: return {256, 144, groups_of_32<false>};
    case 13: return {256, 176, groups_of_32<true>};
    case 14: return {256, 210, q6_k};
    case 30: return {1, 2, bfloat16};
  }
  return {0, 0, nullptr};
}

// The nearest bfloat16, ties to even. Unlike AVX-512's instruction it keeps the smallest numbers; what is no number stays none.
inline uint16_t to_bfloat16(float x) {
  const uint32_t u = bits<uint32_t>(x);
  return x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// Reads numbers of a type, a multiple of its block, as float32, or rounded to bfloat16.
inline void read_numbers(const StoredType& type, const uint8_t* from, int64_t num, void* to, bool rounded) {
  constexpr int SOME = 256;
  float some[SOME];
  for (int64_t at = 0; at < num; at += SOME) {
    const int count = (int)std::min<int64_t>(SOME, num - at);
    float* y = rounded ? some : static_cast<float*>(to) + at;
    for (int i = 0; i < count; i += type.block, from += type.bytes) type.read(from, y + i);
    if (rounded)
      for (int i = 0; i < count; i++) static_cast<uint16_t*>(to)[at + i] = to_bfloat16(some[i]);
  }
}

}  // namespace stored
