// Products of rows with packed matrices, for four types of numbers and for those of GGUF's blocks; one of them is in grouped.h, and
// these are in blocks.h.
//
// A matrix (out, in) is packed in panels of COLUMNS outputs, each split into quarters of 16 columns. A word is 32 bits of a
// column: four 8-bit numbers, two of bfloat16, or one of float32; the words of the 16 columns for the same inputs are adjacent.
// An input is broadcast, multiplied with a panel's vectors, and added to their sums. Every sum is computed in the order of
// its inputs, so a row's bits do not depend on other rows, on the columns or on the number of threads.
//
// If the processor multiplies words directly, inputs are stored as words, too. Otherwise a word is unpacked into PARTS
// vectors of numbers that it can multiply, and inputs are stored in the same unpacked form.

#pragma once

#include <algorithm>
#include <type_traits>

#include "blocks.h"

constexpr int COLUMNS = 64, QUARTER = COLUMNS / 4, VECTORS = COLUMNS / LANES;
constexpr int BLOCK = 32;   // rows of a product that are processed at a time: the rows of two tiles
constexpr int GROUP = 16;   // in a gated product, GROUP columns of gates alternate with GROUP columns of values
constexpr int WORDS = 16;   // words of a tile; the number of words of a row is a multiple of it, except in narrow matrices
constexpr int AHEAD = 64;   // prefetch distance in words: the processor's own prefetching is too late. Into the second cache: the
                            // first has too few lines under way for the speed of memory
#if defined(WIDE)
constexpr int AT_ONCE = 8;  // rows whose sums are kept in registers
#elif defined(__ARM_NEON) || defined(MIDDLE)
constexpr int AT_ONCE = 6;
#else
constexpr int AT_ONCE = 3;
#endif

// How many vectors of columns are processed at a time with so many rows, so that all sums fit in registers.
constexpr int columns_for(int rows) {
#if defined(WIDE)
  return rows > 6 ? 2 : 4;
#elif defined(__ARM_NEON)
  return rows == 1 ? 8 : 4;
#elif defined(MIDDLE)
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
#else
  return rows == 1 ? 8 : 2;
#endif
}

struct Float32 {
  typedef F Sum;
  typedef F Part;
  static constexpr int PER = 1, PARTS = 1;
  static float row(const float* x, int num, uint32_t* to) {
    std::memcpy(to, x, num * sizeof *x);
    return 1;
  }
  static Part part(I word, int) { return bits<F>(word); }
  static Part spread(uint32_t a) { return all(bits<float>(a)); }
  static Sum dot(Sum s, Part a, Part w) { return fused(a, w, s); }
};

struct Bfloat16 {
  typedef F Sum;
  static constexpr int PER = 2;
#if defined(WIDE) && defined(__AVX512BF16__)
  typedef I Part;
  static constexpr int PARTS = 1;
  static float row(const float* x, int num, uint32_t* to) {
    for (int i = 0; i < num; i += LANES) narrow(load<F>(x + i), reinterpret_cast<uint16_t*>(to) + i);
    return 1;
  }
  static Part part(I word, int) { return word; }
  static Part spread(uint32_t a) { return (I)_mm512_set1_epi32(a); }
  static Sum dot(Sum s, Part a, Part w) { return (F)_mm512_dpbf16_ps((__m512)s, bits<__m512bh>(a), bits<__m512bh>(w)); }
#else
  typedef F Part;  // the matrix's numbers converted to float32; inputs are not rounded
  static constexpr int PARTS = 2;
  static float row(const float* x, int num, uint32_t* to) {
    std::memcpy(to, x, num * sizeof *x);
    return 1;
  }
  static Part part(I word, int number) { return bits<F>(number ? word & (I{} + (int32_t)0xffff0000) : word << 16); }
  static Part spread(uint32_t a) { return all(bits<float>(a)); }
  static Sum dot(Sum s, Part a, Part w) { return fused(a, w, s); }
#endif
};

