// An automaton over a span of positions: its possible states, the sums of its paths' weights, the best path, draws.
//
// A path from a state before the first position takes a pair of states at each position, and weighs the product of the
// weights of the pairs' bundles there. Transitions are never written out: only states are held for each position.

#pragma once

#include <cmath>
#include <limits>

#include "limits.h"

namespace daguerre {

constexpr double NEVER = -std::numeric_limits<double>::infinity();

// The pairs of `tokens.TokenAutomaton`.
struct Transitions {
    const int64_t *first;
    const int32_t *dst, *bundle;
    int64_t states, bundles;
};

// The states before each position, and after the last, from which the span's end is reached; ascending.
struct Span {
    Transitions on;
    int64_t length;
    vector<vector<int32_t>> sets;  // each held once for a run of positions
    vector<int32_t> set_of;        // (P + 1,)
    vector<int64_t> nodes{0};      // (P + 2,): the first node of each position; a node is a state before a position

    Span(const Transitions &on, int32_t state, int64_t length, const uint8_t *ends) : on(on), length(length) {
        vector<vector<int32_t>> reached{{state}};
        vector<int32_t> reached_at{0};
        vector<int32_t> seen(on.states, -1);
        for (int64_t i = 0; i < length; i++) {
            vector<int32_t> next;
            for (int32_t q : reached[reached_at[i]])
                for (int64_t pair = on.first[q]; pair < on.first[q + 1]; pair++)
                    if (seen[on.dst[pair]] != i) seen[on.dst[pair]] = i, next.push_back(on.dst[pair]);
            std::sort(next.begin(), next.end());
            if (next == reached[reached_at[i]]) {  // and so for all positions that follow
                reached_at.resize(length + 1, reached_at[i]);
                break;
            }
            reached_at.push_back(reached.size());
            reached.push_back(std::move(next));
        }
        vector<uint8_t> alive(on.states, 0);
        vector<vector<int32_t>> kept(1);
        set_of.assign(length + 1, 0);
        for (int32_t q : reached[reached_at[length]])
            if (ends[q]) kept[0].push_back(q);
        for (int64_t i = length; i > 0; i--) {
            const vector<int32_t> &after = kept[set_of[i]];
            for (int32_t q : after) alive[q] = 1;
            vector<int32_t> here;
            for (int32_t q : reached[reached_at[i - 1]])
                for (int64_t pair = on.first[q]; pair < on.first[q + 1]; pair++)
                    if (alive[on.dst[pair]]) {
                        here.push_back(q);
                        break;
                    }
            for (int32_t q : after) alive[q] = 0;
            if (here == after) {
                set_of[i - 1] = set_of[i];
                while (i > 1 && reached_at[i - 2] == reached_at[i - 1]) i--, set_of[i - 1] = set_of[i];
            } else {
                set_of[i - 1] = kept.size();
                kept.push_back(std::move(here));
            }
        }
        sets = std::move(kept);
        for (int32_t set : set_of) nodes.push_back(nodes.back() + sets[set].size());
    }
    const vector<int32_t> &states(int64_t position) const { return sets[set_of[position]]; }
};

// The place of each state among those before a position, -1 for none.
class Places {
    const Span &span_;
    vector<int32_t> place_;
    int32_t set_ = -1;

  public:
    explicit Places(const Span &span) : span_(span), place_(span.on.states, -1) {}

