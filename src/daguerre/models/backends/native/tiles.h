// Products on the tiles of AMX, in bfloat16 and 8 bits: a part of products.h, whose names it uses. Without tiles a `Worker` is empty.

#pragma once

#ifdef TILES
inline bool may_use_tiles() {
  static const bool may = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return may;
}

// For up to 32 rows: tiles 0 to 3 hold sums, 4 and 5 inputs, 6 and 7 weights.
#define MULTIPLY(sums, inputs, weights)                                          \
  if constexpr (T::PER == 4) _tile_dpbusd(sums, inputs, weights);                \
  else _tile_dpbf16ps(sums, inputs, weights)

template <class T> void multiply_tiles(const uint32_t* a, const uint32_t* w, int words, int rows, void* out) {
  asm volatile("" : : "r"(a), "r"(w) : "memory");  // some compilers do not know that loads of tiles read memory
  char* to = static_cast<char*>(out);
  const uint32_t* below = a + (size_t)16 * words;
  const size_t quarter = (size_t)words * QUARTER;
  const int row = words * 4, column = QUARTER * 4, sum = COLUMNS * 4;  // strides in bytes
  if (rows <= 16) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int word = 0; word < words; word += WORDS) {
      const uint32_t* from = w + (size_t)word * QUARTER;
      _tile_loadd(4, a + word, row);
      _tile_loadd(6, from, column);
      _tile_loadd(7, from + quarter, column);
      MULTIPLY(0, 4, 6);
      MULTIPLY(1, 4, 7);
      _tile_loadd(6, from + 2 * quarter, column);
      _tile_loadd(7, from + 3 * quarter, column);
      MULTIPLY(2, 4, 6);
      MULTIPLY(3, 4, 7);
    }
    _tile_stored(0, to, sum); _tile_stored(1, to + 64, sum); _tile_stored(2, to + 128, sum); _tile_stored(3, to + 192, sum);
    return;
  }
  for (int half = 0; half < 2; half++) {  // each weight is read once for all 32 rows
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int word = 0; word < words; word += WORDS) {
      const uint32_t* from = w + 2 * half * quarter + (size_t)word * QUARTER;
      _tile_loadd(4, a + word, row);
      _tile_loadd(5, below + word, row);
      _tile_loadd(6, from, column);
      _tile_loadd(7, from + quarter, column);
      MULTIPLY(0, 4, 6);
      MULTIPLY(1, 4, 7);
      MULTIPLY(2, 5, 6);
      MULTIPLY(3, 5, 7);
    }
    _tile_stored(0, to, sum); _tile_stored(1, to + 64, sum); _tile_stored(2, to + 16 * sum, sum); _tile_stored(3, to + 16 * sum + 64, sum);
    to += 128;
  }
}

// The same for the first `quarters` quarters of a panel alone.
template <class T> void multiply_some_tiles(const uint32_t* a, const uint32_t* w, int words, int rows, int quarters, void* out) {
  asm volatile("" : : "r"(a), "r"(w) : "memory");
  for (int first = 0; first < rows; first += 16)
    for (int quarter = 0; quarter < quarters; quarter++) {
      _tile_zero(0);
      for (int word = 0; word < words; word += WORDS) {
        _tile_loadd(4, a + (size_t)first * words + word, words * 4);
        _tile_loadd(6, w + ((size_t)quarter * words + word) * QUARTER, QUARTER * 4);
        MULTIPLY(0, 4, 6);
      }
      _tile_stored(0, static_cast<char*>(out) + ((size_t)first * COLUMNS + quarter * QUARTER) * 4, COLUMNS * 4);
    }
}

// For matrices of fewer than WORDS words, whose tiles have fewer rows: `NarrowTiles` has to live.
template <class T> void multiply_narrow_tiles(const uint32_t* a, const uint32_t* w, int words, int rows, void* out) {
  asm volatile("" : : "r"(a), "r"(w) : "memory");
  const size_t quarter = (size_t)words * QUARTER;
  for (int first = 0; first < rows; first += 16) {
    char* to = static_cast<char*>(out) + (size_t)first * COLUMNS * 4;
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    _tile_loadd(4, a + (size_t)first * words, words * 4);
    _tile_loadd(6, w, QUARTER * 4);
    _tile_loadd(7, w + quarter, QUARTER * 4);
    MULTIPLY(0, 4, 6);
    MULTIPLY(1, 4, 7);
    _tile_loadd(6, w + 2 * quarter, QUARTER * 4);
    _tile_loadd(7, w + 3 * quarter, QUARTER * 4);
    MULTIPLY(2, 4, 6);
    MULTIPLY(3, 4, 7);
    const int sum = COLUMNS * 4;
    _tile_stored(0, to, sum); _tile_stored(1, to + 64, sum); _tile_stored(2, to + 128, sum); _tile_stored(3, to + 192, sum);
  }
}
#undef MULTIPLY
#endif

#ifdef TILES
// Shapes of a thread's tiles: 4 and 5 hold inputs of so many words, 6 and 7 weights, all others sums.
inline void set_up_tiles(int words) {
  struct { uint8_t palette = 1, start = 0, none[14] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } config;
  for (int i = 0; i < 8; i++) config.bytes[i] = i == 4 || i == 5 ? words * 4 : 64, config.rows[i] = i > 5 ? words : 16;
  asm volatile("" : : "r"(&config) : "memory");  // some compilers do not know that all of it is read (GCC bug 114098)
  _tile_loadconfig(&config);
}
#endif

