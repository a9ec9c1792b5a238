// Nondeterministic automata over bytes, written from left to right, and the smallest deterministic ones of them.

#pragma once

#include <string>

#include "dfa.h"

namespace daguerre {

struct Move {
    int32_t bytes, to;  // the number of a set of bytes
};

// A list of moves for each state, in blocks of one array: states are many and have few.
template <class Item> class Chains {
    struct Link {
        Item item;
        int32_t next;
    };
    vector<Link> links_;
    vector<int32_t> head_, tail_;

  public:
    void add_state() { head_.push_back(-1), tail_.push_back(-1); }
    void add(int32_t state, const Item &item) {
        int32_t at = links_.size();
        links_.push_back({item, -1});
        (head_[state] < 0 ? head_[state] : links_[tail_[state]].next) = at;
        tail_[state] = at;
    }
    bool empty(int32_t state) const { return head_[state] < 0; }
    size_t states() const { return head_.size(); }
    size_t items() const { return links_.size(); }
    template <class Do> void for_each(int32_t state, Do act) const {
        for (int32_t at = head_[state]; at >= 0; at = links_[at].next) act(links_[at].item);
    }
};

// The escapes of characters that a JSON string cannot have unescaped.
inline const char *escape_of(int byte) {
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    static thread_local char out[7];
    for (size_t i = 0; i + 1 < sizeof shorts - 1; i += 2)
        if (byte == shorts[i]) return out[0] = '\\', out[1] = shorts[i + 1], out[2] = 0, out;
    return std::snprintf(out, sizeof out, "\\u%04x", byte), out;
}

struct Nfa {
    Chains<Move> moves;
    Chains<int32_t> free;  // moves that take no byte
    vector<Bytes> sets;
    Map<int32_t, int32_t> at_start, at_end;  // moves that are free there alone

    const Limits limits;

    explicit Nfa(const Limits &limits) : limits(limits), meter_(this->limits) {}

    int32_t state() {
        if (int64_t(moves.states()) >= limits.steps) throw Stop{TOO_MANY_STEPS};
        meter_.spend(64);
        moves.add_state(), free.add_state();
        return moves.states() - 1;
    }
    int32_t set_of(const Bytes &bytes) {
        uint64_t code = bytes.hash();
        int32_t &recent = recent_[code % RECENT];
        if (recent >= 0 && sets[recent] == bytes) return recent;
        auto range = known_.equal_range(code);
        for (auto at = range.first; at != range.second; ++at)
            if (sets[at->second] == bytes) return recent = at->second;
        known_.emplace(code, sets.size());
        sets.push_back(bytes);
        return recent = sets.size() - 1;
    }
    void move(int32_t from, const Bytes &bytes, int32_t to) { move_on(from, set_of(bytes), to); }
    void move_on(int32_t from, int32_t set, int32_t to) {
        meter_.spend(64);
        moves.add(from, {set, to});
    }
    void link(int32_t from, int32_t to) {
        meter_.spend(64);
        free.add(from, to);
    }

    int32_t literal(int32_t entry, const uint8_t *text, size_t size) {
        for (size_t i = 0; i < size; i++) {
            int32_t to = state();
            move(entry, Bytes::one(text[i]), to);
            entry = to;
        }
        return entry;
    }

    // Moves between numbered states: state 0 is `entry`, state 1 the last; see `Nfa.chars` in Python.
    int32_t pattern(int32_t entry, int32_t num_inner, const int32_t *edges, const Bytes *bytes, size_t size) {
        int32_t last = state();
        vector<int32_t> held{entry, last};
        for (int32_t i = 0; i < num_inner; i++) held.push_back(state());
        for (size_t i = 0; i < size; i++) move(held[edges[2 * i]], bytes[i], held[edges[2 * i + 1]]);
        return last;
    }

    int32_t embed(int32_t entry, const Dfa &dfa) {
        int32_t base = states_of(dfa), last;
        link(entry, base);
        for (size_t q = 0; q < dfa.size(); q++)
            for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++) move(base + q, dfa.arcs[i].bytes, base + dfa.arcs[i].to);
        last = joined(base, dfa);
        return last;
    }