// Inputs as codes from 1 to 255, where 128 means zero; matrices as codes from -127 to 127. Sums are exact.
struct Int8 {
  typedef I Sum;
  typedef I Part;
  static constexpr int PER = 4;
#if (defined(WIDE) && defined(__AVX512VNNI__)) || (defined(MIDDLE) && defined(__AVXVNNI__)) || defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr int PARTS = 1;
  static Part part(I word, int) { return word; }
  static Sum dot(Sum s, Part a, Part w) {
#if defined(WIDE)
    return (I)_mm512_dpbusd_epi32((__m512i)s, (__m512i)a, (__m512i)w);
#elif defined(MIDDLE)
    return (I)_mm256_dpbusd_avx_epi32((__m256i)s, (__m256i)a, (__m256i)w);
#else
    return (I)vusdotq_s32((int32x4_t)s, bits<uint8x16_t>(a), bits<int8x16_t>(w));
#endif
  }
#else
  // Pairs of 16-bit numbers: the first and third of the four, then the second and fourth.
  static constexpr int PARTS = 2;
  static Part part(I word, int number) {
    typedef int16_t Pair __attribute__((vector_size(4 * LANES)));
    const Pair pair = bits<Pair>(word);
    return bits<I>(number ? pair >> 8 : (pair << 8) >> 8);
  }
  static Sum dot(Sum s, Part a, Part w) {
#if defined(WIDE)
    return s + (I)_mm512_madd_epi16((__m512i)a, (__m512i)w);
#elif defined(MIDDLE)
    return s + (I)_mm256_madd_epi16((__m256i)a, (__m256i)w);
#elif defined(__x86_64__)
    return s + (I)_mm_madd_epi16((__m128i)a, (__m128i)w);
#elif defined(__ARM_NEON)
    const int16x8_t x = bits<int16x8_t>(a), y = bits<int16x8_t>(w);
    return s + (I)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
    return s + ((a << 16) >> 16) * ((w << 16) >> 16) + (a >> 16) * (w >> 16);
#endif
  }
#endif
  static Part spread(uint32_t a) { return I{} + (int32_t)a; }
  static float row(const float* x, int num, uint32_t* to) {
    F most{};
    for (int i = 0; i < num; i += LANES) {
      const F v = load<F>(x + i), size = v < 0 ? -v : v;
      most = larger(most, size);
    }
    const float largest = greatest(most), inverse = largest > 0 ? 127 / largest : 0;
    uint8_t* codes = reinterpret_cast<uint8_t*>(to);
    for (int i = 0; i < num; i += LANES)
      store(codes + i, low_bytes(__builtin_convertvector(load<F>(x + i) * inverse + 128.5f, I)));
    if (PARTS == 2)
      for (int word = num / PER - 1; word >= 0; word--) {  // from the end, so that no word is overwritten before it is read
        const uint32_t four = to[word];
        to[2 * word] = four & 0x00ff00ff;
        to[2 * word + 1] = four >> 8 & 0x00ff00ff;
      }
    return largest / 127;
  }
};

#include "grouped.h"

// Matrices each of a kind of its own, which it names: float32, bfloat16, or blocks. Where several multiply the same inputs, they are of
// one kind.
struct Mixed { static constexpr int PARTS = 1; };  // no row of inputs has more words than numbers

template <class T> constexpr bool is_grouped = std::is_same<T, Int4>::value;
template <class T> constexpr bool is_mixed = std::is_same<T, Mixed>::value;
template <class T> constexpr bool is_blocks = std::is_same<T, Blocks>::value;

// The numbers of the vocabulary projection and of the draft head: with 4-bit matrices 8-bit ones.
template <class T> using HeadOf = std::conditional_t<is_grouped<T>, Int8, T>;

// How many inputs so many words of a column multiply.
template <class T> constexpr int inputs_of(int words) {
  if constexpr (is_grouped<T>) return words / T::CHUNK * T::INPUTS;
  else if constexpr (is_blocks<T>) return words * T::INPUTS;
  else return words * T::PER;
}

template <class T> constexpr int columns_of(int rows) {
  if constexpr (is_grouped<T>) return T::columns_for(rows);
  else return columns_for(rows);
}

