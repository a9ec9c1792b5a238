// Rounds rows to the block types of GGUF files: the bytes that llama.cpp's reference quantizers make without an importance matrix
// (github.com/ggml-org/llama.cpp, ggml/src/ggml-quants.c: quantize_row_*_ref, make_qkx2_quants, make_qx_quants).
//
// A group's search goes through its numbers in their order, so eight groups are searched side by side, one in each lane. Products
// and sums are rounded one by one, whatever the processor could do in one step. models/gguf/rounding.py does the same slowly.

#pragma once

#include <cstdint>
#include <cstring>

#ifdef __clang__
#pragma clang fp contract(off)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

namespace rounding {

typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
constexpr float MAGIC = 12582912.0f;  // 1.5 * 2^23: behind it sums have no fraction, ties are rounded to even
constexpr float NOTHING = 1e-15f;     // groups of smaller numbers become zeros

inline I8 nearest(F8 x) { return ((I8)(x + MAGIC) & 0x7fffff) - 0x400000; }
inline int nearest(float x) {
  const float sum = x + MAGIC;
  int32_t word;
  std::memcpy(&word, &sum, 4);
  return (word & 0x7fffff) - 0x400000;
}
inline F8 real(I8 x) { return __builtin_convertvector(x, F8); }
inline I8 pick(I8 where, I8 a, I8 b) { return (where & a) | (~where & b); }
inline F8 pick(I8 where, F8 a, F8 b) { return (F8)pick(where, (I8)a, (I8)b); }
inline I8 between(I8 x, int low, int high) {
  x = pick(x < low, I8{} + low, x);
  return pick(x > high, I8{} + high, x);
}
inline F8 size(F8 x) { return (F8)((I8)x & 0x7fffffff); }
inline int between(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
inline float size(float x) { return x < 0 ? -x : x; }

// The nearest 16-bit float, ties to even; infinity for what is greater than all.
inline uint16_t half(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (u < 0x38800000) {
    float small;
    std::memcpy(&small, &u, 4);
    return (uint16_t)(sign | nearest(small * 0x1p24f));
  }
  u -= 112u << 23;
  return (uint16_t)(sign | (u + 0xfff + (u >> 13 & 1)) >> 13);
}
inline void put_half(uint16_t h, uint8_t* to) { std::memcpy(to, &h, 2); }
inline float widened(uint16_t h) {
  uint8_t bytes[2];
  put_half(h, bytes);
  return from_half(bytes);
}

// The number farthest from zero, the first of such.
inline float peak(const float* x, int num) {
  float found = 0;
  for (int i = 0; i < num; i++) found = size(x[i]) > size(found) ? x[i] : found;
  return found;
}

// Codes of a group of 32: low halves of bytes are the first 16, and of 5 bits the fifth ones are a word of their own.
template <int BITS> inline void put_32(const uint8_t* codes, uint8_t* to) {
  if (BITS == 5) {
    uint32_t fifth = 0;
    for (int i = 0; i < 32; i++) fifth |= (uint32_t)(codes[i] >> 4) << i;
    std::memcpy(to, &fifth, 4);
    to += 4;
  }
  for (int i = 0; i < 16; i++) to[i] = (uint8_t)((codes[i] & 15) | codes[i + 16] << 4);
}

// x = d (q - 2^(BITS - 1)): the number farthest from zero is exact.
template <int BITS> inline void symmetric_32(const float* x, uint8_t* to) {
  constexpr int ZERO = 1 << (BITS - 1);
  const float d = peak(x, 32) / -ZERO, id = d ? 1.0f / d : 0.0f;
  uint8_t codes[32];
  for (int i = 0; i < 32; i++) codes[i] = (uint8_t)between((int)(x[i] * id + (ZERO + 0.5f)), 0, 2 * ZERO - 1);
  put_half(half(d), to);
  put_32<BITS>(codes, to + 2);
}

// x = d q + m: the least and the greatest number are exact.
template <int BITS> inline void affine_32(const float* x, uint8_t* to) {
  constexpr int MOST = (1 << BITS) - 1;
  float low = x[0], high = x[0];
  for (int i = 1; i < 32; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
  const float d = (high - low) / MOST, id = d ? 1.0f / d : 0.0f;
  uint8_t codes[32];
  for (int i = 0; i < 32; i++) codes[i] = (uint8_t)between((int)((x[i] - low) * id + 0.5f), 0, MOST);
  put_half(half(d), to), put_half(half(low), to + 2);
  put_32<BITS>(codes, to + 4);
}

inline void q8_0(const float* x, uint8_t* to) {
  const float d = size(peak(x, 32)) / 127, id = d ? 1.0f / d : 0.0f;
  put_half(half(d), to);
  for (int i = 0; i < 32; i++) {
    const float y = x[i] * id, far = size(y);  // halves away from zero
    const int whole = (int)far, code = whole + (far - (float)whole >= 0.5f);
    to[2 + i] = (uint8_t)(y < 0 ? -code : code);
  }
}

// Codes, scales and offsets of eight groups, a group in each lane.
template <int NUM> struct Groups {
  F8 scale, offset;
  I8 codes[NUM];
};

// x = scale q - offset, with q from 0 to `most` and an offset of 0 or more: of the scales that are tried, each improved by weighted
// least squares, those with the least weighted square error.
inline Groups<32> affine(const F8* x, const F8* weight, int most, float first, int steps) {
  Groups<32> best;
  F8 low = x[0], high = x[0], sum_w = weight[0], sum_x = sum_w * x[0];
  for (int i = 1; i < 32; i++) {
    low = pick(x[i] < low, x[i], low), high = pick(x[i] > high, x[i], high);
    sum_w += weight[i], sum_x += weight[i] * x[i];
  }
  low = pick(low > 0, F8{}, low);
  const I8 flat = high == low;
  const F8 below = low;
  F8 inverse = (float)most / (high - low), least{};
  best.scale = 1.0f / inverse;
  for (int i = 0; i < 32; i++) {
    best.codes[i] = between(nearest(inverse * (x[i] - low)), 0, most);
    const F8 off = best.scale * real(best.codes[i]) + low - x[i];
    least += weight[i] * (off * off);
  }
  I8 codes[32];
  for (int step = 0; step <= steps; step++) {
    inverse = (first + 0.1f * (float)step + (float)most) / (high - low);
    F8 sum_q{}, square{}, both{};
    for (int i = 0; i < 32; i++) {
      codes[i] = between(nearest(inverse * (x[i] - low)), 0, most);
      const F8 q = real(codes[i]), weighted = weight[i] * q;
      sum_q += weighted, square += weighted * q, both += weighted * x[i];
    }
    const F8 determinant = sum_w * square - sum_q * sum_q;
    F8 scale = (sum_w * both - sum_x * sum_q) / determinant, start = (square * sum_x - sum_q * both) / determinant;
    scale = pick(start > 0, both / square, scale), start = pick(start > 0, F8{}, start);
    F8 error{};
    for (int i = 0; i < 32; i++) {
      const F8 off = scale * real(codes[i]) + start - x[i];
      error += weight[i] * (off * off);
    }
    const I8 better = (determinant > 0) & (error < least);
    for (int i = 0; i < 32; i++) best.codes[i] = pick(better, codes[i], best.codes[i]);
    least = pick(better, error, least), best.scale = pick(better, scale, best.scale), low = pick(better, start, low);
  }
  for (int i = 0; i < 32; i++) best.codes[i] = pick(flat, I8{}, best.codes[i]);
  best.scale = pick(flat, F8{}, best.scale), best.offset = -pick(flat, below, low);
  return best;
}

// x = scale (q - 32): of the scales that are tried, each improved by least squares, that with the least error, weighted by x^2.
inline Groups<16> symmetric(const F8* x) {
  Groups<16> best;
  F8 peak{}, far{};
  for (int i = 0; i < 16; i++) {
    const I8 farther = size(x[i]) > far;
    far = pick(farther, size(x[i]), far), peak = pick(farther, x[i], peak);
  }
  const I8 nothing = far < NOTHING;
  F8 gain{};
  for (int number = -1; number < 19; number++) {  // the plain one first
    const int step = number < 0 ? 0 : number - 9;
    if (number >= 0 && step == 0) continue;
    const F8 inverse = (number < 0 ? -32.0f : -(32.0f + 0.1f * (float)step)) / peak;
    F8 both{}, square{};
    I8 codes[16];
    for (int i = 0; i < 16; i++) {
      codes[i] = between(nearest(inverse * x[i]), -32, 31);
      const F8 q = real(codes[i]), weight = x[i] * x[i];
      both += weight * x[i] * q, square += weight * q * q;
    }
    const I8 first = I8{} - (number < 0), better = first | ((square > 0) & (both * both > gain * square));
    const F8 scale = pick(square != 0, both / square, F8{});
    for (int i = 0; i < 16; i++) best.codes[i] = pick(better, codes[i] + 32, best.codes[i]);
    best.scale = pick(better, scale, best.scale), gain = pick(better, scale * both, gain);
  }
  for (int i = 0; i < 16; i++) best.codes[i] = pick(nothing, I8{}, best.codes[i]);
  best.scale = pick(nothing, F8{}, best.scale);
  return best;
}

// Eight groups of 32, x = d s q - e m, with s and m of six bits and q of BITS: d, e, s and m packed, fifth bits, q.
template <int BITS> inline void groups_of_32(const float* x, uint8_t* to) {
  constexpr int MOST = (1 << BITS) - 1;
  F8 lanes[32], weights[32], squares{};
  for (int i = 0; i < 32; i++) for (int j = 0; j < 8; j++) lanes[i][j] = x[32 * j + i];
  for (int i = 0; i < 32; i++) squares += lanes[i] * lanes[i];
  F8 mean = squares / 32.0f;
  for (int j = 0; j < 8; j++) mean[j] = __builtin_sqrtf(mean[j]);
  for (int i = 0; i < 32; i++) weights[i] = mean + size(lanes[i]);
  const Groups<32> found = affine(lanes, weights, MOST, BITS == 4 ? -1.0f : -0.5f, BITS == 4 ? 20 : 15);
  float most[2] = {0, 0};
  for (int j = 0; j < 8; j++) {
    most[0] = found.scale[j] > most[0] ? found.scale[j] : most[0];
    most[1] = found.offset[j] > most[1] ? found.offset[j] : most[1];
  }
  const float inverse[2] = {most[0] > 0 ? 63.0f / most[0] : 0.0f, most[1] > 0 ? 63.0f / most[1] : 0.0f};
  const uint16_t units[2] = {half(most[0] / 63.0f), half(most[1] / 63.0f)};
  put_half(units[0], to), put_half(units[1], to + 2);
  uint8_t *packed = to + 4, codes[256];
  std::memset(packed, 0, 12);
  for (int j = 0; j < 8; j++) {
    uint8_t s = (uint8_t)nearest(inverse[0] * found.scale[j]), m = (uint8_t)nearest(inverse[1] * found.offset[j]);
    s = s < 63 ? s : 63, m = m < 63 ? m : 63;
    if (j < 4) {
      packed[j] = s, packed[j + 4] = m;
    } else {
      packed[j + 4] = (uint8_t)((s & 15) | (m & 15) << 4);
      packed[j - 4] |= (uint8_t)(s >> 4 << 6), packed[j] |= (uint8_t)(m >> 4 << 6);
    }
    const float d = widened(units[0]) * (float)s, e = widened(units[1]) * (float)m;
    for (int i = 0; i < 32; i++) {
      codes[32 * j + i] = (uint8_t)found.codes[i][j];
      if (d != 0) codes[32 * j + i] = (uint8_t)between(nearest((x[32 * j + i] + e) / d), 0, MOST);
    }
  }
  uint8_t* low = to + 16 + (BITS == 5 ? 32 : 0);
  if (BITS == 5) std::memset(to + 16, 0, 32);
  for (int i = 0; i < 256 && BITS == 5; i++) to[16 + i % 32] |= (uint8_t)(codes[i] >> 4 << (i / 32));
  for (int i = 0; i < 128; i++) {
    const int at = 64 * (i / 32) + i % 32;
    low[i] = (uint8_t)((codes[at] & 15) | (codes[at + 32] & 15) << 4);
  }
}

// Sixteen groups of 16, x = d s (q - 32), with s of eight bits and q of six: low and high bits of q, s, d.
inline void q6_k(const float* x, uint8_t* to) {
  uint8_t codes[256];
  float scales[16], far = 0, peak = 0;
  for (int part = 0; part < 2; part++) {
    F8 lanes[16];
    for (int i = 0; i < 16; i++) for (int j = 0; j < 8; j++) lanes[i][j] = x[128 * part + 16 * j + i];
    const Groups<16> found = symmetric(lanes);
    for (int j = 0; j < 8; j++) scales[8 * part + j] = found.scale[j];
    for (int i = 0; i < 16; i++) for (int j = 0; j < 8; j++) codes[128 * part + 16 * j + i] = (uint8_t)found.codes[i][j];
  }
  for (float scale : scales) if (size(scale) > far) far = size(scale), peak = scale;
  std::memset(to, 0, 210);
  if (far < NOTHING) return;
  const float inverse = -128.0f / peak;
  const uint16_t unit = half(1 / inverse);
  put_half(unit, to + 208);
  for (int j = 0; j < 16; j++) {
    const int8_t s = (int8_t)between(nearest(inverse * scales[j]), -128, 127);
    to[192 + j] = (uint8_t)s;
    const float d = widened(unit) * (float)s;
    for (int i = 16 * j; i < 16 * j + 16 && d != 0; i++) codes[i] = (uint8_t)(between(nearest(x[i] / d), -32, 31) + 32);
  }
  for (int i = 0; i < 64; i++) {
    const uint8_t* at = codes + 128 * (i / 32) + i % 32;
    uint8_t* low = to + 64 * (i / 32) + i % 32;
    low[0] = (uint8_t)((at[0] & 15) | at[64] << 4), low[32] = (uint8_t)((at[32] & 15) | at[96] << 4);
    to[128 + i] = (uint8_t)(at[0] >> 4 | at[32] >> 4 << 2 | at[64] >> 4 << 4 | at[96] >> 4 << 6);
  }
}

struct RoundedType {
  int block, bytes;
  void (*round)(const float*, uint8_t*);
};

inline RoundedType type_of(int number) {
  switch (number) {
    case 2: return {32, 18, symmetric_32<4>};
    case 3: return {32, 20, affine_32<4>};
    case 6: return {32, 22, symmetric_32<5>};
    case 7: return {32, 24, affine_32<5>};
    case 8: return {32, 34, q8_0};
    case 12: return {256, 144, groups_of_32<4>};
    case 13: return {256, 176, groups_of_32<5>};
    case 14: return {256, 210, q6_k};
    default: return {1, 0, nullptr};
  }
}
}  // namespace rounding

#ifdef __clang__
#pragma clang fp contract(on)
#else
#pragma GCC pop_options
#endif
