// Top-p within a language.

#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <array>
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

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each set of eight bits, their numbers in ascending order.
constexpr auto BITS = [] {
    std::array<std::array<uint8_t, 8>, 256> out{};
    for (int set = 0; set < 256; set++)
        for (int bit = 0, number = 0; bit < 8; bit++)
            if (set >> bit & 1) out[set][number++] = uint8_t(bit);
    return out;
}();
#endif

// Which of the logits from `begin` to `end` reach a bound: `tokens` has room for 16 more. How many they are.
template <class Logit> int64_t reaching(const Logit *logits, int64_t begin, int64_t end, Logit bound, int32_t *tokens) {
    int64_t number = 0, i = begin;
    if constexpr (sizeof(Logit) == 4) {
#if defined(__AVX512F__)
        const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (; i + 16 <= end; i += 16) {
            const __mmask16 reach = _mm512_cmp_ps_mask(_mm512_loadu_ps(logits + i), _mm512_set1_ps(bound), _CMP_GE_OQ);
            _mm512_storeu_si512(tokens + number, _mm512_maskz_compress_epi32(reach, _mm512_add_epi32(count, _mm512_set1_epi32(int32_t(i)))));
            number += __builtin_popcount(reach);
        }
#elif defined(__AVX2__)
        for (; i + 8 <= end; i += 8) {
            const int reach = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(logits + i), _mm256_set1_ps(bound), _CMP_GE_OQ));
            const __m256i bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(BITS[reach].data())));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(tokens + number), _mm256_add_epi32(bits, _mm256_set1_epi32(int32_t(i))));
            number += __builtin_popcount(reach);
        }
#endif
    }
    for (; i < end; i++) tokens[number] = int32_t(i), number += logits[i] >= bound;
    return number;
}

// Some tokens of a row, of each class in ascending order, with their classes and probabilities.
struct Kept {
    static constexpr int64_t BLOCK = 64;
    std::unique_ptr<int32_t[]> token, cls;
    std::unique_ptr<float[]> prob;
    int64_t size = 0;

    // With room for `most` tokens and for BLOCK more.
    void reserve(int64_t most) { token.reset(new int32_t[most + BLOCK]), cls.reset(new int32_t[most + BLOCK]), prob.reset(new float[most + BLOCK]); }

    // So that blocks are whole.
    void close() { std::fill(cls.get() + size, cls.get() + size + BLOCK, -1), std::fill(prob.get() + size, prob.get() + size + BLOCK, 0.0f); }

    // One of a class, drawn by u in [0, 1): first a block of tokens, then one of them.
    int64_t draw(int32_t own, double u) const {
        vector<double> cumulated;
        for (int64_t begin = 0; begin < size; begin += BLOCK) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = begin; i < begin + BLOCK; i++) sum += cls[i] == own ? prob[i] : 0.0f;
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
    static constexpr int64_t PART = 2048;           // so many logits are compared at a time, while the nearest cache holds them
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
    vector<std::pair<int32_t, Logit>> below_;    // classes that need less than the large ones, and what
    int64_t size_ = 0;                           // of the tokens that were looked at
    vector<int32_t> token_, cls_, bin_, last_;   // theirs, and those of the last bin
    vector<double> log_, prob_, mass_, part_, scale_;

  public:
    Likeliest(const Classes &on, double least)
        : on_(on), least_(least), bins_(std::max(1, int(-least * PER_NAT) + 2)), more_(on.classes + 1), sought_(on.classes + 1),
          factor_(on.classes + 1), scale_(on.classes + Lanes<double>::WIDTH) {
        for (int64_t begin = 0; begin + RUN <= on.vocabulary && on.vocabulary > FEW; begin += RUN * EVERY)
            for (int64_t i = begin; i < begin + RUN; i++) sample_.push_back(int32_t(i)), sample_cls_.push_back(on.of_token[i]);
        sample_log_.resize(sample_.size()), sample_prob_.resize(sample_.size() + Lanes<float>::WIDTH);
    }

