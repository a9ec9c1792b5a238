// The threads of `team.h`: loops are divided and waited for, callers share helpers, a child of `fork` has its own, and teams
// follow the load. Says what is wrong, and exits with 1.

#include "team.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

void expect(bool holds, const char* what, int number) {
  if (holds) return;
  std::printf("%s: %d\n", what, number);
  std::exit(1);
}

// Every number of each loop is visited once, and everything of a loop is seen behind it.
void check_loops(int threads, int num) {
  std::vector<int> visits(num), last(num), once(1);
  std::atomic<int> wrong{0};
  together(threads, [&] {
    for (int round = 1; round <= 50; round++) {
      for (int i : share(num)) visits[i]++;
      for (int i : turns(num)) {
        wrong += visits[num - 1 - i] != round;
        last[i] = round;
      }
      for ([[maybe_unused]] int i : share(1)) once[0]++;
      for (int i : share(num)) wrong += last[num - 1 - i] != round || once[0] != round;
    }
  });
  expect(!wrong, "numbers that were missed, or not seen by others", wrong);
}

int members(int threads) {
  int num = 0;
  together(threads, [&] {
    for ([[maybe_unused]] int i : share(1)) num = self.num;
  });
  return num;
}

void check_callers() {
  std::atomic<int> at_once{0}, most{0};
  auto call = [&] {
    for (int i = 0; i < 200; i++)
      together(3, [&] {
        const int now = ++at_once;
        for (int before = most; before < now && !most.compare_exchange_weak(before, now);) continue;
        for ([[maybe_unused]] int i : turns(9)) continue;
        --at_once;
      });
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; i++) callers.emplace_back(call);
  for (std::thread& one : callers) one.join();
  expect(most <= 3 - 1 + 4, "threads at once of four callers that ask for three", most);
  expect(members(3) == 3, "members after many callers", members(3));
}

void check_fork() {
  const pid_t child = fork();
  if (!child) {
    alarm(20);
    _exit(members(3) == 3 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(!status, "the status of a child", status);
}

void check_pace() {
  const auto after = [begin = Clock::time_point()](double seconds) {
    return begin + std::chrono::microseconds((int64_t)(1e6 * seconds));
  };
  Pace pace;
  double now = 1;
  auto allowed = [&] { return pace.allowed(4, after(now)); };
  pace.saw(4, 0.016, 0.005, after(now));
  expect(allowed() == 4, "members that compute", allowed());
  pace.saw(4, 0.001, 0.002, after(now));
  expect(allowed() == 4, "members after a short stall", allowed());
  pace.saw(4, 0.001, 0.005, after(now));
  expect(allowed() == 2, "members after a stall", allowed());
  pace.saw(2, 0.001, 0.005, after(now));
  expect(allowed() == 1, "members after another", allowed());
  pace.saw(1, 0.01, 0.01, after(now));
  expect(allowed() == 1, "members of a single one's team", allowed());
  now += 0.25;
  expect(allowed() == 4, "members after a while", allowed());
  pace.saw(4, 0.001, 0.005, after(now));
  now += 0.25;
  expect(allowed() == 2, "members after a while that was no longer than the last", allowed());
  now += 0.25;
  expect(allowed() == 4, "members after a longer while", allowed());
  for (int i = 0; i < 20; i++) allowed(), pace.saw(4, 0.001, 0.005, after(now += 20));
  now += 9;
  expect(allowed() < 4, "members before the longest while is over", allowed());
  now += 2;
  expect(allowed() == 4, "members after the longest while", allowed());
  pace.saw(4, 0.016, 0.005, after(now)), pace.saw(4, 0.001, 0.005, after(now));
  now += 0.11;
  expect(allowed() == 4, "members after a first stall", allowed());
}

int main() {
  check_pace();
  Pool::own().keep_steady(true);
  for (int threads : {1, 2, 3, 7})
    for (int num : {1, 2, 5, 64, 1000}) check_loops(threads, num);
  check_callers();
  check_fork();
  Pool::own().keep_steady(false);
  for (int i = 0; i < 1000; i++) check_loops(3, 5);  // more threads than cores: teams become smaller, results do not change
  std::printf("equal\n");
}
