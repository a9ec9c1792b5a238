// A forward of a backbone on a CPU, and the two products behind it: logits, and the steps of a draft head.
//
// Matrices are packed by models/native.py in panels of 64 columns, each in two halves: of every 32 bits of a row of inputs
// (four 8-bit numbers, two of bfloat16, one of float32) the 32 columns of a half lie side by side. An input is broadcast,
// a panel's vectors are multiplied with it and added: a row's sums are made in the same order whatever rows and threads
// there are, so its bits do not depend on them. Norms, rotations, softmax and everything between products are in float32.
//
// Letters: R rows, D width, N heads, K key-value heads, G query heads for each of those, H head width.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__linux__)
#define TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})
#endif

typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint16_t Half __attribute__((vector_size(32)));
typedef uint8_t Byte __attribute__((vector_size(16)));

constexpr int LANES = 16, VECTORS = 4, COLUMNS = LANES * VECTORS, HALF = COLUMNS / 2;
constexpr int BLOCK = 32;   // rows of a product at a time, as many as two tiles have
constexpr int AT_ONCE = 6;  // rows whose sums fit the registers
constexpr size_t KEPT = (size_t)64 << 20;  // bytes of a thread, from one call to the next
constexpr float TINY = std::numeric_limits<float>::epsilon();
constexpr float NEVER = -std::numeric_limits<float>::infinity();

template <class V> inline V load(const void* from) { V v; std::memcpy(&v, from, sizeof v); return v; }
template <class V> inline void store(void* to, V v) { std::memcpy(to, &v, sizeof v); }
template <class To, class From> inline To bits(From x) { To y; std::memcpy(&y, &x, sizeof y); return y; }
inline F all(float x) { return F{} + x; }

// Lanes half of the vector apart, then a quarter, and so on.
template <class Join> inline float reduced(F v, Join join) {
  v = join(v, bits<F>(SHUFFLE(bits<I>(v), I{}, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)));
  v = join(v, bits<F>(SHUFFLE(bits<I>(v), I{}, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)));
  v = join(v, bits<F>(SHUFFLE(bits<I>(v), I{}, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)));
  v = join(v, bits<F>(SHUFFLE(bits<I>(v), I{}, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)));
  return v[0];
}
inline F larger(F a, F b) {
#ifdef __AVX512F__
  return (F)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}
inline float sum(F v) { return reduced(v, [](F a, F b) { return a + b; }); }
inline float greatest(F v) { return reduced(v, larger); }

// e^x to 2 units in the last place, and 0 below -87 (Cody and Waite's reduction, a polynomial of degree 6). The processor's
// own scaling by powers of two would give denormal numbers there, which take it many times as long ever after.
inline F exponential(F x) {
  const F lowest = all(-87.0f), highest = all(88.0f);
  const I zero = x < lowest;
  x = x < lowest ? lowest : x > highest ? highest : x;
  const F shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const F r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  F p = all(1.3981999507e-3f);
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  return zero ? F{} : bits<F>(bits<I>(p) + ((bits<I>(shifted) - 0x4b400000) << 23));
}

// Numbers as caches have them.
inline F widen(const float* from, int num) {
  if (num >= LANES) return load<F>(from);
  F v{};
  std::memcpy(&v, from, num * sizeof *from);
  return v;
}
inline F widen(const uint16_t* from, int num) {
  Half v{};
  if (num >= LANES) v = load<Half>(from);
  else std::memcpy(&v, from, num * sizeof *from);
#ifdef __AVX512F__
  return bits<F>((I)_mm512_cvtepu16_epi32(bits<__m256i>(v)) << 16);
#else
  return bits<F>(__builtin_convertvector(v, I) << 16);
#endif
}
inline void narrow(F x, float* to, int num) {
  if (num >= LANES) store(to, x);
  else std::memcpy(to, &x, num * sizeof *to);
}
inline void narrow(F x, uint16_t* to, int num) {  // to the nearest, ties to even
#ifdef __AVX512BF16__
  const Half v = bits<Half>(_mm512_cvtneps_pbh((__m512)x));
#else
  const I u = bits<I>(x);
  const Half v = __builtin_convertvector((u + 0x7fff + ((u >> 16) & 1)) >> 16, Half);
#endif
  if (num >= LANES) store(to, v);
  else std::memcpy(to, &v, num * sizeof *to);
}

// The three types of products: PER inputs lie in 32 bits, `row` writes a row of `num` of them, a multiple of LANES, and
// tells its scale, `dot` adds products.

struct Float32 {
  typedef F Sum;
  static constexpr int PER = 1;
  static float row(const float* x, int num, uint32_t* to) {
    std::memcpy(to, x, num * sizeof *x);
    return 1;
  }
  static Sum dot(Sum s, uint32_t a, I w) {
#ifdef __AVX512F__
    return (F)_mm512_fmadd_ps(_mm512_set1_ps(bits<float>(a)), bits<__m512>(w), (__m512)s);
#else
    return s + bits<float>(a) * bits<F>(w);
#endif
  }
};

