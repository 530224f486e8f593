// Chooses, for the shape that arrives, how the micro-kernels of a pool are combined in one launch. docs/matmul.md describes the model and the search.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "matmul_pool.h"

namespace tilewright {

// C[batch] = A[batch] B[batch], m x k by k x n.
struct Problem {
  int64_t batch, m, n, k;
};

// A rectangle of C, the same in every matrix of the batch, and who makes it.
struct Region {
  int64_t kernel;  // index in the pool
  int64_t m0, m, n0, n;
};

// One launch. Python reads it by ctypes: only 64-bit members.
struct Choice {
  static constexpr int kMaxRegions = 4;
  int64_t count = 0;         // regions; 0 where C or the reduction is empty
  int64_t split = 1;         // blocks of a cluster that divide K
  int64_t stream_tail = 0;   // units at the end of the only region whose K steps are dealt out evenly (stream-K)
  int64_t stream_steps = 0;  // K steps that each block of the tail takes
  double us = 0;             // modelled time, launch included
  Region regions[kMaxRegions] = {};
};

// Time until `long_count` units of `long_us` and then `short_count` of `short_us` (at most `long_us`) are done, each given to the slot that is
// free first. The counts are whole numbers.
double Makespan(double long_us, double long_count, double short_us, double short_count, double slots) noexcept;

// Thread-safe; a choice never changes. Planning allocates nothing.
class MatmulPlanner {
 public:
  static constexpr size_t kCacheSize = 4096;                 // shapes that are remembered; those beyond are planned at each call
  static constexpr double kMaxElements = 281474976710656.0;  // 2^48, of each matrix

  explicit MatmulPlanner(Pool pool);

  const Pool& pool() const { return pool_; }

  // False where a dim is negative or a matrix has more than kMaxElements elements. Takes no lock.
  bool Plan(const Problem& problem, Choice* choice) noexcept;

  // The same without the cache.
  bool Choose(const Problem& problem, Choice* choice) const noexcept;

 private:
  friend class PlanSearch;

  // What does not depend on the shape.
  struct Prepared {
    double rows, cols;               // of C that one unit covers
    double slots[kClusterSizes];     // units at work at a time, by log2 of the split; 0 where there is no such split
    double once_us, each_us;         // start-up, once a launch or with each unit
    double extra_us[kClusterSizes];  // of a unit beside its steps, by log2 of the split
  };

  struct Entry {
    enum State : uint32_t { kEmpty, kWriting, kReady };
    std::atomic<uint32_t> state{kEmpty};
    Problem problem;
    Choice choice;
  };

  Pool pool_;
  std::vector<Prepared> prepared_;
  std::unique_ptr<Entry[]> cache_;
};

}  // namespace tilewright
