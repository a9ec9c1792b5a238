// Packs rows of GGUF blocks into the layout of blocks.h: a permutation of their bits, but for types that it widens.

#pragma once

#include <algorithm>
#include <vector>

#include "block_types.h"
#include "stored.h"

// Rows of blocks, of ggml's types, and where they are packed to. Padding is written, too; a row that is null is zeros.
struct UnpackedBlocks {
  const uint8_t* const* rows;  // (panels * 64,)
  const int32_t* types;        // (panels * 64,)
  uint32_t* to;
  const Quarter* quarters;     // (panels * 4 + 1,)
  int32_t groups, panels;      // groups of 32 inputs, those of padding among them
  int64_t in;
};

namespace blocks {

inline uint32_t word_at(const void* from) { return load<uint32_t>(from); }
inline uint32_t half_at(const uint8_t* from) { return load<uint16_t>(from); }

// The words of a group of 32 codes of up to 6 bits.
inline void put_codes(const uint8_t* codes, int num_bits, uint32_t* to) {
  uint32_t four[UNITS];
  std::memcpy(four, codes, sizeof four);
  for (int i = 0; i < 4; i++) to[i] = (four[2 * i] & 0x0f0f0f0f) | (four[2 * i + 1] & 0x0f0f0f0f) << 4;
  if (num_bits == 5) {
    to[4] = 0;
    for (int p = 0; p < UNITS; p++) to[4] |= (four[p] >> 4 & 0x01010101) << p;
  } else if (num_bits == 6) {
    to[4] = to[5] = 0;
    for (int p = 0; p < UNITS; p++) to[4 + p / 4] |= (four[p] >> 4 & 0x03030303) << (2 * (p % 4));
  }
}

// Codes of 16 bytes: the low halves, then the high ones; and a fifth bit of each from a word.
inline void halves_of_bytes(const uint8_t* low, uint8_t* codes) {
  for (int i = 0; i < 16; i++) codes[i] = low[i] & 15, codes[i + 16] = low[i] >> 4;
}
inline void add_fifth(uint32_t high, uint8_t* codes) {
  for (int i = 0; i < 32; i++) codes[i] |= (high >> i & 1) << 4;
}

// A chunk of a column, from the file's blocks.
inline void put_chunk(Q4_0, const uint8_t* b, uint32_t* to, int group) {
  uint8_t codes[32];
  halves_of_bytes(b + 2, codes);
  to[0] |= half_at(b) << (16 * group);
  put_codes(codes, 4, to + 1 + 4 * group);
}
inline void put_chunk(Q4_1, const uint8_t* b, uint32_t* to, int group) {
  uint8_t codes[32];
  halves_of_bytes(b + 4, codes);
  to[0] |= half_at(b) << (16 * group), to[1] |= half_at(b + 2) << (16 * group);
  put_codes(codes, 4, to + 2 + 4 * group);
}
inline void put_chunk(Q5_0, const uint8_t* b, uint32_t* to, int group) {
  uint8_t codes[32];
  halves_of_bytes(b + 6, codes);
  add_fifth(word_at(b + 2), codes);
  to[0] |= half_at(b) << (16 * group);
  put_codes(codes, 5, to + 1 + 5 * group);
}
inline void put_chunk(Q5_1, const uint8_t* b, uint32_t* to, int group) {
  uint8_t codes[32];
  halves_of_bytes(b + 8, codes);
  add_fifth(word_at(b + 4), codes);
  to[0] |= half_at(b) << (16 * group), to[1] |= half_at(b + 2) << (16 * group);
  put_codes(codes, 5, to + 2 + 5 * group);
}
inline void put_chunk(Q8_0, const uint8_t* b, uint32_t* to, int group) {
  to[0] |= half_at(b) << (16 * group);
  for (int i = 0; i < 8; i++) to[1 + 8 * group + i] = word_at(b + 2 + 4 * i) ^ 0x80808080;
}

// The scales and minima of Q4_K and Q5_K.
inline void put_sixes(const uint8_t* b, uint32_t* to) {
  to[0] = word_at(b);
  uint32_t fields[16];
  for (int group = 0; group < 8; group++) {
    int scale, low;
    stored::six(b + 4, group, &scale, &low);
    fields[group] = scale, fields[group + 8] = low;
  }
  for (int i = 0; i < 3; i++) to[1 + i] = (fields[15] >> (2 * i) & 3) << 30;
  for (int i = 0; i < 15; i++) to[1 + i / 5] |= fields[i] << (6 * (i % 5));
}
template <class Q> void put_chunk_of_sixes(const uint8_t* b, uint32_t* to) {
  put_sixes(b, to);
  const uint8_t *high = b + 16, *low = b + (Q::BITS == 5 ? 48 : 16);
  for (int group = 0; group < 8; group++) {
    uint8_t codes[32];
    const uint8_t* of = low + 32 * (group / 2);
    for (int i = 0; i < 32; i++) codes[i] = of[i] >> (4 * (group % 2)) & 15;
    if (Q::BITS == 5)
      for (int i = 0; i < 32; i++) codes[i] |= (high[i] >> group & 1) << 4;
    put_codes(codes, Q::BITS, to + Q::HEAD + group * Q::GROUP_WORDS);
  }
}
inline void put_chunk(Q4_K, const uint8_t* b, uint32_t* to, int) { put_chunk_of_sixes<Q4_K>(b, to); }
inline void put_chunk(Q5_K, const uint8_t* b, uint32_t* to, int) { put_chunk_of_sixes<Q5_K>(b, to); }
inline void put_chunk(Q6_K, const uint8_t* b, uint32_t* to, int) {
  to[0] = half_at(b + 208);
  std::memcpy(to + 1, b + 192, 16);
  for (int group = 0; group < 8; group++) {
    const uint8_t *low = b + 64 * (group / 4) + 32 * (group % 2), *high = b + 128 + 32 * (group / 4);
    const int from = 4 * (group % 4 / 2), bit = 2 * (group % 4);
    uint8_t codes[32];
    for (int i = 0; i < 32; i++) codes[i] = (low[i] >> from & 15) | (high[i] >> bit & 3) << 4;
    put_codes(codes, 6, to + Q6_K::HEAD + group * Q6_K::GROUP_WORDS);
  }
}

// Where the words of type `Wide` have what belongs to an input: its code, and the scale and minimum of its 16.
struct WideColumn {
  uint32_t* to;
  void operator()(int input, int code, float step, float minimum) const {
    uint32_t* chunk = to + input / 64 * Wide::WORDS;
    const int within = input % 64;
    reinterpret_cast<uint8_t*>(chunk + Wide::HEAD)[within] = (uint8_t)(code + 128);
    std::memcpy(chunk + within / 16, &step, 4), std::memcpy(chunk + 4 + within / 16, &minimum, 4);
  }
};

// Codes, steps and minima of a block of Q2_K and of Q3_K, as stored.h reads them.
template <class Function> void visit_q2_k(const uint8_t* b, int first, Function function) {
  const float d = from_half(b + 80), least = from_half(b + 82);
  for (int group = 0; group < 16; group++)
    for (int i = 0; i < 16; i++)
      function(first + 16 * group + i, b[16 + 32 * (group / 8) + 16 * (group % 2) + i] >> (2 * (group % 8 / 2)) & 3,
               d * (b[group] & 15), -(least * (b[group] >> 4)));
}
template <class Function> void visit_q3_k(const uint8_t* b, int first, Function function) {
  const float d = from_half(b + 108);
  for (int group = 0; group < 16; group++) {
    const int low = group < 8 ? b[96 + group] & 15 : b[96 + group - 8] >> 4;
    const float step = d * ((low | (b[104 + group % 4] >> (2 * (group / 4)) & 3) << 4) - 32);
    for (int i = 0; i < 16; i++) {
      const int at = 16 * (group % 2) + i, some = b[32 + 32 * (group / 8) + at] >> (2 * (group % 8 / 2)) & 3;
      function(first + 16 * group + i, some - (b[at] >> (4 * (group / 8) + group % 8 / 2) & 1 ? 0 : 4), step, 0.0f);
    }
  }
}

struct BlockPacker {
  const UnpackedBlocks& m;

