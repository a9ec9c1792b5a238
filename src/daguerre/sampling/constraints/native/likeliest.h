// Top-p within a language.

#pragma once

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <memory>

#include "weights.h"

namespace daguerre {

// The tokens of a vocabulary by class: those of class c are order[first[c]] to ...[c + 1].
struct Classes {
    const int32_t *of_token, *order;  // (V,); of_token is -1 for none
    const int64_t *first;             // (C + 1,)
    int64_t classes, vocabulary;
};

// The fewest likeliest tokens of a row whose probabilities sum to `share`; of equally likely ones the first. The probability
// of a token is e^(its logit over the temperature + factor[its class]); those below e^least are left out.
//
// What the unlikely tokens have together is estimated from a sample, which gives a bound. Tokens above it are found by
// comparing logits alone: with one number for the large classes, class by class for the others. Then these few are looked at
// in float64. If they have less than the share, the bound was too high, and is lowered; so the estimate costs time at most.
template <class Logit> class Likeliest {
    static constexpr int64_t RUN = 16, EVERY = 64;  // one run of so many tokens is sampled of so many runs
    static constexpr int64_t FEW = 16384;           // a vocabulary up to which nothing is estimated
    static constexpr int64_t LARGE = 256;           // a class is large that has one of so many tokens
    static constexpr int PER_NAT = 16;              // bins of logarithms
    static constexpr double SPARED = 0.8;           // of what may be left out, so much is left out unseen
    static constexpr double LOWERED = 0.25;         // by so much at first, then by twice as much each time
    static constexpr double SLACK = 1e-3;           // of a logarithm, more than comparing logits errs

    const Classes &on_;
    vector<float> more_;             // (C + 1,), of classes, and first of none
    vector<Logit> needed_, sought_;  // (C + 1,): a token's least logit; the second infinite for classes that are not large
    std::unique_ptr<int32_t[]> found_, cls_;  // tokens, few of many, and the class of each
    vector<int32_t> bin_, last_, chosen_;
    vector<double> log_, prob_, mass_;
    vector<int64_t> next_;

  public:
    explicit Likeliest(const Classes &on)
        : on_(on), more_(on.classes + 1), needed_(on.classes + 1), sought_(on.classes + 1),
          found_(new int32_t[on.vocabulary + RUN]), cls_(new int32_t[on.vocabulary + 1]) {}

    // `kept` and `probs` begin with the tokens and their probabilities, class by class, each in ascending order; those of
    // class c end at ends[c], and have shares[c].
    void keep(const Logit *logits, const double *factor, double temperature, Logit top, double least, double share, double *shares,
              int32_t *kept, double *probs, int64_t *ends) {
        double bound = on_.vocabulary > FEW ? std::max(least, estimated(logits, factor, temperature, top, least, share)) : least;
        for (double by = LOWERED; look(logits, factor, temperature, top, least, bound) < share && bound > least; by *= 2)
            bound = std::max(least, bound - by);
        const int size = choose(least, share);
        next_.assign(on_.classes + 1, 0);
        for (int i = 0; i < size; i++) next_[cls_[chosen_[i]] + 1]++;
        std::partial_sum(next_.begin(), next_.end(), next_.begin());
        for (int i = 0; i < size; i++) {
            const int64_t place = next_[cls_[chosen_[i]]]++;
            kept[place] = found_[chosen_[i]], probs[place] = prob_[chosen_[i]];
        }
        for (int64_t c = 0, begin = 0; c < on_.classes; begin = ends[c++]) {
            ends[c] = next_[c];
            shares[c] = std::accumulate(probs + begin, probs + ends[c], 0.0);
        }
    }

  private:
    bool is_large(int64_t c) const { return (on_.first[c + 1] - on_.first[c]) * LARGE > on_.vocabulary; }

    // The logarithm of a probability below which tokens have, by a sample, SPARED of what may be left out.
    double estimated(const Logit *logits, const double *factor, double temperature, Logit top, double least, double share) {
        const float scale = float(1 / temperature);
        more_[0] = float(LOW);
        for (int64_t c = 0; c < on_.classes; c++) more_[c + 1] = float(factor[c] + double(top) / temperature);
        const int bins = int(-least * PER_NAT) + 2;
        mass_.assign(bins, 0.0);
        float logs[RUN], probs[RUN + Lanes<float>::WIDTH];
        for (int64_t begin = 0; begin + RUN <= on_.vocabulary; begin += RUN * EVERY) {
            for (int64_t i = 0; i < RUN; i++)
                logs[i] = std::min(0.0f, float(logits[begin + i] - top) * scale + more_[on_.of_token[begin + i] + 1]);
            exponentials(logs, RUN, 0.0f, 1.0f, probs);
            for (int64_t i = 0; i < RUN; i++) mass_[int(std::min(-logs[i] * PER_NAT, float(bins - 1)))] += probs[i];
        }
        int bin = bins - 1;
        for (double left = 0; bin > 0 && left <= SPARED * (1 - share); bin--) left += mass_[bin] * EVERY;
        return -double(bin + 2) / PER_NAT;
    }

    // Appends those of some tokens whose logits reach a bound.
    static int32_t *reaching(const Logit *logits, const int32_t *tokens, int64_t size, Logit bound, int32_t *out) {
        for (int64_t i = 0; i < size; i++) *out = tokens[i], out += logits[tokens[i]] >= bound;
        return out;
    }
    static int32_t *reaching(const Logit *logits, int64_t size, Logit bound, int32_t *out) {
        int64_t i = 0;
#ifdef __AVX512F__
        if constexpr (sizeof(Logit) == 4) {
            const __m512i step = _mm512_set1_epi32(16);
            __m512i tokens = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            for (; i + 16 <= size; i += 16, tokens = _mm512_add_epi32(tokens, step)) {
                const __mmask16 held = _mm512_cmp_ps_mask(_mm512_loadu_ps(logits + i), _mm512_set1_ps(bound), _CMP_GE_OQ);
                _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(held, tokens));
                out += __builtin_popcount(held);
            }
        }
#endif
        for (; i < size; i++) *out = int32_t(i), out += logits[i] >= bound;
        return out;
    }

