// From bytes to tokens: what each token of a vocabulary does to the states of an automaton.

#pragma once

#include "vocabulary.h"

namespace daguerre {

// An automaton over tokens, as `tokens.TokenAutomaton` holds it: the pairs of state q are first[q] to first[q + 1], each
// the next state and a bundle of classes of tokens; the classes of bundle b are classes[starts[b]] to ...[b + 1].
struct Lifted {
    vector<uint8_t> accept;
    vector<int32_t> class_of_token, dst, bundle, classes;
    vector<int64_t> first{0}, starts{0};
};

// The transitions of an automaton as a table (K, Q), -1 for none; bytes that act alike in every state share a column.
struct Columns {
    vector<int32_t> of_byte = vector<int32_t>(256, 0), next;
    int number;  // K

    Columns(const Dfa &dfa, Meter &meter) {
        vector<uint64_t> code(256, 0);
        for (size_t i = 0; i < dfa.arcs.size(); i++) dfa.arcs[i].bytes.for_each([&](int byte) { code[byte] += mix(i); });
        Map<uint64_t, int32_t> known;
        vector<int32_t> lowest;
        for (int byte = 0; byte < 256; byte++) {
            auto [held, fresh] = known.try_emplace(code[byte], known.size());
            of_byte[byte] = held->second;
            if (fresh) lowest.push_back(byte);
        }
        number = lowest.size();
        next.assign(dfa.size() * number, -1);
        for (size_t q = 0; q < dfa.size(); q++)
            for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++, meter.spend(number))
                for (int k = 0; k < number; k++)
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

// Which columns act alike on a set of states: of a state these are the bytes of one arc, and those of none.
class AlikeColumns {
    const Dfa &dfa_;
    const Columns &columns_;
    Meter &meter_;
    Lists patterns_;                // the bytes of the arcs of a state
    vector<int32_t> pattern_of_, some_state_;  // of each state, and a state of each
    Lists sets_;                    // sets of patterns
    vector<vector<int32_t>> first_;  // for each set, and each column of it the first column that acts alike
    vector<uint8_t> seen_;
    vector<int32_t> held_;

    void prepare() {
        for (size_t q = 0; q < dfa_.size(); q++) {
            held_.clear();
            for (int64_t i = dfa_.first[q]; i < dfa_.first[q + 1]; i++)
                for (uint64_t word : dfa_.arcs[i].bytes.word) held_.push_back(word), held_.push_back(word >> 32);
            pattern_of_.push_back(patterns_.number(held_));
            if (patterns_.size() > some_state_.size()) some_state_.push_back(q);
            meter_.spend(held_.size() + 8);
        }
        seen_.assign(patterns_.size(), 0);
    }
    vector<int32_t> compare(const vector<int32_t> &patterns) {
        vector<uint64_t> code(columns_.number, 0);
        for (int32_t pattern : patterns) {
            int32_t q = some_state_[pattern];
            for (int k = 0; k < columns_.number; k++) code[k] = mix(code[k] ^ uint32_t(columns_.next[k * dfa_.size() + q]));
        }
        meter_.spend(patterns.size() * columns_.number);
        Map<uint64_t, int32_t> first;
        vector<int32_t> out;
        for (int k = 0; k < columns_.number; k++) out.push_back(first.try_emplace(code[k], k).first->second);
        return out;
    }

  public:
    AlikeColumns(const Dfa &dfa, const Columns &columns, Meter &meter) : dfa_(dfa), columns_(columns), meter_(meter) {}

    // The number of the set of patterns of the states that a list of pairs leads to.
    int32_t set(const int32_t *pair, const int32_t *end) {
        if (pattern_of_.empty()) prepare();
        meter_.spend((end - pair) / 2);
        held_.clear();
        for (; pair != end; pair += 2) {
            int32_t pattern = pattern_of_[pair[1]];
            if (!seen_[pattern]) seen_[pattern] = 1, held_.push_back(pattern);
        }
        for (int32_t pattern : held_) seen_[pattern] = 0;
        std::sort(held_.begin(), held_.end());
        size_t set = sets_.number(held_);
        if (set == first_.size()) first_.push_back(compare(held_));
        return set;
    }
    // The first column that acts as a column does on all states of a set's patterns.
    int32_t first(int32_t set, int column) const { return first_[set][column]; }
};

// What texts do to some of the states: function f takes src to dst for every pair of its list, and all other states to
// nothing.
//
// The states are treated in two parts. Letters act alike on most states within strings, so few functions of these differ;
// within names and words each letter acts differently, but few such states are left after a byte.
class Functions {
    static constexpr int32_t UNKNOWN = -1;
    static constexpr size_t MANY = 512;  // items of a list that is worth looking at for columns that act alike on it
    const size_t states_;
    const Columns &columns_;
    AlikeColumns &alike_;
    vector<int32_t> after_;  // (functions, K): UNKNOWN, or a function
    vector<int32_t> set_;    // of the columns that act alike on a function's states: UNKNOWN, or its number
    vector<int32_t> held_;
    struct Tried {
        uint64_t stays = 0, changes = 0;  // groups behind whose bytes a function is known to be the same, or not always
    };
    vector<Tried> tried_;
    Meter &meter_;

