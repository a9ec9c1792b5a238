// One forward of many requests on a CPU: from tokens to hidden states, logits, log-probabilities or drawn tokens.

#include <new>

#include "answers.h"
#include "gemma.h"
#include "hidden.h"
#include "stored.h"
#include "rounding.h"

namespace {

// Calls function(type of products, type of numbers in caches and embeddings).
template <class Function> void by_type(const Model& m, Function function) {
  if (m.product == 0) function(Float32{}, float{});
  else if (m.product == 1) function(Bfloat16{}, uint16_t{});
  else if (m.product == 2 && m.cache == 0) function(Int8{}, float{});
  else if (m.product == 2) function(Int8{}, uint16_t{});
  else if (m.product == 3 && m.cache == 0) function(Int4{}, float{});
  else if (m.product == 3) function(Int4{}, uint16_t{});
  else if (m.cache == 0) function(Mixed{}, float{});
  else function(Mixed{}, uint16_t{});
}

Batch empty_batch(int threads) {
  Batch b{};
  b.threads = threads;
  return b;
}

std::vector<Place> places_of(const Edit* edit, int rows) {
  std::vector<Place> places;
  for (int row = 0; row < rows; row++) places.push_back({edit, row});
  return places;
}

// Calls a function; the code of an error, 3 if there is no memory for it, 6 if keys are gone that it reads, else 0.
template <class Function> int guarded(Function function) {
  try {
    function();
  } catch (const std::bad_alloc&) {
    return 3;
  } catch (const Gone&) {
    return 6;
  }
  return 0;
}

}  // namespace

