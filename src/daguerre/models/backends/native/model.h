// What Python hands over: a model's packed weights, and a batch of requests' forwards.
//
// Letters: R rows of all requests, A those that are wanted, D width, N heads, K key-value heads, H head width, V vocabulary.

#pragma once

#include "attention.h"
#include "draws.h"

enum Kind : int32_t { HIDDEN, LOGITS, LOG_PROBABILITIES, DRAWS, IN_TURN, CYCLE };
enum Activation : int32_t { SILU, GELU, GELU_TANH };

struct Layer {
  Linear qkv, out, up, down;  // `up` has gates and values, if the model has gates
  const float* qk_weight;     // (N + K, H)
  const float *attention_weight, *attention_bias, *mlp_weight, *mlp_bias;  // (D,) of the norms behind, or none
};

struct Model {
  int32_t width, heads, kv_heads, head, rotary, inner, num_layers, vocab, positions;
  int32_t product, cache;  // 0 float32, 1 bfloat16, 2 int8; 0 float32, 1 bfloat16, which is the embedding's type, too
  int32_t gated, activation, centered, qk_norm, post_norm;
  float eps;
  const void* embedding;                   // (V, D)
  const float* learned;                    // (positions, D), or none
  const float *final_weight, *final_bias;  // (D,); the bias or none
  const float *cos, *sin;                  // (positions, rotary) each, `sin` with its first half negative; or none
  const Layer* layers;
  Linear logits;                 // its bias is minus infinity for tokens that are never predicted
  Linear up_row, up_past, down;  // of the draft head: what it reads of a row, and of the token and state before it
  const float* units;            // (V, stride of D): embeddings over their root mean square; none: there is no draft head
};

// One request's part of a batch: its rows, and what is asked about them. Places in `longs` and `ints` count numbers.
struct Part {
  const Cache* cache;    // where its clean rows are kept; none: in memory of the call
  const uint8_t* mask;   // (rows, mask_width): which of the last keys a row sees beside its run; or none
  const int32_t* begin;  // (rows,): where a row's run of keys begins; none: at 0
  const float* added;    // (D,): added to every row; or none
  const Rules* rules;    // of draws
  int32_t given;         // in `longs`: LOG_PROBABILITIES, a token for each wanted row; CYCLE, the draft (num_draft,)
  int32_t positions;     // in `longs`, of draws: of the tokens that the wanted rows predict
  int32_t groups;        // in `ints`, CYCLE: where the masked rows behind each of the num_draft + 1 rows begin, and the end
  int32_t num_draft, entropy;
  double worth, threshold;           // where drawing in turn ends; see `Chain`
  int32_t first, rows, clean, past;  // rows of the batch; those that are kept; rows that its cache has
  int32_t first_wanted, num_wanted, mask_width, kind, first_logits, num_best;
};

// A batch as it is handed over: these numbers, its parts, then all int64, then all int32, in the order of `Batch`.
struct Packed {
  int32_t num_parts, rows, num_wanted, num_best, threads, num_longs, num_ints, none;
};

struct Batch {
  int32_t num_parts, rows, num_wanted, num_best, threads;
  const Part* parts;
  const int64_t *tokens, *position, *longs;  // (R,), (R,), and what parts count
  const int32_t *end, *wanted, *ints;        // (R,) ends of the runs of keys that rows see: a cache's keys come first, then
                                             // own rows; (A,) wanted rows, counted from the first of their part
  float *hidden, *logits;  // (A, D), or none; (rows of parts that ask for logits, V)
  double* drawn;           // (3, A): tokens, as int64; probabilities; entropies
  double* best;            // (2, A, num_best): tokens, as int64; probabilities
  int32_t* made;           // (num_parts,): how many tokens were drawn in turn

  // Fill in what is handed over; false where that is of another size.
  bool unpack(const char* given, int64_t size) {
    Packed p;
    std::memcpy(&p, given, sizeof p);
    num_parts = p.num_parts, rows = p.rows, num_wanted = p.num_wanted, num_best = p.num_best, threads = p.threads;
    parts = reinterpret_cast<const Part*>(given + sizeof p);
    tokens = reinterpret_cast<const int64_t*>(parts + num_parts), position = tokens + rows, longs = position + rows;
    end = reinterpret_cast<const int32_t*>(longs + p.num_longs), wanted = end + rows, ints = wanted + num_wanted;
    return reinterpret_cast<const char*>(ints + p.num_ints) == given + size;
  }
};

inline F activated(F x, int kind) {
  if (kind == SILU) return x / (1.0f + exponential(-x));
  if (kind == GELU) return x * 0.5f * (1.0f + error_function(x * 0.70710678f));
  return x * 0.5f * (1.0f + hyperbolic((x + x * x * x * 0.044715f) * 0.79788456f));
}

// What a panel of gates and values makes: half as many columns.
inline void gate(const F* v, int kind, float* to) {
  constexpr int some = GROUP / LANES;  // vectors of a group
  for (int j = 0; j < VECTORS; j++)
    if (j / some % 2 == 0) store(to + (j / (2 * some) * some + j % some) * LANES, activated(v[j], kind) * v[j + some]);
}
