// Deterministic automata over bytes: the smallest one, products.

#pragma once

#include <memory>

#include "limits.h"

namespace daguerre {

struct Arc {
    Bytes bytes;
    int32_t to;
};

// State 0 is the start. The arcs of state q are first[q] to first[q + 1]: disjoint sets of bytes, one for each next state,
// in the order of their lowest bytes.
struct Dfa {
    vector<int64_t> first{0};
    vector<Arc> arcs;
    vector<uint8_t> accept;

    size_t size() const { return accept.size(); }

    // Ends a state whose arcs were appended, in any order and several to one state.
    void close(bool accepts) {
        auto begin = arcs.begin() + first.back();
        std::sort(begin, arcs.end(), [](const Arc &a, const Arc &b) { return a.to < b.to; });
        auto kept = begin;
        for (auto arc = begin; arc != arcs.end(); ++arc) {
            if (kept != begin && kept[-1].to == arc->to)
                kept[-1].bytes = kept[-1].bytes | arc->bytes;
            else
                *kept++ = *arc;
        }
        arcs.erase(kept, arcs.end());
        std::sort(arcs.begin() + first.back(), arcs.end(),
                  [](const Arc &a, const Arc &b) { return a.bytes.lowest() < b.bytes.lowest(); });
        first.push_back(arcs.size());
        accept.push_back(accepts);
    }
    int32_t step(int32_t state, int byte) const {
        for (int64_t i = first[state]; i < first[state + 1]; i++)
            if (arcs[i].bytes.has(byte)) return arcs[i].to;
        return -1;
    }
};

inline std::unique_ptr<Dfa> no_texts() {
    auto out = std::make_unique<Dfa>();
    out->close(false);
    return out;
}

// The arcs that lead to each state: those to q are edge[first[q]] to edge[first[q + 1]], as (source, arc).
struct Sources {
    vector<int64_t> first, arc;
    vector<int32_t> from;

    explicit Sources(const Dfa &dfa) : first(dfa.size() + 2, 0), arc(dfa.arcs.size()), from(dfa.arcs.size()) {
        for (const Arc &each : dfa.arcs) first[each.to + 2]++;
        for (size_t q = 2; q < first.size(); q++) first[q] += first[q - 1];
        for (size_t q = 0; q < dfa.size(); q++)
            for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++) {
                int64_t at = first[dfa.arcs[i].to + 1]++;
                arc[at] = i, from[at] = q;
            }
        first.pop_back();
    }
};

// Which states are reached from the start and lead to an accepting one.
inline vector<uint8_t> useful_states(const Dfa &dfa) {
    Sources sources(dfa);
    vector<uint8_t> leads(dfa.size(), 0), reached(dfa.size(), 0);
    vector<int32_t> waiting;
    for (size_t q = 0; q < dfa.size(); q++)
        if (dfa.accept[q]) leads[q] = 1, waiting.push_back(q);
    while (!waiting.empty()) {
        int32_t q = waiting.back();
        waiting.pop_back();
        for (int64_t i = sources.first[q]; i < sources.first[q + 1]; i++)
            if (!leads[sources.from[i]]) leads[sources.from[i]] = 1, waiting.push_back(sources.from[i]);
    }
    if (leads[0]) reached[0] = 1, waiting.push_back(0);
    while (!waiting.empty()) {
        int32_t q = waiting.back();
        waiting.pop_back();
        for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++) {
            int32_t to = dfa.arcs[i].to;
            if (leads[to] && !reached[to]) reached[to] = 1, waiting.push_back(to);
        }
    }
    return reached;
}

// Sums of random numbers over sets of bytes, so that the weight of a union of disjoint sets is the sum of theirs.
struct ByteWeights {
    uint64_t part[32][256];

    explicit ByteWeights(uint64_t seed) {
        for (int i = 0; i < 32; i++)
            for (int held = 0; held < 256; held++) {
                part[i][held] = 0;
                for (int bit = 0; bit < 8; bit++)
                    if (held >> bit & 1) part[i][held] += mix(seed + 8 * i + bit);
            }
    }
    uint64_t operator()(const Bytes &bytes) const {
        uint64_t out = 0;
        for (int i = 0; i < 32; i++) out += part[i][bytes.word[i >> 3] >> (8 * (i & 7)) & 255];
        return out;
    }
};