struct Bfloat16 {
  typedef F Sum;
  static constexpr int PER = 2;
  static float row(const float* x, int num, uint32_t* to) {
    for (int i = 0; i < num; i += LANES) narrow(load<F>(x + i), reinterpret_cast<uint16_t*>(to) + i, LANES);
    return 1;
  }
  static Sum dot(Sum s, uint32_t a, I w) {
#ifdef __AVX512BF16__
    return (F)_mm512_dpbf16_ps((__m512)s, bits<__m512bh>(_mm512_set1_epi32(a)), bits<__m512bh>(w));
#else
    s += bits<float>(a << 16) * bits<F>(w << 16);
    return s + bits<float>(a & 0xffff0000u) * bits<F>(w & (I{} + (int32_t)0xffff0000));
#endif
  }
};

// Inputs as codes from 1 to 255, 128 standing for nothing; matrices as codes from -127 to 127. Sums are exact.
struct Int8 {
  typedef I Sum;
  static constexpr int PER = 4;
  static float row(const float* x, int num, uint32_t* to) {
    F most{};
    for (int i = 0; i < num; i += LANES) {
      const F v = load<F>(x + i), size = v < 0 ? -v : v;
      most = larger(most, size);
    }
    const float largest = greatest(most), inverse = largest > 0 ? 127 / largest : 0;
    for (int i = 0; i < num; i += LANES) {
      const I code = __builtin_convertvector(load<F>(x + i) * inverse + 128.5f, I);
      store(reinterpret_cast<uint8_t*>(to) + i, __builtin_convertvector(code, Byte));
    }
    return largest / 127;
  }
  static Sum dot(Sum s, uint32_t a, I w) {
#ifdef __AVX512VNNI__
    return (I)_mm512_dpbusd_epi32((__m512i)s, _mm512_set1_epi32(a), (__m512i)w);
#else
    s += (int32_t)(a & 255) * ((w << 24) >> 24);
    s += (int32_t)(a >> 8 & 255) * ((w << 16) >> 24);
    s += (int32_t)(a >> 16 & 255) * ((w << 8) >> 24);
    return s + (int32_t)(a >> 24) * (w >> 24);
#endif
  }
};

struct Linear {
  const uint32_t* weight;  // (panels, 2, words, 32)
  const float* scale;      // (panels * 64,), of Int8
  const int32_t* offset;   // (panels * 64,): 128 times the sum of a column, of Int8
  int32_t words, panels;
};

// Inputs of a product, rows of `words` each, and the scale of each row.
struct Inputs {
  uint32_t* words;
  float* scale;
};

template <class T, int NUM>
void multiply_rows(const uint32_t* a, const uint32_t* w, int words, typename T::Sum (*out)[VECTORS]) {
  typename T::Sum sums[NUM][VECTORS] = {};
  const uint32_t* halves[2] = {w, w + (size_t)words * HALF};
  for (int word = 0; word < words; word++) {
    I column[VECTORS];
    for (int j = 0; j < VECTORS; j++) column[j] = load<I>(halves[j / 2] + word * HALF + j % 2 * LANES);
    for (int row = 0; row < NUM; row++)
      for (int j = 0; j < VECTORS; j++) sums[row][j] = T::dot(sums[row][j], a[row * words + word], column[j]);
  }
  for (int row = 0; row < NUM; row++)
    for (int j = 0; j < VECTORS; j++) out[row][j] = sums[row][j];
}

template <class T> void multiply_few(const uint32_t* a, const uint32_t* w, int words, int rows, typename T::Sum (*out)[VECTORS]) {
  switch (rows) {
    case 1: return multiply_rows<T, 1>(a, w, words, out);
    case 2: return multiply_rows<T, 2>(a, w, words, out);
    case 3: return multiply_rows<T, 3>(a, w, words, out);
    case 4: return multiply_rows<T, 4>(a, w, words, out);
    case 5: return multiply_rows<T, 5>(a, w, words, out);
    default: return multiply_rows<T, AT_ONCE>(a, w, words, out);
  }
}

#ifdef TILES
bool may_use_tiles() {
  static const bool may = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return may;
}

// Up to 16 rows or up to 32: the tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights.
#define MULTIPLY(sums, inputs, weights)                                          \
  if constexpr (T::PER == 4) _tile_dpbusd(sums, inputs, weights);                \
  else _tile_dpbf16ps(sums, inputs, weights)

template <class T> void multiply_tiles(const uint32_t* a, const uint32_t* w, int words, int rows, void* out) {
  asm volatile("" : : "r"(a), "r"(w) : "memory");  // some compilers do not know that loads of tiles read memory
  char* to = static_cast<char*>(out);
  const uint32_t *below = a + (size_t)16 * words, *other = w + (size_t)words * HALF;
  const int row = words * 4, column = HALF * 4, sum = COLUMNS * 4;  // bytes from one to the next
  if (rows <= 16) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int word = 0; word < words; word += LANES) {
      const uint32_t *first = w + word * HALF, *second = other + word * HALF;
      _tile_loadd(4, a + word, row);
      _tile_loadd(6, first, column);
      _tile_loadd(7, first + LANES, column);
      MULTIPLY(0, 4, 6);
      MULTIPLY(1, 4, 7);
      _tile_loadd(6, second, column);
      _tile_loadd(7, second + LANES, column);
      MULTIPLY(2, 4, 6);
      MULTIPLY(3, 4, 7);
    }
    _tile_stored(0, to, sum); _tile_stored(1, to + 64, sum); _tile_stored(2, to + 128, sum); _tile_stored(3, to + 192, sum);
    return;
  }
  for (const uint32_t* half : {w, other}) {  // each weight is read once for all 32 rows
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int word = 0; word < words; word += LANES) {
      _tile_loadd(4, a + word, row);
      _tile_loadd(5, below + word, row);
      _tile_loadd(6, half + word * HALF, column);
      _tile_loadd(7, half + word * HALF + LANES, column);
      MULTIPLY(0, 4, 6);
      MULTIPLY(1, 4, 7);
      MULTIPLY(2, 5, 6);
      MULTIPLY(3, 5, 7);
    }
    _tile_stored(0, to, sum); _tile_stored(1, to + 64, sum); _tile_stored(2, to + 16 * sum, sum); _tile_stored(3, to + 16 * sum + 64, sum);
    to += 128;
  }
}
#undef MULTIPLY
#endif

