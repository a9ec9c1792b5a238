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
    vector<int32_t> several;             // for each node -1, or the place in `below` of a node with several others below it
    vector<Bytes> below;                 // the bytes of these others
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
        several.assign(byte.size(), -1);
        for (int32_t node = 0; node < int32_t(byte.size()); node++) {
            if (behind[node] - node < SEVERAL) continue;
            several[node] = below.size();
            below.push_back({});
            for (int32_t other = node + 1; other < behind[node]; other++) below.back().add(byte[other]);
        }
    }
    static constexpr int32_t SEVERAL = 4;
};

// An automaton over tokens, as `tokens.TokenAutomaton` holds it: the pairs of state q are first[q] to first[q + 1], each
// the next state and a bundle of classes of tokens; the classes of bundle b are classes[starts[b]] to ...[b + 1].
struct Lifted {
    vector<uint8_t> accept;
    vector<int32_t> class_of_token, dst, bundle, classes;
    vector<int64_t> first{0}, starts{0};
};

// What texts do to some of the states: function f takes src to dst for every pair of its list, and all other states to
// nothing.
//
// The states are treated in two parts. Letters act alike on most states within strings, so few functions of these differ;
// within names and words each letter acts differently, but few such states are left after a byte.
class Functions {
    static constexpr int32_t UNKNOWN = -1;
    const size_t states_;
    const int columns_;
    const vector<int32_t> &next_, &column_of_byte_;
    vector<int32_t> after_;  // (functions, K): UNKNOWN, or a function
    vector<int32_t> held_;
    struct Tried {
        Bytes stays, changes;  // bytes behind which a function is known to be the same, or another
    };
    vector<Tried> tried_;
    Meter &meter_;

  public:
    Lists lists;  // pairs, one after another; list 0 is that of nothing
    int32_t identity;

    Functions(const vector<int32_t> &states, size_t number, const vector<int32_t> &next, const vector<int32_t> &column_of_byte,
              Meter &meter)
        : states_(number), columns_(next.size() / number), next_(next), column_of_byte_(column_of_byte), meter_(meter) {
        lists.number(nullptr, 0);
        for (int32_t q : states) held_.push_back(q), held_.push_back(q);
        identity = lists.number(held_);
    }

    // The function of a text that is one byte longer.
    int32_t after(int32_t function, int byte) {
        size_t at = size_t(function) * columns_ + column_of_byte_[byte];
        if (at >= after_.size()) {
            after_.resize((lists.size() + lists.size() / 2 + 64) * columns_, UNKNOWN);
        }
        if (after_[at] == UNKNOWN) {
            held_.resize(std::max(held_.size(), lists.count(function) + 2));
            const int32_t *next = next_.data() + column_of_byte_[byte] * states_;
            int32_t *end = held_.data();
            for (const int32_t *pair = lists.begin(function), *last = lists.end(function); pair != last; pair += 2) {
                int32_t to = next[pair[1]];
                end[0] = pair[0], end[1] = to;
                end += to >= 0 ? 2 : 0;  // without a branch that nobody can predict
            }
            meter_.spend(lists.count(function) + 32);
            after_[at] = lists.number(held_.data(), end - held_.data());
            meter_.edges(lists.items() / 2);
        }
        return after_[at];
    }

    // Whether a function stays as it is behind any text of some bytes.
    bool stays(int32_t function, const Bytes &bytes) {
        if (size_t(function) >= tried_.size()) tried_.resize(lists.size() + lists.size() / 2 + 64);
        Tried &tried = tried_[function];
        if ((bytes & tried.changes).any()) return false;
        Bytes open = bytes.without(tried.stays);
        while (open.any()) {
            int byte = open.lowest();
            if (after(function, byte) != function) return tried.changes.add(byte), false;
            tried.stays.add(byte);
            open = bytes.without(tried.stays);
        }
        return true;
    }
};

// The transitions of an automaton as a table (K, Q), -1 for none; bytes that act alike in every state share a column.
struct Columns {
    vector<int32_t> of_byte = vector<int32_t>(256, 0), next;