// Numbers of the states, equal for states with the same future: partition refinement by hashes of a state's arcs.
//
// When some states get a new block, only their predecessors are looked at again: they now differ from the rest of their
// block, which keeps its number. The first blocks are those of states that are as far from an end and have the same next
// few steps, which separates most.
class Blocks {
    struct Seen {
        int32_t block;
        uint64_t signature;
        int32_t state;
        bool operator<(const Seen &o) const {
            return block != o.block ? block < o.block : signature != o.signature ? signature < o.signature : state < o.state;
        }
    };
    const Dfa &dfa_;
    Meter &meter_;
    vector<int64_t> size_;
    static constexpr int STEPS = 3;

  public:
    vector<int32_t> block;

    Blocks(const Dfa &dfa, Meter &meter, const ByteWeights &weight, uint64_t seed) : dfa_(dfa), meter_(meter) {
        Sources sources(dfa);
        vector<uint64_t> weight_of(dfa.arcs.size()), code;
        for (size_t i = 0; i < dfa.arcs.size(); i++) weight_of[i] = weight(dfa.arcs[i].bytes);
        first_blocks(sources, weight_of, seed);
        for (size_t b = 0; b < size_.size(); b++) code.push_back(mix(seed + b));
        vector<int32_t> touched(dfa.size()), moved;
        for (size_t q = 0; q < dfa.size(); q++) touched[q] = q;
        vector<uint8_t> marked(dfa.size(), 0);
        vector<Seen> seen;
        while (!touched.empty()) {
            seen.clear();
            for (int32_t q : touched) {
                uint64_t signature = 0;
                for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++) signature += code[block[dfa.arcs[i].to]] * weight_of[i];
                meter_.spend(dfa.first[q + 1] - dfa.first[q] + 8);
                seen.push_back({block[q], signature, q});
            }
            std::sort(seen.begin(), seen.end());
            moved.clear();
            split(seen, code, seed, moved);
            touched.clear();
            for (int32_t q : moved)
                for (int64_t i = sources.first[q]; i < sources.first[q + 1]; i++)
                    if (!marked[sources.from[i]]) marked[sources.from[i]] = 1, touched.push_back(sources.from[i]);
            for (int32_t q : touched) marked[q] = 0;
        }
    }
    size_t number() const { return size_.size(); }

  private:
    void first_blocks(const Sources &sources, const vector<uint64_t> &weight_of, uint64_t seed) {
        size_t states = dfa_.size();
        vector<int32_t> distance(states, -1), waiting;
        for (size_t q = 0; q < states; q++)
            if (dfa_.accept[q]) distance[q] = 0, waiting.push_back(q);
        for (size_t at = 0; at < waiting.size(); at++)
            for (int64_t i = sources.first[waiting[at]]; i < sources.first[waiting[at] + 1]; i++)
                if (distance[sources.from[i]] < 0) distance[sources.from[i]] = distance[waiting[at]] + 1, waiting.push_back(sources.from[i]);
        vector<uint64_t> label(states), next(states);
        for (size_t q = 0; q < states; q++) label[q] = mix(seed ^ uint64_t(distance[q]));
        for (int step = 0; step < STEPS; step++) {
            for (size_t q = 0; q < states; q++) {
                uint64_t sum = distance[q];
                for (int64_t i = dfa_.first[q]; i < dfa_.first[q + 1]; i++) sum += label[dfa_.arcs[i].to] * weight_of[i];
                next[q] = mix(sum);
            }
            label.swap(next);
            meter_.spend(dfa_.arcs.size() + states);
        }
        vector<std::pair<uint64_t, int32_t>> order(states);
        for (size_t q = 0; q < states; q++) order[q] = {label[q], int32_t(q)};
        std::sort(order.begin(), order.end());
        block.resize(states);
        for (size_t i = 0; i < states; i++) {
            if (!i || order[i].first != order[i - 1].first) size_.push_back(0);
            size_.back()++, block[order[i].second] = size_.size() - 1;
        }
    }
    void split(const vector<Seen> &seen, vector<uint64_t> &code, uint64_t seed, vector<int32_t> &moved) {
        for (size_t begin = 0, end; begin < seen.size(); begin = end) {
            int32_t home = seen[begin].block;
            for (end = begin; end < seen.size() && seen[end].block == home;) end++;
            // where the whole block was touched, its largest part keeps the number
            size_t largest = 0, keeps = end;
            for (size_t i = begin, j; i < end; i = j) {
                for (j = i; j < end && seen[j].signature == seen[i].signature;) j++;
                if (j - i > largest) largest = j - i, keeps = i;
            }
            if (int64_t(end - begin) < size_[home]) keeps = end;
            for (size_t i = begin, j; i < end; i = j) {
                for (j = i; j < end && seen[j].signature == seen[i].signature;) j++;
                if (i == keeps) continue;
                for (size_t k = i; k < j; k++) block[seen[k].state] = size_.size(), moved.push_back(seen[k].state);
                size_[home] -= j - i;
                code.push_back(mix(seed + size_.size()));
                size_.push_back(j - i);
            }
        }
    }
};

