// The limits of one compilation, and sets of bytes and of numbers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <new>
#include <unordered_map>
#include <vector>

namespace daguerre {

// Why a compilation ended early; `compiled.ERRORS` explains them.
enum Error : int32_t { NO_ERROR = 0, TOO_MANY_STATES, TOO_MANY_STEPS, TOO_MANY_EDGES, OUT_OF_TIME, OUT_OF_MEMORY, NOT_WANTED };

struct Stop {
    Error error;
};

// The bytes that this thread has in automata, and how many it may have: the array that would be one too many is refused
// before it is made.
struct Memory {
    int64_t held = 0, most = INT64_MAX;

    static Memory &here() {
        static thread_local Memory memory;
        return memory;
    }
    void take(size_t size) {
        if (held + int64_t(size) > most) throw Stop{OUT_OF_MEMORY};
        held += size;
    }
};

// Allocates what `Memory` counts.
template <class T> struct Counted {
    using value_type = T;

    Counted() = default;
    template <class U> Counted(const Counted<U> &) {}
    static size_t size(size_t number) { return (number * sizeof(T) + 23) / 16 * 16; }  // as malloc rounds it
    T *allocate(size_t number) {
        Memory::here().take(size(number));
        void *made = ::operator new(number * sizeof(T), std::nothrow);
        if (made) return static_cast<T *>(made);
        Memory::here().held -= size(number);
        throw Stop{OUT_OF_MEMORY};
    }
    void deallocate(T *made, size_t number) {
        Memory::here().held -= size(number);
        ::operator delete(made);
    }
    template <class U> bool operator==(const Counted<U> &) const { return true; }
    template <class U> bool operator!=(const Counted<U> &) const { return false; }
};

template <class T> using vector = std::vector<T, Counted<T>>;
template <class K, class V, class H = std::hash<K>> using Map = std::unordered_map<K, V, H, std::equal_to<K>, Counted<std::pair<const K, V>>>;
template <class K, class V> using MultiMap = std::unordered_multimap<K, V, std::hash<K>, std::equal_to<K>, Counted<std::pair<const K, V>>>;

// Limits of one compilation; `bytes` are what `Memory` may hold, and `until` is on the clock of this thread's processor
// time, in seconds; `left` is 1 once nobody waits for the result.
struct Limits {
    int64_t states, steps, edges, bytes;
    double until;
    const volatile int32_t *left;

    static double now(clockid_t clock) {
        timespec held;
        clock_gettime(clock, &held);
        return held.tv_sec + 1e-9 * held.tv_nsec;
    }
    // Whether this thread's time is up. Its processor time, which is expensive to look at, cannot grow faster than the time
    // of day: until that has grown by what was left, nothing needs to be looked at.
    bool time_is_up() const {
        static thread_local double quiet = 0, quiet_for = -1;
        double today = now(CLOCK_MONOTONIC);
        if (quiet_for == until && today < quiet) return false;
        double left = until - now(CLOCK_THREAD_CPUTIME_ID);
        quiet = today + left, quiet_for = until;
        return left < 0;
    }
};

// While it lives, memory is limited.
struct Limited {
    explicit Limited(const Limits &limits) { Memory::here().most = limits.bytes; }
    ~Limited() { Memory::here().most = INT64_MAX; }
};

// Counts what a function does against the limits; it looks at the clock after every so many units of work.
struct Meter {
    const Limits &limits;
    int64_t work = 0;

    explicit Meter(const Limits &limits) : limits(limits) { look(); }
    Meter(const Meter &) = delete;

    void look() const {
        if (*limits.left) throw Stop{NOT_WANTED};
        if (limits.time_is_up()) throw Stop{OUT_OF_TIME};
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

// Lists of numbers, each held once and known by its place. They do not move.
class Lists {
    static constexpr size_t CHUNK = 1 << 20;  // items of a chunk, or those of one list that is longer
    struct List {
        const int32_t *begin;
        size_t count;
    };
    vector<vector<int32_t>> chunks_;
    vector<List> lists_;
    size_t items_ = 0;
    vector<int32_t> table_ = vector<int32_t>(1024, -1);
    size_t hashed_ = 0;

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
        for (int32_t list : table_)
            if (list >= 0) larger[slot(larger, hash(begin(list), count(list)), begin(list), count(list))] = list;
        table_.swap(larger);
    }
    size_t slot(const vector<int32_t> &table, uint64_t code, const int32_t *held, size_t length) const {
        size_t at = code & (table.size() - 1);
        while (table[at] >= 0 && !(count(table[at]) == length && std::equal(held, held + length, begin(table[at]))))
            at = (at + 1) & (table.size() - 1);
        return at;
    }

  public:
    size_t size() const { return lists_.size(); }
    const int32_t *begin(size_t list) const { return lists_[list].begin; }
    const int32_t *end(size_t list) const { return lists_[list].begin + lists_[list].count; }
    size_t count(size_t list) const { return lists_[list].count; }
    size_t items() const { return items_; }

    int32_t number(const vector<int32_t> &held) { return number(held.data(), held.size()); }
    int32_t number(const int32_t *held, size_t length) {
        size_t at = slot(table_, hash(held, length), held, length);
        if (table_[at] >= 0) return table_[at];
        int32_t list = table_[at] = add(held, length);
        if (++hashed_ * 2 > table_.size()) grow();
        return list;
    }
    // A list that `number` does not find: the caller knows it by other means.
    int32_t add(const int32_t *held, size_t length) {
        if (chunks_.empty() || chunks_.back().capacity() - chunks_.back().size() < length) {
            size_t room = chunks_.empty() ? CHUNK >> 10 : std::min(CHUNK, 2 * chunks_.back().capacity());
            chunks_.push_back({});
            chunks_.back().reserve(std::max(room, length));
        }
        vector<int32_t> &chunk = chunks_.back();
        lists_.push_back({chunk.data() + chunk.size(), length});
        chunk.insert(chunk.end(), held, held + length);
        items_ += length;
        return size() - 1;
    }
};

}  // namespace daguerre
