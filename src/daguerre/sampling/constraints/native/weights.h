// From logits to the weights of classes of tokens.

#pragma once

#include <cmath>
#include <numeric>

#include "limits.h"

namespace daguerre {

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;  // longer vectors would be passed through memory
#endif
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
    constexpr int WIDE = 4 * LANES;
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

// The sum of e^((held - top) * scale) of at most a block, which become these exponentials if they are to be kept.
template <bool KEEP> double sum_of_exponentials(float *held, int64_t size, float top, float scale) {
    const float low = -std::numeric_limits<float>::infinity();
    while (size % LANES) held[size++] = low;  // a block has room
    Floats sum = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        Floats each = exponential((*reinterpret_cast<Floats *>(held + i) - top) * scale);
        if (KEEP) *reinterpret_cast<Floats *>(held + i) = each;
        sum += each;
    }
    double out = 0;
    for (int k = 0; k < LANES; k++) out += sum[k];
    return out;
}
template <bool KEEP> double sum_of_exponentials(double *held, int64_t size, double top, double scale) {
    double out = 0;
    for (int64_t i = 0; i < size; i++) {
        double each = std::exp((held[i] - top) * scale);
        if (KEEP) held[i] = each;
        out += each;
    }
    return out;
}

// For each row of logits (A, V): the highest, and `most` (A, C), if given, of classes of tokens. For each of T temperatures,
// sums of exponentials, of the difference to the highest over the temperature: `sum` (T, A, C) of classes, `all` (T, A) of all
// tokens, and `blocks` (T, A, B) of each block of a class. The tokens of class c are order[first[c]] to ...[c + 1], and those
// behind the last class have none.
template <class Logit>
void weigh_classes(const Logit *logits, int64_t rows, int64_t vocabulary, const int32_t *order, const int64_t *first, int64_t classes,
                   const double *temperatures, int64_t num, Logit *top, double *sum, Logit *most, double *all, double *blocks,
                   int32_t threads) {
    int64_t num_blocks = 0;
    for (int64_t c = 0; c < classes; c++) num_blocks += (first[c + 1] - first[c] + BLOCK - 1) / BLOCK;
    std::fill(sum, sum + num * rows * classes, 0.0);
    std::fill(all, all + num * rows, 0.0);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t row = 0; row < rows; row++) {
        Logit held[BLOCK];
        const Logit *own = logits + row * vocabulary;
        Logit highest = largest(own, vocabulary, Logit(LOW));
        if (highest == Logit(LOW)) highest = 0;
        top[row] = highest;
        double *block = blocks + row * num_blocks;
        for (int64_t c = 0; c <= classes; c++) {  // the last are the tokens without a class
            Logit most_here = Logit(LOW);
            int64_t end = c < classes ? first[c + 1] : vocabulary;
            for (int64_t begin = first[c]; begin < end; begin += BLOCK) {
                int64_t size = std::min(BLOCK, end - begin);
                for (int64_t i = 0; i < size; i++) held[i] = own[order[begin + i]];
                if (most) most_here = largest(held, size, most_here);
                for (int64_t t = 0; t < num; t++) {
                    double part = sum_of_exponentials<false>(held, size, highest, Logit(1 / Logit(temperatures[t])));
                    all[t * rows + row] += part;
                    if (c == classes) continue;
                    sum[(t * rows + row) * classes + c] += part;
                    block[t * rows * num_blocks] = part;
                }
                block++;
            }
            if (c < classes && most) most[row * classes + c] = most_here;
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
        double sum = blocks ? *blocks++ : sum_of_exponentials<false>(held, block(begin), top, scale);
        cumulated.push_back(sum + (begin ? cumulated.back() : 0));
    }
    double rest;
    int64_t begin = Paths::pick(cumulated, u, &rest) * BLOCK, number = block(begin);
    sum_of_exponentials<true>(held, number, top, scale);
    cumulated.assign(held, held + number);
    std::partial_sum(cumulated.begin(), cumulated.end(), cumulated.begin());
    return tokens[begin + Paths::pick(cumulated, rest, &rest)];
}

// The fewest likeliest tokens of rows whose probabilities sum to `share`; of equally likely ones the first. The probability
// of a token is e^(its logit over the temperature + factor[its class]); those below e^least are left out. `kept` (A, V) begins
// with `count` (A,) tokens in their order, whose probabilities `shares` (A, C) sums by class.
//
// In float32 a bound is found that leaves a little more than `share` above it, then the few tokens above that are looked at
// exactly.
class Likeliest {
    static constexpr int BOUNDS = 8;          // tried at a time
    static constexpr double SLACK = 1e-3;     // more than the error of the sums in float32
    static constexpr float CLOSE = 0.2f;      // logarithm of the highest bound found to the next one tried above it
    static constexpr int PER_NAT = 16;        // bins of logarithms
    struct Near {
        double log, prob;
        int32_t token, cls;
        bool kept;
    };
    vector<float> prob_, more_;  // of tokens, and of classes
    vector<double> mass_;
    vector<Near> near_;
    vector<int32_t> last_;