// The automaton of the blocks, its states in the order in which a search by breadth and bytes meets them; nothing when
// two states of a block differ, because two hashes were equal by chance.
inline std::unique_ptr<Dfa> quotient(const Dfa &dfa, const Blocks &blocks, Meter &meter) {
    vector<int32_t> number(blocks.number(), -1), member;
    auto out = std::make_unique<Dfa>();
    number[blocks.block[0]] = 0;
    member.push_back(0);
    for (size_t at = 0; at < member.size(); at++) {
        int32_t q = member[at];
        vector<Arc> arcs(dfa.arcs.begin() + dfa.first[q], dfa.arcs.begin() + dfa.first[q + 1]);
        vector<Arc> merged;
        for (const Arc &arc : arcs) {  // in the order of lowest bytes
            int32_t to = blocks.block[arc.to];
            auto same = std::find_if(merged.begin(), merged.end(), [&](const Arc &o) { return o.to == to; });
            if (same == merged.end())
                merged.push_back({arc.bytes, to});
            else
                same->bytes = same->bytes | arc.bytes;
        }
        for (Arc &arc : merged) {
            if (number[arc.to] < 0) number[arc.to] = member.size(), member.push_back(-1 - arc.to);
            arc.to = number[arc.to];
        }
        for (const Arc &arc : arcs) {  // a member of each block that was met here for the first time
            int32_t &held = member[number[blocks.block[arc.to]]];
            if (held < 0) held = arc.to;
        }
        out->arcs.insert(out->arcs.end(), merged.begin(), merged.end());
        out->close(dfa.accept[q]);
        meter.spend(arcs.size() * (merged.size() + 8) + 64);
    }
    for (size_t q = 0; q < dfa.size(); q++) {
        int32_t own = number[blocks.block[q]];
        if (own < 0) continue;
        meter.spend((dfa.first[q + 1] - dfa.first[q]) * (out->first[own + 1] - out->first[own] + 4) + 32);
        if (out->accept[own] != dfa.accept[q]) return nullptr;
        Bytes all, expected;
        for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++) {
            int32_t to = number[blocks.block[dfa.arcs[i].to]];
            bool found = false;
            for (int64_t j = out->first[own]; j < out->first[own + 1] && !found; j++)
                found = out->arcs[j].to == to && !dfa.arcs[i].bytes.without(out->arcs[j].bytes).any();
            if (!found) return nullptr;
            all = all | dfa.arcs[i].bytes;
        }
        for (int64_t j = out->first[own]; j < out->first[own + 1]; j++) expected = expected | out->arcs[j].bytes;
        if (all != expected) return nullptr;
    }
    return out;
}

// The smallest automaton of the same language.
inline std::unique_ptr<Dfa> minimize(const Dfa &whole, Meter &meter) {
    meter.spend(4 * whole.arcs.size());
    vector<uint8_t> useful = useful_states(whole);
    if (!useful[0]) return no_texts();
    Dfa dfa;
    vector<int32_t> number(whole.size(), -1);
    for (size_t q = 0, n = 0; q < whole.size(); q++)
        if (useful[q]) number[q] = n++;
    for (size_t q = 0; q < whole.size(); q++) {
        if (!useful[q]) continue;
        meter.spend(2 * (whole.first[q + 1] - whole.first[q]) + 8);
        for (int64_t i = whole.first[q]; i < whole.first[q + 1]; i++)
            if (number[whole.arcs[i].to] >= 0) dfa.arcs.push_back({whole.arcs[i].bytes, number[whole.arcs[i].to]});
        dfa.first.push_back(dfa.arcs.size());
        dfa.accept.push_back(whole.accept[q]);
    }
    for (uint64_t seed = 1;; seed++) {
        ByteWeights weight(mix(seed) << 8);
        Blocks blocks(dfa, meter, weight, mix(~seed));
        if (auto out = quotient(dfa, blocks, meter)) return out;
    }
}