// A packed matrix.
struct Linear {
  const uint32_t* weight;  // (panels, 4, words, 16)
  const float* bias;       // (panels * 64,), or null
  const float* scale;      // (panels * 64,), Int8 only
  const int32_t* offset;   // (panels * 64,), Int8 only: 128 times the sum of a column's codes
  int32_t words, panels;   // of blocks: groups of 32 inputs in place of words
  const Quarter* quarters; // (panels * 4 + 1,), blocks only
  int32_t kind;            // of `Model::product`; 4 is blocks
};

// Calls function(type of products of a matrix).
template <class T, class Function> void by_kind(const Linear& m, Function function) {
  if constexpr (!is_mixed<T>) function(T{});
  else if (m.kind == 0) function(Float32{});
  else if (m.kind == 1) function(Bfloat16{});
  else function(Blocks{});
}

// Words of a row of inputs of a product with a matrix.
template <class T> int row_words(const Linear& m) {
  int words = 0;
  by_kind<T>(m, [&](auto type) { words = m.words * decltype(type)::PARTS; });
  return words;
}

// Low-rank weights B A, which are added to those of a matrix; without them both are empty. Only the first `quarters` quarters
// of each panel of A are not zero.
struct LowRank { Linear a, b; int32_t quarters; };

// Inputs of products: rows of `words` times PARTS, and the scale of each row.
struct Inputs {
  uint32_t* rows;
  float* scale;
};

template <class T, int NUM, int NUM_VECTORS>
inline void multiply_rows(const uint32_t* a, const uint32_t* w, int words, int first, typename T::Sum (*out)[VECTORS]) {
  typename T::Sum sums[NUM][NUM_VECTORS] = {};
  const uint32_t* from[NUM_VECTORS];
  for (int j = 0; j < NUM_VECTORS; j++) {
    const int column = (first + j) * LANES;
    from[j] = w + (size_t)(column / QUARTER) * words * QUARTER + column % QUARTER;
  }
  const int stride = words * T::PARTS;
  for (int word = 0; word < words; word++) {
    I packed[NUM_VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < NUM_VECTORS; j++) packed[j] = load<I>(from[j] + word * QUARTER);
#pragma GCC unroll 8
    for (int j = 0; j < NUM_VECTORS; j += QUARTER / LANES) __builtin_prefetch(from[j] + (word + AHEAD) * QUARTER, 0, 2);
#pragma GCC unroll 2
    for (int p = 0; p < T::PARTS; p++) {
      typename T::Part part[NUM_VECTORS];
#pragma GCC unroll 8
      for (int j = 0; j < NUM_VECTORS; j++) part[j] = T::part(packed[j], p);
#pragma GCC unroll 8
      for (int row = 0; row < NUM; row++) {
        const typename T::Part input = T::spread(a[row * stride + word * T::PARTS + p]);
#pragma GCC unroll 8
        for (int j = 0; j < NUM_VECTORS; j++) sums[row][j] = T::dot(sums[row][j], input, part[j]);
      }
    }
  }
  for (int row = 0; row < NUM; row++)
    for (int j = 0; j < NUM_VECTORS; j++) out[row][first + j] = sums[row][j];
}

template <class T, int NUM>
void multiply_few(const uint32_t* a, const uint32_t* w, int words, int first, int last, typename T::Sum (*out)[VECTORS]) {
  constexpr int step = columns_of<T>(NUM);
  for (int j = first; j < last; j += step)
    if constexpr (is_grouped<T>) T::template multiply_rows<NUM, step>(a, w, words, j, out);
    else multiply_rows<T, NUM, step>(a, w, words, j, out);
}

