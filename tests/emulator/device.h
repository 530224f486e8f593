// CUDA's device language on a CPU, as far as the kernel templates use it: every thread of a block is a fiber, a block runs at a time.
//
// Two knobs turn mistakes in synchronisation into wrong results: asynchronous copies arrive as early or as late as they may, and threads run in
// ascending or descending order between barriers. Wrong addresses are left to the address sanitizer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __shared__
#define __align__(n) alignas(n)
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
};

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

namespace emulator {

struct Copy {
  unsigned target;
  const void* source;
  int bytes;
  bool valid;
};

struct Thread {
  dim3 index;
  int lane;
  struct Warp* warp;
  std::vector<Copy> open;                 // copies since the last commit
  std::vector<std::vector<Copy>> groups;  // committed ones that have not arrived
  bool done;
};

struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

struct Warp {
  Barrier barrier;
  uint32_t words[2][32][12];  // what lanes exchange, by the parity of the exchange
};

extern Thread* current;
extern dim3 block_index, grid_size;
extern std::vector<unsigned char> shared;
extern bool late_copies;
inline int reciprocal_error = 2;

/// Blocks until `count` fibers have arrived.
void wait(Barrier& barrier, int count);
int running_threads();

/// Every lane of the warp gives words and reads those of all lanes.
template <int N>
inline const uint32_t (*exchange(const uint32_t (&words)[N]))[12] {
  Warp& warp = *current->warp;
  const unsigned parity = warp.barrier.generation % 2;
  std::memcpy(warp.words[parity][current->lane], words, sizeof words);
  wait(warp.barrier, 32);
  return warp.words[parity];
}

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block_index)
#define gridDim (emulator::grid_size)

inline void __syncthreads() {
  static emulator::Barrier barrier;
  emulator::wait(barrier, emulator::running_threads());
}
inline void __syncwarp() {
  emulator::wait(emulator::current->warp->barrier, 32);
}

template <class T>
inline T __shfl_sync(unsigned, T value, int lane) {
  uint32_t word[1];
  std::memcpy(word, &value, 4);
  T result;
  std::memcpy(&result, emulator::exchange(word)[lane % 32], 4);
  return result;
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_sync(mask, value, emulator::current->lane ^ bits);
}

template <class T>
inline T __ldg(const T* p) {
  return *p;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
using std::max;
using std::min;
