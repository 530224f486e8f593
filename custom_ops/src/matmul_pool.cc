// Parser of pools. It bounds every number, so that the planner's arithmetic stays finite.
#include "matmul_pool.h"

#include <algorithm>
#include <charconv>

#include "check.h"
#include "words.h"

namespace tilewright {
namespace {

constexpr int kMaxTile = 4096;
constexpr int kMaxSms = 65536;
constexpr double kMaxUs = 1e6;
constexpr double kMinStepUs = 1e-4;  // keeps ratios of times far below 2^53
constexpr double kMaxRate = 1e12;

class PoolParser {
 public:
  explicit PoolParser(std::string_view text) : rest_(text) {}

  Pool Run() {
    if (rest_.size() > Pool::kMaxText) throw Error(Text("matmul pool of ", rest_.size(), " bytes; at most ", Pool::kMaxText, " are allowed"));
    try {
      NextLine("tilewright-matmul", 1);
      if (words_[1] != "1") throw Error("'tilewright-matmul 1' expected: a pool of another version");
      NextLine("element", 1);
      pool_.element_bytes = Integer(1, 8, "element size");
      NextLine("device", 9);
      ReadDevice();
      while (!rest_.empty()) {
        NextLine("kernel", 18);
        ReadKernel();
      }
      if (pool_.kernels.empty()) throw Error("a pool has at least one kernel");
    } catch (const Error& error) {
      throw Error(Text("matmul pool, line ", line_, ": ", error.what()));
    }
    return std::move(pool_);
  }

 private:
  // Reads a line that begins with `name` and has `values` more words.
  void NextLine(std::string_view name, size_t values) {
    ++line_;
    TakeLine(&rest_, &words_);
    if (words_[0] != name) throw Error(Text("'", name, "' expected, not '", words_[0].substr(0, 40), "'"));
    if (words_.size() != values + 1) throw Error(Text("'", name, "' takes ", values, " values, not ", words_.size() - 1));
    word_ = 1;
  }

  template <class Number>
  Number Read(Number low, Number high, const char* what) {
    std::string_view text = words_[word_++];
    Number value{};
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    // The comparison also refuses NaN.
    if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high)) {
      throw Error(Text("'", text.substr(0, 40), "' is no ", what, " (", low, " to ", high, ")"));
    }
    return value;
  }
  int Integer(int low, int high, const char* what) { return Read<int>(low, high, what); }
  bool Flag(const char* what) { return Integer(0, 1, what) == 1; }
  double Microseconds(const char* what) { return Read<double>(0, kMaxUs, what); }

  int PowerOfTwo(int high, const char* what) {
    int value = Integer(1, high, what);
    if ((value & (value - 1)) != 0) throw Error(Text("a ", what, " is a power of two, not ", value));
    return value;
  }

  void ReadDevice() {
    MatmulDevice& device = pool_.device;
    device.sms = Integer(1, kMaxSms, "number of SMs");
    for (int& clusters : device.clusters) clusters = Integer(0, kMaxSms, "number of clusters");
    if (device.clusters[0] != device.sms) throw Error("clusters of one block are as many as SMs");
    device.launch_us = Microseconds("launch time");
    device.l2_bytes_per_us = Read<double>(1, kMaxRate, "rate");
    device.dram_bytes_per_us = Read<double>(1, kMaxRate, "rate");
    device.l2_keep_bytes = Read<double>(1, kMaxRate, "number of bytes");
  }

  void ReadKernel() {
    if (pool_.kernels.size() == Pool::kMaxKernels) throw Error(Text("more than ", Pool::kMaxKernels, " kernels"));
    MicroKernel kernel;
    kernel.name = std::string(words_[word_++]);
    bool is_printable = std::all_of(kernel.name.begin(), kernel.name.end(), [](char c) { return c > ' ' && c < 127; });
    if (kernel.name.empty() || kernel.name.size() > 256 || !is_printable) throw Error("a kernel name is 1 to 256 printable characters");
    for (const MicroKernel& other : pool_.kernels) {
      if (other.name == kernel.name) throw Error(Text("a second kernel '", kernel.name, "'"));
    }
    kernel.family = Integer(0, 1000, "family");
    kernel.bm = Integer(1, kMaxTile, "tile size");
    kernel.bn = Integer(1, kMaxTile, "tile size");
    kernel.bk = Integer(1, kMaxTile, "tile size");
    kernel.swapped = Flag("flag");
    kernel.cluster_m = PowerOfTwo(8, "cluster size");
    kernel.cluster_n = PowerOfTwo(8, "cluster size");
    kernel.max_split = PowerOfTwo(8, "split");
    int cluster = kernel.cluster_m * kernel.cluster_n * kernel.max_split;
    if (cluster > 8) throw Error(Text("a cluster of ", cluster, " blocks; at most 8 are portable"));
    if (pool_.device.clusters[Log2(cluster)] == 0) throw Error(Text("the device has no clusters of ", cluster));
    kernel.persistent = Flag("flag");
    kernel.resident = Integer(1, 32, "number of resident blocks");
    kernel.start_us = Microseconds("start time");
    kernel.step_us = Read<double>(kMinStepUs, kMaxUs, "step time");
    kernel.tile_us = Microseconds("tile time");
    for (double& time : kernel.reduce_us) time = Microseconds("reduction time");
    kernel.fixup_us = Microseconds("fix-up time");
    for (const MicroKernel& other : pool_.kernels) {
      bool fits = other.cluster_m == kernel.cluster_m && other.cluster_n == kernel.cluster_n && other.resident == kernel.resident;
      if (other.family == kernel.family && !fits) throw Error(Text("family ", kernel.family, " has one cluster and one number of resident blocks"));
    }
    pool_.kernels.push_back(std::move(kernel));
  }

  static int Log2(int power) {
    int log = 0;
    while (power >> (log + 1)) ++log;
    return log;
  }

  std::string_view rest_;
  std::vector<std::string_view> words_;
  size_t word_ = 0;
  int line_ = 0;
  Pool pool_{};
};

}  // namespace

Pool Pool::Parse(std::string_view text) {
  return PoolParser(text).Run();
}

}  // namespace tilewright
