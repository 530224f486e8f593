// Grouped convolution on CUDA cores for any number of channels in a group: the way of last resort, where the tensor-core kernel's copies
// do not fit. A thread computes one unit of output channels of one pixel.
//
// x is NHWC (any address and pitch), the weights are [groups * cout_g][kh * kw * cin_g] in the element type.
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32 (products in fp32)
///   LANES       threads side by side along the channels
///   THREADS     threads of a block
///   EPILOGUE    Epilogue<...>
/// Grid: (batch * p * q / (THREADS / LANES), units of channels / LANES, 1), both rounded up.
template <class TYPE, int LANES, int THREADS_, class EPILOGUE>
struct ConvDirect {
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
    int groups;
    int cin_g;
    int cout_g;
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
    int reserved;
  };

  using Storage = typename TYPE::Storage;
  using Out = Output<TYPE, EPILOGUE, Args>;
  static constexpr int UNIT = TYPE::UNIT;
  static constexpr int THREADS = THREADS_;
  static constexpr int MIN_BLOCKS = 1;
  static constexpr int SMEM_BYTES = 0;
  static_assert(THREADS % LANES == 0, "whole rows of lanes");

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int channel = (blockIdx.y * LANES + threadIdx.x % LANES) * UNIT;
    const int channels = args.groups * args.cout_g;
    const Out output(args, 0, channels, true);
    typename Out::Channels channel_values;
    output.load(channel_values, channel);
    dependency_wait();

    const i64 position = static_cast<i64>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    if (position >= static_cast<i64>(args.batch) * args.p * args.q || channel >= output.written()) return;
    const int row = static_cast<int>(position);
    int p, q;
    const int n = FastDiv(args.p).divide(FastDiv(args.q).divide(row, q), p);

    // Where each channel's group starts in x; channels that do not exist repeat the last one.
    const FastDiv by_cout(args.cout_g);
    const int depth = args.kh * args.kw * args.cin_g;
    int group_offset[UNIT];
    const Storage* weight[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; ++i) {
      const int c = min(channel + i, channels - 1);
      group_offset[i] = by_cout(c) * args.cin_g;
      weight[i] = static_cast<const Storage*>(args.weight) + static_cast<i64>(c) * depth;
    }

    float sums[UNIT] = {};
    const auto* image = static_cast<const Storage*>(args.x) + static_cast<i64>(n) * args.h * args.w * args.x_pitch;
    for (int r = 0; r < args.kh; ++r) {
      const int y = p * args.stride_h - args.pad_h + r * args.dil_h;
      if (static_cast<u32>(y) >= static_cast<u32>(args.h)) continue;
      for (int s = 0; s < args.kw; ++s) {
        const int x = q * args.stride_w - args.pad_w + s * args.dil_w;
        if (static_cast<u32>(x) >= static_cast<u32>(args.w)) continue;
        const Storage* pixel = image + (static_cast<i64>(y) * args.w + x) * args.x_pitch;
        const int tap = (r * args.kw + s) * args.cin_g;
        for (int c = 0; c < args.cin_g; ++c) {
#pragma unroll
          for (int i = 0; i < UNIT; ++i) sums[i] += TYPE::load(pixel + group_offset[i] + c) * TYPE::load(weight[i] + tap + c);
        }
      }
    }

    typename Out::Row row_values;
    output.load(row_values, row, n, channel);
    output.store(row, channel, sums, channel_values, row_values);
  }
};

}  // namespace tilewright