    // The strings of an automaton as JSON writes them.
    int32_t quoted(int32_t entry, const Dfa &dfa) {
        Bytes escaped;
        for (int byte = 0; byte < 0x20; byte++) escaped.add(byte);
        escaped.add('"'), escaped.add('\\');
        int32_t base = states_of(dfa);
        move(entry, Bytes::one('"'), base);
        for (size_t q = 0; q < dfa.size(); q++)
            for (int64_t i = dfa.first[q]; i < dfa.first[q + 1]; i++) {
                const Arc &arc = dfa.arcs[i];
                Bytes plain = arc.bytes.without(escaped), other = arc.bytes & escaped;
                if (plain.any()) move(base + q, plain, base + arc.to);
                if (other.any()) move(base + q, Bytes::one('\\'), escape(other, base + arc.to));
            }
        const uint8_t quote = '"';
        return literal(joined(base, dfa), &quote, 1);
    }

  private:
    Meter meter_;
    static constexpr int RECENT = 64;
    vector<int32_t> recent_ = vector<int32_t>(RECENT, -1);  // numbers that were asked for, by hashes
    MultiMap<uint64_t, int32_t> known_;
    MultiMap<uint64_t, int32_t> escapes_;

    int32_t states_of(const Dfa &dfa) {
        int32_t base = moves.states();
        for (size_t q = 0; q < dfa.size(); q++) state();
        return base;
    }
    int32_t joined(int32_t base, const Dfa &dfa) {
        int32_t last = state();
        for (size_t q = 0; q < dfa.size(); q++)
            if (dfa.accept[q]) link(base + q, last);
        return last;
    }
    // The state after a backslash from which each of the bytes leads to `to`.
    int32_t escape(const Bytes &bytes, int32_t to) {
        uint64_t key = uint64_t(set_of(bytes)) << 32 | uint32_t(to);
        auto held = escapes_.find(key);
        if (held != escapes_.end()) return held->second;
        int32_t first = state();
        bytes.for_each([&](int byte) {
            std::string text = escape_of(byte);
            link(literal(first, reinterpret_cast<const uint8_t *>(text.data()) + 1, text.size() - 1), to);
        });
        escapes_.emplace(key, first);
        return first;
    }
};

// The subset construction. A subset holds only states that move on a byte, or that can end.
class Subsets {
    const Nfa &nfa_;
    const int32_t last_;
    Meter meter_;
    const Limits &limits_;
    Lists sets_;
    vector<int32_t> alone_;    // the number of the subset of one state alone, or -1: most are, and are not hashed
    vector<int32_t> closure_;  // the number of a state's closure, or -1
    vector<uint8_t> ends_;
    vector<int32_t> stamp_, stack_, found_;
    int32_t now_ = 0;

  public:
    Subsets(const Nfa &nfa, int32_t last, const Limits &limits)
        : nfa_(nfa), last_(last), meter_(limits), limits_(limits), alone_(nfa.moves.states(), -1),
          closure_(nfa.moves.states(), -1), ends_(nfa.moves.states(), 0), stamp_(nfa.moves.states(), 0) {
        ends_[last] = 1;
        for (auto [state, to] : nfa.at_end) {
            (void)to;
            follow(state, &nfa_.at_end);
            ends_[state] |= std::find(found_.begin(), found_.end(), last_) != found_.end();
        }
    }

    std::unique_ptr<Dfa> run(int32_t entry) {
        follow(entry, &nfa_.at_start);
        keep();
        Dfa out;
        vector<int32_t> subset{number_found()};  // of each state
        vector<int32_t> number(sets_.size(), -1);
        number[subset[0]] = 0;
        for (size_t at = 0; at < subset.size(); at++) {
            int32_t held = subset[at];
            successors(held);
            for (auto [bytes, reached] : pieces_) {
                if (size_t(reached) >= number.size()) number.resize(sets_.size() + 1024, -1);
                if (number[reached] < 0) number[reached] = subset.size(), subset.push_back(reached);
                out.arcs.push_back({bytes, number[reached]});
            }
            meter_.states(subset.size());
            bool ends = false;
            for (const int32_t *s = sets_.begin(held); s != sets_.end(held) && !ends; ++s) ends = ends_[*s];
            out.close(ends);
        }
        return minimize(out, meter_);
    }

  private:
    struct Piece {
        Bytes bytes;
        int32_t to;  // the number of a subset
    };
    vector<Piece> pieces_;
    vector<Move> moves_;
    vector<Bytes> parts_;