// A thread's part in products: its tiles are set up, and given back.
struct Worker {
  bool tiles = false;
  Worker() {
#ifdef TILES
    if (!may_use_tiles()) return;
    struct { uint8_t palette = 1, start = 0, none[14] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } config;
    for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = 16;
    asm volatile("" : : "r"(&config) : "memory");  // some compilers do not know that all of it is read (GCC bug 114098)
    _tile_loadconfig(&config);
    tiles = true;
#endif
  }
  ~Worker() {
#ifdef TILES
    if (tiles) _tile_release();
#endif
  }
};

// Sums (rows, 64) of at most BLOCK rows of inputs and one panel. The inputs have room for BLOCK rows, and their words come
// in multiples of LANES.
template <class T>
void multiply_block(const Worker& worker, const uint32_t* a, const uint32_t* w, int words, int rows, typename T::Sum (*sums)[VECTORS]) {
#ifdef TILES
  if constexpr (T::PER > 1)
    if (worker.tiles) return multiply_tiles<T>(a, w, words, rows, sums);
#endif
  for (int row = 0; row < rows; row += AT_ONCE)
    multiply_few<T>(a + (size_t)row * words, w, words, std::min(AT_ONCE, rows - row), sums + row);
}

// One product, the threads' work shared: finish(row, panel, four vectors) is called for every row and panel. The words
// of inputs have room for a multiple of BLOCK rows.
template <class T, class Finish>
void product(const Worker& worker, const Linear& m, const Inputs& inputs, int rows, Finish finish) {
#pragma omp for schedule(static)
  for (int panel = 0; panel < m.panels; panel++) {
    const uint32_t* w = m.weight + (size_t)panel * m.words * COLUMNS;
    for (int start = 0; start < rows; start += BLOCK) {
      const int num = std::min(BLOCK, rows - start);
      const uint32_t* a = inputs.words + (size_t)start * m.words;
      alignas(64) typename T::Sum sums[BLOCK][VECTORS];
      multiply_block<T>(worker, a, w, m.words, num, sums);
      for (int row = 0; row < num; row++) {
        F out[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
          if constexpr (T::PER == 4) {
            const int column = panel * COLUMNS + j * LANES;
            const I exact = sums[row][j] - load<I>(m.offset + column);
            out[j] = __builtin_convertvector(exact, F) * (load<F>(m.scale + column) * inputs.scale[start + row]);
          } else {
            out[j] = sums[row][j];
          }
        }
        finish(start + row, panel, out);
      }
    }
  }
}

inline float square_sum(const float* x, int num) {
  F squares{};
  for (int i = 0; i < num; i += LANES) {
    const F v = widen(x + i, num - i);
    squares += v * v;
  }
  return sum(squares);
}

// Inputs from x (rows, stride): its first numbers, as many as the words have room for; `norm` numbers of them count, if
// any do, and the row is divided by their root mean square.
template <class T>
void prepare(const float* x, int rows, int stride, int words, Inputs to, float* room, int norm = 0, float eps = 0) {
#pragma omp for schedule(static)
  for (int row = 0; row < rows; row++) {
    const float* from = x + (size_t)row * stride;
    if (norm) {
      const float factor = 1 / std::sqrt(square_sum(from, norm) / norm + eps);
      float* unit = room + (size_t)row * stride;
      for (int i = 0; i < stride; i += LANES) store(unit + i, load<F>(from + i) * factor);
      from = unit;
    }
    to.scale[row] = T::row(from, words * T::PER, to.words + (size_t)row * words);
  }
}

struct Layer {
  Linear qkv, out, gate_up, down;
  const float* qk_weight;  // (N + K, H)
};

struct Model {
  int32_t width, heads, kv_heads, head, inner, num_layers, vocab, positions, product, cache;  // product: 0, 1, 2; cache: 0, 1
  float eps;
  const float *final, *cos, *sin;  // (D,); (positions, H) each, `sin` with its first half negative
  const float* bias;               // (vocab filled up,) of logits
  const Layer* layers;
  Linear head_product, up_rows, up_told, down;  // logits, draft head
};

