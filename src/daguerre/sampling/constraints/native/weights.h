// From logits to the weights of classes of tokens.

#pragma once

#include <cmath>
#include <iterator>
#include <numeric>

#include "spans.h"

namespace daguerre {

#ifdef __AVX512F__
constexpr int BYTES = 64;
#else
constexpr int BYTES = 32;  // longer vectors would be passed through memory
#endif

// Vectors of a type, and e^x in them: 2^r is 1 + r (w_n + r (w_n-1 + ...)) for r of at most a half.
template <class Number> struct Lanes;
template <> struct Lanes<float> {
    typedef float Many __attribute__((vector_size(BYTES), aligned(4)));
    typedef int32_t Bits __attribute__((vector_size(BYTES), aligned(4)));
    static constexpr int WIDTH = BYTES / 4, MANTISSA = 23, BIAS = 127;
    static constexpr float POLYNOMIAL[] = {1.535336099e-4f, 1.339887525e-3f, 9.618437368e-3f, 5.550332469e-2f, 2.402264791e-1f, 6.931472029e-1f};
};
template <> struct Lanes<double> {
    typedef double Many __attribute__((vector_size(BYTES), aligned(8)));
    typedef int64_t Bits __attribute__((vector_size(BYTES), aligned(8)));
    static constexpr int WIDTH = BYTES / 8, MANTISSA = 52, BIAS = 1023;
    static constexpr double POLYNOMIAL[] = {  // Taylor's
        2.5678435993488206e-11, 4.4455382718708116e-10, 7.0549116208011233e-09, 1.0178086009239699e-07, 1.3215486790144309e-06, 1.5252733804059840e-05,
        1.5403530393381609e-04, 1.3333558146428443e-03, 9.6181291076284772e-03, 5.5504108664821580e-02, 2.4022650695910071e-01, 6.9314718055994531e-01};
};

// e^(x * scale) for x <= 0, in float32 to about one part in ten million; 0 where 2^-127, in float64 2^-1023, is as near.
template <class Number> class Exponential {
    using L = Lanes<Number>;
    Number high_, low_, lowest_;  // of scale / ln 2, the first digits and the rest

  public:
    explicit Exponential(Number scale) {
        const double whole = double(scale) * 1.4426950408889634;
        high_ = Number(whole), low_ = Number(whole - double(high_)), lowest_ = Number(-L::BIAS / whole);
    }
    typename L::Many operator()(typename L::Many x) const {
        using Many = typename L::Many;
        constexpr Number SHIFT = Number(int64_t(3) << (L::MANTISSA - 1)) + L::BIAS;  // adding it rounds, and leaves an exponent's bits
        const Many held = x < lowest_ ? Many{} + lowest_ : x, shifted = held * high_ + SHIFT, rounded = shifted - SHIFT;
        const Many r = (held * high_ - rounded) + held * low_;
        Many p = Many{} + L::POLYNOMIAL[0];
        for (size_t i = 1; i < std::size(L::POLYNOMIAL); i++) p = p * r + L::POLYNOMIAL[i];
        p = p * r + Number(1);
        return p * (Many)((typename L::Bits)shifted << L::MANTISSA);
    }
};

constexpr int64_t TILE = 4096;

constexpr double LOW = -std::numeric_limits<double>::infinity();

// The largest, in lanes, since a chain of comparisons waits for each one.
template <class Number> Number largest(const Number *held, int64_t size, Number out) {
    constexpr int WIDE = 4 * Lanes<Number>::WIDTH;
    if (size < WIDE) {
        for (int64_t i = 0; i < size; i++) out = held[i] > out ? held[i] : out;
        return out;
    }
    Number lane[WIDE];
    std::fill(lane, lane + WIDE, out);
    int64_t i = 0;
    for (; i + WIDE <= size; i += WIDE)
        for (int k = 0; k < WIDE; k++) lane[k] = held[i + k] > lane[k] ? held[i + k] : lane[k];
    for (; i < size; i++) lane[0] = held[i] > lane[0] ? held[i] : lane[0];
    return *std::max_element(lane, lane + WIDE);
}

// e^((logit - top) * scale) of some logits; `out` has room for a vector more, and may be `logits` where these have.
template <class Number> void exponentials(const Number *logits, int64_t size, Number top, Number scale, Number *out) {
    using Many = typename Lanes<Number>::Many;
    constexpr int WIDTH = Lanes<Number>::WIDTH;
    const Exponential<Number> exponential(scale);
    int64_t i = 0;
    for (; i + WIDTH <= size; i += WIDTH)
        *reinterpret_cast<Many *>(out + i) = exponential(*reinterpret_cast<const Many *>(logits + i) - top);
    if (i == size) return;
    Many last = Many{} + Number(LOW);
    for (int k = 0; i + k < size; k++) last[k] = logits[i + k];
    *reinterpret_cast<Many *>(out + i) = exponential(last - top);
}

// The sums of held[t][place[i]], and with MOST the largest of logits[place[i]] and `most`. A sum is cut, since a long one in
// float32 loses digits.
template <int T, bool MOST, class Number>
[[gnu::always_inline]] inline void sums_at(const Number (*held)[TILE + Lanes<Number>::WIDTH], const Number *logits, const uint16_t *place,
                                           int64_t size, double *sum, Number *most) {
    constexpr int64_t WAYS = 4, CUT = 128;
    Number high[WAYS] = {Number(LOW), Number(LOW), Number(LOW), Number(LOW)};
    double out[T] = {};
    while (size >= WAYS) {
        const int64_t end = std::min(size & -WAYS, CUT);
        Number part[T][WAYS] = {};
        for (int64_t i = 0; i < end; i += WAYS)
            for (int k = 0; k < WAYS; k++) {
                for (int t = 0; t < T; t++) part[t][k] += held[t][place[i + k]];
                if (MOST) high[k] = logits[place[i + k]] > high[k] ? logits[place[i + k]] : high[k];
            }
        for (int t = 0; t < T; t++) out[t] += double(part[t][0] + part[t][1]) + double(part[t][2] + part[t][3]);
        place += end, size -= end;
    }
    for (int64_t i = 0; i < size; i++) {
        for (int t = 0; t < T; t++) out[t] += held[t][place[i]];
        if (MOST) high[0] = logits[place[i]] > high[0] ? logits[place[i]] : high[0];
    }
    for (int t = 0; t < T; t++) sum[t] = out[t];
    if (MOST) *most = std::max({*most, high[0], high[1], high[2], high[3]});
}

// A vocabulary in tiles of TILE tokens, which a cache holds. The tokens of a class in a tile are a segment. Those without a
// class count as the last class. See tiles.py.
struct Tiles {
    const uint16_t *place;    // (V,): tile by tile, and there segment by segment, each token's place in its tile
    const int32_t *end;       // (S,): in this order, where the tokens of each segment end
    const int32_t *segment;   // (S,): in this order, the number of each segment if they are counted class by class
    const int32_t *cls;       // (S,): in this order, the class of each
    const int64_t *first;     // (N + 1,): in this order, the first segment of each tile
    const int64_t *of_class;  // (C + 2,): class by class, the first segment of each class
    int64_t size, classes, vocabulary;
};

// For each row of logits (A, V): the highest, `top`, and `most` (A, C), if given, of classes of tokens. For each of T
// temperatures, sums of exponentials, of the difference to the highest over the temperature: `sum` (T, A, C) of classes, `all`
// (T, A) of all tokens, and `parts` (T, A, S) of segments, class by class.
template <class Logit> struct Sums {
    const double *temperatures;
    int64_t num;
    Logit *top, *most;
    double *sum, *all, *parts;
};

// The segments of a tile of `size` logits, for temperatures `first` to first + T; part (T,), where their sums go.
template <int T, bool MOST, class Logit>
void sum_tile(const Logit *logits, int64_t size, const Tiles &tiles, int64_t tile, Logit top, const double *temperatures,
              double *const *part, Logit *most) {
    Logit held[T][TILE + Lanes<Logit>::WIDTH];
    double sum[T];
    for (int t = 0; t < T; t++) exponentials(logits, size, top, Logit(1 / Logit(temperatures[t])), held[t]);
    for (int64_t s = tiles.first[tile]; s < tiles.first[tile + 1]; s++) {
        const int64_t start = s ? tiles.end[s - 1] : 0, number = tiles.end[s] - start;
        if (MOST && tiles.cls[s] < tiles.classes)
            sums_at<T, true>(held, logits, tiles.place + start, number, sum, most + tiles.cls[s]);
        else
            sums_at<T, false, Logit>(held, nullptr, tiles.place + start, number, sum, nullptr);
        for (int t = 0; t < T; t++) part[t][tiles.segment[s]] = sum[t];
    }
}

// `Sums` of rows of logits. A tile's exponentials lie in their order, and its segments are gathered from there: from a whole
// row each would come from another line of a farther cache.
template <class Logit> void weigh_classes(const Logit *logits, int64_t rows, const Tiles &tiles, const Sums<Logit> &out, int32_t threads) {
    const int64_t classes = tiles.classes;
    if (out.most) std::fill(out.most, out.most + rows * classes, Logit(LOW));
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t row = 0; row < rows; row++) {
        const Logit *own = logits + row * tiles.vocabulary;
        Logit top = largest(own, tiles.vocabulary, Logit(LOW)), *most = out.most ? out.most + row * classes : nullptr;
        if (top == Logit(LOW)) top = 0;
        out.top[row] = top;
        auto parts = [&](int64_t t) { return out.parts + (t * rows + row) * tiles.size; };
        for (int64_t begin = 0, tile = 0; begin < tiles.vocabulary; begin += TILE, tile++) {
            auto add = [&](auto num, auto with_most, int64_t t) {
                double *const part[2] = {parts(t), parts(t + num - 1)};
                const int64_t size = std::min(TILE, tiles.vocabulary - begin);
                sum_tile<num, with_most>(own + begin, size, tiles, tile, top, out.temperatures + t, part, most);
            };
            using One = std::integral_constant<int, 1>;
            using Two = std::integral_constant<int, 2>;
            int64_t t = 0;
            if (most) add(One{}, std::true_type{}, t++);
            for (; t + 1 < out.num; t += 2) add(Two{}, std::false_type{}, t);
            if (t < out.num) add(One{}, std::false_type{}, t);
        }
        for (int64_t t = 0; t < out.num; t++) {
            const double *part = parts(t);
            double *of_class = out.sum + (t * rows + row) * classes, total = 0;
            for (int64_t c = 0; c <= classes; c++) {
                const double here = std::accumulate(part + tiles.of_class[c], part + tiles.of_class[c + 1], 0.0);
                if (c < classes) of_class[c] = here;
                total += here;
            }
            out.all[t * rows + row] = total;
        }
    }
}

