// The C interface of automata; `compiled.py` declares it.

#include <new>

#include "lift.h"
#include "likeliest.h"
#include "linking.h"
#include "spans.h"

using namespace daguerre;

namespace {

// The result of an action, or `failed` with the reason in `error`.
template <class Result, class Do> Result guarded(int32_t *error, Result failed, Do act) {
    *error = NO_ERROR;
    try {
        return act();
    } catch (const Stop &stop) {
        *error = stop.error;
    } catch (const std::bad_alloc &) {
        *error = OUT_OF_MEMORY;
    }
    return failed;
}

// The same, within limits of memory.
template <class Result, class Do> Result limited(int32_t *error, const Limits &limits, Result failed, Do act) {
    return guarded(error, failed, [&] {
        Limited memory(limits);
        return act();
    });
}

}  // namespace

extern "C" {

int64_t memory_held() { return Memory::here().held; }

Nfa *nfa_new(const Limits *limits, int32_t *error) {
    return guarded(error, static_cast<Nfa *>(nullptr), [&] { return new Nfa(*limits); });
}
void nfa_free(Nfa *nfa) { delete nfa; }
int32_t nfa_state(Nfa *nfa, int32_t *error) {
    return limited(error, nfa->limits, -1, [&] { return nfa->state(); });
}
void nfa_link(Nfa *nfa, int32_t from, int32_t to, int32_t *error) {
    limited(error, nfa->limits, 0, [&] { return nfa->link(from, to), 0; });
}
void nfa_conditional(Nfa *nfa, int32_t from, int32_t to, int32_t at_end, int32_t *error) {
    limited(error, nfa->limits, 0, [&] { return (at_end ? nfa->at_end : nfa->at_start)[from] = to; });
}
int32_t nfa_literal(Nfa *nfa, int32_t entry, const uint8_t *text, int64_t size, int32_t *error) {
    return limited(error, nfa->limits, -1, [&] { return nfa->literal(entry, text, size); });
}
int32_t nfa_pattern(Nfa *nfa, int32_t entry, int32_t num_inner, const int32_t *edges, const Bytes *bytes, int64_t size, int32_t *error) {
    return limited(error, nfa->limits, -1, [&] { return nfa->pattern(entry, num_inner, edges, bytes, size); });
}
int32_t nfa_embed(Nfa *nfa, int32_t entry, const Dfa *dfa, int32_t *error) {
    return limited(error, nfa->limits, -1, [&] { return nfa->embed(entry, *dfa); });
}
int32_t nfa_quoted(Nfa *nfa, int32_t entry, const Dfa *dfa, int32_t *error) {
    return limited(error, nfa->limits, -1, [&] { return nfa->quoted(entry, *dfa); });
}
Dfa *nfa_determinize(const Nfa *nfa, int32_t entry, int32_t last, const Limits *limits, int32_t *error) {
    return limited(error, *limits, static_cast<Dfa *>(nullptr), [&] { return determinize(*nfa, entry, last, *limits).release(); });
}

// A table (Q, K) of next states, -1 for none, becomes the smallest automaton of its language.
Dfa *dfa_minimal(const int32_t *table, int64_t states, int64_t columns, const uint8_t *column_of_byte, const uint8_t *accept,
                 const Limits *limits, int32_t *error) {
    return limited(error, *limits, static_cast<Dfa *>(nullptr), [&] {
        vector<Bytes> bytes(columns);
        for (int byte = 0; byte < 256; byte++) bytes[column_of_byte[byte]].add(byte);
        Dfa whole;
        Meter meter(*limits);
        for (int64_t q = 0; q < states; q++) {
            meter.spend(columns * 2);
            for (int64_t k = 0; k < columns; k++)
                if (table[q * columns + k] >= 0 && bytes[k].any()) whole.arcs.push_back({bytes[k], table[q * columns + k]});
            whole.close(accept[q]);
        }
        return minimize(whole, meter).release();
    });
}
void dfa_free(Dfa *dfa) { delete dfa; }
int64_t dfa_size(const Dfa *dfa) { return dfa->size(); }
int64_t dfa_num_arcs(const Dfa *dfa) { return dfa->arcs.size(); }
void dfa_read(const Dfa *dfa, int64_t *first, Bytes *bytes, int32_t *to, uint8_t *accept) {
    std::copy(dfa->first.begin(), dfa->first.end(), first);
    std::copy(dfa->accept.begin(), dfa->accept.end(), accept);
    for (size_t i = 0; i < dfa->arcs.size(); i++) bytes[i] = dfa->arcs[i].bytes, to[i] = dfa->arcs[i].to;
}
int32_t dfa_accepts(const Dfa *dfa, const uint8_t *text, int64_t size) {
    int32_t state = 0;
    for (int64_t i = 0; i < size && state >= 0; i++) state = dfa->step(state, text[i]);
    return state >= 0 && dfa->accept[state];
}
int32_t dfa_is_empty(const Dfa *dfa) { return std::find(dfa->accept.begin(), dfa->accept.end(), 1) == dfa->accept.end(); }
// Every text, one after another, and their lengths: how many there are, or -1 for more than `most`. Called a second time
// with room for them; the first time `text` is null, and `total` becomes the room that they need.
int64_t dfa_strings(const Dfa *dfa, int64_t most, uint8_t *text, int64_t *lengths, int64_t *total, const Limits *limits, int32_t *error) {
    return limited(error, *limits, int64_t(-1), [&] { return strings(*dfa, most, text, lengths, total, *limits); });
}
// The length of a shortest text of a language that has one; `text` may be null.
int64_t dfa_shortest(const Dfa *dfa, uint8_t *text, int32_t *error) {
    return guarded(error, int64_t(-1), [&] { return shortest(*dfa, text); });
}
Dfa *dfa_combine(const Dfa *a, const Dfa *b, int32_t rule, const Limits *limits, int32_t *error) {
    return limited(error, *limits, static_cast<Dfa *>(nullptr), [&] { return combine(*a, *b, Rule(rule), *limits).release(); });
}

// The states of the automaton of a use with all that it calls, and the copies of use 0 among them.
void link_sizes(const Dfa *const *parts, int64_t number, const Uses *uses, int64_t *sizes, const Limits *limits, int32_t *error) {
    limited(error, *limits, 0, [&] {
        Frames frames(parts, number, *uses, *limits);
        return sizes[0] = frames.states, sizes[1] = frames.copies(0), 0;
    });
}
Dfa *link_parts(const Dfa *const *parts, int64_t number, const Uses *uses, const Limits *limits, int32_t *error) {
    return limited(error, *limits, static_cast<Dfa *>(nullptr), [&] {
        return Frames(parts, number, *uses, *limits).linked(*limits).release();
    });
}

Vocabulary *vocabulary_new(const uint8_t *text, const int64_t *offsets, const int64_t *lengths, int32_t size) {
    int32_t error;
    return guarded(&error, static_cast<Vocabulary *>(nullptr), [&] { return new Vocabulary(text, offsets, lengths, size); });
}
void vocabulary_free(Vocabulary *vocabulary) { delete vocabulary; }

Lifted *lift_new(const Dfa *dfa, const Vocabulary *vocabulary, const Limits *limits, int32_t *error) {
    return limited(error, *limits, static_cast<Lifted *>(nullptr), [&] { return lift(*dfa, *vocabulary, *limits).release(); });
}
void lift_free(Lifted *lifted) { delete lifted; }
// The numbers of states, pairs, bundles, and of classes in all bundles.
void lift_sizes(const Lifted *lifted, int64_t *sizes) {
    sizes[0] = lifted->accept.size(), sizes[1] = lifted->dst.size();
    sizes[2] = lifted->starts.size() - 1, sizes[3] = lifted->classes.size();
}
void lift_read(const Lifted *lifted, uint8_t *accept, int32_t *class_of_token, int64_t *first, int32_t *dst, int32_t *bundle,
               int64_t *starts, int32_t *classes) {
    std::copy(lifted->accept.begin(), lifted->accept.end(), accept);
    std::copy(lifted->class_of_token.begin(), lifted->class_of_token.end(), class_of_token);
    std::copy(lifted->first.begin(), lifted->first.end(), first);
    std::copy(lifted->dst.begin(), lifted->dst.end(), dst);
    std::copy(lifted->bundle.begin(), lifted->bundle.end(), bundle);
    std::copy(lifted->starts.begin(), lifted->starts.end(), starts);
    std::copy(lifted->classes.begin(), lifted->classes.end(), classes);
}

Span *span_new(const Transitions *on, int32_t state, int64_t length, const uint8_t *ends, int32_t *error) {
    return guarded(error, static_cast<Span *>(nullptr), [&] { return new Span(*on, state, length, ends); });
}
void span_free(Span *span) { delete span; }
int32_t span_has(const Span *span, int64_t position, int32_t state) {
    const vector<int32_t> &states = span->states(position);
    return std::binary_search(states.begin(), states.end(), state);
}
int32_t span_forced(const Span *span, const uint8_t *allowed, const int64_t *only, const uint8_t *kind, int64_t *token, int32_t *error) {
    return guarded(error, 0, [&] { return int32_t(forced_tokens(*span, allowed, only, kind, token)); });
}
int32_t span_best(const Span *span, int64_t begin, int32_t state, const double *score, int64_t *bundles, int32_t *error) {
    return guarded(error, 0, [&] { return int32_t(best_path(*span, begin, state, score, bundles)); });
}
void complete(const Transitions *on, const uint8_t *mask, const int32_t *kind, int64_t length, uint8_t *alive) {
    completions(*on, mask, kind, length, alive);
}
Paths *paths_new(const Span *span, int64_t begin, int32_t state, const double *weight, int32_t logs, int32_t *error) {
    return guarded(error, static_cast<Paths *>(nullptr), [&] { return new Paths(*span, begin, state, weight, logs); });
}
void paths_free(Paths *paths) { delete paths; }
int32_t paths_possible(const Paths *paths) { return paths->possible; }
void paths_draw(Paths *paths, const double *u, int64_t *bundles, double *rest, int32_t *error) {
    guarded(error, 0, [&] { return paths->draw(u, bundles, rest), 0; });
}
void paths_shares(Paths *paths, double *out, int32_t *error) {
    guarded(error, 0, [&] { return paths->shares(out), 0; });
}

void weigh_float(const float *logits, int64_t rows, const Tiles *tiles, const double *temperatures, int64_t num, float *top, double *sum,
                 float *most, double *all, double *parts, int32_t threads) {
    weigh_classes<float>(logits, rows, *tiles, {temperatures, num, top, most, sum, all, parts}, threads);
}
void weigh_double(const double *logits, int64_t rows, const Tiles *tiles, const double *temperatures, int64_t num, double *top, double *sum,
                  double *most, double *all, double *parts, int32_t threads) {
    weigh_classes<double>(logits, rows, *tiles, {temperatures, num, top, most, sum, all, parts}, threads);
}
void first_float(const float *logits, int64_t rows, int64_t vocabulary, const float *most, int64_t classes, const int32_t *class_of_token,
                 const int64_t *chosen, int64_t *tokens, int32_t threads) {
    first_tokens<float>(logits, rows, vocabulary, most, classes, class_of_token, chosen, tokens, threads);
}
void first_double(const double *logits, int64_t rows, int64_t vocabulary, const double *most, int64_t classes, const int32_t *class_of_token,
                 const int64_t *chosen, int64_t *tokens, int32_t threads) {
    first_tokens<double>(logits, rows, vocabulary, most, classes, class_of_token, chosen, tokens, threads);
}
void sum_lists(const double *values, int64_t rows, int64_t columns, const int32_t *members, const int64_t *starts, int64_t num, double *out) {
    reduce_lists<false>(values, rows, columns, members, starts, num, out);
}
void best_of_lists(const double *values, int64_t rows, int64_t columns, const int32_t *members, const int64_t *starts, int64_t num,
                   double *out) {
    reduce_lists<true>(values, rows, columns, members, starts, num, out);
}
void draw_members(const double *weights, int64_t rows, int64_t columns, const int32_t *members, const int64_t *starts, const int64_t *list,
                  const double *u, int64_t *chosen, double *rest) {
    daguerre::draw_members(weights, rows, columns, members, starts, list, u, chosen, rest);
}
void draw_float(const float *logits, const float *top, double temperature, const Draws *draws, int64_t *out, int32_t threads) {
    draw_tokens<float>(logits, top, temperature, *draws, out, threads);
}
void draw_double(const double *logits, const double *top, double temperature, const Draws *draws, int64_t *out, int32_t threads) {
    draw_tokens<double>(logits, top, temperature, *draws, out, threads);
}
std::vector<Kept> *likeliest_float(const float *logits, int64_t rows, const Classes *on, const double *factor, double temperature,
                                   const float *top, double least, double share, double *shares, double *sums, int32_t threads) {
    return keep_likeliest<float>(logits, rows, *on, factor, temperature, top, least, share, shares, sums, threads);
}
std::vector<Kept> *likeliest_double(const double *logits, int64_t rows, const Classes *on, const double *factor, double temperature,
                                   const double *top, double least, double share, double *shares, double *sums, int32_t threads) {
    return keep_likeliest<double>(logits, rows, *on, factor, temperature, top, least, share, shares, sums, threads);
}
void kept_free(std::vector<Kept> *kept) { delete kept; }
void kept_draw(const std::vector<Kept> *kept, const int64_t *row, const int64_t *cls, const double *u, int64_t size, int64_t *out) {
    for (int64_t n = 0; n < size; n++) out[n] = (*kept)[row[n]].draw(int32_t(cls[n]), u[n]);
}
// Marks the tokens of a row.
void kept_tokens(const std::vector<Kept> *kept, int64_t row, uint8_t *out) {
    const Kept &held = (*kept)[row];
    for (int64_t i = 0; i < held.size; i++) out[held.token[i]] = held.prob[i] > 0;
}

}  // extern "C"
