// From logits to the weights of classes of tokens.

#pragma once

#include <cmath>
#include <numeric>

#include "limits.h"

namespace daguerre {

constexpr int LANES = 8;
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4)));

// e^x for x <= 0, to about one part in ten million; 0 below -87.
inline Floats exponential(Floats x) {
    Floats held = x < -87.0f ? Floats{} - 87.0f : x;
    Ints whole = __builtin_convertvector(held * 1.44269504f - 0.5f, Ints);  // rounds to the nearest, since x <= 0
    Floats rounded = __builtin_convertvector(whole, Floats), r = held - rounded * 0.693359375f + rounded * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Ints bits = ((whole + 127) << 23) & (x >= -87.0f);
    return p * (Floats)bits;
}

constexpr int64_t BLOCK = 256;

constexpr double LOW = -std::numeric_limits<double>::infinity();

// The largest, in lanes, since a chain of comparisons waits for each one.
template <class Number> Number largest(const Number *held, int64_t size, Number out) {
    Number lane[LANES];
    std::fill(lane, lane + LANES, out);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        for (int k = 0; k < LANES; k++) lane[k] = held[i + k] > lane[k] ? held[i + k] : lane[k];
    for (; i < size; i++) lane[0] = held[i] > lane[0] ? held[i] : lane[0];
    return *std::max_element(lane, lane + LANES);
}

// The sum of e^((held - top) * scale) of at most a block, which become these exponentials.
inline double sum_of_exponentials(float *held, int64_t size, float top, float scale) {
    const float low = -std::numeric_limits<float>::infinity();
    while (size % LANES) held[size++] = low;  // a block has room
    Floats sum = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        Floats each = exponential((*reinterpret_cast<Floats *>(held + i) - top) * scale);
        *reinterpret_cast<Floats *>(held + i) = each;
        sum += each;
    }
    double out = 0;
    for (int k = 0; k < LANES; k++) out += sum[k];
    return out;
}
inline double sum_of_exponentials(double *held, int64_t size, double top, double scale) {
    double out = 0;
    for (int64_t i = 0; i < size; i++) out += held[i] = std::exp((held[i] - top) * scale);
    return out;
}

// For each row of logits (A, V): the highest, `sum` (A, C) and `most` (A, C), if given, of classes of tokens, and the sum of
// all tokens; exponentials are of the difference to the highest, over the temperature. The tokens of class c are order[first[c]]
// to ...[c + 1], and those behind the last class have none. `blocks`, if given, are the sums of each block of a class, row by row.
template <class Logit>
void weigh_classes(const Logit *logits, int64_t rows, int64_t vocabulary, const int32_t *order, const int64_t *first, int64_t classes,
                   Logit temperature, Logit *top, double *sum, Logit *most, double *all, double *blocks) {
    Logit held[BLOCK];
    for (int64_t row = 0; row < rows; row++) {
        const Logit *own = logits + row * vocabulary;
        Logit highest = largest(own, vocabulary, Logit(LOW)), scale = 1 / temperature;
        if (highest == Logit(LOW)) highest = 0;
        top[row] = highest;
        double total = 0;
        for (int64_t c = 0; c <= classes; c++) {  // the last are the tokens without a class
            Logit most_here = Logit(LOW);
            double here = 0;
            int64_t end = c < classes ? first[c + 1] : vocabulary;
            for (int64_t begin = first[c]; begin < end; begin += BLOCK) {
                int64_t size = std::min(BLOCK, end - begin);
                for (int64_t i = 0; i < size; i++) held[i] = own[order[begin + i]];
                if (most) most_here = largest(held, size, most_here);
                double part = sum_of_exponentials(held, size, highest, scale);
                here += part;
                if (blocks && c < classes) *blocks++ = part;
            }
            total += here;
            if (c < classes) sum[row * classes + c] = here;
            if (c < classes && most) most[row * classes + c] = most_here;
        }
        all[row] = total;
    }
}

