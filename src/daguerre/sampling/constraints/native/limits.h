// The limits of one compilation, and sets of bytes and of numbers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

namespace daguerre {

using std::vector;

// Why a compilation ended early; `compiled.ERRORS` explains them.
enum Error : int32_t { NO_ERROR = 0, TOO_MANY_STATES, TOO_MANY_STEPS, TOO_MANY_EDGES, OUT_OF_TIME, OUT_OF_MEMORY };

struct Stop {
    Error error;
};

// Limits of one compilation; `until` is on the clock of this thread's processor time, in seconds.
struct Limits {
    int64_t states, steps, edges, bytes;
    double until;

    static double now() {
        timespec held;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &held);
        return held.tv_sec + 1e-9 * held.tv_nsec;
    }
};

// Counts what a function does against the limits; it looks at the clock after every so many units of work.
struct Meter {
    const Limits &limits;
    int64_t work = 0;

    explicit Meter(const Limits &limits) : limits(limits) { look(); }

    void look() const {
        if (Limits::now() > limits.until) throw Stop{OUT_OF_TIME};
    }
    void spend(int64_t units) {
        work += units;
        if (work > 1 << 20) {
            work = 0;
            look();
        }
    }
    void states(size_t number) const {
        if (int64_t(number) > limits.states) throw Stop{TOO_MANY_STATES};
    }
    void edges(size_t number) const {
        if (int64_t(number) > limits.edges) throw Stop{TOO_MANY_EDGES};
    }
    void bytes(size_t number) const {
        if (int64_t(number) > limits.bytes) throw Stop{OUT_OF_MEMORY};
    }
};

inline uint64_t mix(uint64_t x) {  // the output function of SplitMix64
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// A set of bytes.
struct Bytes {
    uint64_t word[4] = {0, 0, 0, 0};

    static Bytes one(int byte) {
        Bytes out;
        out.add(byte);
        return out;
    }
    void add(int byte) { word[byte >> 6] |= 1ull << (byte & 63); }
    bool has(int byte) const { return word[byte >> 6] >> (byte & 63) & 1; }
    bool any() const { return word[0] | word[1] | word[2] | word[3]; }
    int lowest() const {
        for (int i = 0; i < 4; i++)
            if (word[i]) return 64 * i + __builtin_ctzll(word[i]);
        return 256;
    }
    uint64_t hash() const { return mix(word[0] ^ mix(word[1] ^ mix(word[2] ^ mix(word[3])))); }
    bool operator==(const Bytes &o) const { return !std::memcmp(word, o.word, sizeof word); }
    bool operator!=(const Bytes &o) const { return !(*this == o); }
    Bytes operator&(const Bytes &o) const { return each(o, [](uint64_t a, uint64_t b) { return a & b; }); }
    Bytes operator|(const Bytes &o) const { return each(o, [](uint64_t a, uint64_t b) { return a | b; }); }
    Bytes without(const Bytes &o) const { return each(o, [](uint64_t a, uint64_t b) { return a & ~b; }); }

    template <class Rule> Bytes each(const Bytes &o, Rule rule) const {
        Bytes out;
        for (int i = 0; i < 4; i++) out.word[i] = rule(word[i], o.word[i]);
        return out;
    }
    template <class Do> void for_each(Do act) const {
        for (int i = 0; i < 4; i++)
            for (uint64_t left = word[i]; left; left &= left - 1) act(64 * i + __builtin_ctzll(left));
    }
};

// Lists of numbers, each held once and known by its place.
class Lists {
    vector<int32_t> items_;
    vector<int64_t> first_{0};
    vector<int32_t> table_ = vector<int32_t>(1024, -1);

    static uint64_t hash(const int32_t *held, size_t size) {
        uint64_t sums[4] = {size, 1, 2, 3}, word;  // four chains, since each multiplication waits for the one before
        size_t i = 0;
        for (; i + 8 <= size; i += 8)
            for (int k = 0; k < 4; k++) {
                std::memcpy(&word, held + i + 2 * k, 8);
                sums[k] = (sums[k] ^ word) * 0x9E3779B97F4A7C15ull, sums[k] ^= sums[k] >> 32;
            }
        for (; i < size; i++) sums[i & 3] = mix(sums[i & 3] ^ uint32_t(held[i]));
        return mix(sums[0] ^ mix(sums[1] ^ mix(sums[2] ^ mix(sums[3]))));
    }
    void grow() {
        vector<int32_t> larger(table_.size() * 2, -1);
        for (size_t list = 0; list < size(); list++) larger[slot(larger, hash(begin(list), count(list)), begin(list), count(list))] = list;
        table_.swap(larger);
    }
    size_t slot(const vector<int32_t> &table, uint64_t code, const int32_t *held, size_t length) const {
        size_t at = code & (table.size() - 1);
        while (table[at] >= 0 && !(count(table[at]) == length && std::equal(held, held + length, begin(table[at]))))
            at = (at + 1) & (table.size() - 1);
        return at;
    }

  public:
    size_t size() const { return first_.size() - 1; }
    const int32_t *begin(size_t list) const { return items_.data() + first_[list]; }
    const int32_t *end(size_t list) const { return items_.data() + first_[list + 1]; }
    size_t count(size_t list) const { return first_[list + 1] - first_[list]; }
    size_t bytes() const { return items_.capacity() * 4 + first_.capacity() * 8 + table_.size() * 4; }

    int32_t number(const vector<int32_t> &held) { return number(held.data(), held.size()); }
    int32_t number(const int32_t *held, size_t length) {
        size_t at = slot(table_, hash(held, length), held, length);
        if (table_[at] >= 0) return table_[at];
        int32_t list = table_[at] = size();
        items_.insert(items_.end(), held, held + length);
        first_.push_back(items_.size());
        if (size() * 2 > table_.size()) grow();
        return list;
    }
};

}  // namespace daguerre
