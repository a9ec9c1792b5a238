// Vectors as wide as a register, and the few functions on them that the forward needs.
//
// LANES floats fill one register: 16 with AVX-512, 8 with AVX2, else 4 (SSE2, NEON). Some compilers split vectors wider than
// a register through memory, at ten times the cost.
//
// NEON, with and without 8-bit products (i8mm): compiled by g++ 12 for aarch64 and run in an emulator (qemu 7.2), where
// tests/models/native/check.cpp compares it with plain loops. It has never run on an ARM device.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__)
#define WIDE
constexpr int LANES = 16;
#elif defined(__AVX2__) && defined(__FMA__)
#define MIDDLE
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

#if defined(WIDE) && defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__linux__)
#define TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef float F __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef double D __attribute__((vector_size(4 * LANES)));  // half as many numbers
typedef int64_t L __attribute__((vector_size(4 * LANES)));
typedef uint64_t U __attribute__((vector_size(4 * LANES)));
typedef uint16_t Half __attribute__((vector_size(2 * LANES)));
typedef uint8_t Byte __attribute__((vector_size(LANES)));
typedef int8_t Code __attribute__((vector_size(LANES)));

constexpr int PAIRS = LANES / 2;  // doubles in a register
constexpr float TINY = std::numeric_limits<float>::epsilon();
constexpr float NEVER = -std::numeric_limits<float>::infinity();

template <class V> inline V load(const void* from) { V v; std::memcpy(&v, from, sizeof v); return v; }
template <class V> inline void store(void* to, V v) { std::memcpy(to, &v, sizeof v); }
template <class To, class From> inline To bits(From x) { To y; std::memcpy(&y, &x, sizeof y); return y; }
inline F all(float x) { return x - F{}; }  // not F{} + x, which turns -0 into 0 and costs an addition
const I LANE = [] {
  I lane{};
  for (int i = 0; i < LANES; i++) lane[i] = i;
  return lane;
}();
// The low byte of each number. AVX2 has no such conversion, and GCC takes numbers out one by one.
inline Byte low_bytes(I x) {
#if defined(MIDDLE)
  typedef int8_t AllBytes __attribute__((vector_size(4 * LANES)));
  return (Byte)__builtin_shufflevector((AllBytes)x, (AllBytes)x, 0, 4, 8, 12, 16, 20, 24, 28);
#else
  return __builtin_convertvector(x, Byte);
#endif
}
inline int round_up(int num, int to) { return (num + to - 1) / to * to; }

// a * b + c, rounded once if the processor supports it; explicit, so that the result does not depend on the compiler.
inline F fused(F a, F b, F c) {
#if defined(WIDE)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(MIDDLE)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return c + a * b;
#endif
}

inline F larger(F a, F b) {
#if defined(WIDE)
  return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(MIDDLE)
  return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

// Reduces the lanes to one number: joins those half a vector apart, then a quarter, and so on.
template <class Join> inline float reduced(F v, Join join) {
  float lane[LANES];
  store(lane, v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = join(lane[i], lane[i + half]);
  return lane[0];
}
inline float sum(F v) {
#if defined(WIDE)
  return _mm512_reduce_add_ps((__m512)v);
#else
  return reduced(v, [](float a, float b) { return a + b; });
#endif
}
inline float greatest(F v) {
#if defined(WIDE)
  return _mm512_reduce_max_ps((__m512)v);
#else
  return reduced(v, [](float a, float b) { return a > b ? a : b; });
#endif
}

// Whether a comparison holds in some lane.
inline bool any(L holds) {
#if defined(WIDE)
  return _mm512_movepi64_mask((__m512i)holds);
#elif defined(MIDDLE)
  return _mm256_movemask_pd((__m256d)holds);
#else
  return holds[0] | holds[1];
#endif
}

// e^x to 2 units in the last place, and 0 below -87 (Cody and Waite's reduction, a polynomial of degree 6). The processor's
// scaling by powers of two would give denormal numbers there, with which all later arithmetic is many times slower.
inline F exponential(F x) {
  const F lowest = all(-87.0f), highest = all(88.0f);
  const I zero = x < lowest;
  x = x < lowest ? lowest : x > highest ? highest : x;
  const F shifted = fused(x, all(1.44269504f), all(12582912.0f)), n = shifted - 12582912.0f;
  const F r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), x));
  F p = all(1.3981999507e-3f);
  p = fused(p, r, all(8.3334519073e-3f));
  p = fused(p, r, all(4.1665795894e-2f));
  p = fused(p, r, all(1.6666665459e-1f));
  p = fused(p, r, all(5.0000001201e-1f));
  p = fused(p, r * r, r + 1.0f);
  return zero ? F{} : bits<F>(bits<I>(p) + ((bits<I>(shifted) - 0x4b400000) << 23));
}

