// OpenMP on std::thread, as much of it as the kernels and the constraints use. ThreadSanitizer sees these threads wait for each other; how those
// of the compiler's own runtime do, it cannot see, and takes every barrier of theirs for none.

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace {
// A loop or a single block that the threads of a team share.
struct Share {
  bool taken = false;
  long next = 0, end = 0, step = 1, chunk = 1;
};
struct Team {
  explicit Team(int size) : size(size) {}
  const int size;
  int waiting = 0, round = 0;
  std::map<int, Share> shares;
  std::mutex lock;
  std::condition_variable all;
};
thread_local Team* team = nullptr;
thread_local int number = 0, place = 0;  // of the thread in its team, and how many shares it has come to

void run(void (*body)(void*), void* data, Team* in, int as) {
  Team* const before = team;
  const int number_before = number, place_before = place;
  team = in, number = as, place = 0;
  body(data);
  team = before, number = number_before, place = place_before;
}

void run_all(void (*body)(void*), void* data, Team& made) {
  std::vector<std::thread> others;
  for (int i = 1; i < made.size; i++) others.emplace_back(run, body, data, &made, i);
  run(body, data, &made, 0);
  for (std::thread& one : others) one.join();
}

bool next(long* from, long* to) {
  if (!team) return false;
  std::lock_guard<std::mutex> held(team->lock);
  Share& one = team->shares[place];
  if (one.step > 0 ? one.next >= one.end : one.next <= one.end) return false;
  const long far = one.next + one.chunk * one.step;
  *from = one.next;
  *to = one.step > 0 ? std::min(far, one.end) : std::max(far, one.end);
  one.next = *to;
  return true;
}

bool start(long from, long end, long step, long chunk, long* first, long* last) {
  place++;
  {
    std::lock_guard<std::mutex> held(team->lock);
    Share& one = team->shares[place];
    if (!one.taken) one = {true, from, end, step, chunk};
  }
  return next(first, last);
}
}  // namespace

extern "C" {
typedef unsigned long long ull;

int omp_get_thread_num() { return number; }
int omp_get_num_threads() { return team ? team->size : 1; }

void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  Team made(threads ? (int)threads : 1);
  run_all(body, data, made);
}
void GOMP_parallel_loop_nonmonotonic_dynamic(void (*body)(void*), void* data, unsigned threads, long from, long end, long step, long chunk,
                                             unsigned) {
  Team made(threads ? (int)threads : 1);
  made.shares[0] = {true, from, end, step, chunk};
  run_all(body, data, made);
}

void GOMP_barrier() {
  if (!team) return;
  std::unique_lock<std::mutex> held(team->lock);
  const int round = team->round;
  if (++team->waiting == team->size) {
    team->waiting = 0, team->round++;
    team->all.notify_all();
  } else {
    team->all.wait(held, [&] { return team->round != round; });
  }
}

bool GOMP_single_start() {
  if (!team) return true;
  place++;
  std::lock_guard<std::mutex> held(team->lock);
  return !std::exchange(team->shares[place].taken, true);
}

bool GOMP_loop_nonmonotonic_dynamic_start(long from, long end, long step, long chunk, long* first, long* last) {
  return start(from, end, step, chunk, first, last);
}
bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* last) { return next(first, last); }
bool GOMP_loop_ull_nonmonotonic_dynamic_start(bool, ull from, ull end, ull step, ull chunk, ull* first, ull* last) {
  return start((long)from, (long)end, (long)step, (long)chunk, (long*)first, (long*)last);
}
bool GOMP_loop_ull_nonmonotonic_dynamic_next(ull* first, ull* last) { return next((long*)first, (long*)last); }
void GOMP_loop_end() { GOMP_barrier(); }
void GOMP_loop_end_nowait() {}
}
