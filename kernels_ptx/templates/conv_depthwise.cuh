// Depthwise convolution (one filter a channel) on CUDA cores. A thread computes one unit of channels of OUT_W neighbours along W and reads
// each column of its window once.
//
// x is NHWC and read in units: its address is a multiple of 16 bytes and x_pitch one of UNIT. The weights are [kh * kw][w_pitch] in the
// element type, w_pitch a multiple of UNIT that covers the channels.
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32
///   KERNEL_H, KERNEL_W, STRIDE_W, DILATION_W   all baked, or all 0: read from the arguments
///   OUT_W       outputs along W that a thread computes
///   LANES       threads side by side along the channels
///   THREADS     threads of a block
///   EPILOGUE    Epilogue<...>
/// Grid: (batch * p * ceil(q / OUT_W) / (THREADS / LANES), units of channels / LANES, 1), both rounded up.
template <class TYPE, int KERNEL_H, int KERNEL_W, int STRIDE_W, int DILATION_W, int OUT_W, int LANES, int THREADS_, class EPILOGUE>
struct ConvDepthwise {
  struct Args {
    const void* x;
    const void* weight;
    const void* bias;
    void* y;
    const void* e0;
    const void* e1;
    const void* e2;
    int batch;
    int h;
    int w;
    int x_pitch;
    int p;
    int q;
    int y_pitch;
    int y_offset;
    int y_zero_to;
    int channels;
    int w_pitch;
    int kh;
    int kw;
    int stride_h;
    int stride_w;
    int pad_h;
    int pad_w;
    int dil_h;
    int dil_w;
    int e0_pitch;
    int e1_pitch;
    int e2_pitch;
  };

  using Storage = typename TYPE::Storage;
  using Out = Output<TYPE, EPILOGUE, Args>;
  static constexpr int UNIT = TYPE::UNIT;
  static constexpr int THREADS = THREADS_;
  static constexpr int MIN_BLOCKS = 1;
  static constexpr int SMEM_BYTES = 0;
  static constexpr bool BAKED = KERNEL_W > 0;
  static constexpr int COLUMNS = BAKED ? (OUT_W - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1 : 1;  // of x, for OUT_W outputs

  static_assert((KERNEL_H > 0) == BAKED && (STRIDE_W > 0) == BAKED && (DILATION_W > 0) == BAKED, "baked together or not at all");
  static_assert(THREADS % LANES == 0 && OUT_W >= 1, "whole rows of lanes");

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int channel = (blockIdx.y * LANES + threadIdx.x % LANES) * UNIT;
    const int blocks_w = cdiv(args.q, OUT_W);
    const Out output(args, 0, args.channels, true);
    typename Out::Channels channel_values;
    output.load(channel_values, channel);
    dependency_wait();

    // Positions are counted in 64 bits only where a block starts, so that the last block may lie beyond 2^31.
    const i64 position = static_cast<i64>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    if (position >= static_cast<i64>(args.batch) * args.p * blocks_w || channel >= output.written()) return;
    int p, q;
    const int n = FastDiv(args.p).divide(FastDiv(blocks_w).divide(static_cast<int>(position), q), p);
    q *= OUT_W;

    float sums[OUT_W][UNIT] = {};
    if (channel < args.channels) {
      const auto* x = static_cast<const Storage*>(args.x) + static_cast<i64>(n) * args.h * args.w * args.x_pitch + channel;
      const auto* weight = static_cast<const Storage*>(args.weight) + channel;
      if constexpr (BAKED) {
        accumulate_baked(args, x, weight, p, q, sums);
      } else {
        accumulate(args, x, weight, p, q, sums);
      }
    }

    const int row = (n * args.p + p) * args.q + q;
    typename Out::Row row_values[OUT_W];
#pragma unroll
    for (int o = 0; o < OUT_W; ++o) {
      if (q + o < args.q) output.load(row_values[o], row + o, n, channel);
    }
#pragma unroll
    for (int o = 0; o < OUT_W; ++o) {
      if (q + o < args.q) output.store(row + o, channel, sums[o], channel_values, row_values[o]);
    }
  }

 private:
  static __device__ __forceinline__ uint4 constant_unit(const Storage* source) { return __ldg(reinterpret_cast<const uint4*>(source)); }

  static __device__ __forceinline__ void accumulate_baked(const Args& args, const Storage* x, const Storage* weight, int p, int q,
                                                          float (&sums)[OUT_W][UNIT]) {
    const int first_x = q * STRIDE_W - args.pad_w;
#pragma unroll
    for (int r = 0; r < KERNEL_H; ++r) {
      const int y = p * args.stride_h - args.pad_h + r * args.dil_h;
      if (static_cast<u32>(y) >= static_cast<u32>(args.h)) continue;
      const Storage* line = x + static_cast<i64>(y) * args.w * args.x_pitch;
      uint4 columns[COLUMNS];
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const int column = first_x + c;
        columns[c] = make_uint4(0, 0, 0, 0);
        if (used(c) && static_cast<u32>(column) < static_cast<u32>(args.w))
          columns[c] = load_unit<TYPE>(line + static_cast<i64>(column) * args.x_pitch, true, UNIT);
      }
#pragma unroll
      for (int s = 0; s < KERNEL_W; ++s) {
        float factors[UNIT];
        TYPE::unpack(constant_unit(weight + (r * KERNEL_W + s) * args.w_pitch), factors);
#pragma unroll
        for (int o = 0; o < OUT_W; ++o) {
          float values[UNIT];
          TYPE::unpack(columns[o * STRIDE_W + s * DILATION_W], values);
#pragma unroll
          for (int i = 0; i < UNIT; ++i) sums[o][i] += values[i] * factors[i];
        }
      }
    }
  }

  /// Whether some output reads column c of the window (strides and dilations leave gaps).
  static constexpr __device__ bool used(int c) {
    for (int o = 0; o < OUT_W; ++o) {
      for (int s = 0; s < KERNEL_W; ++s) {
        if (o * STRIDE_W + s * DILATION_W == c) return true;
      }
    }
    return false;
  }

  static __device__ __forceinline__ void accumulate(const Args& args, const Storage* x, const Storage* weight, int p, int q,
                                                    float (&sums)[OUT_W][UNIT]) {
    for (int r = 0; r < args.kh; ++r) {
      const int y = p * args.stride_h - args.pad_h + r * args.dil_h;
      if (static_cast<u32>(y) >= static_cast<u32>(args.h)) continue;
      const Storage* line = x + static_cast<i64>(y) * args.w * args.x_pitch;
      for (int s = 0; s < args.kw; ++s) {
        float factors[UNIT];
        TYPE::unpack(constant_unit(weight + static_cast<i64>(r * args.kw + s) * args.w_pitch), factors);
#pragma unroll
        for (int o = 0; o < OUT_W; ++o) {
          const int column = (q + o) * args.stride_w - args.pad_w + s * args.dil_w;
          if (static_cast<u32>(column) >= static_cast<u32>(args.w)) continue;
          float values[UNIT];
          TYPE::unpack(load_unit<TYPE>(line + static_cast<i64>(column) * args.x_pitch, true, UNIT), values);
#pragma unroll
          for (int i = 0; i < UNIT; ++i) sums[o][i] += values[i] * factors[i];
        }
      }
    }
  }
};

}  // namespace tilewright