  template <class Q> void column(const uint8_t* row, uint32_t* to) const {
    const StoredType kind = stored::type_of(Q::NUMBER);
    const int per = Q::K ? 8 : 1;  // groups of a block
    for (int group = 0; group * IN_GROUP < m.in; group += per, row += kind.bytes)
      put_chunk(Q{}, row, to + group / Q::GROUPS * Q::WORDS, group % Q::GROUPS);
  }

  void wide_column(int type, const uint8_t* row, uint32_t* to) const {
    const WideColumn wide = {to};
    for (int chunk = 0; chunk < m.groups / Wide::GROUPS; chunk++)  // codes that mean zero
      std::memset(to + chunk * Wide::WORDS + Wide::HEAD, 0x80, (Wide::WORDS - Wide::HEAD) * 4);
    if (!row) return;
    const StoredType kind = stored::type_of(type);
    if (type == 10 || type == 11) {
      for (int first = 0; first < m.in; first += kind.block, row += kind.bytes)
        if (type == 10) visit_q2_k(row, first, wide);
        else visit_q3_k(row, first, wide);
      return;
    }
    by_number(type, [&](auto packed) {
      typedef decltype(packed) Q;
      if constexpr (Q::NUMBER >= 0) {
        const int words = m.groups / Q::GROUPS * Q::WORDS;
        std::vector<uint32_t> one(words), alone((size_t)words * COLS);
        column<Q>(row, one.data());
        for (int i = 0; i < words; i++) alone[(size_t)i * COLS] = one[i];
        visit_column(type, alone.data(), 0, m.groups, wide);
      }
    });
  }

  void quarter(int number) const {
    const Quarter& quarter = m.quarters[number];
    by_number(quarter.type, [&](auto type) {
      typedef decltype(type) Q;
      const int words = m.groups / Q::GROUPS * Q::WORDS;
      std::vector<uint32_t> columns((size_t)COLS * words);
      for (int i = 0; i < COLS; i++) {
        const uint8_t* row = m.rows[number * COLS + i];
        if constexpr (Q::NUMBER < 0) wide_column(m.types[number * COLS + i], row, &columns[(size_t)i * words]);
        else if (row) column<Q>(row, &columns[(size_t)i * words]);
      }
      uint32_t* to = m.to + quarter.at;
      for (int i = 0; i < words; i++)
        for (int column = 0; column < COLS; column++) *to++ = columns[(size_t)column * words + i];
    });
  }
};

}  // namespace blocks
