// The search of docs/matmul.md: every kernel alone (split, stream-K tail), then the best few with a partner for the rest of C.
#include "matmul_planner.h"

#include <algorithm>
#include <limits>

namespace tilewright {
namespace {

constexpr int kLeaders = 8;  // kernels that get a partner
constexpr int kCuts = 8;     // cuts of C along one axis, for each leader
constexpr int kPairs = 128;  // pairs of rectangles that are evaluated
constexpr size_t kProbes = 16;

// Whole numbers in doubles, below 2^53: quotients of them are on the right side of every whole number.
double Floor(double value) {
  return static_cast<double>(static_cast<int64_t>(value));
}
double Ceil(double value) {
  double floor = Floor(value);
  return floor + (floor < value ? 1 : 0);
}

uint64_t Hash(const Problem& problem) {
  uint64_t hash = 0;
  for (int64_t dim : {problem.batch, problem.m, problem.n, problem.k}) {
    hash = (hash ^ static_cast<uint64_t>(dim)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

bool Same(const Problem& a, const Problem& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.batch == b.batch;
}

}  // namespace

double Makespan(double long_us, double long_count, double short_us, double short_count, double slots) noexcept {
  double full = Floor(long_count / slots);
  double late = long_count - full * slots;  // slots that get one more long unit
  double early = slots - late;
  double begin = full * long_us;
  double end = begin + (late > 0 ? long_us : 0);
  if (short_count <= 0) return end;
  // The last short unit ends a whole number of them after `begin` (i) or after `begin + long_us` (j); the earlier of both is enough.
  double ratio = long_us / short_us;
  double wait = Ceil(ratio);
  double i = early * wait >= short_count ? Ceil(short_count / early) : Ceil((short_count + late * wait) / slots);
  double last = begin + i * short_us;
  if (late > 0) {
    double j = std::max(0.0, Ceil((short_count - early * Floor(ratio)) / slots));
    last = std::min(last, begin + long_us + j * short_us);
  }
  return std::max(last, end);
}

// One search; everything is on the stack.
class PlanSearch {
 public:
  PlanSearch(const MatmulPlanner& planner, const Problem& problem)
      : kernels_(planner.pool_.kernels.data()),
        prepared_(planner.prepared_.data()),
        count_(planner.prepared_.size()),
        device_(planner.pool_.device),
        batch_(static_cast<double>(problem.batch)),
        m_(static_cast<double>(problem.m)),
        n_(static_cast<double>(problem.n)),
        k_(static_cast<double>(problem.k)),
        bytes_(batch_ * planner.pool_.element_bytes) {
    // The smaller operand stays in the L2 part by part; the larger one is read again for each part.
    double a = m_ * k_, b = k_ * n_;
    double parts = Ceil(std::min(a, b) * planner.pool_.element_bytes / device_.l2_keep_bytes);
    dram_us_ = bytes_ * (std::min(a, b) + std::max(a, b) * parts + m_ * n_) / device_.dram_bytes_per_us;
  }

  void Run(Choice* choice) {
    for (size_t i = 0; i < count_; ++i) Single(static_cast<int>(i));
    for (int leader = 0; leader < leader_count_; ++leader) Pairs(leaders_[leader].kernel);
    Write(choice);
  }

 private:
  struct Candidate {
    double us = std::numeric_limits<double>::infinity();
    double work_us = 0;  // decides where a roof makes times equal
    int kernel = -1, partner = -1;
    bool along_m = false;
    double cut = 0;
    int split = 1;
    double stream_tail = 0, stream_steps = 0;
  };

  struct Units {
    double m, n, count;
    double l2_us;
  };

  struct Leader {
    int kernel;
    double us;
  };

  // The units of kernel `i` over a rectangle of C.
  Units Cover(int i, double m, double n) const {
    double um = Ceil(m / prepared_[i].rows), un = Ceil(n / prepared_[i].cols);
    return {um, un, batch_ * um * un, bytes_ * (k_ * (m * un + n * um) + m * n) / device_.l2_bytes_per_us};
  }

  double Roof(double span_us, double l2_us) const { return device_.launch_us + std::max(span_us, std::max(l2_us, dram_us_)); }

  // Takes `next` where it is better; what was offered before wins a tie.
  void Offer(double span_us, double l2_us, Candidate next) {
    next.us = Roof(span_us, l2_us);
    next.work_us = span_us + l2_us;
    if (next.us < best_.us || (next.us == best_.us && next.work_us < best_.work_us)) best_ = next;
  }

  void Single(int i) {
    const MicroKernel& kernel = kernels_[i];
    const MatmulPlanner::Prepared& ready = prepared_[i];
    Units units = Cover(i, m_, n_);
    double steps = Ceil(k_ / kernel.bk);
    Candidate next;
    next.kernel = i;
    for (int log = 0; log < kClusterSizes && ready.slots[log] > 0 && (1 << log) <= steps; ++log) {
      double unit_us = ready.each_us + Ceil(steps / (1 << log)) * kernel.step_us + ready.extra_us[log];
      double span_us = ready.once_us + Ceil(units.count / ready.slots[log]) * unit_us;
      next.split = 1 << log;
      Offer(span_us, units.l2_us, next);
      if (log == 0) {
        unit_us_[i] = unit_us;
        element_us_[i] = unit_us / (ready.rows * ready.cols);
        if (kernel.persistent && units.count > ready.slots[0]) Lead({i, Roof(span_us, units.l2_us)});
      }
    }
    if (kernel.persistent && steps > 1) Stream(i, units, steps);
  }

  // Whole waves first; the steps of the last whole wave and of the partial one are dealt out evenly, so that two blocks share a unit. Where there
  // is no whole wave, a unit may be shared by more.
  void Stream(int i, const Units& units, double steps) {
    const MicroKernel& kernel = kernels_[i];
    double slots = prepared_[i].slots[0];
    double waves = Floor(units.count / slots);
    if (waves * slots == units.count) return;
    double before = std::max(0.0, waves - 1);
    Candidate next;
    next.kernel = i;
    next.stream_tail = units.count - before * slots;
    double least = Ceil(next.stream_tail * steps / slots);
    double begin_us = prepared_[i].once_us + before * unit_us_[i];
    auto offer = [&](double each) {
      double shared = Ceil(steps / each) * each == steps ? steps / each : Floor((steps - 2) / each) + 2;
      next.stream_steps = each;
      Offer(begin_us + each * kernel.step_us + Ceil(each / steps) * kernel.tile_us + (shared - 1) * kernel.fixup_us, units.l2_us, next);
    };
    offer(least);
    if (waves > 0) return;
    for (double peers = 16; peers > 1; peers /= 2) {
      double each = Ceil(steps / peers);
      if (each > least && each < steps) offer(each);
    }
  }

  // Keeps the best kLeaders; the earlier one of equals.
  void Lead(Leader next) {
    int at = leader_count_;
    while (at > 0 && next.us < leaders_[at - 1].us) --at;
    if (at == kLeaders) return;
    leader_count_ = std::min(leader_count_ + 1, kLeaders);
    for (int later = leader_count_ - 1; later > at; --later) leaders_[later] = leaders_[later - 1];
    leaders_[at] = next;
  }

  // Kernel `i` for the first rows (or columns) of C, a partner for the rest.
  void Pairs(int i) {
    const MatmulPlanner::Prepared& ready = prepared_[i];
    double slots = ready.slots[0];
    Units all = Cover(i, m_, n_);
    // Partners that could win if every unit were full and no slot ever idle.
    int partners[Pool::kMaxKernels];
    int partner_count = 0;
    for (size_t p = 0; p < count_; ++p) {
      int partner = static_cast<int>(p);
      if (partner == i || kernels_[p].family != kernels_[i].family || !kernels_[p].persistent) continue;
      double once_us = std::max(ready.once_us, prepared_[p].once_us);
      double ideal_us = once_us + batch_ * m_ * n_ * std::min(element_us_[i], element_us_[partner]) / slots;
      if (device_.launch_us + std::max(ideal_us, dram_us_) < best_.us) partners[partner_count++] = partner;
    }
    if (partner_count == 0) return;
    for (bool along_m : {true, false}) {
      double tile = along_m ? ready.rows : ready.cols;
      double extent = along_m ? m_ : n_;
      double lines = along_m ? all.m : all.n;
      double line = all.count / lines;  // units of one row (column) of them
      double cuts[kCuts];
      int count = 0;
      auto add = [&](double cut) {
        if (cut > 0 && cut < extent && (count == 0 || std::find(cuts, cuts + count, cut) == cuts + count)) cuts[count++] = cut;
      };
      // Cuts behind the last whole waves, from the end; waves that end in the same line of units give one cut.
      for (double wave = Floor(all.count / slots); wave > 0 && count < kCuts - 1;) {
        double whole = Floor(wave * slots / line);
        add(whole * tile);
        wave = Ceil(whole * line / slots) - 1;
      }
      add(Floor(extent / tile) * tile);
      Units first[kCuts];
      for (int c = 0; c < count; ++c) first[c] = along_m ? Cover(i, cuts[c], n_) : Cover(i, m_, cuts[c]);
      for (int p = 0; p < partner_count; ++p) {
        for (int c = 0; c < count; ++c) Pair(i, first[c], partners[p], along_m, cuts[c]);
      }
    }
  }

  void Pair(int i, const Units& first, int partner, bool along_m, double cut) {
    double slots = prepared_[i].slots[0];
    double once_us = std::max(prepared_[i].once_us, prepared_[partner].once_us);
    double a = unit_us_[i], b = unit_us_[partner];
    double area = along_m ? (m_ - cut) * n_ : m_ * (n_ - cut);
    // No schedule beats one in which every unit of the partner is full and no slot ever idle.
    double allowed_us = (best_.us - device_.launch_us - once_us) * slots;
    if (first.count * a + batch_ * area * element_us_[partner] >= allowed_us) return;
    if (pairs_++ >= kPairs) return;
    Units second = along_m ? Cover(partner, m_ - cut, n_) : Cover(partner, m_, n_ - cut);
    if (first.count * a + second.count * b >= allowed_us) return;
    double span_us = once_us + (a >= b ? Makespan(a, first.count, b, second.count, slots) : Makespan(b, second.count, a, first.count, slots));
    Candidate next;
    next.kernel = i;
    next.partner = partner;
    next.along_m = along_m;
    next.cut = cut;
    Offer(span_us, first.l2_us + second.l2_us, next);
  }

  void Write(Choice* choice) const {
    auto whole = [](double value) { return static_cast<int64_t>(value); };
    *choice = Choice();
    choice->split = best_.split;
    choice->stream_tail = whole(best_.stream_tail);
    choice->stream_steps = whole(best_.stream_steps);
    choice->us = best_.us;
    choice->count = best_.partner < 0 ? 1 : 2;
    choice->regions[0] = {best_.kernel, 0, whole(m_), 0, whole(n_)};
    if (best_.partner < 0) return;
    Region& first = choice->regions[0];
    Region& second = choice->regions[1];
    second = first;
    second.kernel = best_.partner;
    int64_t cut = whole(best_.cut);
    (best_.along_m ? first.m : first.n) = cut;
    (best_.along_m ? second.m0 : second.n0) = cut;
    (best_.along_m ? second.m : second.n) -= cut;
  }

  const MicroKernel* kernels_;
  const MatmulPlanner::Prepared* prepared_;
  size_t count_;
  const MatmulDevice& device_;
  double batch_, m_, n_, k_;
  double bytes_;  // of one element of every matrix of the batch
  double dram_us_;
  double unit_us_[Pool::kMaxKernels];
  double element_us_[Pool::kMaxKernels];  // of C, where units are full
  Leader leaders_[kLeaders];
  int leader_count_ = 0;
  int pairs_ = 0;
  Candidate best_;
};

MatmulPlanner::MatmulPlanner(Pool pool) : pool_(std::move(pool)), cache_(new Entry[kCacheSize]) {
  for (const MicroKernel& kernel : pool_.kernels) {
    Prepared ready{};
    ready.rows = static_cast<double>(kernel.swapped ? kernel.bn : kernel.bm) * kernel.cluster_m;
    ready.cols = static_cast<double>(kernel.swapped ? kernel.bm : kernel.bn) * kernel.cluster_n;
    (kernel.persistent ? ready.once_us : ready.each_us) = kernel.start_us;
    for (int log = 0; log < kClusterSizes && (1 << log) <= kernel.max_split; ++log) {
      int cluster = kernel.cluster_m * kernel.cluster_n << log;
      int size = 0;
      while (cluster >> (size + 1)) ++size;
      ready.slots[log] = static_cast<double>(pool_.device.clusters[size]) * kernel.resident;
      ready.extra_us[log] = kernel.tile_us + (log > 0 ? kernel.reduce_us[log - 1] : 0);
    }
    prepared_.push_back(ready);
  }
}

bool MatmulPlanner::Choose(const Problem& problem, Choice* choice) const noexcept {
  *choice = Choice();
  if (problem.batch < 0 || problem.m < 0 || problem.n < 0 || problem.k < 0) return false;
  if (problem.batch == 0 || problem.m == 0 || problem.n == 0 || problem.k == 0) return true;
  double batch = static_cast<double>(problem.batch), m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
  double k = static_cast<double>(problem.k);
  if (batch * m * n > kMaxElements || batch * m * k > kMaxElements || batch * n * k > kMaxElements) return false;
  PlanSearch(*this, problem).Run(choice);
  return true;
}

bool MatmulPlanner::Plan(const Problem& problem, Choice* choice) noexcept {
  // An entry is written once, by the thread that took it, and read only after it says ready.
  size_t at = Hash(problem) >> 20;
  Entry* free = nullptr;
  for (size_t probe = 0; probe < kProbes && free == nullptr; ++probe) {
    Entry& entry = cache_[(at + probe) % kCacheSize];
    uint32_t state = entry.state.load(std::memory_order_acquire);
    if (state == Entry::kReady && Same(entry.problem, problem)) {
      *choice = entry.choice;
      return true;
    }
    if (state == Entry::kEmpty) free = &entry;
  }
  if (!Choose(problem, choice)) return false;
  uint32_t empty = Entry::kEmpty;
  if (free != nullptr && free->state.compare_exchange_strong(empty, Entry::kWriting, std::memory_order_relaxed)) {
    free->problem = problem;
    free->choice = *choice;
    free->state.store(Entry::kReady, std::memory_order_release);
  }
  return true;
}

}  // namespace tilewright
