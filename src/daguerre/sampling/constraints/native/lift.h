// From bytes to tokens: what each token of a vocabulary does to the states of an automaton.

#pragma once

#include <numeric>

#include "dfa.h"

namespace daguerre {

// The tokens of a vocabulary as a trie, its nodes in the order of a search by depth. A node is the text of some tokens,
// or the beginning of others.
struct Vocabulary {
    vector<uint8_t> byte;
    vector<int32_t> depth, behind;       // `behind`: the first node that does not begin with this one's text
    vector<int32_t> tokens, first_token;  // the tokens of node n are tokens[first_token[n]] to ...[n + 1]
    int32_t size = 0;

    Vocabulary(const uint8_t *text, const int64_t *offsets, const int64_t *lengths, int32_t number) : size(number) {
        vector<int32_t> order;
        for (int32_t t = 0; t < number; t++)
            if (lengths[t]) order.push_back(t);
        auto compare = [&](int32_t a, int32_t b) {
            int held = std::memcmp(text + offsets[a], text + offsets[b], std::min(lengths[a], lengths[b]));
            return held ? held < 0 : lengths[a] != lengths[b] ? lengths[a] < lengths[b] : a < b;
        };
        std::sort(order.begin(), order.end(), compare);
        vector<int32_t> path;  // the node at each depth, from depth 1
        int32_t before = -1;
        for (int32_t t : order) {
            const uint8_t *own = text + offsets[t];
            int64_t common = 0;
            if (before >= 0) {
                const uint8_t *other = text + offsets[before];
                int64_t most = std::min(lengths[t], lengths[before]);
                while (common < most && own[common] == other[common]) common++;
            }
            while (int64_t(path.size()) > common) behind[path.back()] = byte.size(), path.pop_back();
            for (int64_t i = common; i < lengths[t]; i++) {
                path.push_back(byte.size());
                byte.push_back(own[i]), depth.push_back(i), behind.push_back(0), first_token.push_back(tokens.size());
            }
            tokens.push_back(t);
            before = t;
        }
        for (int32_t node : path) behind[node] = byte.size();
        first_token.push_back(tokens.size());
    }
};

// An automaton over tokens, as `tokens.TokenAutomaton` holds it.
struct Lifted {
    vector<uint8_t> accept;
    vector<int32_t> class_of_token, src, dst, cls;
};

// What texts do to states: function f takes src to dst for every pair of its list, and all other states to nothing.
class Functions {
    const Dfa &dfa_;
    Meter &meter_;
    int columns_ = 0;
    vector<int32_t> column_of_byte_ = vector<int32_t>(256, 0);
    vector<int32_t> next_;  // (Q, K)
    vector<int32_t> after_;  // (functions, K): UNKNOWN, or a function
    vector<int32_t> held_;

  public:
    static constexpr int32_t UNKNOWN = -1;
    Lists lists;  // pairs, one after another; list 0 is that of nothing

    Functions(const Dfa &dfa, Meter &meter) : dfa_(dfa), meter_(meter) {
        columns();
        next_.assign(dfa.size() * columns_, -1);
            vector<int32_t> lowest(columns_, -1);
        for (int byte = 0; byte < 256; byte++)
            if (lowest[column_of_byte_[byte]] < 0) lowest[column_of_byte_[byte]] = byte;
        for (size_t q = 0; q < dfa.size(); q++)
            for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++)
                for (int k = 0; k < columns_; k++)
                    if (dfa.arcs[i].bytes.has(lowest[k])) next_[q * columns_ + k] = dfa.arcs[i].to;
        lists.number({});
        for (size_t q = 0; q < dfa.size(); q++) held_.push_back(q), held_.push_back(q);
        identity = lists.number(held_);
    }
    int32_t identity;

    // The function of a text that is one byte longer; 0 is that of what leads nowhere.
    int32_t after(int32_t function, int byte) {
        size_t at = size_t(function) * columns_ + column_of_byte_[byte];
        if (at >= after_.size()) {
            after_.resize((lists.size() + lists.size() / 2 + 64) * columns_, UNKNOWN);
            meter_.bytes(lists.bytes() + 4 * after_.size());
        }
        if (after_[at] == UNKNOWN) {
            held_.clear();
            for (const int32_t *pair = lists.begin(function); pair != lists.end(function); pair += 2) {
                int32_t to = next_[size_t(pair[1]) * columns_ + column_of_byte_[byte]];
                if (to >= 0) held_.push_back(pair[0]), held_.push_back(to);
            }
            meter_.spend(lists.count(function) + 32);
            int32_t found = lists.number(held_);  // may move the lists
            meter_.edges(lists.bytes() / 8);
            after_[at] = found;
        }
        return after_[at];
    }

  private:
    void columns() {  // bytes that act alike in every state share a column
        vector<uint64_t> code(256, 0);
        for (const Arc &arc : dfa_.arcs) {
            uint64_t own = mix(&arc - dfa_.arcs.data());
            arc.bytes.for_each([&](int byte) { code[byte] += own; });
        }
        std::unordered_map<uint64_t, int32_t> number;
        for (int byte = 0; byte < 256; byte++) column_of_byte_[byte] = number.try_emplace(code[byte], number.size()).first->second;
        columns_ = number.size();
    }
};

