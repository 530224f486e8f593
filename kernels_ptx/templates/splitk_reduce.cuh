// Second half of a convolution with SPLIT_K > 1: adds the partial sums in `workspace` and applies the epilogue.
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32, of y and the operands
///   SPLIT_K     as in the convolution; workspace is fp32 [SPLIT_K][batch * p * q][ws_pitch]
///   LANES       threads side by side along the channels
///   THREADS     threads of a block
///   EPILOGUE    Epilogue<...>
/// Grid: (batch * p * q / (THREADS / LANES), units of channels / LANES, 1), both rounded up.
template <class TYPE, int SPLIT_K, int LANES, int THREADS_, class EPILOGUE>
struct SplitkReduce {
  struct Args {
    const void* workspace;
    const void* bias;
    void* y;
    const void* e0;
    const void* e1;
    const void* e2;
    int batch;
    int p;
    int q;
    int ws_pitch;
    int y_pitch;
    int y_offset;
    int y_zero_to;
    int channels;
    int e0_pitch;
    int e1_pitch;
    int e2_pitch;
    int reserved;
  };

  using Out = Output<TYPE, EPILOGUE, Args>;
  static constexpr int UNIT = TYPE::UNIT;
  static constexpr int THREADS = THREADS_;
  static constexpr int MIN_BLOCKS = 1;
  static constexpr int SMEM_BYTES = 0;
  static_assert(SPLIT_K >= 2, "parts to add");
  static_assert(THREADS % LANES == 0, "whole rows of lanes");

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int channel = (blockIdx.y * LANES + threadIdx.x % LANES) * UNIT;
    const Out output(args, 0, args.channels, true);
    typename Out::Channels channel_values;
    output.load(channel_values, channel);
    dependency_wait();

    const int rows = args.batch * args.p * args.q;
    const i64 position = static_cast<i64>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    if (position >= rows || channel >= output.written()) return;
    const int row = static_cast<int>(position);
    typename Out::Row row_values;
    output.load(row_values, row, EPILOGUE::USES_SAMPLE ? FastDiv(args.p * args.q)(row) : 0, channel);

    const bool units = in_units<TF32>(args.workspace, args.ws_pitch);
    const float* part = static_cast<const float*>(args.workspace) + static_cast<i64>(row) * args.ws_pitch + channel;
    const i64 part_size = static_cast<i64>(rows) * args.ws_pitch;
    float sums[UNIT] = {};
#pragma unroll
    for (int k = 0; k < SPLIT_K; ++k) {
#pragma unroll
      for (int u = 0; u < UNIT; u += 4) {
        float values[4];
        const int count = args.channels - channel - u;
        TF32::unpack(load_unit<TF32>(part + k * part_size + u, units && count >= 4, count), values);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[u + i] += values[i];
      }
    }
    output.store(row, channel, sums, channel_values, row_values);
  }
};

}  // namespace tilewright