// A forward of B requests of R rows each. A row sees the first `first` keys, and of those up to `count` what its row of
// `mask` (B, R, M) says, which begins at key `base`. Keys and values (layers, B, K, capacity, H) are written from
// `past` on; layer_stride, in rows, is zero where each layer may forget those of the one before. With `scales` (layers, B,
// K, capacity, 2) they are 8-bit codes, and their scales are of the type that they would have. `packed`: COLUMNS rows at a
// time they lie as panels, keys as (2, words, 32) and values likewise, (H / COLUMNS) panels behind one another.
struct Call {
  const float* x;           // (B * R, stride of D)
  const int64_t* position;  // (B, R)
  const int32_t *first, *count;
  const uint8_t* mask;
  const int64_t* asked;  // (A,)
  void *keys, *values, *scales;
  float* out;  // (B * A, stride of D)
  int64_t layer_stride;
  int32_t batch, rows, num_asked, past, capacity, base, mask_width, mask_batch, packed, threads;
};

inline int filled(int num, int to) { return (num + to - 1) / to * to; }

// Memory of a call, kept by the thread that called.
struct Room {
  std::unique_ptr<char[]> bytes;
  size_t size = 0, used = 0;
  void begin(size_t num) {
    if (size < num + 64) bytes.reset(), bytes.reset(new char[size = num + 64]);
    used = (64 - reinterpret_cast<uintptr_t>(bytes.get()) % 64) % 64;
  }
  template <class X> X* take(size_t num) {
    const size_t start = used;
    used = start + (num * sizeof(X) + 63) / 64 * 64;
    return reinterpret_cast<X*>(bytes.get() + start);
  }
  void end() {  // a long prompt's is not kept
    if (size > KEPT) bytes.reset(), size = 0;
  }
};

