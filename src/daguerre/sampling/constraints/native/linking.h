// Automata that call one another, as one automaton.
//
// A call is written as the byte CALL, which no text in UTF-8 has, and a number in three bytes: what it calls is said by the
// use of the automaton, so that one serves in many surroundings. The whole has a frame, a copy of an automaton, for each use
// and each state that is called back to: what follows a call differs.

#pragma once

#include "nfa.h"

namespace daguerre {

struct Call {
    int32_t from, number, back;  // the states before and behind
};

// Uses of automata: `part` (U) of each, and calls[first[use] + n], the use that its call n is of.
struct Uses {
    const int32_t *part;
    const int64_t *first;
    const int32_t *calls;
    int32_t root;
};

// An automaton without the states that only spell out calls.
struct Part {
    static constexpr int CALL = 0xFF, DIGITS = 3;
    const Dfa &dfa;
    vector<int32_t> place;  // of each state that is kept, or -1
    vector<int32_t> states;
    vector<Call> calls;

    explicit Part(const Dfa &dfa, Meter &meter) : dfa(dfa), place(dfa.size(), -1) {
        visit(0);
        for (size_t at = 0; at < states.size(); at++)
            for (int64_t i = dfa.first[states[at]]; i < dfa.first[states[at] + 1]; i++) {
                meter.spend(4);
                if (dfa.arcs[i].bytes.has(CALL))
                    spell(states[at], dfa.arcs[i].to, 0, 0, meter);
                else
                    visit(dfa.arcs[i].to);
            }
        for (Call &call : calls) call.from = place[call.from], call.back = place[call.back];
    }

  private:
    void visit(int32_t state) {
        if (place[state] < 0) place[state] = states.size(), states.push_back(state);
    }
    void spell(int32_t from, int32_t state, int digits, int32_t number, Meter &meter) {
        if (digits == DIGITS) {
            visit(state);
            calls.push_back({from, number, state});
            return;
        }
        meter.spend(16);
        for (int64_t i = dfa.first[state]; i < dfa.first[state + 1]; i++)
            dfa.arcs[i].bytes.for_each([&](int byte) { spell(from, dfa.arcs[i].to, digits + 1, number << 8 | byte, meter); });
    }
};

// All frames that a use needs, with what it calls and what that calls. State 0 of the whole is its end.
class Frames {
    struct Frame {
        int32_t use, base, back;
    };
    vector<Part> parts_;
    const Uses uses_;
    vector<Frame> frames_;
    Map<uint64_t, int32_t> known_;  // where a frame begins

    const Part &part(int32_t use) const { return parts_[uses_.part[use]]; }
    int32_t called(int32_t use, const Call &call) const { return uses_.calls[uses_.first[use] + call.number]; }
    static uint64_t key(int32_t use, int32_t back) { return uint64_t(use) << 32 | uint32_t(back); }

    void enter(int32_t use, int32_t back, const Limits &limits) {
        if (!known_.try_emplace(key(use, back), states).second) return;
        frames_.push_back({use, states, back});
        if (states + int64_t(part(use).states.size()) > limits.steps) throw Stop{TOO_MANY_STEPS};
        states += part(use).states.size();
    }

  public:
    int32_t states = 1;

    Frames(const Dfa *const *parts, int64_t number, const Uses &uses, const Limits &limits) : uses_(uses) {
        Meter meter(limits);
        for (int64_t i = 0; i < number; i++) parts_.emplace_back(*parts[i], meter);
        enter(uses.root, 0, limits);
        for (size_t at = 0; at < frames_.size(); at++) {
            const Frame frame = frames_[at];
            for (const Call &call : part(frame.use).calls) enter(called(frame.use, call), frame.base + call.back, limits);
            meter.spend(16 * part(frame.use).calls.size() + 16);
        }
    }
    int64_t copies(int32_t use) const {
        return std::count_if(frames_.begin(), frames_.end(), [&](const Frame &frame) { return frame.use == use; });
    }
    std::unique_ptr<Dfa> linked(const Limits &limits) const {
        Nfa nfa(limits);
        for (int32_t i = 0; i < states; i++) nfa.state();
        vector<vector<int32_t>> sets(parts_.size());  // of each part, the numbers of its arcs' bytes
        for (auto [use, base, back] : frames_) {
            const Part &held = part(use);
            vector<int32_t> &set_of = sets[uses_.part[use]];
            if (set_of.empty())
                for (const Arc &arc : held.dfa.arcs) set_of.push_back(arc.bytes.has(Part::CALL) ? -1 : nfa.set_of(arc.bytes));
            for (size_t q = 0; q < held.states.size(); q++) {
                int32_t state = held.states[q];
                for (int64_t i = held.dfa.first[state]; i < held.dfa.first[state + 1]; i++) {
                    if (set_of[i] >= 0) nfa.move_on(base + q, set_of[i], base + held.place[held.dfa.arcs[i].to]);
                }
                if (held.dfa.accept[state]) nfa.link(base + q, back);
            }
            for (const Call &call : held.calls) nfa.link(base + call.from, known_.at(key(called(use, call), base + call.back)));
        }
        return determinize(nfa, 1, 0, limits);
    }
};

}  // namespace daguerre