// One of some tokens, drawn by u in [0, 1) from their logits; `top` and `blocks` are of `weigh_classes`, or `blocks` is null.
template <class Logit>
int32_t draw_token(const Logit *logits, const int32_t *tokens, int64_t size, Logit temperature, Logit top, const double *blocks, double u) {
    Logit held[BLOCK], scale = 1 / temperature;
    if (!blocks) top = Logit(LOW);
    auto block = [&](int64_t begin) {
        int64_t number = std::min(BLOCK, size - begin);
        for (int64_t i = 0; i < number; i++) held[i] = logits[tokens[begin + i]];
        return number;
    };
    for (int64_t begin = 0; !blocks && begin < size; begin += BLOCK) {
        int64_t number = block(begin);
        top = largest(held, number, top);
    }
    vector<double> cumulated;
    for (int64_t begin = 0; begin < size; begin += BLOCK) {
        double sum = blocks ? *blocks++ : sum_of_exponentials(held, block(begin), top, scale);
        cumulated.push_back(sum + (begin ? cumulated.back() : 0));
    }
    double rest;
    int64_t begin = Paths::pick(cumulated, u, &rest) * BLOCK, number = block(begin);
    sum_of_exponentials(held, number, top, scale);
    cumulated.assign(held, held + number);
    std::partial_sum(cumulated.begin(), cumulated.end(), cumulated.begin());
    return tokens[begin + Paths::pick(cumulated, rest, &rest)];
}

// The fewest likeliest tokens of a row whose probabilities sum to `share`; of equally likely ones the first. The probability
// of a token is e^(its logit over the temperature + factor[its class]); those below e^least are left out. Other entries of
// `out` (V,) become minus infinity.
//
// A first pass sums probabilities by bins of their logarithms, a second keeps the bins above the one in which the sum is
// reached; only that bin is sorted.
template <class Logit>
void keep_likeliest(const Logit *logits, int64_t vocabulary, const int32_t *order, const int64_t *first, int64_t classes,
                    const double *factor, double temperature, double least, double share, Logit *out) {
    constexpr int PER_NAT = 16;
    const int bins = std::max(1, int(-least * PER_NAT) + 2);
    vector<double> mass(bins, 0.0);
    Logit held[BLOCK];
    auto each = [&](auto act) {  // the tokens that are likely enough, with the logarithm of their probability and its bin
        for (int64_t c = 0; c < classes; c++) {
            if (factor[c] == LOW) continue;
            const double bound = (least - factor[c]) * temperature;
            for (int64_t begin = first[c]; begin < first[c + 1]; begin += BLOCK) {
                int64_t size = std::min(BLOCK, first[c + 1] - begin);
                for (int64_t i = 0; i < size; i++) held[i] = logits[order[begin + i]];
                if (double(largest(held, size, Logit(LOW))) < bound) continue;
                for (int64_t i = 0; i < size; i++) {
                    if (double(held[i]) < bound) continue;
                    double log = double(held[i]) / temperature + factor[c];
                    act(order[begin + i], log, std::min(bins - 1, std::max(0, int(-log * PER_NAT))));
                }
            }
        }
    };
    each([&](int32_t, double log, int bin) { mass[bin] += std::exp(log); });
    int last = 0;
    double sum = 0;
    while (last < bins - 1 && sum + mass[last] < share) sum += mass[last++];
    std::fill(out, out + vocabulary, Logit(LOW));
    vector<std::pair<double, int32_t>> found;
    each([&](int32_t token, double log, int bin) {
        if (bin < last) out[token] = logits[token];
        if (bin == last) found.push_back({-log, token});
    });
    std::sort(found.begin(), found.end());
    for (auto [negative, token] : found) {
        if (sum >= share) break;
        sum += std::exp(-negative), out[token] = logits[token];
    }
}

}  // namespace daguerre