// e^x in float64, to 2 units in the last place, and 0 below -700: the same reduction, Taylor's polynomial of degree 13.
inline D exponential(D x) {
  const D lowest = D{} - 700.0;
  const L zero = x < lowest;
  x = x < lowest ? lowest : x;
  const double shift = 6755399441055744.0;  // 1.5 * 2^52: the last bits of the sum are the nearest integer
  const D shifted = x * 1.4426950408889634 + shift, n = shifted - shift;
  const D r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  D p = D{} + 1.6059043836821613e-10;
  constexpr double terms[] = {2.08767569878681e-9,   2.505210838544172e-8,  2.755731922398589e-7, 2.7557319223985893e-6,
                              2.48015873015873e-5,   1.984126984126984e-4,  1.388888888888889e-3, 8.333333333333333e-3,
                              4.1666666666666664e-2, 1.6666666666666666e-1, 0.5,                  1.0, 1.0};
  for (double term : terms) p = p * r + term;
  const L power = bits<L>(shifted) - bits<int64_t>(shift);
  return zero ? D{} : bits<D>(bits<L>(p) + (power << 52));
}

// tanh x, and erf x to 5e-7 (Abramowitz and Stegun, 7.1.26, rounded to float32).
inline F hyperbolic(F x) { return 1.0f - 2.0f / (exponential(x * 2.0f) + 1.0f); }
inline F error_function(F x) {
  const F size = x < 0 ? -x : x, t = 1.0f / fused(size, all(0.3275911f), all(1.0f));
  F p = all(1.061405429f);
  p = fused(p, t, all(-1.453152027f));
  p = fused(p, t, all(1.421413741f));
  p = fused(p, t, all(-0.284496736f));
  p = fused(p, t, all(0.254829592f));
  const F y = 1.0f - p * t * exponential(-size * size);
  return x < 0 ? -y : y;
}

// Conversion of the numbers of caches and embeddings: float32, or bfloat16 as uint16_t. `num` of them, at most LANES.
inline F widen(const float* from, int num = LANES) {
  if (num >= LANES) return load<F>(from);
  F v{};
  std::memcpy(&v, from, num * sizeof *from);
  return v;
}
inline F widen(const uint16_t* from, int num = LANES) {
  Half v{};
  if (num >= LANES) v = load<Half>(from);
  else std::memcpy(&v, from, num * sizeof *from);
#if defined(WIDE)
  return bits<F>((I)_mm512_cvtepu16_epi32(bits<__m256i>(v)) << 16);
#elif defined(MIDDLE)
  return bits<F>((I)_mm256_cvtepu16_epi32(bits<__m128i>(v)) << 16);
#else
  return bits<F>(__builtin_convertvector(v, I) << 16);
#endif
}
inline F widen(const int8_t* from) {  // LANES of them
#if defined(WIDE)
  return (F)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
#elif defined(MIDDLE)
  return (F)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  return __builtin_convertvector(load<Code>(from), F);
#endif
}
inline void narrow(F x, float* to, int num = LANES) {
  if (num >= LANES) store(to, x);
  else std::memcpy(to, &x, num * sizeof *to);
}
inline void narrow(F x, uint16_t* to, int num = LANES) {  // rounds to nearest, ties to even
#if defined(WIDE) && defined(__AVX512BF16__)
  const Half v = bits<Half>(_mm512_cvtneps_pbh((__m512)x));
#else
  const I u = bits<I>(x);
  const Half v = __builtin_convertvector((u + 0x7fff + ((u >> 16) & 1)) >> 16, Half);
#endif
  if (num >= LANES) store(to, v);
  else std::memcpy(to, &v, num * sizeof *to);
}
inline float narrowed(float x, const float*) { return x; }
inline float narrowed(float x, const uint16_t*) {
  const uint32_t u = bits<uint32_t>(x);
  return bits<float>((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
}
