// Average or maximum over all pixels of a sample, [N, H, W, C] -> [N, 1, 1, C]. A block takes one sample and LANES units of channels; its
// threads walk over the pixels and meet in shared memory.
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32 (sums in fp32)
///   MAXIMUM     maximum instead of average; NaN passes
///   LANES       units of channels that a block takes
///   THREADS     threads of a block; THREADS / LANES is a power of two
///   EPILOGUE    Epilogue<...>; row and sample are both n
/// Grid: (batch, units of channels / LANES rounded up, 1).
template <class TYPE, bool MAXIMUM, int LANES, int THREADS_, class EPILOGUE>
struct GlobalPool {
  struct Args {
    const void* x;
    const void* bias;
    void* y;
    const void* e0;
    const void* e1;
    const void* e2;
    int batch;
    int h;
    int w;
    int x_pitch;
    int y_pitch;
    int y_offset;
    int y_zero_to;
    int channels;
    int e0_pitch;
    int e1_pitch;
    int e2_pitch;
    int reserved;
  };

  using Storage = typename TYPE::Storage;
  using Out = Output<TYPE, EPILOGUE, Args>;
  static constexpr int UNIT = TYPE::UNIT;
  static constexpr int THREADS = THREADS_;
  static constexpr int MIN_BLOCKS = 1;
  static constexpr int WALKERS = THREADS / LANES;  // threads that share a unit
  static constexpr int SMEM_BYTES = THREADS * UNIT * 4;
  static constexpr int BATCH = 4;  // loads in flight
  static_assert(THREADS % LANES == 0 && (WALKERS & (WALKERS - 1)) == 0, "the walkers are halved until one is left");

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int n = blockIdx.x, lane = threadIdx.x % LANES, walker = threadIdx.x / LANES;
    const int channel = (blockIdx.y * LANES + lane) * UNIT;
    const Out output(args, 0, args.channels, true);
    typename Out::Channels channel_values;
    output.load(channel_values, channel);
    dependency_wait();

    const int pixels = args.h * args.w;
    const bool units = in_units<TYPE>(args.x, args.x_pitch);
    const auto* x = static_cast<const Storage*>(args.x) + static_cast<i64>(n) * pixels * args.x_pitch + channel;
    float result[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; ++i) result[i] = MAXIMUM ? -infinity() : 0.0f;
    if (channel < args.channels) {
      for (int first = walker; first < pixels; first += BATCH * WALKERS) {
        uint4 bits[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
          const int pixel = min(first + b * WALKERS, pixels - 1);
          bits[b] = load_unit<TYPE>(x + static_cast<i64>(pixel) * args.x_pitch, units, args.channels - channel);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
          float values[UNIT];
          TYPE::unpack(bits[b], values);
          if (first + b * WALKERS >= pixels) continue;
#pragma unroll
          for (int i = 0; i < UNIT; ++i) result[i] = combine(result[i], values[i]);
        }
      }
    }

    // Value i of thread t lies at [i][t]: a warp meets every bank once.
    float* shared = reinterpret_cast<float*>(shared_memory());
#pragma unroll
    for (int i = 0; i < UNIT; ++i) shared[i * THREADS + threadIdx.x] = result[i];
#pragma unroll
    for (int half = WALKERS / 2; half > 0; half /= 2) {
      __syncthreads();
      if (walker < half) {
#pragma unroll
        for (int i = 0; i < UNIT; ++i) {
          result[i] = combine(result[i], shared[i * THREADS + threadIdx.x + half * LANES]);
          shared[i * THREADS + threadIdx.x] = result[i];
        }
      }
    }
    if (walker > 0 || channel >= output.written()) return;
    if (!MAXIMUM) {
#pragma unroll
      for (int i = 0; i < UNIT; ++i) result[i] /= static_cast<float>(pixels);
    }
    typename Out::Row row_values;
    output.load(row_values, n, n, channel);
    output.store(n, channel, result, channel_values, row_values);
  }

 private:
  static __device__ __forceinline__ float combine(float a, float b) { return MAXIMUM ? max_nan(a, b) : a + b; }
};

}  // namespace tilewright