// Vectors [first, last) of a panel's columns for `rows` rows, divided evenly among as few passes as possible.
template <class T>
void multiply_all(const uint32_t* a, const uint32_t* w, int words, int rows, int first, int last, typename T::Sum (*out)[VECTORS]) {
  for (int passes = (rows + AT_ONCE - 1) / AT_ONCE, row = 0; passes > 0; passes--) {
    const int num = (rows - row + passes - 1) / passes;
    const uint32_t* from = a + (size_t)row * words * T::PARTS;
    switch (num) {
      case 1: multiply_few<T, 1>(from, w, words, first, last, out + row); break;
      case 2: multiply_few<T, 2>(from, w, words, first, last, out + row); break;
      case 3: multiply_few<T, 3>(from, w, words, first, last, out + row); break;
#if defined(WIDE) || defined(MIDDLE) || defined(__ARM_NEON)
      case 4: multiply_few<T, 4>(from, w, words, first, last, out + row); break;
      case 5: multiply_few<T, 5>(from, w, words, first, last, out + row); break;
      case 6: multiply_few<T, 6>(from, w, words, first, last, out + row); break;
#endif
#if defined(WIDE)
      case 7: multiply_few<T, 7>(from, w, words, first, last, out + row); break;
      case 8: multiply_few<T, 8>(from, w, words, first, last, out + row); break;
#endif
    }
    row += num;
  }
}

#include "tiles.h"

// Sums (rows, COLUMNS) of at most BLOCK rows of inputs and one panel, or of its first `quarters` quarters; others may have any
// value. The inputs' memory must have room for BLOCK rows.
template <class T>
void multiply_block(const Worker& worker, const uint32_t* a, const uint32_t* w, int words, int rows, typename T::Sum (*sums)[VECTORS],
                    int quarters = 4) {
#ifdef TILES
  if constexpr (is_grouped<T>) {
    if (worker.tiles && rows >= TILED) {
      const NarrowTiles narrow(worker, GroupedTiles::GROUP_WORDS);
      GroupedTiles tiles;
      return tiles.multiply(a, w, words, rows, sums);
    }
  } else if constexpr (!std::is_same<T, Float32>::value)
    if (worker.tiles && (words < WORDS || words % WORDS == 0)) {
      if (words < WORDS) return multiply_narrow_tiles<T>(a, w, words, rows, sums);
      if (quarters < 4) return multiply_some_tiles<T>(a, w, words, rows, quarters, sums);
      return multiply_tiles<T>(a, w, words, rows, sums);
    }
#endif
  const int last = quarters * VECTORS / 4;
  if (rows <= AT_ONCE) return multiply_all<T>(a, w, words, rows, 0, last, sums);
  constexpr int some = std::max(columns_of<T>(AT_ONCE), columns_of<T>(3));  // these columns stay in the cache for all rows
  for (int first = 0; first < last; first += some) multiply_all<T>(a, w, words, rows, first, first + some, sums);
}

// The same for a panel of blocks, whose quarters each have a type.
inline void multiply_blocks(const Worker& worker, const Linear& m, const uint32_t* a, int panel, int rows, F (*sums)[VECTORS], int quarters) {
  for (int i = 0; i < quarters; i++) {
    const Quarter& quarter = m.quarters[panel * 4 + i];
    blocks::by_number(quarter.type, [&](auto type) {
      typedef decltype(type) Q;
      const bool tiles = worker.tiles && rows >= TILED;
      const NarrowTiles narrow(worker, tiles ? blocks::UNITS / (Q::HALVES ? 2 : 1) : WORDS);
      blocks::multiply<Q>(a, m.words * Blocks::PARTS, m.weight + quarter.at, m.words, rows, sums[0] + i * blocks::QV, VECTORS, tiles);
    });
  }
}

template <class T, class Finish>
void multiply_panel_of(const Worker& worker, const Linear& m, const Inputs& inputs, int first, int rows, int panel, Finish finish,
                       int quarters);

// The product of `rows` rows from `first` on with one panel: finish(row, panel, VECTORS vectors) is called for every row. The
// inputs' memory must have room for a multiple of BLOCK rows from `first` on. `quarters`: see `multiply_block`.
template <class T, class Finish>
void multiply_panel(const Worker& worker, const Linear& m, const Inputs& inputs, int first, int rows, int panel, Finish finish,
                    int quarters = 4) {
  if constexpr (is_mixed<T>)
    return by_kind<T>(m, [&](auto type) { multiply_panel<decltype(type)>(worker, m, inputs, first, rows, panel, finish, quarters); });
  else multiply_panel_of<T>(worker, m, inputs, first, rows, panel, finish, quarters);
}

