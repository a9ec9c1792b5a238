// The instructions of AVX-512 and AMX that the kernels use, as plain loops: included before everything else, so that the code for
// these processors is compiled for any x86-64 with AVX2, and its results are seen there. Tiles abort where the processor faults.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emulated {

template <class X, int BYTES> using Vector __attribute__((vector_size(BYTES))) = X;
typedef Vector<float, 64> Floats;
typedef Vector<int32_t, 64> Ints;
typedef Vector<int8_t, 64> Bytes;
typedef Vector<uint16_t, 64> Halves;

inline float of_bfloat16(uint16_t x) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)x << 16))); }

inline __m512 fmadd(__m512 a, __m512 b, __m512 c) {
  for (int i = 0; i < 16; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
template <class Join> inline float reduced(__m512 a, Join join) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a[i] = join(a[i], a[i + half]);
  return a[0];
}
inline unsigned mask_of_signs(__m512i a) {
  unsigned mask = 0;
  for (int i = 0; i < 8; i++) mask |= (unsigned)(a[i] < 0) << i;
  return mask;
}
inline __m512i dpbusd(__m512i sums, __m512i a, __m512i b) {
  Ints to = (Ints)sums;
  const Bytes x = (Bytes)a, y = (Bytes)b;
  for (int i = 0; i < 64; i++) to[i / 4] += (uint8_t)x[i] * y[i];
  return (__m512i)to;
}
inline __m512 dpbf16(__m512 sums, __m512bh a, __m512bh b) {
  const Halves x = (Halves)a, y = (Halves)b;
  for (int i = 0; i < 32; i++) sums[i / 2] += of_bfloat16(x[i]) * of_bfloat16(y[i]);
  return sums;
}
inline __m256bh to_bfloat16(__m512 a) {
  const Ints u = (Ints)a;
  return (__m256bh)__builtin_convertvector((u + 0x7fff + ((u >> 16) & 1)) >> 16, Vector<uint16_t, 32>);
}

struct Tile { uint8_t at[16][64]; };
struct Shapes { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; };
inline thread_local Tile tiles[8];
inline thread_local Shapes shapes;

inline void check(bool holds) {
  if (holds) return;
  std::puts("a tile that is not set up like this");
  std::exit(1);
}
inline void set_up(const void* from) {
  std::memcpy(&shapes, from, sizeof shapes);
  check(shapes.palette == 1);
  std::memset(tiles, 0, sizeof tiles);
}
inline void release() { shapes = {}; }
inline void zero(int tile) {
  check(shapes.rows[tile]);
  tiles[tile] = {};
}
inline void read(int tile, const void* from, ptrdiff_t stride) {
  zero(tile);
  for (int i = 0; i < shapes.rows[tile]; i++) std::memcpy(tiles[tile].at[i], static_cast<const char*>(from) + i * stride, shapes.bytes[tile]);
}
inline void write(int tile, void* to, ptrdiff_t stride) {
  check(shapes.rows[tile]);
  for (int i = 0; i < shapes.rows[tile]; i++) std::memcpy(static_cast<char*>(to) + i * stride, tiles[tile].at[i], shapes.bytes[tile]);
}

// Adds products of the numbers X of a word of tile a and Y of tile b to the sums, of type S.
template <class S, class X, class Y, class Product> inline void multiply(int sums, int a, int b, Product product) {
  check(shapes.rows[sums] == shapes.rows[a] && shapes.bytes[sums] == shapes.bytes[b] && shapes.bytes[a] == 4 * shapes.rows[b]);
  for (int row = 0; row < shapes.rows[a]; row++)
    for (int column = 0; column < shapes.bytes[b] / 4; column++) {
      S sum;
      std::memcpy(&sum, tiles[sums].at[row] + 4 * column, 4);
      for (int word = 0; word < shapes.rows[b]; word++) {
        X x[4 / sizeof(X)];
        Y y[4 / sizeof(Y)];
        std::memcpy(x, tiles[a].at[row] + 4 * word, 4);
        std::memcpy(y, tiles[b].at[word] + 4 * column, 4);
        for (unsigned i = 0; i < 4 / sizeof(X); i++) sum += product(x[i], y[i]);
      }
      std::memcpy(tiles[sums].at[row] + 4 * column, &sum, 4);
    }
}
template <class X, class Y> inline void multiply_bytes(int sums, int a, int b) {
  multiply<int32_t, X, Y>(sums, a, b, [](X x, Y y) { return x * y; });
}
inline void multiply_bfloat16(int sums, int a, int b) {
  multiply<float, uint16_t, uint16_t>(sums, a, b, [](uint16_t x, uint16_t y) { return of_bfloat16(x) * of_bfloat16(y); });
}

}  // namespace emulated

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
#define syscall(...) 0L  // the permission to use tiles is given

#define _mm512_fmadd_ps emulated::fmadd
#define _mm512_max_ps(a, b) ((a) > (b) ? (a) : (b))
#define _mm512_reduce_add_ps(a) emulated::reduced(a, [](float x, float y) { return x + y; })
#define _mm512_reduce_max_ps(a) emulated::reduced(a, [](float x, float y) { return x > y ? x : y; })
#define _mm512_movepi64_mask emulated::mask_of_signs
#define _mm512_cvtepu16_epi32(a) (__m512i)__builtin_convertvector((emulated::Vector<uint16_t, 32>)(a), emulated::Ints)
#define _mm512_cvtepi8_epi32(a) (__m512i)__builtin_convertvector((emulated::Vector<int8_t, 16>)(a), emulated::Ints)
#define _mm512_cvtepi32_ps(a) (__m512)__builtin_convertvector((emulated::Ints)(a), emulated::Floats)
#define _mm512_set1_epi8(x) (__m512i)(emulated::Bytes{} + (int8_t)(x))
#define _mm512_set1_epi32(x) (__m512i)(emulated::Ints{} + (int32_t)(x))
#define _mm512_sub_epi8(a, b) (__m512i)((emulated::Bytes)(a) - (emulated::Bytes)(b))
#define _mm512_dpbusd_epi32 emulated::dpbusd
#define _mm512_dpbf16_ps emulated::dpbf16
#define _mm512_cvtneps_pbh emulated::to_bfloat16

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::set_up
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::read
#define _tile_stored emulated::write
#define _tile_dpbssd emulated::multiply_bytes<int8_t, int8_t>
#define _tile_dpbsud emulated::multiply_bytes<int8_t, uint8_t>
#define _tile_dpbusd emulated::multiply_bytes<uint8_t, int8_t>
#define _tile_dpbf16ps emulated::multiply_bfloat16
