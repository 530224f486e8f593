// Times the planner of matrix products and lets threads hammer it: plan_matmuls <pool file> <shapes file> <threads>.
// Prints the nanoseconds of planning a new shape (on average, and for the slowest shape) and of finding a seen one, and the number of answers that
// differed between threads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "matmul_planner.h"

using namespace tilewright;

namespace {

double Nanoseconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

bool Equal(const Choice& a, const Choice& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::ifstream text(argv[1]);
  const Pool pool = Pool::Parse(std::string(std::istreambuf_iterator<char>(text), {}));
  std::ifstream shapes(argv[2]);
  std::vector<Problem> problems;
  for (Problem p; shapes >> p.batch >> p.m >> p.n >> p.k;) problems.push_back(p);
  if (problems.empty()) return 2;
  const size_t count = problems.size();

  MatmulPlanner planner(pool);
  std::vector<Choice> expected(count);
  double fresh = 1e30, seen = 1e30;
  for (int round = 0; round < 20; ++round) {  // the least of several rounds: others use this machine too
    auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < count; ++i) planner.Choose(problems[i], &expected[i]);
    fresh = std::min(fresh, Nanoseconds(begin) / static_cast<double>(count));
  }
  double slowest = 0;
  for (size_t i = 0; i < count; ++i) {
    double least = 1e30;
    for (int round = 0; round < 20; ++round) {
      auto begin = std::chrono::steady_clock::now();
      planner.Choose(problems[i], &expected[i]);
      least = std::min(least, Nanoseconds(begin));
    }
    slowest = std::max(slowest, least);
  }
  Choice choice;
  for (int round = 0; round < 20; ++round) {
    auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < count; ++i) planner.Plan(problems[i], &choice);
    if (round > 0) seen = std::min(seen, Nanoseconds(begin) / static_cast<double>(count));
  }

  std::atomic<long> different{0};
  std::vector<std::thread> threads;
  MatmulPlanner shared(pool);
  for (long t = 0; t < std::atol(argv[3]); ++t) {
    threads.emplace_back([&, t] {
      Choice answer;
      for (int round = 0; round < 10; ++round) {
        for (size_t i = 0; i < count; ++i) {
          size_t at = (i * (2 * static_cast<size_t>(t) + 1) + static_cast<size_t>(round)) % count;  // each thread in its own order
          if (!shared.Plan(problems[at], &answer) || !Equal(answer, expected[at])) ++different;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%.1f %.1f %.1f %ld\n", fresh, slowest, seen, different.load());
  return different == 0 ? 0 : 1;
}