    const int32_t *at(int64_t position) {
        int32_t set = span_.set_of[position];
        if (set != set_) {
            if (set_ >= 0)
                for (int32_t q : span_.sets[set_]) place_[q] = -1;
            const vector<int32_t> &states = span_.sets[set];
            for (size_t i = 0; i < states.size(); i++) place_[states[i]] = i;
            set_ = set;
        }
        return place_.data();
    }
};

// Of a span: which positions have one token in every text. `allowed` (P, B) are the bundles that a position may take;
// only[kind[i]] (B,) the one token of each bundle, or below 0. The result is a token or -1; false where no text fits.
inline bool forced_tokens(const Span &span, const uint8_t *allowed, const int64_t *only, const uint8_t *kind, int64_t *token) {
    const Transitions &on = span.on;
    vector<uint8_t> reached(span.nodes.back(), 0), leads(span.nodes.back(), 0);
    Places places(span);
    if (span.states(0).empty()) return false;
    reached[0] = 1;
    auto each = [&](int64_t i, auto act) {  // the transitions that position i may take, as nodes and bundle
        const int32_t *place = places.at(i + 1);
        const vector<int32_t> &states = span.states(i);
        for (size_t s = 0; s < states.size(); s++)
            for (int64_t pair = on.first[states[s]]; pair < on.first[states[s] + 1]; pair++)
                if (place[on.dst[pair]] >= 0 && allowed[i * on.bundles + on.bundle[pair]])
                    act(span.nodes[i] + int64_t(s), span.nodes[i + 1] + place[on.dst[pair]], on.bundle[pair]);
    };
    for (int64_t i = 0; i < span.length; i++) each(i, [&](int64_t from, int64_t to, int32_t) { reached[to] |= reached[from]; });
    for (int64_t n = span.nodes[span.length]; n < span.nodes[span.length + 1]; n++) leads[n] = reached[n];
    for (int64_t i = span.length - 1; i >= 0; i--) {
        int64_t found = -1;
        bool several = false;
        each(i, [&](int64_t from, int64_t to, int32_t bundle) {
            if (!reached[from] || !leads[to]) return;
            leads[from] = 1;
            int64_t own = only[kind[i] * on.bundles + bundle];
            several |= own < 0 || (found >= 0 && own != found);
            found = own;
        });
        token[i] = several ? -1 : found;
    }
    return leads[0];
}

// Which states a row of positions can be completed from: alive (L + 1, Q). Each position allows some bundles: mask[kind[i]]
// (B,). The last row is given.
inline void completions(const Transitions &on, const uint8_t *mask, const int32_t *kind, int64_t length, uint8_t *alive) {
    for (int64_t i = length - 1; i >= 0; i--) {
        const uint8_t *after = alive + (i + 1) * on.states, *allowed = mask + kind[i] * on.bundles;
        uint8_t *here = alive + i * on.states;
        for (int64_t q = 0; q < on.states; q++) {
            uint8_t leads = 0;
            for (int64_t pair = on.first[q]; pair < on.first[q + 1] && !leads; pair++) leads = after[on.dst[pair]] & allowed[on.bundle[pair]];
            here[q] = leads;
        }
        if (!std::memcmp(here, after, on.states))  // and so for the whole run of like positions
            while (i > 0 && kind[i - 1] == kind[i]) i--, std::memcpy(alive + i * on.states, here, on.states);
    }
}

// Paths from a state before position `begin`. Weights are plain and scaled to at most 1 at each position, or logarithms.
class Paths {
    // A number loses at most 1e-307 beside others of at most 1; where that is negligible beside all paths, nothing is lost.
    static constexpr double SMALLEST = 1e-200;
    const Span &span_;
    const int64_t begin_;
    const bool logs_;
    Places places_;
    vector<double> weight_;           // (P - begin, B)
    vector<double> before_, behind_;  // of nodes from `base_` on
    vector<double> total_;            // of all paths, at each position
    const int64_t base_;
    int64_t start_ = -1;  // the node that paths begin in

    double *before(int64_t position) { return before_.data() + span_.nodes[position] - base_; }
    double *behind(int64_t position) { return behind_.data() + span_.nodes[position] - base_; }
    const double *weights(int64_t position) const { return weight_.data() + (position - begin_) * span_.on.bundles; }

  public:
    bool possible = false;

    Paths(const Span &span, int64_t begin, int32_t state, const double *weight_PB, bool logs)
        : span_(span), begin_(begin), logs_(logs), places_(span),
          weight_(weight_PB, weight_PB + (span.length - begin) * span.on.bundles), base_(span.nodes[begin]) {
        int64_t number = span.nodes.back() - base_, bundles = span.on.bundles;
        before_.assign(number, logs ? NEVER : 0), behind_.assign(number, logs ? NEVER : 0);
        total_.assign(span.length - begin, 0);
        const vector<int32_t> &states = span.states(begin);
        auto held = std::lower_bound(states.begin(), states.end(), state);
        if (held == states.end() || *held != state) return;
        start_ = held - states.begin();
        for (int64_t i = 0; !logs && i < span.length - begin; i++) {
            double *row = weight_.data() + i * bundles, top = *std::max_element(row, row + bundles);
            if (top > 0)
                for (int64_t b = 0; b < bundles; b++) row[b] /= top;
        }
        logs ? sum_logs() : sum();
    }