    int first_alike(int32_t function, int column) {
        if (size_t(function) >= set_.size()) set_.resize(lists.size() + lists.size() / 2 + 64, UNKNOWN);
        if (set_[function] == UNKNOWN) set_[function] = alike_.set(lists.begin(function), lists.end(function));
        return alike_.first(set_[function], column);
    }
    int32_t composed(int32_t function, int column) {
        held_.resize(std::max(held_.size(), lists.count(function) + 2));
        const int32_t *next = columns_.next.data() + column * states_;
        int32_t *end = held_.data();
        for (const int32_t *pair = lists.begin(function), *last = lists.end(function); pair != last; pair += 2) {
            int32_t to = next[pair[1]];
            end[0] = pair[0], end[1] = to;
            end += to >= 0 ? 2 : 0;  // without a branch that nobody can predict
        }
        meter_.spend(lists.count(function) + 32);
        int32_t found = lists.number(held_.data(), end - held_.data());
        meter_.edges(lists.items() / 2);
        return found;
    }

  public:
    Lists lists;  // pairs, one after another; list 0 is that of nothing
    int32_t identity;

    Functions(const vector<int32_t> &states, size_t number, const Columns &columns, AlikeColumns &alike, Meter &meter)
        : states_(number), columns_(columns), alike_(alike), meter_(meter) {
        lists.number(nullptr, 0);
        for (int32_t q : states) held_.push_back(q), held_.push_back(q);
        identity = lists.number(held_);
    }

    // The function of a text that is one byte longer.
    int32_t after(int32_t function, int byte) { return after_column(function, columns_.of_byte[byte]); }

    int32_t after_column(int32_t function, int column) {
        size_t at = size_t(function) * columns_.number + column;
        if (at >= after_.size()) {
            after_.resize((lists.size() + lists.size() / 2 + 64) * columns_.number, UNKNOWN);
        }
        if (after_[at] == UNKNOWN) {
            int alike = lists.count(function) < MANY ? column : first_alike(function, column);
            int32_t found = alike == column ? composed(function, column) : after_column(function, alike);
            after_[at] = found;
        }
        return after_[at];
    }

    // Whether a function stays as it is behind any text of bytes of some groups.
    bool stays(int32_t function, uint64_t groups) {
        if (size_t(function) >= tried_.size()) tried_.resize(lists.size() + lists.size() / 2 + 64);
        Tried tried = tried_[function];
        if (groups & tried.changes) return false;
        for (uint64_t open = groups & ~tried.stays; open; open &= open - 1) {
            const int *first = Groups::of().first + __builtin_ctzll(open);
            bool same = true;
            for (int byte = first[0]; same && byte < first[1]; byte++) same = after(function, byte) == function;
            (same ? tried_[function].stays : tried_[function].changes) |= open & -open;
            if (!same) return false;
        }
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
    AlikeColumns alike(dfa, columns, meter);
    Functions functions[2] = {{states[0], dfa.size(), columns, alike, meter}, {states[1], dfa.size(), columns, alike, meter}};
    auto out = std::make_unique<Lifted>();
    out->accept = dfa.accept;
    vector<int32_t> found(vocabulary.tokens.size(), -1);  // the class of each token, in the order of the trie
    Numbers class_of;        // of two functions
    vector<int32_t> lowest;  // the first token of each
    struct Below {  // the nodes below one, and the functions of its text
        int32_t first, number, function0, function1;
    };
    const Vocabulary::Node *nodes = vocabulary.nodes.data();
    vector<Below> waiting{{nodes[0].first, nodes[0].number, functions[0].identity, functions[1].identity}};
    while (!waiting.empty()) {
        auto [first, number, function0, function1] = waiting.back();
        waiting.pop_back();
        meter.spend(number);
        for (const Vocabulary::Node *node = nodes + first; node != nodes + first + number; node++) {
            int32_t found0 = function0 ? functions[0].after(function0, node->byte) : 0;
            int32_t found1 = function1 ? functions[1].after(function1, node->byte) : 0;
            if (!found0 && !found1) continue;
            // where no byte below changes the function any more, all tokens below are alike
            bool whole = (!found0 || functions[0].stays(found0, node->below)) && (!found1 || functions[1].stays(found1, node->below));
            if (!whole) {
                __builtin_prefetch(nodes + node->first);
                waiting.push_back({node->first, node->number, found0, found1});
            }
            int32_t end_token = whole ? node->end_token : node->behind_own;
            if (node->first_token == end_token) continue;
            int32_t c = class_of.number(int64_t(found0) << 32 | found1);
            std::fill(found.begin() + node->first_token, found.begin() + end_token, c);
            if (size_t(c) == lowest.size()) lowest.push_back(INT32_MAX);
            lowest[c] = std::min(lowest[c], whole ? node->lowest : vocabulary.tokens[node->first_token]);
        }
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
