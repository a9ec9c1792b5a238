// Products with blocks on the tiles of AMX: a part of blocks.h, whose names it uses.
//
// Sums of a group are exact, and `add_sums` adds them as it adds those of vectors, so the bits are the same.

#pragma once

#ifdef TILES
namespace blocks {

template <class Q> struct BlockTiles {
  static constexpr int ROWS = 16, SUMS_OF_GROUP = Q::HALVES ? 2 : 1;
  static constexpr int INPUT_WORDS = UNITS / SUMS_OF_GROUP;  // of a sum: what `NarrowTiles` has to live for
  alignas(64) I exact[2][SUMS_OF_GROUP][ROWS];

  // Starts the sums of a group, or of its halves, with ROWS rows; those in turn take different tiles, so that they overlap.
  template <int ODD> void start(const uint32_t* a, int stride, const uint32_t* codes) {
#define SUM(sums, inputs, weights, half)                                       \
  _tile_zero(sums);                                                            \
  _tile_loadd(inputs, a + (half) * INPUT_WORDS, stride * 4);                   \
  _tile_loadd(weights, codes + (half) * INPUT_WORDS * COLS, COLS * 4);         \
  _tile_dpbsud(sums, inputs, weights);                                         \
  _tile_stored(sums, exact[ODD][half], COLS * 4)
    if constexpr (Q::HALVES) {
      SUM(0, 4, 6, 0);
      SUM(1, 5, 7, 1);
    } else if constexpr (ODD) {
      SUM(1, 5, 7, 0);
    } else {
      SUM(0, 4, 6, 0);
    }
#undef SUM
    asm volatile("" : : "r"(this) : "memory");
  }

  template <int ODD> void finish(const uint32_t* a, int stride, const Head<Q>& head, int group, F (&sums)[ROWS]) const {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
      add_sums<Q>(a + row * stride, exact[ODD][0][row], exact[ODD][SUMS_OF_GROUP - 1][row], head, group, 0, sums[row]);
  }

  // Adds a slice to the sums of ROWS rows; the first one starts them. A group's sums are started before the one in front of it is
  // scaled and added, since what a tile stores can be read only some time later.
  void add(const uint32_t* a, int stride, const uint32_t* codes, const Head<Q>* heads, int chunks, bool begins, F* out, int out_stride,
           Ahead& ahead) {
    constexpr int group_words = UNITS * COLS;
    asm volatile("" : : "r"(codes) : "memory");  // some compilers do not know that loads of tiles read memory
    F sums[ROWS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) sums[row] = begins ? F{} : out[row * out_stride];
    const int groups = chunks * Q::GROUPS;  // an even number
    start<0>(a, stride, codes);
    for (int group = 0; group < groups; group += 2, a += 2 * PARTS, codes += 2 * group_words) {
      const Head<Q>& head = heads[group / Q::GROUPS];
      const int within = group % Q::GROUPS;
      ahead.fetch();
      start<1>(a + PARTS, stride, codes + group_words);
      finish<0>(a, stride, head, within, sums);
      ahead.fetch();
      if (group + 2 < groups) start<0>(a + 2 * PARTS, stride, codes + 2 * group_words);
      finish<1>(a + PARTS, stride, head, within + 1, sums);
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) out[row * out_stride] = sums[row];
  }
};

}  // namespace blocks
#endif