// Without the states that no text in these tokens visits, and with classes numbered by their first tokens.
inline void keep_useful(Lifted &whole) {
    size_t states = whole.accept.size(), edges = whole.src.size();
    auto spread = [&](const vector<int32_t> &from, const vector<int32_t> &to, vector<uint8_t> &seen, vector<int32_t> waiting) {
        vector<int64_t> first(states + 2, 0);
        vector<int32_t> target(edges);
        for (int32_t q : from) first[q + 2]++;
        for (size_t q = 2; q < first.size(); q++) first[q] += first[q - 1];
        for (size_t e = 0; e < edges; e++) target[first[from[e] + 1]++] = to[e];
        while (!waiting.empty()) {
            int32_t q = waiting.back();
            waiting.pop_back();
            for (int64_t i = first[q]; i < first[q + 1]; i++)
                if (!seen[target[i]]) seen[target[i]] = 1, waiting.push_back(target[i]);
        }
    };
    vector<uint8_t> reached(states, 0), leads(whole.accept);
    vector<int32_t> ends;
    for (size_t q = 0; q < states; q++)
        if (leads[q]) ends.push_back(q);
    reached[0] = 1;
    spread(whole.src, whole.dst, reached, {0});
    spread(whole.dst, whole.src, leads, ends);
    vector<int32_t> state(states, -1);
    Lifted out;
    for (size_t q = 0; q < states; q++)
        if (reached[q] && leads[q]) state[q] = out.accept.size(), out.accept.push_back(whole.accept[q]);
    if (state[0] < 0) out.accept.clear();  // nothing is left
    int32_t classes = 0;
    for (int32_t c : whole.cls) classes = std::max(classes, c + 1);
    vector<uint8_t> used(classes, 0);
    size_t kept = 0;
    for (size_t e = 0; e < edges; e++) {
        if (state[whole.src[e]] < 0 || state[whole.dst[e]] < 0) continue;
        used[whole.cls[e]] = 1;
        whole.src[kept] = state[whole.src[e]], whole.dst[kept] = state[whole.dst[e]], whole.cls[kept] = whole.cls[e];
        kept++;
    }
    vector<int32_t> number(classes, -1);
    int32_t next = 0;
    for (int32_t &c : whole.class_of_token) {
        if (c >= 0 && c < classes && used[c] && number[c] < 0) number[c] = next++;
        c = c >= 0 && c < classes ? number[c] : -1;
    }
    // the edges in the order of their classes, each in the order of its sources
    vector<int64_t> begin(next + 1, 0);
    for (size_t e = 0; e < kept; e++) begin[number[whole.cls[e]] + 1]++;
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    out.src.resize(kept), out.dst.resize(kept), out.cls.resize(kept);
    for (size_t e = 0; e < kept; e++) {
        int32_t c = number[whole.cls[e]];
        int64_t at = begin[c]++;
        out.src[at] = whole.src[e], out.dst[at] = whole.dst[e], out.cls[at] = c;
    }
    out.class_of_token.swap(whole.class_of_token);
    whole = std::move(out);
}

inline std::unique_ptr<Lifted> lift(const Dfa &dfa, const Vocabulary &vocabulary, const Limits &limits) {
    Meter meter(limits);
    Functions functions(dfa, meter);
    auto out = std::make_unique<Lifted>();
    out->accept = dfa.accept;
    out->class_of_token.assign(vocabulary.size, -1);
    vector<int32_t> path(1, functions.identity), class_of, used;
    for (size_t node = 0; node < vocabulary.byte.size();) {
        int32_t depth = vocabulary.depth[node];
        int32_t found = functions.after(path[depth], vocabulary.byte[node]);
        if (!found) {
            node = vocabulary.behind[node];
            continue;
        }
        if (path.size() < size_t(depth) + 2) path.resize(depth + 2);
        path[depth + 1] = found;
        int32_t begin = vocabulary.first_token[node], end = vocabulary.first_token[node + 1];
        if (begin < end) {
            if (class_of.size() <= size_t(found)) class_of.resize(functions.lists.size() + 1024, -1);
            if (class_of[found] < 0) class_of[found] = used.size(), used.push_back(found);
            for (int32_t i = begin; i < end; i++) out->class_of_token[vocabulary.tokens[i]] = class_of[found];
        }
        node++;
        meter.spend(1);
    }
    size_t edges = 0;
    for (int32_t function : used) edges += functions.lists.count(function) / 2;
    meter.edges(edges);
    out->src.reserve(edges), out->dst.reserve(edges), out->cls.reserve(edges);
    for (size_t c = 0; c < used.size(); c++)
        for (const int32_t *pair = functions.lists.begin(used[c]); pair != functions.lists.end(used[c]); pair += 2)
            out->src.push_back(pair[0]), out->dst.push_back(pair[1]), out->cls.push_back(c);
    keep_useful(*out);
    return out;
}

}  // namespace daguerre