    // All states reached by free moves, and by those that are free here, into found_.
    void follow(int32_t state, const Map<int32_t, int32_t> *here) {
        now_++;
        found_.assign(1, state);
        stamp_[state] = now_;
        stack_.assign(1, state);
        auto visit = [&](int32_t to) {
            if (stamp_[to] != now_) stamp_[to] = now_, stack_.push_back(to), found_.push_back(to);
        };
        while (!stack_.empty()) {
            int32_t from = stack_.back();
            stack_.pop_back();
            nfa_.free.for_each(from, visit);
            if (here && here->count(from)) visit(here->at(from));
        }
        meter_.spend(found_.size() * 4);
    }
    void keep() {
        auto idle = [&](int32_t s) { return nfa_.moves.empty(s) && s != last_ && !nfa_.at_end.count(s); };
        found_.erase(std::remove_if(found_.begin(), found_.end(), idle), found_.end());
        std::sort(found_.begin(), found_.end());
    }
    int32_t number_found() {
        if (found_.size() != 1) return sets_.number(found_);
        int32_t &number = alone_[found_[0]];
        if (number < 0) number = sets_.add(found_.data(), 1);
        return number;
    }
    int32_t closure(int32_t state) {
        if (closure_[state] < 0) {
            follow(state, nullptr);
            keep();
            closure_[state] = number_found();
        }
        return closure_[state];
    }

    // Disjoint sets of bytes, each with the subset that it leads to, into pieces_.
    void successors(int32_t subset) {
        moves_.clear(), pieces_.clear(), parts_.clear();
        for (size_t i = 0; i < sets_.count(subset); i++)
            nfa_.moves.for_each(sets_.begin(subset)[i], [&](const Move &move) { moves_.push_back(move); });
        meter_.spend(moves_.size() * 8);
        if (moves_.size() > 1) std::stable_sort(moves_.begin(), moves_.end(), [](auto &a, auto &b) { return a.bytes < b.bytes; });
        Bytes covered;
        bool disjoint = true;
        for (const Move &move : moves_) {
            const Bytes &bytes = nfa_.sets[move.bytes];
            disjoint &= !(bytes & covered).any();
            covered = covered | bytes;
        }
        if (disjoint) {
            for (const Move &move : moves_) pieces_.push_back({nfa_.sets[move.bytes], closure(move.to)});
            return;
        }
        covered = Bytes();
        for (size_t i = 0; i < moves_.size(); i++) {
            if (i && moves_[i].bytes == moves_[i - 1].bytes) continue;
            const Bytes &bytes = nfa_.sets[moves_[i].bytes];
            refine(bytes, bytes & covered);
            covered = covered | bytes;
        }
        for (const Bytes &part : parts_) {
            int32_t byte = part.lowest();
            pieces_.push_back({part, reached(byte)});
        }
    }
    void refine(const Bytes &bytes, const Bytes &known) {
        if (known.any())
            for (size_t i = 0, size = parts_.size(); i < size; i++) {
                Bytes common = parts_[i] & bytes;
                if (!common.any() || common == parts_[i]) continue;
                parts_.push_back(parts_[i].without(bytes));
                parts_[i] = common;
            }
        Bytes rest = bytes.without(known);
        if (rest.any()) parts_.push_back(rest);
        meter_.spend(parts_.size());
    }
    // The union of what the moves lead to that take a byte.
    int32_t reached(int byte) {
        int32_t only = -1;
        bool several = false;
        for (const Move &move : moves_) {
            if (!nfa_.sets[move.bytes].has(byte)) continue;
            int32_t held = closure(move.to);
            several |= only >= 0 && held != only;
            only = held;
        }
        meter_.spend(moves_.size());
        if (!several) return only;
        now_++;
        found_.clear();
        for (const Move &move : moves_) {
            if (!nfa_.sets[move.bytes].has(byte)) continue;
            int32_t held = closure_[move.to];
            for (const int32_t *s = sets_.begin(held); s != sets_.end(held); ++s)
                if (stamp_[*s] != now_) stamp_[*s] = now_, found_.push_back(*s);
            meter_.spend(sets_.count(held));
        }
        std::sort(found_.begin(), found_.end());
        meter_.spend(found_.size() * 4);
        return number_found();
    }
};

inline std::unique_ptr<Dfa> determinize(const Nfa &nfa, int32_t entry, int32_t last, const Limits &limits) {
    return Subsets(nfa, last, limits).run(entry);
}

}  // namespace daguerre