    Columns(const Dfa &dfa, Meter &meter) {
        vector<uint64_t> code(256, 0);
        for (size_t i = 0; i < dfa.arcs.size(); i++) dfa.arcs[i].bytes.for_each([&](int byte) { code[byte] += mix(i); });
        Map<uint64_t, int32_t> number;
        vector<int32_t> lowest;
        for (int byte = 0; byte < 256; byte++) {
            auto [held, fresh] = number.try_emplace(code[byte], number.size());
            of_byte[byte] = held->second;
            if (fresh) lowest.push_back(byte);
        }
        next.assign(dfa.size() * lowest.size(), -1);
        for (size_t q = 0; q < dfa.size(); q++)
            for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++, meter.spend(lowest.size()))
                for (size_t k = 0; k < lowest.size(); k++)
                    if (dfa.arcs[i].bytes.has(lowest[k])) next[k * dfa.size() + q] = dfa.arcs[i].to;
    }
    // Whether all letters lead from a state to the same one.
    bool alike(size_t q, size_t states) const {
        int32_t to = next[of_byte['a'] * states + q];
        for (int byte = 'b'; byte <= 'z'; byte++)
            if (next[of_byte[byte] * states + q] != to) return false;
        return true;
    }
};

// The functions of a part that classes of tokens have, and the classes of each: one class has one function.
struct Used {
    vector<int32_t> function;
    vector<vector<int32_t>> classes;
    vector<uint64_t> code[2];

    Used(const vector<int32_t> &function_of_class, const Lists &lists) {
        vector<int32_t> number(lists.size(), -1);
        for (size_t c = 0; c < function_of_class.size(); c++) {
            int32_t f = function_of_class[c];
            if (number[f] < 0) {
                number[f] = function.size();
                function.push_back(f), classes.push_back({}), code[0].push_back(0), code[1].push_back(0);
            }
            classes[number[f]].push_back(c);
            code[0][number[f]] += mix(c), code[1][number[f]] += mix(mix(c));
        }
    }
};

// The pairs of states and their bundles.
class Pairs {
    struct Held {
        uint64_t code[2];
        int32_t dst;
    };
    vector<int64_t> first_;  // the edges of each state
    vector<int64_t> edge_;   // next state and function

  public:
    // Adds the edges of the states of one part; to be called once for each, after `count` was for all.
    void count(const Lists &lists, const Used &used, size_t states) {
        first_.resize(states + 2, 0);
        for (int32_t function : used.function)
            for (const int32_t *pair = lists.begin(function); pair != lists.end(function); pair += 2) first_[pair[0] + 2]++;
    }
    void reserve(Meter &meter) {
        std::partial_sum(first_.begin(), first_.end(), first_.begin());
        meter.edges(first_.back());
        edge_.resize(first_.back());
    }
    void fill(const Lists &lists, const Used &used, Meter &meter) {
        for (size_t f = 0; f < used.function.size(); f++) {
            int32_t function = used.function[f];
            for (const int32_t *pair = lists.begin(function); pair != lists.end(function); pair += 2)
                edge_[first_[pair[0] + 1]++] = int64_t(pair[1]) << 32 | int64_t(f);
            meter.spend(lists.count(function) * 2);
        }
    }
    void write(Lifted &out, const vector<uint8_t> &part, const Used *used, Meter &meter) const {
        Map<uint64_t, vector<std::pair<uint64_t, int32_t>>> known;
        vector<int32_t> place(part.size(), -1);
        vector<Held> held;
        for (size_t q = 0; q < part.size(); q++) {
            const Used &own = used[part[q]];
            held.clear();
            for (int64_t i = first_[q]; i < first_[q + 1]; i++) {
                int32_t dst = edge_[i] >> 32, f = int32_t(edge_[i]);
                if (place[dst] < 0) place[dst] = held.size(), held.push_back({{0, 0}, dst});
                for (int k = 0; k < 2; k++) held[place[dst]].code[k] += own.code[k][f];
            }
            std::sort(held.begin(), held.end(), [](const Held &a, const Held &b) { return a.dst < b.dst; });
            for (const Held &each : held) {
                place[each.dst] = -1;
                auto &same = known[each.code[0]];
                auto found = std::find_if(same.begin(), same.end(), [&](auto &o) { return o.first == each.code[1]; });
                int32_t bundle = out.starts.size() - 1;
                if (found != same.end()) {
                    bundle = found->second;
                } else {
                    same.push_back({each.code[1], bundle});
                    size_t begin = out.classes.size();
                    for (int64_t i = first_[q]; i < first_[q + 1]; i++) {
                        const vector<int32_t> &classes = own.classes[int32_t(edge_[i])];
                        if (edge_[i] >> 32 == each.dst) out.classes.insert(out.classes.end(), classes.begin(), classes.end());
                    }
                    std::sort(out.classes.begin() + begin, out.classes.end());
                    meter.spend(8 * (out.classes.size() - begin));
                    out.starts.push_back(out.classes.size());
                }
                out.dst.push_back(each.dst), out.bundle.push_back(bundle);
            }
            out.first.push_back(out.dst.size());
            meter.spend((first_[q + 1] - first_[q]) * 2);
        }
    }
};

