// The data that Python passes: a model's packed weights, and a batch of forwards.
//
// Letters: R rows of all requests, A wanted rows, D width, N heads, K key-value heads, H head width, V vocabulary.

#pragma once

#include "attention.h"
#include "draws.h"

enum Kind : int32_t { HIDDEN, LOGITS, LOG_PROBABILITIES, DRAWS, SEQUENTIAL, CYCLE, REFINEMENT };
enum Activation : int32_t { SILU, GELU, GELU_TANH };
enum Normed : int32_t { NO_HEAD, EACH_HEAD, ALL_HEADS };  // what QK-norm divides by the root mean square of

struct Layer {
  Linear qkv, out, up, down;  // in a gated model `up` holds gates and values; up and down may be empty beside experts
  LowRank qkv_draft, out_draft, up_draft, down_draft;  // added for the rows of drafts alone; or empty
  const float* qk_weight;     // (N + K, H)
  const float *before_attention, *before_mlp;  // (D,) of norms before products; null without them, and in an adaptive model
  const float *attention_weight, *attention_bias, *mlp_weight, *mlp_bias;  // (D,) of post-norms, or null
  Linear router;                          // in float32; empty without experts
  const float* expert_bias;               // (experts,), or null
  const Linear *expert_up, *expert_down;  // (experts,), or null
  int32_t sliding;                        // its rows see no further than `Model::window`
};

// Mixtures of experts; `num` is 0 without any. `inner` and `shared` are the widths of an expert and of the shared one. See
// models/core/config.py. `on_disk`: the experts' matrices begin pages of a file that is mapped, of which memory may hold a part.
struct Experts {
  int32_t num, per_token, inner, shared, groups, kept_groups, sigmoid, normalized;
  float scale;
  int32_t on_disk;
};

// The vocabulary projection, whose bias is minus infinity for tokens that are never predicted; and the draft head: matrices
// that are applied to a row, to the previous state, to the previous token's embedding (or empty: see `up_token`), and to their
// activations. `logits` may be those of `num` tokens alone, `ids`, and no other is drawn then; else `ids` is null.
struct Head {
  Linear logits, up_row, up_state, up_before, down;
  const int32_t* ids;
  int32_t num;
};

// What a layer of DiffusionGemma's core has beyond `Layer`: weights (D,) of the norms before and after the experts, and after the sum
// of both branches; what the layer's results are multiplied by, in clean rows and in noisy ones; whether it is global; and its number
// among the layers of its kind.
struct GemmaLayer {
  const float *before_experts, *experts_weight, *sum_weight;
  float scale[2];
  int32_t global, number;
};

// DiffusionGemma's core (models/core/gemma.py). The heads that `Model` describes are those of sliding layers.
struct Gemma {
  const GemmaLayer* layers;
  const float* turns[2];      // (pairs,) of sliding and of global layers: radians from one position to the next
  const Linear* mean;         // the embedding transposed, (D, tokens), in matrices of `chunk` tokens; the last may have fewer
  const float* before;        // (D,): weights of the norm before self-conditioning
  Linear up, down;            // the MLP of self-conditioning
  int32_t pairs[2];           // how many pairs of numbers of a head are rotated
  int32_t kv_heads, head;     // of global layers
  int32_t chunk;
  float scale, softcap;       // of embeddings; of logits
};

// One of the two concept heads (models/core/concept_heads.py), in float32: from hidden states to the logits of the concepts of
// numbers first, ..., first + num - 1, of which a state has the `kept` largest.
struct ConceptHead {
  Linear down, up;  // `down` is empty unless the head is of low rank
  int32_t first, num, kept;
};

