// Max and average pooling. A thread computes one unit of channels of one output pixel; neighbours share their windows through the L1 cache.
//
// A window that meets no element of x gives 0 (average) or the lowest float (maximum; -infinity once stored as a half), as ONNX
// Runtime's CPU provider does. A NaN in the window gives NaN in both, as cuDNN is asked to by ONNX Runtime's CUDA provider.
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace tilewright {

constexpr int POOL_MAX = 0;
constexpr int POOL_AVERAGE = 1;         // divided by the elements of x in the window
constexpr int POOL_AVERAGE_PADDED = 2;  // divided by the elements of the window before the end of the padding (pad_end), padding included

/// Parameters, in order:
///   TYPE        F16 or TF32
///   KIND        0 maximum, 1 average, 2 average that counts padding
///   KERNEL_H, KERNEL_W   both baked, or both 0: read from the arguments
///   LANES       threads side by side along the channels
///   THREADS     threads of a block
///   EPILOGUE    Epilogue<...>
/// Grid: (batch * p * q / (THREADS / LANES), units of channels / LANES, 1), both rounded up.
template <class TYPE, int KIND, int KERNEL_H, int KERNEL_W, int LANES, int THREADS_, class EPILOGUE>
struct Pool {
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
    int p;
    int q;
    int y_pitch;
    int y_offset;
    int y_zero_to;
    int channels;
    int kh;
    int kw;
    int stride_h;
    int stride_w;
    int pad_h;
    int pad_w;
    int pad_end_h;
    int pad_end_w;
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
  static_assert(KIND >= POOL_MAX && KIND <= POOL_AVERAGE_PADDED, "one of the three kinds");
  static_assert((KERNEL_H > 0) == (KERNEL_W > 0), "baked together or not at all");
  static_assert(THREADS % LANES == 0, "whole rows of lanes");

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int channel = (blockIdx.y * LANES + threadIdx.x % LANES) * UNIT;
    const Out output(args, 0, args.channels, true);
    typename Out::Channels channel_values;
    output.load(channel_values, channel);
    dependency_wait();

    const i64 position = static_cast<i64>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    if (position >= static_cast<i64>(args.batch) * args.p * args.q || channel >= output.written()) return;
    const int row = static_cast<int>(position);
    int p, q;
    const int n = FastDiv(args.p).divide(FastDiv(args.q).divide(row, q), p);

    const bool units = in_units<TYPE>(args.x, args.x_pitch) && channel < args.channels;
    const auto* image = static_cast<const Storage*>(args.x) + static_cast<i64>(n) * args.h * args.w * args.x_pitch + channel;
    const int first_y = p * args.stride_h - args.pad_h, first_x = q * args.stride_w - args.pad_w;
    float result[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; ++i) result[i] = KIND == POOL_MAX ? -infinity() : 0.0f;
    int met = 0;
    const int kh = KERNEL_H > 0 ? KERNEL_H : args.kh, kw = KERNEL_W > 0 ? KERNEL_W : args.kw;
#pragma unroll
    for (int r = 0; r < kh; ++r) {
      const int y = first_y + r * args.dil_h;
      if (static_cast<u32>(y) >= static_cast<u32>(args.h)) continue;
#pragma unroll
      for (int s = 0; s < kw; ++s) {
        const int x = first_x + s * args.dil_w;
        if (static_cast<u32>(x) >= static_cast<u32>(args.w)) continue;
        float values[UNIT];
        TYPE::unpack(load_unit<TYPE>(image + (static_cast<i64>(y) * args.w + x) * args.x_pitch, units, args.channels - channel), values);
#pragma unroll
        for (int i = 0; i < UNIT; ++i) result[i] = KIND == POOL_MAX ? max_nan(result[i], values[i]) : result[i] + values[i];
        ++met;
      }
    }
    if (KIND == POOL_MAX && met == 0) {
#pragma unroll
      for (int i = 0; i < UNIT; ++i) result[i] = LOWEST;
    }
    if (KIND != POOL_MAX && met > 0) {
      int count = met;
      if (KIND == POOL_AVERAGE_PADDED) {
        count = taps_before(args.h + args.pad_end_h - first_y, args.dil_h, kh) * taps_before(args.w + args.pad_end_w - first_x, args.dil_w, kw);
      }
#pragma unroll
      for (int i = 0; i < UNIT; ++i) result[i] /= static_cast<float>(count);
    }

    typename Out::Row row_values;
    output.load(row_values, row, n, channel);
    output.store(row, channel, result, channel_values, row_values);
  }

 private:
  /// How many of `taps` taps, `dilation` apart, lie in [0, distance).
  static __device__ __forceinline__ int taps_before(int distance, int dilation, int taps) {
    return min(taps, FastDiv(dilation)(max(distance, 0) + dilation - 1));
  }
};

}  // namespace tilewright