    // Lists the tokens with logarithms of at least the bound, and some below, and returns their sum.
    double look(const Logit *logits, const double *factor, double temperature, Logit top, double least, double bound) {
        const Logit never = std::numeric_limits<Logit>::infinity();
        needed_[0] = sought_[0] = never;
        Logit lowest = never;
        for (int64_t c = 0; c < on_.classes; c++) {
            const double logit = (bound - SLACK - factor[c]) * temperature;
            const Logit needed = Logit(logit - 4e-7 * std::abs(logit));
            needed_[c + 1] = needed > top || factor[c] == LOW ? never : needed;
            sought_[c + 1] = is_large(c) ? needed_[c + 1] : never;
            lowest = std::min(lowest, sought_[c + 1]);
        }
        const int64_t all = lowest < never ? reaching(logits, on_.vocabulary, lowest, found_.get()) - found_.get() : 0;
        int size = 0;
        for (int64_t i = 0; i < all; i++) {
            const int32_t token = found_[i], cls = on_.of_token[token];
            found_[size] = token, cls_[size] = cls, size += logits[token] >= sought_[cls + 1];
        }
        for (int64_t c = 0; c < on_.classes; c++) {
            if (is_large(c) || needed_[c + 1] == never) continue;
            const int64_t first = on_.first[c], number = on_.first[c + 1] - first;
            const int32_t *end = reaching(logits, on_.order + first, number, needed_[c + 1], found_.get() + size);
            while (found_.get() + size < end) cls_[size++] = int32_t(c);
        }
        log_.resize(size), prob_.resize(size + Lanes<double>::WIDTH);
        for (int i = 0; i < size; i++) log_[i] = double(logits[found_[i]]) / temperature + factor[cls_[i]];
        exponentials(log_.data(), size, 0.0, 1.0, prob_.data());
        for (int i = 0; i < size; i++) prob_[i] = log_[i] < least ? 0.0 : prob_[i];
        return std::accumulate(prob_.begin(), prob_.begin() + size, 0.0);
    }

    // Sums probabilities by bins of their logarithms, and chooses the bins above the one in which the share is reached; only
    // that one is sorted. How many are `chosen_`.
    int choose(double least, double share) {
        const int bins = std::max(1, int(-least * PER_NAT) + 2), size = int(log_.size());
        bin_.resize(size), chosen_.resize(size), last_.resize(size);
        for (int i = 0; i < size; i++) bin_[i] = prob_[i] > 0 ? std::min(bins - 1, std::max(0, int(-log_[i] * PER_NAT))) : bins;
        mass_.assign(bins + 1, 0.0);
        for (int i = 0; i < size; i++) mass_[bin_[i]] += prob_[i];
        int last = 0, number = 0, in_last = 0;
        double sum = 0;
        while (last < bins - 1 && sum + mass_[last] < share) sum += mass_[last++];
        for (int i = 0; i < size; i++) {
            chosen_[number] = last_[in_last] = i;
            number += bin_[i] < last, in_last += bin_[i] == last;
        }
        std::sort(last_.begin(), last_.begin() + in_last,
                  [&](int32_t a, int32_t b) { return log_[a] != log_[b] ? log_[a] > log_[b] : found_[a] < found_[b]; });
        int more = 0;
        while (more < in_last && sum < share) sum += prob_[last_[more++]];
        std::copy(last_.begin(), last_.begin() + more, chosen_.begin() + number);
        std::sort(chosen_.begin() + number, chosen_.begin() + number + more);
        std::inplace_merge(chosen_.begin(), chosen_.begin() + number, chosen_.begin() + number + more);
        return number + more;
    }
};

// `Likeliest` for each of some rows: shares (A, C), kept (A, V), probs (A, V), ends (A, C).
template <class Logit>
void keep_likeliest(const Logit *logits, int64_t rows, const Classes &on, const double *factor, double temperature, const Logit *top,
                    double least, double share, double *shares, int32_t *kept, double *probs, int64_t *ends, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
        Likeliest<Logit> likeliest(on);
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < rows; row++)
            likeliest.keep(logits + row * on.vocabulary, factor + row * on.classes, temperature, top[row], least, share,
                           shares + row * on.classes, kept + row * on.vocabulary, probs + row * on.vocabulary, ends + row * on.classes);
    }
}

// (N,): of each pair of ends the token at which u in [0, 1) of the sum of these weights is reached.
inline void draw_kept(const int32_t *kept, const double *probs, const int64_t *begin, const int64_t *end, const double *u, int64_t size,
                      int64_t *out) {
    for (int64_t n = 0; n < size; n++) {
        const double at = u[n] * std::accumulate(probs + begin[n], probs + end[n], 0.0);
        int64_t place = begin[n];
        for (double sum = probs[place]; sum <= at && place + 1 < end[n]; sum += probs[place]) place++;
        out[n] = kept[place];
    }
}

}  // namespace daguerre