struct Model {
  int32_t width, heads, kv_heads, head, rotary, inner, num_layers, vocab, positions;
  int32_t product, cache;  // product: 0 float32, 1 bfloat16, 2 int8, 3 int4, 4 `Mixed`; cache and embedding: 0 float32,
                           // 1 bfloat16
  int32_t gated, activation, centered, qk_norm, pre_norm, post_norm, adaptive;  // norms before branches, and behind them
  int32_t window;       // of sliding layers
  float eps, clip_qkv;  // clip_qkv: queries, keys and values are kept within this distance of 0; 0: they are not
  float embedding_scale;
  Experts experts;
  const void* embedding;                   // (V, D), or null
  Linear tokens;                           // the same packed, in numbers of the vocabulary projection, which may be this matrix; or empty
  const float* draft_row;                  // (D,): what the rows of drafts read in place of tokens; or null
  const float* learned;                    // (positions, D), or null
  const float *final_weight, *final_bias;  // (D,); the bias may be null
  const float *cos, *sin;                  // (positions, rotary / 2) each; or null
  const float *sliding_cos, *sliding_sin;  // the same of sliding layers
  const float* query_scale;                // (positions,): what queries are multiplied by; or null
  const Layer* layers;
  Head exact;              // logits of rows, and chains whose tokens are committed
  Head drafting;           // the same in 8-bit numbers, for drafts, which are verified; or empty: `exact` has them, too
  const float* up_token;   // (V, up_row.panels * COLUMNS): products of the previous token; or null
  const float* confidence; // (2, D + 1): weights of the draft head's confidence; or null
  float confidence_bias[2];
  const ConceptHead* concepts;  // those of known and of discovered concepts; or null
  const Gemma* gemma;      // or null
};

// How concepts change the hidden states of a part's wanted rows before they become logits: `Edit` of models/forward.py.
struct Edit {
  const int32_t* concepts;           // (num,)
  const float *write, *mask;         // (num, D); (num, V), or null
  const float *shift, *scale, *ban;  // (A, num)
  int32_t num;
};

// One request's part of a batch: its rows and the kind of answer. `given`, `positions` and `groups` are indices into `longs`
// and `ints`.
struct Part {
  const Cache* cache;    // of its clean rows; null: they are kept in the call's memory. Of a model with a window, that of sliding
                         // layers, and that of all others
  const uint8_t* mask;   // (rows, mask_width): which of the last keys a row sees in addition to its run; or null
  const int32_t* begin;  // (rows,): where a row's run of keys begins; null: at 0
  const float* added;    // (D,): added to every row; or null. Of an adaptive model, which adds nothing: (6 layers + 2, D), bias and
                         // weight of the norm and the gate of attention and of the MLP; bias and weight of the final norm
  const float* conditioning;  // (noisy rows, D): what the last REFINEMENT made of these rows; or null
  const Rules* rules;    // for draws
  const Edit* edit;      // or null
  int32_t given;         // in `longs`: LOG_PROBABILITIES, a token for each wanted row; CYCLE, the draft (num_draft,)
  int32_t positions;     // in `longs`, for draws: positions of the tokens that the wanted rows predict
  int32_t groups;        // in `ints`, CYCLE: where the masked rows after each of the num_draft + 1 rows begin, and the end
  int32_t num_draft, entropy;
  int32_t drafting;  // the noisy rows use the low-rank weights of drafts
  double worth, threshold;           // where sequential draws end; see `Answers::draw_sequentially`
  int32_t first, rows, clean, past;  // first row, number of rows, of clean rows, of cached rows
  int32_t first_wanted, num_wanted, mask_width, kind, num_best;
  int32_t first_kept;    // LOGITS, REFINEMENT: the first of its rows in `logits` or `conditioning`
};

// A batch as it is passed: these numbers, its parts, then all int64, then all int32, in the order of `Batch`.
struct Packed {
  int32_t num_parts, rows, num_wanted, num_best, threads, num_longs, num_ints, none;
};

struct Batch {
  int32_t num_parts, rows, num_wanted, num_best, threads;
  const Part* parts;
  const int64_t *tokens, *position, *longs;  // (R,), (R,), and the array that parts index
  const int32_t *end, *wanted, *ints;        // (R,) ends of the runs of keys that rows see: cached keys come first, then
                                             // the part's rows; (A,) wanted rows, relative to the first of their part
  float *hidden, *logits;  // (A, D), or null: what was read of each row, of a SEQUENTIAL one the draft head's state; (rows of
                           // parts of kind LOGITS, V)
  float* conditioning;     // (rows of parts of kind REFINEMENT, D)
  double* drawn;           // (3, A): tokens, as int64; probabilities; entropies
  double* best;            // (2, A, num_best): tokens, as int64; probabilities
  int32_t* made;           // (num_parts,): how many tokens were drawn sequentially

  // Set the fields from the passed bytes; false if their size is wrong.
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

// The activations of a panel of gates and values: half as many columns.
inline void gate(const F* v, int kind, float* to) {
  constexpr int some = GROUP / LANES;  // vectors of a group
  for (int j = 0; j < VECTORS; j++)
    if (j / some % 2 == 0) store(to + (j / (2 * some) * some + j % some) * LANES, activated(v[j], kind) * v[j + some]);
}
