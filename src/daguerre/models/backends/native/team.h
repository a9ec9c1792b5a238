// Threads that compute a forward together, in place of OpenMP. A forward has a hundred loops with a wait behind each. A thread that
// waits spins for the time of a short loop, then sleeps; OpenMP's spin for milliseconds, on cores that others need, and only an
// environment variable that is set before they start can change that.
//
// Results do not depend on how many threads there are, so their number follows the load: see `Pace`.

#pragma once

#include <pthread.h>
#include <time.h>
#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

typedef std::chrono::steady_clock Clock;

constexpr int GLANCES = 64;  // checks before a waiting thread reads the clock
// How long a thread spins before it sleeps: for others in a loop, and for the next call, which comes after what Python does in
// between. It never yields: Linux (6.18) takes that for a promise, and lets all others of the core run first for a long time.
constexpr auto IN_LOOP = std::chrono::microseconds(50), BETWEEN_CALLS = std::chrono::microseconds(300);

inline double since(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

// Seconds that the calling thread has computed.
inline double own_seconds() {
#ifdef CLOCK_THREAD_CPUTIME_ID
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
#else
  return 0;
#endif
}

inline void breathe() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Wakes the threads that wait for something that another one does.
class Bell {
  std::atomic<int> sleeping{0};
  std::mutex door;
  std::condition_variable rung;

 public:
  // Waits until done(), which somebody who rings has made true; the seconds of spinning.
  template <class Done> double await(std::chrono::microseconds patience, Done done) {
    for (int i = 0; i < GLANCES; i++, breathe())
      if (done()) return 0;
    const auto from = Clock::now();
    while (Clock::now() - from < patience)
      for (int i = 0; i < GLANCES / 4; i++, breathe())
        if (done()) return since(from);
    const double spun = since(from);
    std::unique_lock<std::mutex> lock(door);
    sleeping.fetch_add(1);  // before the check that `wait` makes first: whoever rings sees this, or the check sees what he did
    rung.wait(lock, done);
    sleeping.fetch_sub(1);
    return spun;
  }

  void ring() {
    if (!sleeping.load()) return;
    std::lock_guard<std::mutex> lock(door);
    rung.notify_all();
  }
};

constexpr int PLACED = 64;

// The members of a region of code that all of them run.
struct Team {
  int num = 1;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  std::vector<double> worked;  // (num,): seconds that each has computed
  std::atomic<int> core[PLACED] = {};  // where the first ones run
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<uint32_t> round{0};
  alignas(64) std::atomic<int> turn{0};  // of `Turns`: the next item
  Bell bell;

  // Waits until all members are here; the seconds of spinning.
  double meet() {
    const int all = num;  // read before others can go on: a team may be used again at once
    const uint32_t now = round.load();
    if (arrived.fetch_add(1) + 1 < all) return bell.await(IN_LOOP, [&] { return round.load() != now; });
    arrived.store(0), turn.store(0);
    round.store(now + 1);
    bell.ring();
    return 0;
  }
};

// What the calling thread is in its team.
struct Member {
  Team* team = nullptr;
  int rank = 0, num = 1;
  double spun = 0;

  void meet() {
    if (num == 1) return;
    const double waited = team->meet();
    spun += waited;
    if (waited > 0) place();
  }

  // Leaves the core of another member. Linux wakes a thread on the core of the one that woke it, and two that wait for each other
  // on one core look to it like one; it may take seconds to part them.
  void place() const {
#ifdef __linux__
    if (rank >= PLACED) return;
    const int own = sched_getcpu(), others = std::min(num, PLACED);
    team->core[rank] = own;
    bool alone = true;
    for (int i = 0; i < rank; i++) alone &= team->core[i] != own;
    cpu_set_t may, free;
    if (alone || sched_getaffinity(0, sizeof may, &may)) return;
    free = may;
    for (int i = 0; i < others; i++)
      if (const int core = team->core[i]; core >= 0 && core < CPU_SETSIZE) CPU_CLR(core, &free);
    if (!CPU_COUNT(&free) || sched_setaffinity(0, sizeof free, &free)) return;
    team->core[rank] = sched_getcpu();
    sched_setaffinity(0, sizeof may, &may);
#endif
  }

  // Runs the team's body; the seconds that this member has computed are known to all when it ends.
  void run() {
    const double before = own_seconds();
    place();
    team->body(team->argument);
    team->worked[rank] = std::max(0.0, own_seconds() - before - spun);
    team->meet();
  }
};

inline thread_local Member self;

// How many members a team has at most. One whose members together have computed for much less time than passed is slower than
// one thread: cores are busy with something else, and all wait for whoever has none. Then teams are halved, and tried whole again
// after a while, which doubles as long as that is no better: where cores are busy, a forward of a whole team may take half a second.
class Pace {
  static constexpr double ENOUGH = 0.005, SHORT = 0.1, LONG = 10;  // seconds: of a measurement; of patience, least and most
  static constexpr double STALL = 0.6;  // small loops on idle cores come near 1, and busy ones below 0.1
  int most = INT32_MAX;
  double worked = 0, passed = 0, patience = SHORT;
  Clock::time_point again;

 public:
  bool steady = false;  // teams are as large as asked for; for tests

  int allowed(int asked, Clock::time_point now) {
    if (most < asked && now >= again) most = INT32_MAX, worked = passed = 0;
    return steady ? asked : std::min(asked, most);
  }

  // A team of `num` members, who have computed for so many seconds together, took so many.
  void saw(int num, double computed, double took, Clock::time_point now) {
    worked += computed, passed += took;
    if (passed < ENOUGH) return;
    const bool stalls = worked < passed * STALL * std::max(1.0, num / 4.0), whole = most == INT32_MAX;
    worked = passed = 0;
    if (!stalls) {
      if (whole) patience = SHORT;
      return;
    }
    most = std::max(1, num / 2);
    again = now + std::chrono::microseconds((int64_t)(1e6 * patience));
    patience = std::min(2 * patience, LONG);
  }
};

// The threads of the process that wait for work, the last one that had some first; they are never ended.
class Pool {
  struct Helper {
    Team* team = nullptr;
    int rank = 0;
    std::atomic<uint32_t> calls{0};
    Bell bell;
  };
  std::mutex door;
  std::vector<Helper*> idle;
  std::vector<Team*> teams;  // that are not used
  int busy = 0;  // helpers
  Pace pace;

  static void work(Helper* own) {
    for (uint32_t seen = 0;; seen++) {
      own->bell.await(BETWEEN_CALLS, [&] { return own->calls.load() != seen; });
      self = {own->team, own->rank, own->team->num, 0};
      self.run();
    }
  }

  static Pool*& current() {
    static Pool* pool = new Pool;
    return pool;
  }

 public:
  // That of this process: a child of `fork` has none of its parent's threads.
  static Pool& own() {
    static const int known = pthread_atfork(nullptr, nullptr, [] { current() = new Pool; });
    (void)known;
    return *current();
  }

  // A team of the calling thread and of those workers that are free; none if that is the calling thread alone. All teams
  // of the process together have as many workers as one of them asks for.
  Team* take(int asked, std::vector<Helper*>& workers) {
    std::lock_guard<std::mutex> lock(door);
    const int num = pace.allowed(asked, Clock::now()) - 1 - busy;
    while ((int)workers.size() < num) {
      if (idle.empty()) {
        Helper* made = new Helper;
        try {
          std::thread(work, made).detach();
        } catch (const std::system_error&) {  // no more threads are allowed
          delete made;
          break;
        }
        idle.push_back(made);
      }
      workers.push_back(idle.back()), idle.pop_back();
    }
    if (workers.empty()) return nullptr;
    busy += workers.size();
    if (teams.empty()) teams.push_back(new Team);
    Team* team = teams.back();
    teams.pop_back();
    return team;
  }

  void give_back(Team* team, const std::vector<Helper*>& workers, double took) {
    std::lock_guard<std::mutex> lock(door);
    double computed = 0;
    for (double seconds : team->worked) computed += seconds;
    pace.saw(team->num, computed, took, Clock::now());
    idle.insert(idle.end(), workers.rbegin(), workers.rend());
    teams.push_back(team);
    busy -= workers.size();
  }

  void keep_steady(bool on) {
    std::lock_guard<std::mutex> lock(door);
    pace.steady = on;
  }

  void run(int asked, void (*body)(void*), void* argument) {
    std::vector<Helper*> workers;
    Team* team = asked > 1 ? take(asked, workers) : nullptr;
    if (!team) return body(argument);
    const auto from = Clock::now();
    team->num = workers.size() + 1, team->body = body, team->argument = argument;
    team->worked.assign(team->num, 0);
    for (std::atomic<int>& core : team->core) core = -1;
    self = {team, 0, team->num, 0};
    self.place();  // before the others look where not to be
    for (int i = 0; i < (int)workers.size(); i++) {
      workers[i]->team = team, workers[i]->rank = i + 1;
      workers[i]->calls.fetch_add(1);
      workers[i]->bell.ring();
    }
    self.run();
    self = {};
    give_back(team, workers, since(from));
  }
};

// Runs body() in so many threads at most, the calling one among them. Loops over `share` and `turns` inside are divided among
// them, and end when all are done; everything else is run by each.
template <class Body> void together(int threads, const Body& body) {
  Pool::own().run(threads, [](void* given) { (*static_cast<const Body*>(given))(); }, const_cast<Body*>(&body));
}

// The numbers from 0 on of which each member has a run of about the same length: for (int i : share(num)).
class Share {
  struct Place {
    int at;
    int operator*() const { return at; }
    void operator++() { at++; }
    bool operator!=(Place other) const { return at < other.at; }
  };
  int first, last;

 public:
  explicit Share(int num) {
    const int even = num / self.num, more = num % self.num;
    first = self.rank * even + std::min(self.rank, more);
    last = first + even + (self.rank < more);
  }
  ~Share() { self.meet(); }
  Share(const Share&) = delete;
  Place begin() const { return {first}; }
  Place end() const { return {last}; }
};

// The same, but each member takes the next number when it is free.
class Turns {
  struct Place {
    int at;
    int operator*() const { return at; }
    void operator++() { at = next(at); }
    bool operator!=(Place other) const { return at < other.at; }
  };
  const int num;
  static int next(int at) { return self.num > 1 ? self.team->turn.fetch_add(1) : at + 1; }

 public:
  explicit Turns(int num) : num(num) {}
  ~Turns() { self.meet(); }
  Turns(const Turns&) = delete;
  Place begin() const { return {next(-1)}; }
  Place end() const { return {num}; }
};

inline Share share(int num) { return Share(num); }
inline Turns turns(int num) { return Turns(num); }