inline float narrowed(float x, const float*) { return x; }
inline float narrowed(float x, const uint16_t*) {
  const uint32_t u = bits<uint32_t>(x);
  return bits<float>((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
}

// One row of a key head, or its value, into the cache; as codes, the largest of them 127, where there are scales.
template <class C> void keep(const float* x, void* stored, void* scales, size_t at, int head, int which) {
  if (!scales) {
    for (int j = 0; j < head; j += LANES) narrow(widen(x + j, head - j), static_cast<C*>(stored) + at * head + j, head - j);
    return;
  }
  float largest = 0;
  for (int j = 0; j < head; j++) largest = std::max(largest, std::fabs(x[j]));
  const float scale = narrowed(largest / 127, static_cast<C*>(nullptr));
  const float by = std::max(scale, std::numeric_limits<float>::min());
  int8_t* codes = static_cast<int8_t*>(stored) + at * head;
  for (int j = 0; j < head; j++) codes[j] = std::max(-127.0f, std::min(127.0f, std::nearbyint(x[j] / by)));
  narrow(all(scale), static_cast<C*>(scales) + at * 2 + which, 1);
}

// Where in a panel of so many words a vector lies: of one word, from one column on.
inline uint32_t* within(uint32_t* panel, int words, int word, int column) {
  return panel + ((size_t)(column / HALF) * words + word) * HALF + column % HALF;
}

// The same into a packed cache, which has whole panels of H numbers: `at` is where the request's key head begins.
template <class C> void keep_packed(const float* x, void* stored, size_t at, int row, int head, bool value) {
  constexpr int per = 4 / sizeof(C);
  uint32_t* panel = static_cast<uint32_t*>(stored) + (at + row / COLUMNS * COLUMNS) * head / per;
  C numbers[LANES];
  for (int j = 0; j < head; j += LANES) {
    narrow(widen(x + j, LANES), numbers, LANES);
    if (value) {
      C* to = reinterpret_cast<C*>(within(panel + (size_t)(j / COLUMNS) * COLUMNS * COLUMNS / per, COLUMNS / per, row % COLUMNS / per, j % COLUMNS));
      for (int i = 0; i < LANES; i++) to[i * per + row % per] = numbers[i];
    } else {
      uint32_t* to = within(panel, head / per, j / per, row % COLUMNS);
      for (int i = 0; i < LANES / per; i++) std::memcpy(to + i * HALF, numbers + i * per, 4);
    }
  }
}

// Rows of a cache as their type has them: where they lie, or made from codes.
template <class C> const C* read(const void* stored, const void* scales, size_t at, int num, int head, int which, C* made) {
  if (!scales) return static_cast<const C*>(stored) + at * head;
  const int8_t* codes = static_cast<const int8_t*>(stored) + at * head;
  for (int row = 0; row < num; row++) {
    const F scale = all(widen(static_cast<const C*>(scales) + (at + row) * 2 + which, 1)[0]);
    for (int j = 0; j < head; j += LANES) {
      F v{};
      for (int i = 0; i < LANES && j + i < head; i++) v[i] = codes[row * head + j + i];
      narrow(v * scale, made + (size_t)row * head + j, head - j);
    }
  }
  return made;
}

// Query and key heads: over their root mean square, times their weight, turned; keys and values are stored.
template <class C> void place(const Model& m, const Layer& layer, const Call& call, float* qkv, int stride, size_t offset) {
  const int num = m.heads + m.kv_heads, half = m.head / 2;
#pragma omp for schedule(static)
  for (int i = 0; i < call.batch * call.rows * num; i++) {
    const int row = i / num, head = i % num, kv = head - m.heads;
    float* x = qkv + (size_t)row * stride + head * m.head;
    const float factor = 1 / std::sqrt(square_sum(x, m.head) / m.head + m.eps);
    const float* weight = layer.qk_weight + head * m.head;
    for (int j = 0; j < m.head; j++) x[j] *= factor * weight[j];
    const float *cos = m.cos + call.position[row] * m.head, *sin = m.sin + call.position[row] * m.head;
    for (int j = 0; j < half; j++) {
      const float low = x[j], high = x[j + half];
      x[j] = low * cos[j] + high * sin[j];
      x[j + half] = high * cos[j + half] + low * sin[j + half];
    }
    if (kv < 0) continue;
    const size_t begin = offset + (size_t)(row / call.rows * m.kv_heads + kv) * call.capacity;
    const int at = call.past + row % call.rows;
    if (call.packed) {
      keep_packed<C>(x, call.keys, begin, at, m.head, false);
      keep_packed<C>(x + m.kv_heads * m.head, call.values, begin, at, m.head, true);
      continue;
    }
    keep<C>(x, call.keys, call.scales, begin + at, m.head, 0);
    keep<C>(x + m.kv_heads * m.head, call.values, call.scales, begin + at, m.head, 1);
  }
}

// A square of words changes rows and columns: row i takes turns with row i + 8, four times over.
inline void turn(I* a) {
  for (int round = 0; round < 4; round++) {
    I b[LANES];
    for (int i = 0; i < LANES / 2; i++) {
      b[2 * i] = SHUFFLE(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      b[2 * i + 1] = SHUFFLE(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::memcpy(a, b, sizeof b);
  }
}

// COLUMNS keys (COLUMNS, H) as a panel.
template <class C> void pack_keys(const C* keys, int head, int words, uint32_t* panel) {
  const int bytes = head * sizeof(C);
  for (int column = 0; column < COLUMNS; column += LANES)
    for (int word = 0; word < words; word += LANES) {
      I square[LANES] = {};
      const int num = std::min(64, bytes - word * 4);
      for (int i = 0; i < LANES; i++) {
        const char* from = reinterpret_cast<const char*>(keys + (size_t)(column + i) * head) + word * 4;
        if (num == 64) square[i] = load<I>(from);
        else if (num > 0) std::memcpy(&square[i], from, num);
      }
      turn(square);
      for (int i = 0; i < LANES; i++) store(within(panel, words, word + i, column), square[i]);
    }
}

// One vector's numbers in the lower halves of words, another's in the upper ones.
inline I interleaved(Half low, Half high) {
#ifdef __AVX512F__
  const I one = (I)_mm512_cvtepu16_epi32(bits<__m256i>(low)), other = (I)_mm512_cvtepu16_epi32(bits<__m256i>(high));
#else
  const I one = __builtin_convertvector(low, I), other = __builtin_convertvector(high, I);
#endif
  return one | other << 16;
}

// COLUMNS values (COLUMNS, H), some columns of them, as a panel, a word being one key or two.
inline void pack_values(const float* values, int head, int start, uint32_t* panel) {
  for (int key = 0; key < COLUMNS; key++)
    for (int j = 0; j < COLUMNS; j += LANES) {
      const int num = head - start - j;
      store(within(panel, COLUMNS, key, j), num > 0 ? widen(values + (size_t)key * head + start + j, num) : F{});
    }
}
inline void pack_values(const uint16_t* values, int head, int start, uint32_t* panel) {
  for (int key = 0; key < COLUMNS; key += 2)
    for (int j = 0; j < COLUMNS; j += LANES) {
      const int num = head - start - j;
      const uint16_t* from = values + (size_t)key * head + start + j;
      uint32_t* to = within(panel, COLUMNS / 2, key / 2, j);
      if (num >= LANES) store(to, interleaved(load<Half>(from), load<Half>(from + head)));
      else store(to, num > 0 ? (bits<I>(widen(from, num)) >> 16 & 0xffff) | bits<I>(widen(from + head, num)) : I{});
    }
}

template <class C> struct Stored { typedef Float32 Product; };
template <> struct Stored<uint16_t> { typedef Bfloat16 Product; };

constexpr int QUERIES = 2 * BLOCK;  // of a key head, for which keys and values are packed once

// What a query has gathered from the keys before: the largest score, and relative to it the sum of weights, by lane.
struct Gathered {
  float largest = NEVER, factor = 1;  // factor: what all before is multiplied with
  F total{};
};

// Weights in place of a query's scores on keys [start, start + COLUMNS), of which `seen` says which count from `first` on.
inline void soften(F* s, Gathered& of, int start, int first, int count, const uint8_t* seen) {
  if (start + COLUMNS > first) {
    float* score = reinterpret_cast<float*>(s);
    for (int i = std::max(0, first - start); i < COLUMNS; i++)
      if (start + i >= count || (start + i >= first && !seen[start + i])) score[i] = NEVER;
  }
  const float largest = std::max(of.largest, greatest(larger(larger(s[0], s[1]), larger(s[2], s[3]))));
  if (largest == NEVER) {
    for (int j = 0; j < VECTORS; j++) s[j] = F{};
    return;
  }
  of.factor = of.largest == largest ? 1 : exponential(all(of.largest - largest))[0];
  of.largest = largest;
  for (int j = 0; j < VECTORS; j++) s[j] = exponential(s[j] - largest);
  of.total = of.total * of.factor + ((s[0] + s[1]) + (s[2] + s[3]));
}

// Attention of the rows asked for: y (B * A, stride_y), from queries in qkv. COLUMNS keys at a time, weights being relative
// to the largest score so far (online softmax: Milakov and Gimelshein, arXiv 1805.02867).
template <class C>
void attend(const Worker& worker, const Model& m, const Call& call, const int64_t* asked, int num_asked, const float* qkv, int stride,
            size_t offset, float* y, int stride_y) {
  typedef typename Stored<C>::Product T;
  constexpr int key_words = COLUMNS / T::PER;
  const int groups = m.heads / m.kv_heads, queries = num_asked * groups, parts = (queries + QUERIES - 1) / QUERIES;
  const int words = filled(filled(m.head, T::PER) / T::PER, LANES), room = words * T::PER, wide = filled(m.head, COLUMNS);
#pragma omp for schedule(dynamic) collapse(2)
  for (int item = 0; item < call.batch * m.kv_heads; item++)
    for (int part = 0; part < parts; part++) {
      const int request = item / m.kv_heads, kv = item % m.kv_heads, start = part * QUERIES;
      const int num = std::min(QUERIES, queries - start);
      int rows[QUERIES], heads[QUERIES], most = 0;
      for (int i = 0; i < num; i++) {
        rows[i] = asked[(start + i) / groups];
        heads[i] = kv * groups + (start + i) % groups;
        most = std::max(most, call.count[rows[i]]);
      }
      const size_t at = offset + (size_t)item * call.capacity, made = call.scales ? (size_t)COLUMNS * m.head : 0;
      static thread_local Room memory;
      memory.begin(4 * ((size_t)QUERIES * (words + wide) + room + BLOCK * key_words + COLUMNS * words + key_words * wide + made) + 512);
      uint32_t *q = memory.take<uint32_t>((size_t)QUERIES * words), *weights = memory.take<uint32_t>(BLOCK * key_words);
      uint32_t *keys = memory.take<uint32_t>(COLUMNS * words), *values = memory.take<uint32_t>(key_words * wide);
      float *out = memory.take<float>((size_t)QUERIES * wide), *one = memory.take<float>(room);
      C* decoded = memory.take<C>(made);
      std::memset(one, 0, room * 4);
      std::memset(out, 0, (size_t)num * wide * 4);
      for (int i = 0; i < num; i++) {
        std::memcpy(one, qkv + ((size_t)request * call.rows + rows[i]) * stride + heads[i] * m.head, m.head * 4);
        T::row(one, room, q + (size_t)i * words);
      }
      Gathered gathered[QUERIES];
      alignas(64) F sums[BLOCK][VECTORS];
      for (int key = 0; key < most; key += COLUMNS) {
        const uint32_t *own_keys = keys, *own_values = values;
        if (call.packed) {
          const size_t panel = (at + key) * m.head / T::PER;
          own_keys = static_cast<const uint32_t*>(call.keys) + panel;
          own_values = static_cast<const uint32_t*>(call.values) + panel;
        } else {
          pack_keys(read<C>(call.keys, call.scales, at + key, COLUMNS, m.head, 0, decoded), m.head, words, keys);
          const C* rest = read<C>(call.values, call.scales, at + key, COLUMNS, m.head, 1, decoded);
          for (int column = 0; column < wide; column += COLUMNS) pack_values(rest, m.head, column, values + (size_t)key_words * column);
        }
        for (int from = 0; from < num; from += BLOCK) {
          const int some = std::min(BLOCK, num - from);
          multiply_block<T>(worker, q + (size_t)from * words, own_keys, words, some, sums);
          for (int i = 0; i < some; i++) {
            const int row = rows[from + i], of = call.mask_batch > 1 ? request * call.rows + row : row;
            const uint8_t* seen = call.mask ? call.mask + (size_t)of * call.mask_width - call.base : nullptr;
            soften(sums[i], gathered[from + i], key, call.first[row], call.count[row], seen);
            T::row(reinterpret_cast<float*>(sums[i]), COLUMNS, weights + (size_t)i * key_words);
          }
          for (int column = 0; column < wide; column += COLUMNS) {
            multiply_block<T>(worker, weights, own_values + (size_t)key_words * column, key_words, some, sums);
            for (int i = 0; i < some; i++)
              for (int j = 0; j < VECTORS; j++) {
                float* to = out + (size_t)(from + i) * wide + column + j * LANES;
                store(to, load<F>(to) * gathered[from + i].factor + sums[i][j]);
              }
          }
        }
      }
      for (int i = 0; i < num; i++) {
        float* to = y + ((size_t)request * num_asked + (start + i) / groups) * stride_y + heads[i] * m.head;
        const float total = sum(gathered[i].total), factor = total > 0 ? 1 / total : 0;  // 0: a row that sees nothing
        for (int j = 0; j < m.head; j += LANES) narrow(load<F>(out + (size_t)i * wide + j) * factor, to + j, m.head - j);
      }
    }
}

inline F gated(F gate, F value) { return gate * value / (1.0f + exponential(-gate)); }

template <class T, class C> void forward(const Model& m, const Call& call) {
  const int rows = call.batch * call.rows, some = call.batch * call.num_asked, most = std::max(rows, some);
  const int width = filled(m.width, COLUMNS), all_heads = filled(m.heads * m.head, COLUMNS), inner = filled(m.inner, COLUMNS);
  const int qkv_width = m.layers[0].qkv.panels * COLUMNS, longest = std::max({width, all_heads, inner});
  static thread_local Room room;
  room.begin(4 * ((size_t)most * (2 * width + all_heads + inner + qkv_width + 1) + (size_t)filled(most, BLOCK) * longest) + 64 * 8);
  float *x = room.take<float>((size_t)most * width), *units = room.take<float>((size_t)most * width);
  float *y = room.take<float>((size_t)most * all_heads), *h = room.take<float>((size_t)most * inner);
  float* qkv = room.take<float>((size_t)rows * qkv_width);
  const Inputs inputs = {room.take<uint32_t>((size_t)filled(most, BLOCK) * longest), room.take<float>(most)};
  std::memcpy(x, call.x, (size_t)rows * width * 4);
  std::memset(y, 0, (size_t)most * all_heads * 4);
  std::memset(h, 0, (size_t)most * inner * 4);
  std::vector<int64_t> every(call.rows);
  for (int i = 0; i < call.rows; i++) every[i] = i;
#pragma omp parallel num_threads(call.threads)
  {
    const Worker worker;
    for (int index = 0; index < m.num_layers; index++) {
      const Layer& layer = m.layers[index];
      const size_t offset = (size_t)index * call.layer_stride;
      const bool last = index == m.num_layers - 1;
      const int num = last ? some : rows;
      prepare<T>(x, rows, width, layer.qkv.words, inputs, units, m.width, m.eps);
      product<T>(worker, layer.qkv, inputs, rows, [&](int row, int panel, const F* v) {
        std::memcpy(qkv + (size_t)row * qkv_width + panel * COLUMNS, v, COLUMNS * 4);
      });
      place<C>(m, layer, call, qkv, qkv_width, offset);
      attend<C>(worker, m, call, last ? call.asked : every.data(), last ? call.num_asked : call.rows, qkv, qkv_width, offset, y, all_heads);
      if (last) {
#pragma omp single
        {
          for (int i = 0; i < some; i++) {
            const int row = i / call.num_asked * call.rows + call.asked[i % call.num_asked];
            std::memcpy(units + (size_t)i * width, x + (size_t)row * width, width * 4);
          }
          std::memcpy(x, units, (size_t)some * width * 4);
        }
      }
      auto add = [&](int row, int panel, const F* v) {
        float* to = x + (size_t)row * width + panel * COLUMNS;
        for (int j = 0; j < VECTORS; j++) store(to + j * LANES, load<F>(to + j * LANES) + v[j]);
      };
      prepare<T>(y, num, all_heads, layer.out.words, inputs, nullptr);
      product<T>(worker, layer.out, inputs, num, add);
      prepare<T>(x, num, width, layer.gate_up.words, inputs, units, m.width, m.eps);
      product<T>(worker, layer.gate_up, inputs, num, [&](int row, int panel, const F* v) {
        float* to = h + (size_t)row * inner + panel * (COLUMNS / 2);
        store(to, gated(v[0], v[1]));
        store(to + LANES, gated(v[2], v[3]));
      });
      prepare<T>(h, num, inner, layer.down.words, inputs, nullptr);
      product<T>(worker, layer.down, inputs, num, add);
    }
  }
  for (int row = 0; row < some; row++) {
    const float* from = x + (size_t)row * width;
    const float factor = 1 / std::sqrt(square_sum(from, m.width) / m.width + m.eps);
    for (int i = 0; i < m.width; i++) call.out[(size_t)row * width + i] = from[i] * factor * m.final[i];
  }
  room.end();
}

// One product alone: rows of x (rows, stride) to out (rows, panels * 64), plus `bias` (panels * 64,) if there is one; `norm`
// as in `prepare`.
template <class T>
void multiply(const Linear& linear, const float* x, int rows, int stride, const float* bias, float* out, int threads, int norm = 0) {
  static thread_local Room room;
  const size_t words = (size_t)filled(rows, BLOCK) * linear.words;
  room.begin((words + rows + (norm ? (size_t)rows * stride : 0)) * 4 + 64 * 4);
  const Inputs inputs = {room.take<uint32_t>(words), room.take<float>(rows)};
  float* units = room.take<float>(norm ? (size_t)rows * stride : 0);
#pragma omp parallel num_threads(threads)
  {
    const Worker worker;
    prepare<T>(x, rows, stride, linear.words, inputs, units, norm, TINY);
    product<T>(worker, linear, inputs, rows, [&](int row, int panel, const F* v) {
      float* to = out + (size_t)row * linear.panels * COLUMNS + panel * COLUMNS;
      for (int j = 0; j < VECTORS; j++)
        store(to + j * LANES, bias ? v[j] + load<F>(bias + panel * COLUMNS + j * LANES) : v[j]);
    });
  }
}

// See daguerre_draft; `bias` is added to the logits.
template <class T>
void draft(const Model& m, const float* share, const float* before, const float* state, const float* row, float* out, float* logits,
           const float* bias, int threads) {
  const int raw = m.up_told.panels * COLUMNS, inner = filled(raw / 2, COLUMNS), width = filled(m.width, COLUMNS);
  static thread_local std::vector<float> room;
  room.assign(2 * width + raw + inner, 0);
  float *told = room.data(), *up = told + 2 * width, *h = up + raw;
  std::memcpy(told, before, width * 4);
  const float factor = 1 / std::sqrt(square_sum(state, m.width) / m.width + TINY);
  for (int i = 0; i < width; i++) told[width + i] = state[i] * factor;
  multiply<T>(m.up_told, told, 1, 2 * width, share, up, threads);
  for (int i = 0; i < raw; i += 2 * LANES) store(h + i / 2, gated(load<F>(up + i), load<F>(up + i + LANES)));
  multiply<T>(m.down, h, 1, inner, row, out, threads);
  multiply<T>(m.head_product, out, 1, width, bias, logits, threads);
}

template <class Do> void by_product(const Model& m, Do what) {
  if (m.product == 0) what(Float32{});
  else if (m.product == 1) what(Bfloat16{});
  else what(Int8{});
}

extern "C" {

// 0, or what is wrong: 1 a position that the model does not have, 2 a row asked for that there is not, 3 no memory.
int daguerre_forward(const Model* m, const Call* call) {
  for (int i = 0; i < call->batch * call->rows; i++)
    if (call->position[i] < 0 || call->position[i] >= m->positions) return 1;
  for (int i = 0; i < call->num_asked; i++)
    if (call->asked[i] < 0 || call->asked[i] >= call->rows) return 2;
  try {
    by_product(*m, [&](auto type) {
      typedef decltype(type) T;
      if (m->cache) forward<T, uint16_t>(*m, *call);
      else forward<T, float>(*m, *call);
    });
  } catch (const std::bad_alloc&) {
    return 3;
  }
  return 0;
}

// Logits (rows, vocab filled up) of hidden states (rows, stride of D).
void daguerre_logits(const Model* m, const float* hidden, int rows, float* out, int threads) {
  by_product(*m, [&](auto type) {
    multiply<decltype(type)>(m->head_product, hidden, rows, filled(m->width, COLUMNS), m->bias, out, threads);
  });
}

// The rows' share (rows, up_rows.panels * 64) of a draft head's first product, of hidden states (rows, stride of D).
void daguerre_share(const Model* m, const float* hidden, int rows, float* out, int threads) {
  by_product(*m, [&](auto type) {
    multiply<decltype(type)>(m->up_rows, hidden, rows, filled(m->width, COLUMNS), nullptr, out, threads, m->width);
  });
}

// A step of a draft head from the share of a row, the embedding before it over its root mean square, the state before it,
// and the row itself: the state (stride of D) and its logits (vocab filled up).
void daguerre_draft(const Model* m, const float* share, const float* before, const float* state, const float* row, float* out,
                    float* logits, int threads) {
  by_product(*m, [&](auto type) {
    draft<decltype(type)>(*m, share, before, state, row, out, logits, m->bias, threads);
  });
}

// The most likely tokens and their probabilities, one step after the other over rows (num, stride of D) and their shares;
// how many. The last is that with which the product of all falls below `worth`, or, from the second on, one below
// `threshold`. Without a `state` the first law is that of its row. `before` has all embeddings; logits (num, vocab filled
// up) have `added` (num, vocab filled up) in them.
int daguerre_greedy(const Model* m, const float* share, const float* before, const float* state, const float* rows, int num,
                    int64_t token, double worth, double threshold, const float* added, int64_t* tokens, double* probabilities,
                    float* logits, int threads) {
  const int width = filled(m->width, COLUMNS), vocab = filled(m->vocab, COLUMNS), raw = m->up_rows.panels * COLUMNS;
  std::vector<float> states(2 * width);
  double together = 1;
  for (int i = 0; i < num; i++) {
    float *out = states.data() + i % 2 * width, *law = logits + (size_t)i * vocab;
    const float *row = rows + (size_t)i * width, *bias = added + (size_t)i * vocab;
    by_product(*m, [&](auto type) {
      typedef decltype(type) T;
      if (state) draft<T>(*m, share + (size_t)i * raw, before + token * width, state, row, out, law, bias, threads);
      else multiply<T>(m->head_product, row, 1, width, bias, law, threads);
    });
    state = state ? out : row;
    F most = all(NEVER), total{};
    for (int j = 0; j < vocab; j += LANES) most = larger(most, load<F>(law + j));
    const float top = greatest(most);
    for (int j = 0; j < vocab; j += LANES) total += exponential(load<F>(law + j) - top);
    const float* found = std::find(law, law + vocab, top);
    tokens[i] = token = found == law + vocab ? 0 : found - law;  // none: no number is the largest
    probabilities[i] = 1 / (double)sum(total);
    together *= probabilities[i];
    if (!(together >= worth) || (i > 0 && probabilities[i] < threshold)) return i + 1;
  }
  return num;
}
}