    // The bundles (P - begin,) of a path, drawn by u, and the unused part of each u.
    void draw(const double *u, int64_t *bundles, double *rest) {
        vector<double> cumulated;
        vector<int64_t> pairs;
        int32_t state = span_.states(begin_)[start_];
        for (int64_t i = begin_; i < span_.length; i++) {
            const int32_t *place = places_.at(i + 1);
            const double *weight = weights(i), *onward = behind(i + 1);
            cumulated.clear(), pairs.clear();
            double top = NEVER;
            for (int pass = logs_ ? 0 : 1; pass < 2; pass++)  // logarithms are taken relative to the largest
                for (int64_t pair = span_.on.first[state]; pair < span_.on.first[state + 1]; pair++) {
                    if (place[span_.on.dst[pair]] < 0) continue;
                    double w = weight[span_.on.bundle[pair]], b = onward[place[span_.on.dst[pair]]];
                    if (!pass) {
                        top = std::max(top, w + b);
                        continue;
                    }
                    double own = logs_ ? (w + b == NEVER ? 0 : std::exp(w + b - top)) : w * b;
                    cumulated.push_back(own + (cumulated.empty() ? 0 : cumulated.back())), pairs.push_back(pair);
                }
            size_t chosen = pick(cumulated, u[i - begin_], rest + (i - begin_));
            bundles[i - begin_] = span_.on.bundle[pairs[chosen]];
            state = span_.on.dst[pairs[chosen]];
        }
    }

    // (P - begin, B): the probability that a path takes each bundle at each position.
    void shares(double *out) {
        for (int64_t i = begin_; i < span_.length; i++) {
            double *own = out + (i - begin_) * span_.on.bundles;
            const double *here = before(i), *after = behind(i + 1), total = total_[i - begin_], scale = 1 / total;
            at(i, [&](int64_t from, auto each) {
                if (here[from] == (logs_ ? NEVER : 0)) return;
                each([&](int64_t to, int32_t bundle, double weight) {
                    own[bundle] += logs_ ? std::exp(here[from] + weight + after[to] - total) : here[from] * weight * after[to] * scale;
                });
            });
        }
    }

    static size_t pick(const vector<double> &cumulated, double u, double *rest) {
        if (cumulated.size() == 1) return *rest = u, 0;
        double at = u * cumulated.back();
        size_t chosen = std::upper_bound(cumulated.begin(), cumulated.end(), at) - cumulated.begin();
        if (chosen == cumulated.size())  // rounded up to the end
            chosen = std::lower_bound(cumulated.begin(), cumulated.end(), cumulated.back()) - cumulated.begin();
        double begin = chosen ? cumulated[chosen - 1] : 0, weight = cumulated[chosen] - begin;
        *rest = std::min(std::max((at - begin) / weight, 0.0), std::nextafter(1.0, 0.0));
        return chosen;
    }

