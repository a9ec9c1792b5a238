// Automata that call one another, as one automaton.
//
// A call of a part is written as the byte CALL, which no text in UTF-8 has, and the number of the part in three bytes. The
// whole has a frame, a copy of a part, for each part and each state that is called back to: what follows a call differs.

#pragma once

#include "nfa.h"

namespace daguerre {

struct Call {
    int32_t from, part, back;  // the states before and behind
};

// An automaton without the states that only spell out calls.
struct Part {
    static constexpr int CALL = 0xFF, DIGITS = 3;
    const Dfa &dfa;
    vector<int32_t> number;  // of each state that is kept, or -1
    vector<int32_t> states;
    vector<Call> calls;

    explicit Part(const Dfa &dfa, Meter &meter) : dfa(dfa), number(dfa.size(), -1) {
        visit(0);
        for (size_t at = 0; at < states.size(); at++)
            for (int64_t i = dfa.first[states[at]]; i < dfa.first[states[at] + 1]; i++) {
                meter.spend(4);
                if (dfa.arcs[i].bytes.has(CALL))
                    spell(states[at], dfa.arcs[i].to, 0, 0, meter);
                else
                    visit(dfa.arcs[i].to);
            }
        for (Call &call : calls) call.from = number[call.from], call.back = number[call.back];
    }

  private:
    void visit(int32_t state) {
        if (number[state] < 0) number[state] = states.size(), states.push_back(state);
    }
    void spell(int32_t from, int32_t state, int digits, int32_t part, Meter &meter) {
        if (digits == DIGITS) {
            visit(state);
            calls.push_back({from, part, state});
            return;
        }
        meter.spend(16);
        for (int64_t i = dfa.first[state]; i < dfa.first[state + 1]; i++)
            dfa.arcs[i].bytes.for_each([&](int byte) { spell(from, dfa.arcs[i].to, digits + 1, part << 8 | byte, meter); });
    }
};

// All frames that a part needs, with what it calls and what that calls. State 0 of the whole is its end.
class Frames {
    struct Frame {
        int32_t part, base, back;
    };
    vector<Part> parts_;
    vector<Frame> frames_;
    Map<uint64_t, int32_t> known_;  // where a frame begins

    void enter(int32_t part, int32_t back, const Limits &limits) {
        auto [held, fresh] = known_.try_emplace(key(part, back), states);
        (void)held;
        if (!fresh) return;
        frames_.push_back({part, states, back});
        if (states + int64_t(parts_[part].states.size()) > limits.steps) throw Stop{TOO_MANY_STEPS};
        states += parts_[part].states.size();
    }
    static uint64_t key(int32_t part, int32_t back) { return uint64_t(part) << 32 | uint32_t(back); }

  public:
    int32_t states = 1;

    Frames(const Dfa *const *parts, int64_t number, int32_t root, const Limits &limits) {
        Meter meter(limits);
        for (int64_t i = 0; i < number; i++) parts_.emplace_back(*parts[i], meter);
        enter(root, 0, limits);
        for (size_t at = 0; at < frames_.size(); at++) {
            auto [part, base, back] = frames_[at];
            (void)back;
            for (const Call &call : parts_[part].calls) enter(call.part, base + call.back, limits);
            meter.spend(16 * parts_[part].calls.size() + 16);
        }
    }
    int64_t copies(int32_t part) const {
        return std::count_if(frames_.begin(), frames_.end(), [&](const Frame &frame) { return frame.part == part; });
    }
    std::unique_ptr<Dfa> linked(const Limits &limits) const {
        Nfa nfa(limits);
        for (int32_t i = 0; i < states; i++) nfa.state();
        for (auto [number, base, back] : frames_) {
            const Part &part = parts_[number];
            for (size_t q = 0; q < part.states.size(); q++) {
                int32_t state = part.states[q];
                for (int64_t i = part.dfa.first[state]; i < part.dfa.first[state + 1]; i++) {
                    const Arc &arc = part.dfa.arcs[i];
                    if (!arc.bytes.has(Part::CALL)) nfa.move(base + q, arc.bytes, base + part.number[arc.to]);
                }
                if (part.dfa.accept[state]) nfa.link(base + q, back);
            }
            for (const Call &call : part.calls) nfa.link(base + call.from, known_.at(key(call.part, base + call.back)));
        }
        return determinize(nfa, 1, 0, limits);
    }
};

}  // namespace daguerre