// The strings of a language, or -1 for more than `most`; see `dfa_strings`. In the smallest automaton every state leads
// to a text, so a way that is longer than there are states has a loop, and there is no end of texts.
inline int64_t strings(const Dfa &dfa, int64_t most, uint8_t *text, int64_t *lengths, int64_t *total, const Limits &limits) {
    Meter meter(limits);
    struct Step {
        int32_t state, byte;  // the next byte to try
    };
    vector<Step> path;
    vector<uint8_t> way;  // one byte shorter than `path`
    vector<uint8_t> on_path(dfa.size(), 0);
    int64_t number = 0;
    *total = 0;
    auto enter = [&](int32_t state) {
        path.push_back({state, 0});
        on_path[state] = 1;
        if (!dfa.accept[state]) return;
        number++;
        if (text && number <= most) lengths[number - 1] = way.size(), std::copy(way.begin(), way.end(), text + *total);
        *total += way.size();
        meter.spend(way.size());
    };
    enter(0);
    while (!path.empty() && number <= most) {
        Step &step = path.back();
        meter.spend(16);
        int32_t to = -1;
        while (step.byte < 256 && (to = dfa.step(step.state, step.byte)) < 0) step.byte++;
        if (step.byte == 256) {
            on_path[step.state] = 0;
            path.pop_back();
            if (!way.empty()) way.pop_back();
            continue;
        }
        if (on_path[to]) return -1;
        way.push_back(step.byte++);
        enter(to);
    }
    return number <= most ? number : -1;
}

// The length of a shortest string, and the string.
inline int64_t shortest(const Dfa &dfa, uint8_t *text) {
    vector<int32_t> before(dfa.size(), -1), byte(dfa.size(), 0), order{0};
    for (size_t at = 0; at < order.size(); at++) {
        int32_t q = order[at];
        if (dfa.accept[q]) {
            vector<uint8_t> found;
            for (; q; q = before[q]) found.push_back(byte[q]);
            if (text) std::copy(found.rbegin(), found.rend(), text);
            return found.size();
        }
        for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++) {
            int32_t to = dfa.arcs[i].to;
            if (to && before[to] < 0) before[to] = q, byte[to] = dfa.arcs[i].bytes.lowest(), order.push_back(to);
        }
    }
    return -1;
}

enum Rule : int32_t { BOTH, FIRST_ALONE, EITHER };

// The smallest automaton of the strings that are in both, in the first alone, or in either.
inline std::unique_ptr<Dfa> combine(const Dfa &a, const Dfa &b, Rule rule, const Limits &limits) {
    Meter meter(limits);
    Dfa out;
    const int64_t dead_a = a.size(), dead_b = b.size(), width = b.size() + 1;
    Map<int64_t, int32_t> number{{0, 0}};
    vector<int64_t> pairs{0};
    auto follow = [&](const Bytes &bytes, int64_t to_a, int64_t to_b) {
        int64_t code = to_a * width + to_b;
        auto [held, fresh] = number.try_emplace(code, number.size());
        if (fresh) pairs.push_back(code);
        out.arcs.push_back({bytes, held->second});
    };
    for (size_t at = 0; at < pairs.size(); at++) {
        int64_t p = pairs[at] / width, q = pairs[at] % width;
        int64_t begin_a = p < dead_a ? a.first[p] : 0, end_a = p < dead_a ? a.first[p + 1] : 0;
        int64_t begin_b = q < dead_b ? b.first[q] : 0, end_b = q < dead_b ? b.first[q + 1] : 0;
        Bytes all_b, all_a;
        for (int64_t j = begin_b; j < end_b; j++) all_b = all_b | b.arcs[j].bytes;
        for (int64_t i = begin_a; i < end_a; i++) {
            const Arc &arc = a.arcs[i];
            all_a = all_a | arc.bytes;
            for (int64_t j = begin_b; j < end_b; j++) {
                Bytes common = arc.bytes & b.arcs[j].bytes;
                if (common.any()) follow(common, arc.to, b.arcs[j].to);
            }
            Bytes rest = arc.bytes.without(all_b);
            if (rule != BOTH && rest.any()) follow(rest, arc.to, dead_b);
        }
        for (int64_t j = begin_b; j < end_b && rule == EITHER; j++) {
            Bytes rest = b.arcs[j].bytes.without(all_a);
            if (rest.any()) follow(rest, dead_a, b.arcs[j].to);
        }
        meter.spend((end_a - begin_a + 1) * (end_b - begin_b + 1) * 4 + 32);
        meter.states(number.size());
        bool in_a = p < dead_a && a.accept[p], in_b = q < dead_b && b.accept[q];
        out.close(rule == BOTH ? in_a && in_b : rule == EITHER ? in_a || in_b : in_a && !in_b);
    }
    return minimize(out, meter);
}

}  // namespace daguerre