    // `shares` (C,) are the sums of their probabilities by class, and `sums` (C,) those of their weights, on some scale.
    void keep(const Row<Logit> &row, double share, double *shares, double *sums, Kept &kept) {
        double bound = on_.vocabulary > FEW ? std::max(least_, estimated(row, share)) : least_;
        look(row, bound);
        for (double by = LOWERED; std::accumulate(mass_.begin(), mass_.end(), 0.0) < share && bound > least_; by *= 2)
            look(row, bound = std::max(least_, bound - by));
        gather(choose(share), shares, kept);
        double most = LOW;
        for (int64_t c = 0; c < on_.classes; c++) most = shares[c] > 0 ? std::max(most, -row.factor[c]) : most;
        for (int64_t c = 0; c < on_.classes; c++) scale_[c] = shares[c] > 0 ? -row.factor[c] - most : LOW;
        exponentials(scale_.data(), on_.classes, 0.0, 1.0, scale_.data());
        for (int64_t c = 0; c < on_.classes; c++) sums[c] = shares[c] * scale_[c];
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
    void look(const Row<Logit> &row, double bound) {
        const Logit never = std::numeric_limits<Logit>::infinity();
        Logit lowest = sought_[0] = never, *sought = sought_.data() + 1;
        for (int64_t c = 0; c < on_.classes; c++) {
            factor_[c + 1] = row.factor[c];
            sought[c] = row.needed(bound, row.factor[c]);
            if (is_large(c)) lowest = std::min(lowest, sought[c]);
        }
        below_.clear();
        for (int32_t c = 0; c < on_.classes; c++)
            if (sought[c] < lowest) below_.push_back({c, sought[c]}), sought[c] = never;
        size_ = 0;
        int32_t reached[PART + RUN];
        for (int64_t begin = 0; begin < on_.vocabulary && lowest < never; begin += PART) {
            const int64_t end = std::min(on_.vocabulary, begin + PART);
            add(row, reached, reaching(row.logits, begin, end, lowest, reached));
        }
        for (const auto &[c, least] : below_) sought[c] = least, add(row, on_.order + on_.first[c], on_.size(c));
        bin_.resize(std::max<size_t>(bin_.size(), size_)), mass_.assign(bins_ + 1, 0.0);
        const double *log = log_.data(), *prob = prob_.data();
        int32_t *bin = bin_.data();
        exponentials(log, size_, 0.0, 1.0, prob_.data());
        for (int64_t i = 0; i < size_; i++) {
            const int32_t own = int32_t(std::max(0.0, std::min(-log[i] * PER_NAT, bins_ - 1.0)));
            bin[i] = log[i] < least_ ? bins_ : own;
        }
        for (int64_t i = 0; i < size_; i++) mass_[bin[i]] += prob[i];
        mass_.pop_back();
    }

    // Lists those of some tokens that have what is sought of their class.
    void add(const Row<Logit> &row, const int32_t *tokens, int64_t num) {
        const size_t most = size_ + num + Lanes<double>::WIDTH;
        if (token_.size() < most) token_.resize(2 * most), cls_.resize(2 * most), log_.resize(2 * most), prob_.resize(2 * most);
        const Logit *logits = row.logits, *sought = sought_.data() + 1;
        const int32_t *of_token = on_.of_token;
        const double *factor = factor_.data() + 1;
        int32_t *token = token_.data(), *cls = cls_.data();
        double *log = log_.data();
        int64_t size = size_;
        for (int64_t i = 0; i < num; i++) {
            const int32_t own = of_token[tokens[i]];
            const Logit logit = logits[tokens[i]];
            token[size] = tokens[i], cls[size] = own, log[size] = row.log(logit, factor[own]);
            size += logit >= sought[own];
        }
        size_ = size;
    }

    // Leaves out what is in bins below the one in which the share is reached, and of that one what is not needed: only this
    // bin is sorted. The last bin with what is needed; what is left out of it is in bin `bins_` then.
    int choose(double share) {
        int last = 0;
        double sum = 0;
        while (last < bins_ - 1 && sum + mass_[last] < share) sum += mass_[last++];
        int32_t *bin = bin_.data();
        last_.clear();
        for (int64_t begin = 0; begin < size_; begin += RUN) {
            const int64_t end = std::min(size_, begin + RUN);
            int32_t number = 0;
            for (int64_t i = begin; i < end; i++) number += bin[i] == last;
            for (int64_t i = begin; i < end && number; i++)
                if (bin[i] == last) last_.push_back(int32_t(i));
        }
        std::sort(last_.begin(), last_.end(),
                  [&](int32_t a, int32_t b) { return log_[a] != log_[b] ? log_[a] > log_[b] : token_[a] < token_[b]; });
        for (int32_t i : last_) {
            if (sum < share)
                sum += prob_[i];
            else
                bin[i] = bins_;
        }
        return last;
    }

    // What is in bins up to the last.
    void gather(int last, double *shares, Kept &kept) {
        kept.reserve(size_);
        part_.assign((on_.classes + 1) * WAYS, 0.0);
        const int32_t *bin = bin_.data();
        int32_t *token = kept.token.get(), *cls = kept.cls.get();
        float *prob = kept.prob.get();
        double *exact = prob_.data(), *part = part_.data() + WAYS;  // the first are for what has no class
        int64_t size = 0;
        for (int64_t i = 0; i < size_; i++) {
            token[size] = token_[i], cls[size] = cls_[i], prob[size] = float(exact[i]), exact[size] = exact[i];
            size += bin[i] <= last;
        }
        for (int64_t i = 0; i < size; i++) part[cls[i] * WAYS + i % WAYS] += exact[i];
        kept.size = size;
        kept.close();
        for (int64_t c = 0; c < on_.classes; c++) shares[c] = std::accumulate(part + c * WAYS, part + (c + 1) * WAYS, 0.0);
    }
};

template <class Logit>
std::vector<Kept> *keep_likeliest(const Logit *logits, int64_t rows, const Classes &on, const double *factor, double temperature,
                                  const Logit *top, double least, double share, double *shares, double *sums, int32_t threads) {
    auto kept = new std::vector<Kept>(rows);
#pragma omp parallel num_threads(threads)
    {
        Likeliest<Logit> likeliest(on, least);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < rows; i++) {
            const Row<Logit> row{logits + i * on.vocabulary, factor + i * on.classes, temperature, top[i]};
            likeliest.keep(row, share, shares + i * on.classes, sums + i * on.classes, (*kept)[i]);
        }
    }
    return kept;
}

}  // namespace daguerre