// The first token of a class with a logit that one of them has.
template <class Logit>
int32_t token_with(const Logit *logits, int64_t vocabulary, Logit wanted, const int32_t *class_of_token, int32_t own) {
    constexpr int64_t STEP = 128;
    auto among = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            if (logits[i] == wanted && class_of_token[i] == own) return int32_t(i);
        return -1;
    };
    int64_t begin = 0;
    for (; begin + STEP <= vocabulary; begin += STEP) {
        int32_t number = 0;
        for (int64_t i = 0; i < STEP; i++) number += logits[begin + i] == wanted;
        int32_t found = number ? among(begin, begin + STEP) : -1;
        if (found >= 0) return found;
    }
    return among(begin, vocabulary);
}

// The likeliest token of a class of each row, the first of several; `most` (A, C) is of `weigh_classes`.
template <class Logit>
void first_tokens(const Logit *logits, int64_t rows, int64_t vocabulary, const Logit *most, int64_t classes, const int32_t *class_of_token,
                  const int64_t *chosen, int64_t *tokens, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t row = 0; row < rows; row++)
        tokens[row] = token_with(logits + row * vocabulary, vocabulary, most[row * classes + chosen[row]], class_of_token, int32_t(chosen[row]));
}

// One of some tokens, drawn by u in [0, 1) from their logits. They are in `num` segments, which begin at starts[k] - starts[0]
// and have the sums parts[k] of exponentials of the difference to `top`; or `num` is 0 where that is not known.
template <class Logit>
int32_t draw_token(const Logit *logits, const int32_t *tokens, int64_t size, Logit temperature, Logit top, const double *parts,
                   const int64_t *starts, int64_t num, double u) {
    if (size == 1) return tokens[0];
    Logit held[TILE + Lanes<Logit>::WIDTH];
    const bool known = num > 0;
    auto begin = [&](int64_t k) { return known ? starts[k] - starts[0] : std::min(size, k * TILE); };
    auto gather = [&](int64_t k) {
        const int64_t first = begin(k), number = begin(k + 1) - first;
        for (int64_t i = 0; i < number; i++) held[i] = logits[tokens[first + i]];
        return number;
    };
    if (!known) num = (size + TILE - 1) / TILE, top = Logit(LOW);
    for (int64_t k = 0; !known && k < num; k++) top = largest(held, gather(k), top);
    auto weights = [&](int64_t k) {
        const int64_t number = gather(k);
        exponentials(held, number, top, 1 / temperature, held);
        return number;
    };
    vector<double> cumulated;
    for (int64_t k = 0; k < num; k++) {
        double sum = known ? parts[k] : 0;
        for (int64_t i = 0, number = known ? 0 : weights(k); i < number; i++) sum += held[i];
        cumulated.push_back(sum + (k ? cumulated.back() : 0));
    }
    double rest;
    const int64_t k = Paths::pick(cumulated, u, &rest), number = weights(k);
    cumulated.assign(held, held + number);
    std::partial_sum(cumulated.begin(), cumulated.end(), cumulated.begin());
    return tokens[begin(k) + Paths::pick(cumulated, rest, &rest)];
}