extern "C" {

// Returns 0, or the code of an error, and then nothing is cached: 1 a position that the model does not have, 2 a wanted row
// that does not exist, 3 out of memory, 4 a token that the vocabulary does not have, 5 an input of the wrong size.
int daguerre_forward(const Model* m, const char* given, int64_t size, float* hidden, float* logits, float* conditioning, double* drawn,
                     double* best, int32_t* made) {
  Batch b{};
  if (!b.unpack(given, size)) return 5;
  b.hidden = hidden, b.logits = logits, b.conditioning = conditioning, b.drawn = drawn, b.best = best, b.made = made;
  for (int i = 0; i < b.rows; i++) {
    if (b.position[i] < 0 || b.position[i] >= m->positions) return 1;
    if (b.tokens[i] < 0 || b.tokens[i] >= m->vocab) return 4;
  }
  for (int p = 0; p < b.num_parts; p++)
    for (int i = 0; i < b.parts[p].num_wanted; i++) {
      const int row = b.wanted[b.parts[p].first_wanted + i];
      if (row < 0 || row >= b.parts[p].rows) return 2;
    }
  return guarded([&] {
    by_type(*m, [&](auto type, auto number) {
      static thread_local Scratch room;
      const size_t num = (size_t)b.num_wanted * round_up(m->width, COLUMNS);
      room.begin(num * 4);
      float* states = room.take<float>(num);
      if (m->gemma) GemmaStack<decltype(type), decltype(number)>{*m, b}.hidden(states);
      else Stack<decltype(type), decltype(number)>{*m, b}.hidden(states);
      Answers<HeadOf<decltype(type)>>{*m, b, states}.answer();
      room.end();
    });
  });
}

// Logits (rows, V padded) of hidden states (rows, stride of D), which an edit, or null, changes. Returns 0, or 3 as above; so
// does `daguerre_draft`.
int daguerre_logits(const Model* m, float* hidden, int rows, const Edit* edit, float* out, int threads) {
  const Batch b = empty_batch(threads);
  return guarded([&] {
    by_type(*m, [&](auto type, auto) {
      typedef HeadOf<decltype(type)> Y;
      Answers<Y>{*m, b, hidden}.template project_edited<Y>(m->exact, hidden, places_of(edit, rows), out);
    });
  });
}

// A step of the draft head: replaces a row's hidden state by the next state, computed from it, the previous token and the
// previous state, all (stride of D); and writes the logits (V padded) of the next state, changed by an edit, or null.
int daguerre_draft(const Model* m, float* row, int64_t token, const float* state, const Edit* edit, float* logits, int threads) {
  const Batch b = empty_batch(threads);
  return guarded([&] {
    by_type(*m, [&](auto type, auto) {
      typedef HeadOf<decltype(type)> Y;
      const Answers<Y> answers{*m, b, row};
      std::vector<float> product(answers.raw);
      const float* of_row = product.data();
      answers.template multiply<Y>(m->exact.up_row, row, 1, answers.width, product.data(), m->width);
      answers.template draft<Y>(m->exact, row, &of_row, &token, &state, 1);
      std::vector<float> read(row, row + answers.width);
      answers.template project_edited<Y>(m->exact, read.data(), places_of(edit, 1), logits);
    });
  });
}

// One product of rows of x (rows, stride) with a matrix of numbers of a kind of `Model::product`: `out` (rows, panels * COLUMNS).
// For measurements and tests.
int daguerre_product(const Linear* matrix, int product, const float* x, int rows, int stride, float* out, int threads) {
  const Batch b = empty_batch(threads);
  Model m{};
  m.product = product;
  return guarded([&] {
    by_type(m, [&](auto type, auto) {
      typedef decltype(type) Y;
      Answers<Y>{m, b, x}.template multiply<Y>(*matrix, x, rows, stride, out);
    });
  });
}

// Writes the numbers of a stored type, by ggml's number, as float32, or as bfloat16. Returns 0, or 5 for a type that is not known or
// a number of them that is no whole number of blocks.
int daguerre_numbers(int type, const uint8_t* from, int64_t num, void* to, int as_bfloat16, int threads) {
  constexpr int64_t SOME = 1 << 14;
  const StoredType kind = stored::type_of(type);
  if (!kind.read || num % kind.block) return 5;
  const int64_t parts = (num + SOME - 1) / SOME;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t part = 0; part < parts; part++) {
    const int64_t at = part * SOME;
    stored::read_numbers(kind, from + at / kind.block * kind.bytes, std::min(SOME, num - at),
                         static_cast<char*>(to) + at * (as_bfloat16 ? 2 : 4), as_bfloat16);
  }
  return 0;
}

// Rounds `blocks` blocks of float32 to a type of blocks, by ggml's number. Returns 0, or 5 for a type that is not made.
int daguerre_round(int type, const float* from, int64_t blocks, uint8_t* to, int threads) {
  const rounding::RoundedType kind = rounding::type_of(type);
  if (!kind.round) return 5;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < blocks; i++) kind.round(from + i * kind.block, to + i * kind.bytes);
  return 0;
}

// Packs a matrix. Returns 0, or 3 as above.
int daguerre_pack(const Unpacked* matrix, int threads) {
  use_large_pages(matrix->to, (size_t)matrix->panels * COLUMNS * matrix->words * 4);
  Shortage shortage;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int i = 0; i < matrix->panels; i++) shortage.guard([&] { Packer{*matrix}.panel(i); });
  return guarded([&] { shortage.check(); });
}

// The same of rows of blocks.
int daguerre_pack_blocks(const UnpackedBlocks* matrix, int threads) {
  use_large_pages(matrix->to, matrix->quarters[4 * matrix->panels].at * 4);
  Shortage shortage;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int i = 0; i < 4 * matrix->panels; i++) shortage.guard([&] { blocks::BlockPacker{*matrix}.quarter(i); });
  return guarded([&] { shortage.check(); });
}

// Writes a row of a packed matrix of blocks as float32, up to the next multiple of 64 numbers. For tests.
int daguerre_unpack_row(const Linear* matrix, int64_t row, float* to) {
  unpack_column<Blocks>(*matrix, row, 0, to);
  return 0;
}
}