// Without the states that no text in these tokens visits, and the bundles and classes that are not used then; without any
// state where no text is left. Returns the new number of each class, or -1.
inline vector<int32_t> keep_useful(Lifted &whole, size_t classes, Meter &meter) {
    size_t states = whole.accept.size();
    meter.spend(8 * whole.dst.size());
    vector<int64_t> begin(states + 2, 0);
    vector<int32_t> source(whole.dst.size()), waiting;
    for (int32_t q : whole.dst) begin[q + 2]++;
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (size_t q = 0; q < states; q++)
        for (int64_t i = whole.first[q]; i < whole.first[q + 1]; i++) source[begin[whole.dst[i] + 1]++] = q;
    vector<uint8_t> leads(whole.accept), kept(states, 0);
    auto spread = [&](vector<uint8_t> &seen, const vector<int64_t> &first, const vector<int32_t> &to, auto allowed) {
        while (!waiting.empty()) {
            int32_t q = waiting.back();
            waiting.pop_back();
            for (int64_t i = first[q]; i < first[q + 1]; i++)
                if (!seen[to[i]] && allowed(to[i])) seen[to[i]] = 1, waiting.push_back(to[i]);
        }
    };
    for (size_t q = 0; q < states; q++)
        if (leads[q]) waiting.push_back(q);
    spread(leads, begin, source, [](int32_t) { return true; });
    if (leads[0]) kept[0] = 1, waiting.push_back(0);
    spread(kept, whole.first, whole.dst, [&](int32_t q) { return leads[q]; });
    vector<int32_t> number(classes, -1);
    int32_t next = 0;
    if (std::find(kept.begin(), kept.end(), 0) == kept.end()) {
        std::iota(number.begin(), number.end(), 0);
        return number;
    }

    Lifted out;
    vector<int32_t> state(states, -1), bundle(whole.starts.size(), -1);
    for (size_t q = 0; q < states; q++)
        if (kept[q]) state[q] = next++, out.accept.push_back(whole.accept[q]);
    for (size_t q = 0; q < states; q++) {
        if (!kept[q]) continue;
        meter.spend(4 * (whole.first[q + 1] - whole.first[q]) + 8);
        for (int64_t i = whole.first[q]; i < whole.first[q + 1]; i++) {
            if (!kept[whole.dst[i]]) continue;
            int32_t b = whole.bundle[i];
            if (bundle[b] < 0) {
                bundle[b] = out.starts.size() - 1;
                out.classes.insert(out.classes.end(), whole.classes.begin() + whole.starts[b], whole.classes.begin() + whole.starts[b + 1]);
                out.starts.push_back(out.classes.size());
                meter.spend(whole.starts[b + 1] - whole.starts[b]);
            }
            out.dst.push_back(state[whole.dst[i]]), out.bundle.push_back(bundle[b]);
        }
        out.first.push_back(out.dst.size());
    }
    vector<uint8_t> used(classes, 0);
    for (int32_t c : out.classes) used[c] = 1;
    next = 0;
    for (size_t c = 0; c < classes; c++)
        if (used[c]) number[c] = next++;  // classes keep their order
    for (int32_t &c : out.classes) c = number[c];
    whole = std::move(out);
    return number;
}

// Numbers for values in the order in which they come.
class Numbers {
    vector<int32_t> table_ = vector<int32_t>(256, -1);

  public:
    vector<int64_t> values;

