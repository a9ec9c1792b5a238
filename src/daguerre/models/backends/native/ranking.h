// The largest of many numbers, without sorting them all: of 150,000 tokens a few hundred can be among the best 50.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "vectors.h"

constexpr int STRETCH = 64;          // numbers whose largest is found first
constexpr double FEWER = 1.0 / 256;  // by what a bound falls until enough is above it

template <class X> struct VectorOf { typedef F Type; };
template <> struct VectorOf<double> { typedef D Type; };

// Calls function(first number of a stretch, its length) for stretches of `num` numbers, a multiple of LANES.
template <class Function> void stretches(int num, Function function) {
  for (int start = 0; start < num; start += STRETCH) function(start, std::min(STRETCH, num - start));
}

template <class X> X largest_of(const X* x, int num) {
  typedef typename VectorOf<X>::Type V;
  constexpr int step = sizeof(V) / sizeof(X);
  V most = load<V>(x);
  for (int i = step; i < num; i += step) {
    const V v = load<V>(x + i);
    most = v > most ? v : most;
  }
  X out = most[0];
  for (int i = 1; i < step; i++) out = std::max(out, most[i]);
  return out;
}

// A bound that at least `num` of `size` numbers reach, and few others: the num-th largest of the largest of stretches.
template <class X> X bound_of(const X* x, int size, int num) {
  static thread_local std::vector<X> tops;
  tops.clear();
  stretches(size, [&](int start, int length) { tops.push_back(largest_of(x + start, length)); });
  if ((int)tops.size() < num) return -std::numeric_limits<X>::infinity();
  std::nth_element(tops.begin(), tops.begin() + (num - 1), tops.end(), [](X a, X b) { return a > b; });
  return tops[num - 1];
}

// The places of the numbers that reach a bound, ascending.
template <class X> const std::vector<int32_t>& places_from(const X* x, int size, X bound) {
  static thread_local std::vector<int32_t> out;
  out.clear();
  stretches(size, [&](int start, int length) {
    if (!(largest_of(x + start, length) >= bound)) return;
    for (int i = start; i < start + length; i++)
      if (x[i] >= bound) out.push_back(i);
  });
  return out;
}

// The `num` most likely of `size` tokens and their probabilities, in descending order, ties by token id.
template <class X, class P> void best_of(const X* logits, int size, int num, P probability, int64_t* tokens, double* probabilities) {
  if (!num) return;
  std::vector<int32_t> order(places_from(logits, size, bound_of(logits, size, num)));
  const auto likelier = [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  const int some = std::min<int>(num, (int)order.size());
  std::partial_sort(order.begin(), order.begin() + some, order.end(), likelier);
  for (int place = 0; place < num; place++) {
    tokens[place] = place < some ? order[place] : -1;
    probabilities[place] = place < some ? probability(logits[order[place]]) : 0;
  }
}

// The places of the most likely tokens, of which those that are kept by top-p, a share of `mass`, are some.
inline std::vector<int32_t> likely_by_mass(const double* weights, int size, double wanted) {
  for (double bound = largest_of(weights, size) * FEWER;; bound *= FEWER) {
    if (bound < 1e-300) bound = 0;
    const std::vector<int32_t>& found = places_from(weights, size, bound);
    double mass = 0;
    for (int32_t i : found) mass += weights[i];
    if (bound == 0 || mass > wanted * (1 + 1e-9)) return found;
  }
}

// Sets weights below a share of the largest to zero.
inline void cut_below(double* weights, int size, double share) {
  const double least = share * largest_of(weights, size);
  for (int i = 0; i < size; i++)
    if (weights[i] < least) weights[i] = 0;
}

// Sets weights outside top-k (0: no cut) and top-p to zero. Of equal weights at the edge, those with lower token ids are kept.
inline void cut(double* weights, int size, int top_k, double top_p) {
  static thread_local std::vector<int32_t> order;
  static thread_local std::vector<double> kept;
  const bool few = top_k && top_k < size;
  const auto likelier = [&](int32_t a, int32_t b) { return weights[a] > weights[b] || (weights[a] == weights[b] && a < b); };
  double mass = 0;
  if (few) {
    order = places_from(weights, size, bound_of(weights, size, top_k));
    std::nth_element(order.begin(), order.begin() + top_k, order.end(), likelier);
    order.resize(top_k);
    std::sort(order.begin(), order.end());  // so that sums are those of the tokens' order
    for (int32_t i : order) mass += weights[i];
  } else {
    for (int i = 0; i < size; i++) mass += weights[i];
    order = likely_by_mass(weights, size, top_p * mass);
  }
  int first = 0;
  if (top_p < 1) {
    const auto unlikelier = [&](int32_t a, int32_t b) { return likelier(b, a); };
    std::make_heap(order.begin(), order.end(), unlikelier);
    double before = 0;
    first = (int)order.size();
    while (first && before < top_p * mass) {  // moves the most likely of the remaining tokens to the end of the heap
      std::pop_heap(order.begin(), order.begin() + first, unlikelier);
      before += weights[order[--first]];
    }
  }
  kept.clear();
  for (size_t i = first; i < order.size(); i++) kept.push_back(weights[order[i]]);
  std::fill(weights, weights + size, 0.0);
  for (size_t i = first; i < order.size(); i++) weights[order[i]] = kept[i - first];
}