template <class T, class Finish>
void multiply_panel_of(const Worker& worker, const Linear& m, const Inputs& inputs, int first, int rows, int panel, Finish finish,
                       int quarters) {
  for (int start = first; start < first + rows; start += BLOCK) {
    const int num = std::min(BLOCK, first + rows - start);
    alignas(64) typename T::Sum sums[BLOCK][VECTORS];
    const uint32_t* a = inputs.rows + (size_t)start * m.words * T::PARTS;
    if constexpr (is_blocks<T>) multiply_blocks(worker, m, a, panel, num, sums, quarters);
    else multiply_block<T>(worker, a, m.weight + (size_t)panel * m.words * COLUMNS, m.words, num, sums, quarters);
    for (int row = 0; row < num; row++) {
      F out[VECTORS];
      for (int j = 0; j < VECTORS; j++) {
        const int column = panel * COLUMNS + j * LANES;
        if constexpr (std::is_same<T, Int8>::value) {
          const I exact = sums[row][j] - load<I>(m.offset + column);
          out[j] = __builtin_convertvector(exact, F) * (load<F>(m.scale + column) * inputs.scale[start + row]);
        } else {
          out[j] = sums[row][j];
        }
        if (m.bias) out[j] += load<F>(m.bias + column);
      }
      finish(start + row, panel, out);
    }
  }
}

// One product, shared among the threads; see `multiply_panel`.
template <class T, class Finish>
void product(const Worker& worker, const Linear& m, const Inputs& inputs, int rows, Finish finish) {
#pragma omp for schedule(static)
  for (int panel = 0; panel < m.panels; panel++) multiply_panel<T>(worker, m, inputs, 0, rows, panel, finish);
}

inline float square_sum(const float* x, int num) {
  F squares{};
  for (int i = 0; i < num; i += LANES) {
    const F v = widen(x + i, num - i);
    squares = fused(v, v, squares);
  }
  return sum(squares);
}

// Divides a row of `num` numbers, padded with zeros to `stride`, by its root mean square; if `centered`, after subtracting the
// mean.
inline void normalize(const float* from, int num, int stride, bool centered, float eps, float* to) {
  if (centered) {
    F total{};
    for (int i = 0; i < num; i += LANES) total += widen(from + i, num - i);
    const F shift = all(sum(total) / num);
    for (int i = 0; i < stride; i += LANES) {
      const F v = load<F>(from + i) - shift;
      if (i + LANES > num) store(to + i, F{});
      if (i < num) narrow(v, to + i, num - i);
    }
    from = to;
  }
  const float factor = 1 / std::sqrt(square_sum(from, num) / num + eps);
  for (int i = 0; i < stride; i += LANES) store(to + i, load<F>(from + i) * factor);
}

struct Norm {
  bool centered;
  float eps;
};

// Multiplies a row of `num` numbers by the weights of its norm.
inline void weigh(float* row, const float* weight, int num) {
  for (int i = 0; i < num; i++) row[i] *= weight[i];
}

inline void as_it_is(int, float*) {}

// Converts a row to inputs of a product with a matrix.
template <class T> void put_row(const float* from, const Linear& m, const Inputs& to, int row) {
  by_kind<T>(m, [&](auto type) {
    typedef decltype(type) Y;
    to.scale[row] = Y::row(from, inputs_of<Y>(m.words), to.rows + (size_t)row * m.words * Y::PARTS);
  });
}

// Converts x (rows, stride) to inputs of a product with a matrix. If `num` is not 0, the first `num` numbers of each row
// are normalized first, into `room` (rows, stride), and then changed by change(row, numbers).
template <class T, class Change = void (*)(int, float*)>
void prepare(const float* x, int rows, int stride, const Linear& m, Inputs to, float* room = nullptr, int num = 0, Norm norm = {},
             Change change = as_it_is) {
#pragma omp for schedule(static)
  for (int row = 0; row < rows; row++) {
    const float* from = x + (size_t)row * stride;
    if (num) {
      float* unit = room + (size_t)row * stride;
      normalize(from, num, stride, norm.centered, norm.eps, unit);
      change(row, unit);
      from = unit;
    }
    put_row<T>(from, m, to, row);
  }
}