    int32_t number(int64_t value) {
        size_t at = mix(value) & (table_.size() - 1);
        while (table_[at] >= 0 && values[table_[at]] != value) at = (at + 1) & (table_.size() - 1);
        if (table_[at] >= 0) return table_[at];
        values.push_back(value);
        table_[at] = values.size() - 1;
        if (values.size() * 2 > table_.size()) {
            table_.assign(table_.size() * 2, -1);
            for (size_t i = 0; i < values.size(); i++) {
                at = mix(values[i]) & (table_.size() - 1);
                while (table_[at] >= 0) at = (at + 1) & (table_.size() - 1);
                table_[at] = i;
            }
        }
        return values.size() - 1;
    }
};

inline std::unique_ptr<Lifted> lift(const Dfa &dfa, const Vocabulary &vocabulary, const Limits &limits) {
    Meter meter(limits);
    Columns columns(dfa, meter);
    vector<uint8_t> part(dfa.size());
    vector<int32_t> states[2];
    for (size_t q = 0; q < dfa.size(); q++) states[part[q] = columns.alike(q, dfa.size())].push_back(q);
    Functions functions[2] = {{states[0], dfa.size(), columns.next, columns.of_byte, meter},
                              {states[1], dfa.size(), columns.next, columns.of_byte, meter}};
    auto out = std::make_unique<Lifted>();
    out->accept = dfa.accept;
    vector<int32_t> found(vocabulary.tokens.size(), -1);  // the class of each token, in the order of the trie
    Numbers class_of;        // of two functions
    vector<int32_t> lowest;  // the first token of each
    vector<std::pair<int32_t, int32_t>> path{{functions[0].identity, functions[1].identity}};
    for (size_t node = 0; node < vocabulary.byte.size();) {
        int32_t depth = vocabulary.depth[node], byte = vocabulary.byte[node];
        auto [before0, before1] = path[depth];
        int32_t found0 = before0 ? functions[0].after(before0, byte) : 0, found1 = before1 ? functions[1].after(before1, byte) : 0;
        if (!found0 && !found1) {
            node = vocabulary.behind[node];
            continue;
        }
        if (path.size() < size_t(depth) + 2) path.resize(depth + 2);
        path[depth + 1] = {found0, found1};
        // where no byte below changes the function any more, all tokens below are alike
        bool whole = vocabulary.several[node] >= 0;
        if (whole) {
            const Bytes &below = vocabulary.below[vocabulary.several[node]];
            whole = (!found0 || functions[0].stays(found0, below)) && (!found1 || functions[1].stays(found1, below));
        }
        int32_t last = whole ? vocabulary.behind[node] : node + 1;
        int32_t begin = vocabulary.first_token[node], end = vocabulary.first_token[last];
        if (begin < end) {
            int32_t number = class_of.number(int64_t(found0) << 32 | found1);
            std::fill(found.begin() + begin, found.begin() + end, number);
            if (size_t(number) == lowest.size()) lowest.push_back(INT32_MAX);
            lowest[number] = std::min(lowest[number], *std::min_element(&vocabulary.tokens[begin], &vocabulary.tokens[end - 1] + 1));
        }
        node = last;
        meter.spend(1);
    }
    const vector<int64_t> &used = class_of.values;
    vector<int32_t> order(used.size()), number(used.size()), function_of_class[2];
    std::iota(order.begin(), order.end(), 0);  // classes in the order of their first tokens
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return lowest[a] < lowest[b]; });
    for (size_t c = 0; c < order.size(); c++) {
        number[order[c]] = c;
        function_of_class[0].push_back(used[order[c]] >> 32), function_of_class[1].push_back(int32_t(used[order[c]]));
    }
    Used of_part[2] = {{function_of_class[0], functions[0].lists}, {function_of_class[1], functions[1].lists}};
    Pairs pairs;
    for (int i = 0; i < 2; i++) pairs.count(functions[i].lists, of_part[i], dfa.size());
    pairs.reserve(meter);
    for (int i = 0; i < 2; i++) pairs.fill(functions[i].lists, of_part[i], meter);
    pairs.write(*out, part, of_part, meter);
    const vector<int32_t> kept = keep_useful(*out, used.size(), meter);
    for (int32_t &c : number) c = kept[c];
    out->class_of_token.assign(vocabulary.size, -1);
    for (size_t i = 0; i < found.size(); i++)
        if (found[i] >= 0) out->class_of_token[vocabulary.tokens[i]] = number[found[i]];
    return out;
}

}  // namespace daguerre
