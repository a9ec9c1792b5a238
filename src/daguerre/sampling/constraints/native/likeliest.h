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
    int64_t size(int64_t c) const { return first[c + 1] - first[c]; }
};

// Logits of a row, and the logarithm of the probability of a token: its logit over the temperature, and its class's factor.
template <class Logit> struct Row {
    const Logit *logits;
    const double *factor;  // (C,)
    double temperature;
    Logit top;

    double log(Logit logit, double own_factor) const { return double(logit) * (1 / temperature) + own_factor; }
    // A logit that all tokens have with logarithms of at least `least`, and hardly another; infinite where none has.
    Logit needed(double least, double own_factor) const {
        constexpr double SLACK = 1e-3;  // more than this may err
        const double logit = (least - SLACK - own_factor) * temperature;
        const Logit out = Logit(logit - 4e-7 * std::abs(logit));
        return out > top || own_factor == LOW ? std::numeric_limits<Logit>::infinity() : out;
    }
};

// Which of the first `size` logits reach a bound: `tokens` has room for 16 more. How many they are.
template <class Logit> int64_t reaching(const Logit *logits, int64_t size, Logit bound, int32_t *tokens) {
    int64_t number = 0, i = 0;
#ifdef __AVX512F__
    if constexpr (sizeof(Logit) == 4) {
        const __m512i step = _mm512_set1_epi32(16);
        __m512i own = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (; i + 16 <= size; i += 16, own = _mm512_add_epi32(own, step)) {
            const __mmask16 reach = _mm512_cmp_ps_mask(_mm512_loadu_ps(logits + i), _mm512_set1_ps(bound), _CMP_GE_OQ);
            _mm512_storeu_si512(tokens + number, _mm512_maskz_compress_epi32(reach, own));
            number += __builtin_popcount(reach);
        }
    }
#endif
    for (; i < size; i++) tokens[number] = int32_t(i), number += logits[i] >= bound;
    return number;
}

// Some tokens of a row, of each class in ascending order; their classes and their probabilities, 0 for those not kept.
struct Kept {
    std::unique_ptr<int32_t[]> token, cls;
    std::unique_ptr<float[]> prob;
    int64_t size = 0;

    void reserve(int64_t most) { token.reset(new int32_t[most]), cls.reset(new int32_t[most]), prob.reset(new float[most]); }

    // One of a class, drawn by u in [0, 1): first a block of tokens, then one of them.
    int64_t draw(int32_t own, double u) const {
        constexpr int64_t BLOCK = 64;
        vector<double> cumulated;
        for (int64_t begin = 0; begin < size; begin += BLOCK) {
            float sum = 0;
            const int64_t end = std::min(size, begin + BLOCK);
#pragma omp simd reduction(+ : sum)
            for (int64_t i = begin; i < end; i++) sum += cls[i] == own ? prob[i] : 0.0f;
            cumulated.push_back(sum + (begin ? cumulated.back() : 0.0));
        }
        const int64_t begin = Paths::pick(cumulated, u, &u) * BLOCK, end = std::min(size, begin + BLOCK);
        cumulated.clear();
        for (int64_t i = begin; i < end; i++) cumulated.push_back((cls[i] == own ? prob[i] : 0.0f) + (i > begin ? cumulated.back() : 0.0));
        return token[begin + Paths::pick(cumulated, u, &u)];
    }
};