// Draws: of each a row of logits (A, V), its tokens, and its segments, of which parts (A, S) has the sums.
struct Draws {
    const int32_t *tokens;
    const int64_t *row, *begin, *end, *first_part, *num_parts;  // (N,): the place of tokens, and of segments
    const double *u;                                            // (N,)
    const double *parts;
    const int64_t *starts;  // of all segments
    int64_t size, vocabulary, all_parts;
};

template <class Logit>
void draw_tokens(const Logit *logits, const Logit *top, double temperature, const Draws &draws, int64_t *out, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t n = 0; n < draws.size; n++) {
        const int64_t row = draws.row[n], part = draws.first_part[n], begin = draws.begin[n];
        out[n] = draw_token(logits + row * draws.vocabulary, draws.tokens + begin, draws.end[n] - begin, Logit(temperature), top[row],
                            draws.parts + row * draws.all_parts + part, draws.starts + part, draws.num_parts[n], draws.u[n]);
    }
}

// Of each of some lists of columns the sums, or with BEST the largest, in each row: values (P, N) to out (P, M). List m is
// members[starts[m]] to ...[starts[m + 1]], and not empty.
template <bool BEST>
void reduce_lists(const double *values, int64_t rows, int64_t columns, const int32_t *members, const int64_t *starts, int64_t num,
                  double *out) {
    auto reduce = [&](auto together, int64_t row) {  // of so many rows, since each addition waits for the last
        const double *held[together];
        for (int r = 0; r < together; r++) held[r] = values + (row + r) * columns;
        for (int64_t m = 0; m < num; m++) {
            double own[together];
            for (int r = 0; r < together; r++) own[r] = held[r][members[starts[m]]];
            for (int64_t i = starts[m] + 1; i < starts[m + 1]; i++)
                for (int r = 0; r < together; r++) {
                    const double next = held[r][members[i]];
                    own[r] = BEST ? std::max(own[r], next) : own[r] + next;
                }
            for (int r = 0; r < together; r++) out[(row + r) * num + m] = own[r];
        }
    };
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) reduce(std::integral_constant<int, 4>{}, row);
    for (; row < rows; row++) reduce(std::integral_constant<int, 1>{}, row);
}

// Of each of some rows of classes' weights (N, C) a class of a list, drawn by u in [0, 1), and the unused part of u. The list
// of row n is members[starts[list[n]]] to ...[starts[list[n] + 1]].
inline void draw_members(const double *weights, int64_t rows, int64_t columns, const int32_t *members, const int64_t *starts,
                         const int64_t *list, const double *u, int64_t *chosen, double *rest) {
    vector<double> cumulated;
    for (int64_t n = 0; n < rows; n++, weights += columns) {
        const int32_t *begin = members + starts[list[n]], *end = members + starts[list[n] + 1];
        cumulated.clear();
        for (const int32_t *c = begin; c < end; c++) cumulated.push_back(weights[*c] + (c > begin ? cumulated.back() : 0));
        chosen[n] = begin[Paths::pick(cumulated, u[n], rest + n)];
    }
}

}  // namespace daguerre
