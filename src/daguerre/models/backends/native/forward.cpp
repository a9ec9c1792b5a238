// One forward of many requests on a CPU: from tokens to hidden states, logits, log-probabilities or drawn tokens.

#include <new>

#include "answers.h"
#include "hidden.h"

namespace {

// Calls what(type of products, type of numbers in caches and embeddings).
template <class Do> void by_type(const Model& m, Do what) {
  if (m.product == 0) what(Float32{}, float{});
  else if (m.product == 1) what(Bfloat16{}, uint16_t{});
  else if (m.cache == 0) what(Int8{}, float{});
  else what(Int8{}, uint16_t{});
}

Batch nothing(int threads) {
  Batch b{};
  b.threads = threads;
  return b;
}

}  // namespace

extern "C" {

// 0, or what is wrong, and nothing is done: 1 a position that the model does not have, 2 a row wanted that there is not, 3
// no memory, 4 a token that the vocabulary does not have, 5 numbers of another size than they should have.
int daguerre_forward(const Model* m, const char* given, int64_t size, float* hidden, float* logits, double* drawn, double* best,
                     int32_t* made) {
  Batch b{};
  if (!b.unpack(given, size)) return 5;
  b.hidden = hidden, b.logits = logits, b.drawn = drawn, b.best = best, b.made = made;
  for (int i = 0; i < b.rows; i++) {
    if (b.position[i] < 0 || b.position[i] >= m->positions) return 1;
    if (b.tokens[i] < 0 || b.tokens[i] >= m->vocab) return 4;
  }
  for (int p = 0; p < b.num_parts; p++)
    for (int i = 0; i < b.parts[p].num_wanted; i++) {
      const int row = b.wanted[b.parts[p].first_wanted + i];
      if (row < 0 || row >= b.parts[p].rows) return 2;
    }
  try {
    by_type(*m, [&](auto type, auto number) {
      static thread_local Room room;
      const size_t num = (size_t)b.num_wanted * filled(m->width, COLUMNS);
      room.begin(num * 4);
      float* states = room.take<float>(num);
      Stack<decltype(type), decltype(number)>{*m, b}.hidden(states);
      Answers<decltype(type)>{*m, b, states}.answer();
      room.end();
    });
  } catch (const std::bad_alloc&) {
    return 3;
  }
  return 0;
}

// Logits (rows, V filled up) of hidden states (rows, stride of D).
void daguerre_logits(const Model* m, const float* hidden, int rows, float* out, int threads) {
  const Batch b = nothing(threads);
  by_type(*m, [&](auto type, auto) {
    Answers<decltype(type)>{*m, b, hidden}.multiply(m->logits, hidden, rows, filled(m->width, COLUMNS), out);
  });
}

// A step of the draft head: the next state (D,), in place of a row's hidden state, from that, the token before it and the
// state before it, all (stride of D), and the logits (V filled up) of the next state.
void daguerre_draft(const Model* m, float* row, int64_t token, const float* state, float* logits, int threads) {
  const Batch b = nothing(threads);
  by_type(*m, [&](auto type, auto) {
    const Answers<decltype(type)> answers{*m, b, row};
    answers.draft(row, &token, &state, 1);
    answers.multiply(m->logits, row, 1, answers.width, logits);
  });
}
}