// The fewest likeliest tokens of a row whose probabilities sum to `share`; of equally likely ones the first. Those with a
// logarithm below `least` are left out.
//
// What the unlikely tokens have together is estimated from a sample, which gives a bound. Tokens above it are found by
// comparing logits alone: with the least that a large class needs, and class by class for those that need less. Then these few
// are looked at in float64. If they have less than the share, the bound was too high, and is lowered; so the estimate costs
// time at most.
template <class Logit> class Likeliest {
    static constexpr int64_t RUN = 16, EVERY = 64;  // one run of so many tokens is sampled of so many runs
    static constexpr int64_t AHEAD = 128;           // so many tokens ahead are fetched, since caches do not foresee them
    static constexpr int64_t FEW = 16384;           // a vocabulary up to which nothing is estimated
    static constexpr int64_t LARGE = 1024;          // a class is large that has one of so many tokens
    static constexpr int PER_NAT = 64;              // bins of logarithms
    static constexpr double SPARED = 0.8;           // of what may be left out, so much is left out unseen
    static constexpr double LOWERED = 0.25;         // by so much at first, then by twice as much each time
    static constexpr int WAYS = 4;                  // sums that take turns, since each addition waits for the last

    const Classes &on_;
    const double least_;
    const int bins_;
    // A sample of tokens; of classes, and first of none, a term of logarithms, the least logit of a token, and the factor
    vector<int32_t> sample_, sample_cls_;
    vector<float> sample_log_, sample_prob_, more_;
    vector<Logit> sought_;
    vector<double> factor_;
    vector<std::pair<int32_t, Logit>> below_;  // classes that need less than the large ones, and what
    std::unique_ptr<int32_t[]> reached_;       // tokens
    vector<int32_t> bin_, last_;               // of tokens that were looked at, and those of the last bin
    vector<double> log_, prob_, mass_, part_;

  public:
    Likeliest(const Classes &on, double least)
        : on_(on), least_(least), bins_(std::max(1, int(-least * PER_NAT) + 2)), more_(on.classes + 1), sought_(on.classes + 1),
          factor_(on.classes + 1), reached_(new int32_t[on.vocabulary + RUN]) {
        for (int64_t begin = 0; begin + RUN <= on.vocabulary && on.vocabulary > FEW; begin += RUN * EVERY)
            for (int64_t i = begin; i < begin + RUN; i++) sample_.push_back(int32_t(i)), sample_cls_.push_back(on.of_token[i]);
        sample_log_.resize(sample_.size()), sample_prob_.resize(sample_.size() + Lanes<float>::WIDTH);
    }

    // `shares` (C,) are the sums of their probabilities by class.
    void keep(const Row<Logit> &row, double share, double *shares, Kept &kept) {
        double bound = on_.vocabulary > FEW ? std::max(least_, estimated(row, share)) : least_;
        look(row, bound, kept);
        for (double by = LOWERED; std::accumulate(mass_.begin(), mass_.end(), 0.0) < share && bound > least_; by *= 2)
            look(row, bound = std::max(least_, bound - by), kept);
        choose(share, kept);
        part_.assign((on_.classes + 1) * WAYS, 0.0);
        double *part = part_.data() + WAYS;  // the first is for what has no class
        for (int64_t i = 0; i < kept.size; i++) part[kept.cls[i] * WAYS + i % WAYS] += prob_[i];
        for (int64_t c = 0; c < on_.classes; c++) shares[c] = std::accumulate(part + c * WAYS, part + (c + 1) * WAYS, 0.0);
    }

  private:
    bool is_large(int64_t c) const { return on_.size(c) * LARGE > on_.vocabulary; }

    // The logarithm of a probability below which tokens have, by a sample, SPARED of what may be left out.
    double estimated(const Row<Logit> &row, double share) {
        const float scale = float(1 / row.temperature), *more = more_.data() + 1;
        more_[0] = float(LOW);
        for (int64_t c = 0; c < on_.classes; c++) more_[c + 1] = float(row.factor[c] + double(row.top) / row.temperature);
        const int64_t size = sample_.size();
        float *log = sample_log_.data(), *prob = sample_prob_.data();
        for (int64_t i = 0; i < size; i++) {
            if (i % RUN == 0) __builtin_prefetch(row.logits + sample_[std::min(size - 1, i + AHEAD)]);
            log[i] = std::min(0.0f, float(row.logits[sample_[i]] - row.top) * scale + more[sample_cls_[i]]);
        }
        exponentials(log, size, 0.0f, 1.0f, prob);
        mass_.assign(bins_, 0.0);
        for (int64_t i = 0; i < size; i++) mass_[int(std::min(-log[i] * PER_NAT, float(bins_ - 1)))] += prob[i];
        int bin = bins_ - 1;
        for (double left = 0; bin > 0 && left <= SPARED * (1 - share); bin--) left += mass_[bin] * EVERY;
        return -double(bin + 2) / PER_NAT;
    }

    // Lists the tokens with logarithms of at least the bound, and some below, and sums them by bins.
    void look(const Row<Logit> &row, double bound, Kept &kept) {
        const Logit never = std::numeric_limits<Logit>::infinity();
        Logit lowest = sought_[0] = never;
        for (int64_t c = 0; c < on_.classes; c++) {
            factor_[c + 1] = row.factor[c];
            sought_[c + 1] = row.needed(bound, row.factor[c]);
            if (is_large(c)) lowest = std::min(lowest, sought_[c + 1]);
        }
        const int64_t all = lowest < never ? reaching(row.logits, on_.vocabulary, lowest, reached_.get()) : 0;
        int64_t most = all + Lanes<double>::WIDTH, size = 0;
        Logit *sought = sought_.data() + 1;
        below_.clear();
        for (int32_t c = 0; c < on_.classes; c++)
            if (sought[c] < lowest) below_.push_back({c, sought[c]}), most += on_.size(c), sought[c] = never;
        kept.reserve(most), log_.resize(most), prob_.resize(most);
        int32_t *tokens = kept.token.get(), *cls = kept.cls.get();
        double *log = log_.data(), *prob = prob_.data();
        const double *factor = factor_.data() + 1;
        for (int64_t i = 0; i < all; i++) {
            const int32_t token = reached_[i], own = on_.of_token[token];
            const Logit logit = row.logits[token];
            tokens[size] = token, cls[size] = own, log[size] = row.log(logit, factor[own]);
            size += logit >= sought[own];
        }
        for (const auto &[c, least] : below_)
            for (int64_t i = on_.first[c]; i < on_.first[c + 1]; i++) {
                const int32_t token = on_.order[i];
                const Logit logit = row.logits[token];
                tokens[size] = token, cls[size] = c, log[size] = row.log(logit, factor[c]);
                size += logit >= least;
            }
        kept.size = size, bin_.resize(size), mass_.assign(bins_ + 1, 0.0);
        int32_t *bin = bin_.data();
        exponentials(log, size, 0.0, 1.0, prob);
        for (int64_t i = 0; i < size; i++) {
            const int32_t own = int32_t(std::max(0.0, std::min(-log[i] * PER_NAT, bins_ - 1.0)));
            bin[i] = log[i] < least_ ? bins_ : own;
        }
        for (int64_t i = 0; i < size; i++) mass_[bin[i]] += prob[i];
        mass_.pop_back();
    }

    // Leaves out what is in bins below the one in which the share is reached. Only that one is sorted.
    void choose(double share, Kept &kept) {
        int last = 0;
        double sum = 0;
        while (last < bins_ - 1 && sum + mass_[last] < share) sum += mass_[last++];
        last_.clear();
        double *prob = prob_.data();
        const int32_t *bin = bin_.data(), *tokens = kept.token.get();
        for (int64_t i = 0; i < kept.size; i++)
            if (bin[i] == last) last_.push_back(int32_t(i));
        std::sort(last_.begin(), last_.end(),
                  [&](int32_t a, int32_t b) { return log_[a] != log_[b] ? log_[a] > log_[b] : tokens[a] < tokens[b]; });
        for (int64_t i = 0; i < kept.size; i++) prob[i] = bin[i] <= last ? prob[i] : 0.0;
        for (int32_t i : last_) {
            if (sum < share)
                sum += prob[i];
            else
                prob[i] = 0;
        }
        std::copy(prob, prob + kept.size, kept.prob.get());
    }
};

// `Likeliest` of each of some rows of logits (A, V), by factors (A, C): shares (A, C).
template <class Logit>
std::vector<Kept> *keep_likeliest(const Logit *logits, int64_t rows, const Classes &on, const double *factor, double temperature,
                                  const Logit *top, double least, double share, double *shares, int32_t threads) {
    auto kept = new std::vector<Kept>(rows);
#pragma omp parallel num_threads(threads)
    {
        Likeliest<Logit> likeliest(on, least);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < rows; i++) {
            const Row<Logit> row{logits + i * on.vocabulary, factor + i * on.classes, temperature, top[i]};
            likeliest.keep(row, share, shares + i * on.classes, (*kept)[i]);
        }
    }
    return kept;
}

}  // namespace daguerre
