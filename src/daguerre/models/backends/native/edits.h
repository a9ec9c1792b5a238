// Edits of hidden states by concepts (`Edit` of models/forward.py), in float32, whatever the products of the model. The reference
// is `Editing` in answering.py.
//
// Letters: D width, V vocabulary, J concepts of an edit.

#pragma once

#include <algorithm>
#include <vector>

#include "model.h"

constexpr float MOST = 15.0f;  // `CLAMP` of models/core/concept_heads.py

// A row of an edit; without an edit the hidden state stays as it is.
struct Place {
  const Edit* edit;
  int row;
  float of(const float* amounts, int j) const { return amounts[(size_t)row * edit->num + j]; }
  bool reads(const ConceptHead& head, int j) const {  // whether the weight of its concept j, which is one of the head's, counts
    return edit->concepts[j] >= head.first && edit->concepts[j] < head.first + head.num && of(edit->scale, j) != 0;
  }
  bool reads(const ConceptHead& head) const {
    bool any = false;
    for (int j = 0; edit && j < edit->num; j++) any |= reads(head, j);
    return any;
  }
};

// The weight of a concept from clamped logits (num,): 0 unless it is among the `kept` largest, the first of equals first.
inline float concept_weight(const float* logits, int num, int kept, int which) {
  const float own = logits[which];
  int larger = 0;
  for (int i = 0; i < which; i++) larger += logits[i] >= own;
  for (int i = which + 1; i < num; i++) larger += logits[i] > own;
  return larger < kept ? 1 / (1 + std::exp(-own)) : 0;
}

// Adds scale * weight of a head's concepts in hidden states x (rows, stride) to the amounts of rows, each (J,).
// multiply(matrix, x, rows, stride, out) is a product in float32.
template <class Multiply>
void add_weights(const ConceptHead& head, const std::vector<Place>& places, const float* x, int stride,
                 const std::vector<float*>& amounts, Multiply multiply) {
  std::vector<int> rows;
  for (size_t i = 0; i < places.size(); i++)
    if (places[i].reads(head)) rows.push_back((int)i);
  if (rows.empty()) return;
  const int num = (int)rows.size(), inner = head.down.panels * COLUMNS, outer = head.up.panels * COLUMNS;
  static thread_local Scratch room;
  room.begin((size_t)num * (stride + inner + outer) * 4 + 256);
  float *given = room.take<float>((size_t)num * stride), *low = room.take<float>((size_t)num * inner);
  float* logits = room.take<float>((size_t)num * outer);
  for (int i = 0; i < num; i++) std::memcpy(given + (size_t)i * stride, x + (size_t)rows[i] * stride, stride * 4);
  if (inner) multiply(head.down, given, num, stride, low);
  multiply(head.up, inner ? low : given, num, inner ? inner : stride, logits);
  for (int i = 0; i < num; i++) {
    const Place& at = places[rows[i]];
    float* own = logits + (size_t)i * outer;
    for (int c = 0; c < head.num; c++) own[c] = std::min(std::max(own[c], -MOST), MOST);
    for (int j = 0; j < at.edit->num; j++)
      if (at.reads(head, j))
        amounts[rows[i]][j] += at.of(at.edit->scale, j) * concept_weight(own, head.num, head.kept, at.edit->concepts[j] - head.first);
  }
  room.end();
}

// Adds to hidden states x, a row for each place (stride of D), what concepts write into them.
template <class Multiply> void write_concepts(const Model& m, const std::vector<Place>& places, float* x, int stride, Multiply multiply) {
  size_t num = 0;
  for (const Place& at : places) num += at.edit ? at.edit->num : 0;
  std::vector<float> all_amounts(num);
  std::vector<float*> amounts;
  float* next = all_amounts.data();
  for (const Place& at : places) {
    amounts.push_back(next);
    for (int j = 0; at.edit && j < at.edit->num; j++) *next++ = at.of(at.edit->shift, j);
  }
  for (int i = 0; m.concepts && i < 2; i++) add_weights(m.concepts[i], places, x, stride, amounts, multiply);
  for (size_t row = 0; row < places.size(); row++)
    for (int j = 0; places[row].edit && j < places[row].edit->num; j++) {
      const F amount = all(amounts[row][j]);
      if (amounts[row][j] == 0) continue;
      const float* write = places[row].edit->write + (size_t)j * m.width;
      float* to = x + row * stride;
      for (int i = 0; i < m.width; i += LANES) store(to + i, fused(amount, widen(write + i, m.width - i), load<F>(to + i)));
    }
}

// Takes what an edit bans from the logits (V, padded) of a row.
inline void take_bans(const Model& m, const Place& at, float* logits) {
  for (int j = 0; at.edit && at.edit->mask && j < at.edit->num; j++) {
    const float strength = at.of(at.edit->ban, j);
    if (strength == 0) continue;
    const float* mask = at.edit->mask + (size_t)j * m.vocab;
    for (int i = 0; i < m.vocab; i += LANES) store(logits + i, fused(all(-strength), widen(mask + i, m.vocab - i), load<F>(logits + i)));
  }
}