// Sets up the tiles of a thread for products, and releases them.
struct Worker {
  bool tiles = false;
  Worker() {
#ifdef TILES
    if (!may_use_tiles()) return;
    set_up_tiles(WORDS);
    tiles = true;
#endif
  }
  ~Worker() {
#ifdef TILES
    if (tiles) _tile_release();
#endif
  }
};

// While it lives, a thread's tiles are for matrices of so many words, if these are fewer than WORDS, and for no others.
struct NarrowTiles {
  const bool narrow;
  NarrowTiles(const Worker& worker, int words) : narrow(worker.tiles && words < WORDS) {
#ifdef TILES
    if (narrow) set_up_tiles(words);
#endif
  }
  ~NarrowTiles() {
#ifdef TILES
    if (narrow) set_up_tiles(WORDS);
#endif
  }
};

#ifdef TILES
// Products with 4-bit matrices. Sums of groups are exact, and they are added as `Int4::multiply_rows` adds them, so the bits are
// the same. `NarrowTiles` has to live.
struct GroupedTiles {
  static constexpr int SEGMENT = 8, GROUPS = 2 * SEGMENT, ROWS = 16, GROUP_WORDS = Int4::IN_GROUP / 4;
  alignas(64) uint32_t codes[GROUPS][GROUP_WORDS * QUARTER];  // of SEGMENT chunks of a quarter, from -8 to 7
  alignas(64) F scales[GROUPS];
  alignas(64) I exact[2][ROWS];  // a group's sums with 16 rows

  void multiply(const uint32_t* a, const uint32_t* w, int words, int rows, F (*out)[VECTORS]) {
    const int stride = words * Int4::PARTS;
    for (int quarter = 0; quarter < 4; quarter++, w += (size_t)words * QUARTER)
      for (int word = 0; word < words; word += SEGMENT * Int4::CHUNK) {
        const int chunks = std::min(SEGMENT, (words - word) / Int4::CHUNK);
        unpack(w + (size_t)word * QUARTER, chunks);
        for (int row = 0; row < rows; row += ROWS) {
          const uint32_t* from = a + (size_t)row * stride + word * Int4::PARTS;
          if (rows - row > ROWS / 2) add<ROWS>(from, stride, chunks, word == 0, out + row, quarter);
          else add<ROWS / 2>(from, stride, chunks, word == 0, out + row, quarter);
        }
      }
  }

  void unpack(const uint32_t* from, int chunks) {
    const I low = I{} + 0x0f0f0f0f;
    const __m512i eight = _mm512_set1_epi8(8);
    for (int chunk = 0; chunk < chunks; chunk++, from += Int4::CHUNK * QUARTER) {
      uint32_t* to = codes[2 * chunk];
      for (int word = 0; word < Int4::CHUNK - 1; word++, to += 2 * QUARTER) {
        const I packed = load<I>(from + word * QUARTER);
        store(to, (I)_mm512_sub_epi8((__m512i)(packed & low), eight));
        store(to + QUARTER, (I)_mm512_sub_epi8((__m512i)(packed >> 4 & low), eight));
        __builtin_prefetch(from + (word + AHEAD) * QUARTER, 0, 2);
      }
      const I both = load<I>(from + (Int4::CHUNK - 1) * QUARTER);
      for (int group = 0; group < 2; group++) scales[2 * chunk + group] = Int4::scales(both, group);
    }
    asm volatile("" : : "r"(this) : "memory");
  }

  // Adds a segment to the sums of NUM rows in one quarter; the first one starts them. Each group is summed before the one in
  // front of it is scaled and added, since what a tile stores can be read only some time later.
  template <int NUM> void add(const uint32_t* a, int stride, int chunks, bool first, F (*out)[VECTORS], int quarter) {
    F sums[NUM];
#pragma GCC unroll 16
    for (int row = 0; row < NUM; row++) sums[row] = first ? F{} : out[row][quarter];
    sum<0>(a, stride, 0);
    for (int group = 0; group < 2 * chunks; group += 2) {
      sum<1>(a, stride, group + 1);
      scale<0>(a, stride, group, sums);
      if (group + 2 < 2 * chunks) sum<0>(a, stride, group + 2);
      scale<1>(a, stride, group + 1, sums);
    }
#pragma GCC unroll 16
    for (int row = 0; row < NUM; row++) out[row][quarter] = sums[row];
  }

  // The exact sums of a group. Those of even and odd ones take different tiles, so that they overlap.
  template <int ODD> void sum(const uint32_t* a, int stride, int group) {
    const uint32_t* from = a + group / 2 * Int4::CHUNK * Int4::PARTS + ODD * GROUP_WORDS;
#define SUM(sums, inputs, weights)                     \
  _tile_zero(sums);                                    \
  _tile_loadd(inputs, from, stride * 4);               \
  _tile_loadd(weights, codes[group], QUARTER * 4);     \
  _tile_dpbssd(sums, inputs, weights);                 \
  _tile_stored(sums, exact[ODD], QUARTER * 4)
    if constexpr (ODD) { SUM(1, 5, 7); } else { SUM(0, 4, 6); }
#undef SUM
    asm volatile("" : : "r"(exact) : "memory");
  }

  // Adds a group's exact sums, times the scales of columns and rows.
  template <int ODD, int NUM> void scale(const uint32_t* a, int stride, int group, F (&sums)[NUM]) {
    const uint32_t* from = a + group / 2 * Int4::CHUNK * Int4::PARTS + Int4::CODES + ODD;
#pragma GCC unroll 16
    for (int row = 0; row < NUM; row++)
      sums[row] = fused(__builtin_convertvector(exact[ODD][row], F) * scales[group], all(bits<float>(from[row * stride])), sums[row]);
  }
};
#endif
