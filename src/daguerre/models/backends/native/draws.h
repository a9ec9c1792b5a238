// Draws a token from a row of logits: bias, bans, temperature, top-k, top-p, min-p, and a race of exponential clocks. The reference is
// `sampling/logits.py`. In float32 at temperature 0, else in float64.

#pragma once

#include <algorithm>
#include <vector>

#include "ranking.h"

// How tokens are drawn for one request, and which tokens this forward forbids.
struct Rules {
  double temperature, top_p, min_p;
  const int32_t* bias_tokens;  // (num_bias,)
  const double* bias_values;
  const int64_t* bans;     // (num_bans, 3): a token, and the positions [start, end) at which it may not be drawn
  const int32_t* allowed;  // (num_allowed,): the only tokens that may be drawn at `allowed_at`; empty: no restriction
  int64_t allowed_at, seed, sample, purpose, step;
  int32_t top_k, num_bias, num_bans, num_allowed;  // top_k 0: no cut
};

struct Drawn {
  int64_t token;  // -1: no token was allowed
  double probability, entropy;
};

template <class X> inline X mixed(X x) {  // SplitMix64's output function; X is unsigned, 64 bits, one number or several
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A hash of a draw's keys, as `sampling/random.py` has it.
inline uint64_t hashed(const Rules& r, int64_t position) {
  uint64_t state = 0;
  for (int64_t key : {r.seed, r.sample, r.purpose, r.step, position}) state = mixed(state ^ mixed((uint64_t)key));
  return state;
}

constexpr double UNIT = 0x1p-52;

// The exponential number E = -log u of a token, with u uniform on (0, 1), a function of the hash and the token.
inline double exponential_number(uint64_t state, int64_t token) {
  return -std::log((double(mixed(state ^ mixed((uint64_t)token)) >> 12) + 0.5) * UNIT);
}

// mixed(token) for tokens 0, 1, ..., and more than `vocab` of them.
inline const uint64_t* mixed_tokens(int vocab) {
  static thread_local std::vector<uint64_t> known;
  for (size_t i = known.size(); i < (size_t)vocab + PAIRS; i++) known.push_back(mixed((uint64_t)i));
  return known.data();
}

// The token with the least E / weight; `most` is one with a weight. Since E >= 1 - u, few logarithms are taken.
inline int64_t race(const Rules& r, int64_t position, const double* weights, int vocab, int64_t most) {
  constexpr double ROUNDING = 1 + 1e-9;
  const uint64_t state = hashed(r, position), *tokens = mixed_tokens(vocab);
  int64_t winner = most;
  double least = exponential_number(state, most) / weights[most];
  for (int i = 0; i < vocab; i += PAIRS) {
    const D u = (__builtin_convertvector(L(mixed(state ^ load<U>(tokens + i)) >> 12), D) + 0.5) * UNIT;
    const L may = 1.0 - u <= load<D>(weights + i) * (least * ROUNDING);
    if (!any(may)) continue;
    for (int j = 0; j < PAIRS && i + j < vocab; j++) {
      if (!may[j] || !(weights[i + j] > 0)) continue;
      const double time = exponential_number(state, i + j) / weights[i + j];
      if (time < least || (time == least && i + j < winner)) least = time, winner = i + j;
    }
  }
  return winner;
}

// Sets the logits of all tokens that may not be drawn to minus infinity; X is float or double.
template <class X> void forbid(const Rules& r, int64_t position, X* logits, int vocab) {
  const X never = -std::numeric_limits<X>::infinity();
  for (int i = 0; i < r.num_bans; i++) {
    const int64_t* ban = r.bans + 3 * i;
    if (ban[1] <= position && position < ban[2]) logits[ban[0]] = never;
  }
  if (r.num_allowed && position == r.allowed_at) {
    static thread_local std::vector<X> kept;
    kept.assign(logits, logits + vocab);
    std::fill(logits, logits + vocab, never);
    for (int i = 0; i < r.num_allowed; i++) logits[r.allowed[i]] = kept[r.allowed[i]];
  }
}

// What is returned for a row in addition to its token: the entropy, and the most likely tokens.
struct Extras {
  bool entropy;
  int num_best;
  int64_t* best_tokens;
  double* best_probabilities;
};

// The most likely token. `logits` (vocab, padded to LANES with minus infinity) are overwritten.
inline Drawn greedy(const Rules& r, float* logits, int vocab, int64_t position, const Extras& extras) {
  for (int i = 0; i < r.num_bias; i++) logits[r.bias_tokens[i]] += (float)r.bias_values[i];
  forbid(r, position, logits, vocab);
  F most = all(NEVER), total{}, weighed{};
  for (int i = 0; i < vocab; i += LANES) most = larger(most, load<F>(logits + i));
  const float top = greatest(most);
  if (!(top > NEVER && top < -NEVER)) return {-1, 0, 0};
  for (int i = 0; i < vocab; i += LANES) {
    const F below = load<F>(logits + i) - top, e = exponential(below);
    total += e;
    if (extras.entropy) weighed += e > 0 ? e * below : F{};
  }
  const double mass = sum(total);
  best_of(logits, vocab, extras.num_best, [&](float x) { return (double)exponential(all(x - top))[0] / mass; }, extras.best_tokens,
          extras.best_probabilities);
  return {std::find(logits, logits + vocab, top) - logits, 1 / mass, extras.entropy ? std::log(mass) - (double)sum(weighed) / mass : 0};
}

// Writes e^((logits - top) / temperature) in float64; returns their sum.
inline double weights_of(const double* logits, int vocab, double top, double temperature, double* out) {
  D totals[2] = {};  // `vocab` is a multiple of LANES, which is two vectors
  for (int i = 0; i < vocab; i += LANES)
    for (int j = 0; j < 2; j++) {
      const D weight = exponential((load<D>(logits + i + j * PAIRS) - top) / temperature);
      store(out + i + j * PAIRS, weight);
      totals[j] += weight;
    }
  double total = 0;
  for (int i = 0; i < PAIRS; i++) total += totals[0][i] + totals[1][i];
  return total;
}

// The first of the largest of `num` numbers, a multiple of PAIRS.
inline int64_t place_of_most(const double* x, int num) {
  D most = load<D>(x);
  for (int i = PAIRS; i < num; i += PAIRS) most = load<D>(x + i) > most ? load<D>(x + i) : most;
  double top = most[0];
  for (int i = 1; i < PAIRS; i++) top = std::max(top, most[i]);
  int place = 0;
  while (place < num - PAIRS && !any(load<D>(x + place) == top)) place += PAIRS;
  while (place < num - 1 && !(x[place] == top)) place++;
  return place;
}

// A token drawn with the random numbers of its position. `given`: logits as for `greedy`, not changed.
inline Drawn sampled(const Rules& r, const float* given, int vocab, int64_t position, const Extras& extras) {
  static thread_local std::vector<double> room;
  const int size = round_up(vocab, LANES);
  room.resize(3 * (size_t)size + LANES);
  double *logits = room.data(), *weights = logits + size, *warm = weights + size;
  for (int i = 0; i < size; i++) logits[i] = given[i];
  for (int i = 0; i < r.num_bias; i++) logits[r.bias_tokens[i]] += r.bias_values[i];
  forbid(r, position, logits, vocab);
  const int64_t most = place_of_most(logits, size);
  const double top = logits[most];
  if (!std::isfinite(top)) return {-1, 0, 0};
  const double mass = weights_of(logits, size, top, 1, weights);
  double entropy = 0;
  if (extras.entropy) {
    for (int i = 0; i < vocab; i++)
      if (weights[i] > 0) entropy += weights[i] * (logits[i] - top);
    entropy = std::log(mass) - entropy / mass;
  }
  best_of(logits, size, extras.num_best, [&](double x) { return std::exp(x - top) / mass; }, extras.best_tokens, extras.best_probabilities);
  const bool by_rank = r.top_k || r.top_p < 1, cuts = by_rank || r.min_p > 0;
  if (r.temperature != 1) weights_of(logits, size, top, r.temperature, warm);
  else if (cuts) std::copy(weights, weights + size, warm);
  else warm = weights;
  if (by_rank) cut(warm, size, r.top_k, r.top_p);
  if (r.min_p > 0) cut_below(warm, size, r.min_p);
  const int64_t token = race(r, position, warm, vocab, most);
  return {token, weights[token] / mass, entropy};
}

inline Drawn draw(const Rules& r, float* logits, int vocab, int64_t position, const Extras& extras = {}) {
  return r.temperature == 0 ? greedy(r, logits, vocab, position, extras) : sampled(r, logits, vocab, position, extras);
}

// The log-probability of a token, in nats.
inline double log_probability(const float* logits, int vocab, int64_t token) {
  const int size = round_up(vocab, LANES);
  static thread_local std::vector<double> room;
  room.resize(2 * (size_t)size);
  for (int i = 0; i < size; i++) room[i] = logits[i];
  const double top = room[place_of_most(room.data(), size)];
  const double mass = weights_of(room.data(), size, top, 1, room.data() + size);
  return logits[token] - top - std::log(mass);
}
