// The micro-kernels that one matmul node may combine, with the times that rank them. The text form is that of Pool.to_text in
// optimizer/plan/matmul/pool.py; the parser takes any bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright {

// Clusters of 1, 2, 4 and 8 blocks: the sizes that a split reduction and multicast may use.
constexpr int kClusterSizes = 4;

// One kernel of the pool. A unit of its work is what one cluster makes at a time: cluster_m x cluster_n tiles.
struct MicroKernel {
  std::string name;
  int family;       // kernels of one family can share a launch: same threads, registers, shared memory and cluster
  int bm, bn, bk;   // tile; where `swapped`, bm counts columns of C
  bool swapped;     // the weights are on the 64-row side of the matrix instruction
  int cluster_m;    // tiles along rows of C that share their part of B by multicast
  int cluster_n;    // tiles along columns of C that share their part of A
  int max_split;    // blocks of a cluster that may divide K: 1, 2, 4 or 8
  bool persistent;  // blocks stay for all their tiles: `start_us` once a launch; regions and a stream-K tail are possible
  int resident;     // blocks that one SM holds
  double start_us;  // from the first instruction of a block to its first full stage
  double step_us;   // one step of bk along K, all resident blocks of all SMs at work
  double tile_us;   // epilogue of one tile
  std::array<double, kClusterSizes - 1> reduce_us;  // what dividing K over 2, 4 and 8 blocks adds to a tile
  double fixup_us;                                  // what each further block that shares a tile of the stream-K tail adds
};

// What the model needs to know of a GPU.
struct MatmulDevice {
  int sms;
  std::array<int, kClusterSizes> clusters;  // of 1, 2, 4 and 8 blocks that fit at one block an SM; 0: not possible
  double launch_us;                         // one launch that does nothing
  double l2_bytes_per_us;
  double dram_bytes_per_us;
  double l2_keep_bytes;  // an operand up to this size is read from DRAM once
};

struct Pool {
  static constexpr size_t kMaxText = 1 << 16;
  static constexpr size_t kMaxKernels = 64;

  int element_bytes;  // of A, B and C
  MatmulDevice device;
  std::vector<MicroKernel> kernels;

  // Throws Error with the line where `text` is not a pool.
  static Pool Parse(std::string_view text);
};

}  // namespace tilewright