  private:
    // Calls act(state before position i, each), where each(do) calls do(state after it, bundle, weight) of its pairs.
    template <class Do> void at(int64_t i, Do act) {
        const int32_t *place = places_.at(i + 1), *dst = span_.on.dst, *bundle = span_.on.bundle;
        const double *weight = weights(i);
        const vector<int32_t> &states = span_.states(i);
        for (size_t s = 0; s < states.size(); s++) {
            const int64_t first = span_.on.first[states[s]], last = span_.on.first[states[s] + 1];
            act(int64_t(s), [&](auto one) {
                for (int64_t pair = first; pair < last; pair++)
                    if (place[dst[pair]] >= 0) one(int64_t(place[dst[pair]]), bundle[pair], weight[bundle[pair]]);
            });
        }
    }
    static double rescale(double *held, size_t size) {
        double top = 0;
        for (size_t i = 0; i < size; i++) top = std::max(top, held[i]);
        if (top > 0)
            for (size_t i = 0; i < size; i++) held[i] /= top;
        return top;
    }
    void sum() {
        int64_t last = span_.length;
        std::fill(behind(last), behind(last) + span_.states(last).size(), 1.0);
        vector<double> scale(last - begin_);
        for (int64_t i = last - 1; i >= begin_; i--) {
            double *here = behind(i), *after = behind(i + 1);
            at(i, [&](int64_t from, auto each) {
                double sum = 0;
                each([&](int64_t to, int32_t, double weight) { sum += weight * after[to]; });
                here[from] = sum;
            });
            scale[i - begin_] = rescale(here, span_.states(i).size());
        }
        before(begin_)[start_] = 1;
        for (int64_t i = begin_; i < last; i++) {
            double *here = before(i), *after = before(i + 1), *onward = behind(i), all = 0;
            for (size_t s = 0; s < span_.states(i).size(); s++) all += here[s] * onward[s];
            total_[i - begin_] = all * scale[i - begin_];
            if (!(total_[i - begin_] > SMALLEST)) return;
            at(i, [&](int64_t from, auto each) {
                const double own = here[from];
                if (own > 0) each([&](int64_t to, int32_t, double weight) { after[to] += own * weight; });
            });
            rescale(after, span_.states(i + 1).size());
        }
        possible = true;
    }
    static double log_sum(double a, double b) {
        if (a < b) std::swap(a, b);
        return b == NEVER ? a : a + std::log1p(std::exp(b - a));
    }
    void sum_logs() {
        int64_t last = span_.length;
        std::fill(behind(last), behind(last) + span_.states(last).size(), 0.0);
        for (int64_t i = last - 1; i >= begin_; i--) {
            double *here = behind(i), *after = behind(i + 1);
            at(i, [&](int64_t from, auto each) {
                each([&](int64_t to, int32_t, double weight) { here[from] = log_sum(here[from], weight + after[to]); });
            });
        }
        before(begin_)[start_] = 0;
        for (int64_t i = begin_; i < last; i++) {
            double *here = before(i), *after = before(i + 1);
            at(i, [&](int64_t from, auto each) {
                if (here[from] > NEVER) each([&](int64_t to, int32_t, double weight) { after[to] = log_sum(after[to], here[from] + weight); });
            });
        }
        double all = behind(begin_)[start_];
        std::fill(total_.begin(), total_.end(), all);
        possible = all > NEVER;
    }
};

// The bundles (P - begin,) of the most likely path from a state before position `begin`, by scores that add up; of several
// the first. False where there is none.
inline bool best_path(const Span &span, int64_t begin, int32_t state, const double *score_PB, int64_t *bundles) {
    int64_t base = span.nodes[begin], last = span.length;
    vector<double> best(span.nodes.back() - base, NEVER);
    vector<int64_t> taken(best.size(), -1);  // the pair that the best path to a node ends with
    vector<int32_t> source(best.size(), -1);
    const vector<int32_t> &states = span.states(begin);
    auto held = std::lower_bound(states.begin(), states.end(), state);
    if (held == states.end() || *held != state) return false;
    best[held - states.begin()] = 0;
    Places places(span);
    for (int64_t i = begin; i < last; i++) {
        const int32_t *place = places.at(i + 1);
        const double *score = score_PB + (i - begin) * span.on.bundles, *here = best.data() + span.nodes[i] - base;
        int64_t after = span.nodes[i + 1] - base;
        const vector<int32_t> &from = span.states(i);
        for (size_t s = 0; s < from.size(); s++) {
            if (here[s] == NEVER) continue;
            for (int64_t pair = span.on.first[from[s]]; pair < span.on.first[from[s] + 1]; pair++) {
                int32_t to = place[span.on.dst[pair]];
                double own = here[s] + score[span.on.bundle[pair]];
                if (to >= 0 && own > best[after + to]) best[after + to] = own, taken[after + to] = pair, source[after + to] = s;
            }
        }
    }
    const double *ends = best.data() + span.nodes[last] - base;
    int64_t node = std::max_element(ends, ends + span.states(last).size()) - ends;
    if (span.states(last).empty() || ends[node] == NEVER) return false;
    for (int64_t i = last; i > begin; i--) {
        int64_t at = span.nodes[i] - base + node;
        bundles[i - 1 - begin] = span.on.bundle[taken[at]];
        node = source[at];
    }
    return true;
}

}  // namespace daguerre