    template <class Logit>
    static void logarithms(const Logit *__restrict logits, const int32_t *__restrict classes, int64_t size, Logit top, float scale,
                           const float *__restrict more, float *__restrict out) {
        for (int64_t i = 0; i < size; i++) out[i] = float(logits[i] - top) * scale + more[classes[i]];
    }
    // Adds probabilities to the sums over those that reach each of some bounds.
    static void add(const float *prob, int64_t size, const float *bounds, Floats *above) {
        Floats sums[BOUNDS], least[BOUNDS];  // in registers
        for (int k = 0; k < BOUNDS; k++) sums[k] = above[k], least[k] = Floats{} + bounds[k];
        for (int64_t i = 0; i < size; i += LANES) {
            Floats each = *reinterpret_cast<const Floats *>(prob + i);
            for (int k = 0; k < BOUNDS; k++) sums[k] += (Floats)((Ints)each & (each >= least[k]));
        }
        for (int k = 0; k < BOUNDS; k++) above[k] = sums[k];
    }
    // The lowest of BOUNDS steps down from e^high to e^low, and where sums reach `wanted`: the step below, else `low`.
    template <class Sums> static std::pair<float, float> narrowed(float low, float high, double wanted, Sums sums) {
        float bounds[BOUNDS];
        Floats above[BOUNDS] = {};
        auto log = [&](int k) { return high + (low - high) * float(k + 1) / (BOUNDS + 1); };
        for (int k = 0; k < BOUNDS; k++) bounds[k] = std::exp(log(k));
        sums(bounds, above);
        for (int k = 0; k < BOUNDS; k++) {
            double sum = 0;
            for (int i = 0; i < LANES; i++) sum += above[k][i];
            if (sum >= wanted) return {log(k), k ? log(k - 1) : high};
        }
        return {low, log(BOUNDS - 1)};
    }

  public:
    template <class Logit>
    void keep(const Logit *logits, int64_t vocabulary, const int32_t *class_of_token, int64_t classes, const double *factor,
              double temperature, Logit top, double least, double share, double *shares, int32_t *kept, int64_t *count) {
        prob_.resize(vocabulary + LANES);
        more_.assign(classes + 1, float(LOW));  // the first is that of no class
        for (int64_t c = 0; c < classes; c++) more_[c + 1] = float(factor[c] + double(top) / temperature);
        const float scale = float(1 / temperature);
        float low = float(least - SLACK), high = SLACK;
        std::tie(low, high) = narrowed(low, high, share * (1 + SLACK), [&](const float *bounds, Floats *above) {
            for (int64_t begin = 0; begin < vocabulary; begin += BLOCK) {
                const int64_t size = std::min(BLOCK, vocabulary - begin);
                float *own = prob_.data() + begin;
                logarithms(logits + begin, class_of_token + begin, size, top, scale, more_.data() + 1, own);
                for (int64_t i = size; i % LANES; i++) own[i] = float(LOW);
                for (int64_t i = 0; i < size; i += LANES) {
                    Floats &each = *reinterpret_cast<Floats *>(own + i);
                    each = exponential(each);
                }
                add(own, size, bounds, above);
            }
        });
        while (high - low > CLOSE) {
            std::tie(low, high) = narrowed(low, high, share * (1 + SLACK), [&](const float *bounds, Floats *above) {
                add(prob_.data(), vocabulary, bounds, above);
            });
        }
        near_.clear();
        const float bound = std::exp(low - float(SLACK));
        for (int64_t begin = 0; begin < vocabulary; begin += LANES) {
            int32_t number = 0;
            for (int k = 0; k < LANES; k++) number += prob_[begin + k] >= bound;
            for (int64_t i = begin; number && i < std::min(begin + LANES, vocabulary); i++) {
                if (prob_[i] < bound) continue;
                const int32_t cls = class_of_token[i];
                double log = double(logits[i]) / temperature + factor[cls];
                if (log >= least) near_.push_back({log, std::exp(log), int32_t(i), cls, false});
            }
        }
        choose(least, share);
        std::fill(shares, shares + classes, 0.0);
        *count = 0;
        for (const Near &each : near_)
            if (each.kept) kept[(*count)++] = each.token, shares[each.cls] += each.prob;
    }

  private:
    // Sums probabilities by bins of their logarithms, and keeps the bins above the one in which the share is reached; only
    // that bin is sorted.
    void choose(double least, double share) {
        const int bins = std::max(1, int(-least * PER_NAT) + 2);
        auto bin_of = [&](const Near &each) { return std::min(bins - 1, std::max(0, int(-each.log * PER_NAT))); };
        mass_.assign(bins, 0.0);
        for (const Near &each : near_) mass_[bin_of(each)] += each.prob;
        int last = 0;
        double sum = 0;
        while (last < bins - 1 && sum + mass_[last] < share) sum += mass_[last++];
        last_.clear();
        for (size_t i = 0; i < near_.size(); i++) {
            int bin = bin_of(near_[i]);
            near_[i].kept = bin < last;
            if (bin == last) last_.push_back(i);
        }
        std::sort(last_.begin(), last_.end(), [&](int32_t a, int32_t b) {
            return near_[a].log != near_[b].log ? near_[a].log > near_[b].log : near_[a].token < near_[b].token;
        });
        for (int32_t i : last_) {
            if (sum >= share) break;
            sum += near_[i].prob, near_[i].kept = true;
        }
    }
};

template <class Logit>
void keep_likeliest(const Logit *logits, int64_t rows, int64_t vocabulary, const int32_t *class_of_token, int64_t classes,
                    const double *factor, double temperature, const Logit *top, double least, double share, double *shares, int32_t *kept,
                    int64_t *count, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
        Likeliest likeliest;
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < rows; row++)
            likeliest.keep(logits + row * vocabulary, vocabulary, class_of_token, classes, factor + row * classes, temperature, top[row],
                           least, share, shares + row * classes, kept + row * vocabulary, count + row);
    }
}

}  // namespace daguerre
