// Between NCHW tensors of floats or halves and NHWC tensors of the element type. To NHWC, padding channels are written as zeros.
#pragma once

#include "common.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32, of the NHWC tensor
///   OTHER       F16 or TF32, of the NCHW tensor (halves or floats)
///   TO_NHWC     direction
///   TILE_C      channels of a block's tile of 64 pixels, which goes through shared memory; 0 for few channels: a thread takes one unit of
///               channels of one pixel, without shared memory
/// Grid: (batch * ceil(h * w / PIXELS), ceil(channels / TILE_C) or units of channels, 1); PIXELS is 64, or 256 where TILE_C is 0.
template <class TYPE, class OTHER, bool TO_NHWC, int TILE_C>
struct Layout {
  struct Args {
    const void* x;
    void* y;
    int batch;
    int h;
    int w;
    int channels;
    int pitch;
    int offset;
    int zero_to;
    int reserved;
  };

  using Nhwc = typename TYPE::Storage;
  using Nchw = typename OTHER::Storage;
  static constexpr int UNIT = TYPE::UNIT;
  static constexpr int THREADS = 256;
  static constexpr int MIN_BLOCKS = 1;
  static constexpr int PIXELS = TILE_C > 0 ? 64 : 256;
  static constexpr int TILE_PITCH = PIXELS + 1;
  static constexpr int SMEM_BYTES = TILE_C * TILE_PITCH * 4;
  static_assert(TILE_C % 32 == 0, "a warp writes whole sectors");

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int pixels = args.h * args.w;
    int tile;
    const int n = FastDiv(cdiv(pixels, PIXELS)).divide(blockIdx.x, tile);
    const int first_pixel = tile * PIXELS;
    const void* nhwc_tensor = TO_NHWC ? args.y : args.x;
    const Tensors tensors = {static_cast<i64>(n) * args.channels * pixels, static_cast<i64>(n) * pixels * args.pitch + args.offset, pixels,
                             TO_NHWC ? max(args.channels, args.zero_to - args.offset) : args.channels,
                             in_units<TYPE>(nhwc_tensor, args.pitch) && args.offset % UNIT == 0};
    dependency_wait();
    if constexpr (TILE_C == 0) {
      const int pixel = first_pixel + threadIdx.x, channel = blockIdx.y * UNIT;
      if (pixel >= pixels || channel >= tensors.written) return;
      float values[UNIT];
      if constexpr (TO_NHWC) {
        const auto* source = static_cast<const Nchw*>(args.x) + tensors.nchw + pixel;
#pragma unroll
        for (int i = 0; i < UNIT; ++i) values[i] = channel + i < args.channels ? OTHER::load(source + static_cast<i64>(channel + i) * pixels) : 0.0f;
        store_nhwc(args, tensors, pixel, channel, values);
      } else {
        load_nhwc(args, tensors, pixel, channel, values);
        auto* target = static_cast<Nchw*>(args.y) + tensors.nchw + pixel;
#pragma unroll
        for (int i = 0; i < UNIT; ++i) {
          if (channel + i < args.channels) OTHER::store(target + static_cast<i64>(channel + i) * pixels, values[i]);
        }
      }
    } else {
      through_shared(args, tensors, first_pixel);
    }
  }

 private:
  struct Tensors {
    i64 nchw, nhwc;  // where the sample starts
    int pixels;
    int written;  // channels of the NHWC tensor that are read or written
    bool units;
  };

  static __device__ __forceinline__ void load_nhwc(const Args& args, const Tensors& tensors, int pixel, int channel, float (&values)[UNIT]) {
    const auto* source = static_cast<const Nhwc*>(args.x) + tensors.nhwc + static_cast<i64>(pixel) * args.pitch + channel;
    TYPE::unpack(load_unit<TYPE>(source, tensors.units, args.channels - channel), values);
  }

  static __device__ __forceinline__ void store_nhwc(const Args& args, const Tensors& tensors, int pixel, int channel, const float (&values)[UNIT]) {
    auto* target = static_cast<Nhwc*>(args.y) + tensors.nhwc + static_cast<i64>(pixel) * args.pitch + channel;
    store_unit<TYPE>(target, tensors.units && channel + UNIT <= tensors.written, tensors.written - channel, values);
  }

  /// Pixels side by side on the NCHW side, channels side by side on the other.
  static __device__ __forceinline__ void through_shared(const Args& args, const Tensors& tensors, int first_pixel) {
    float* shared = reinterpret_cast<float*>(shared_memory());
    const int first_channel = blockIdx.y * TILE_C;
    constexpr int UNITS = TILE_C / UNIT;
    const int thread = threadIdx.x;
    if constexpr (TO_NHWC) {
      const auto* source = static_cast<const Nchw*>(args.x) + tensors.nchw;
#pragma unroll
      for (int i = 0; i < TILE_C * PIXELS / THREADS; ++i) {
        const int c = i * (THREADS / PIXELS) + thread / PIXELS, pixel = first_pixel + thread % PIXELS;
        const bool inside = first_channel + c < args.channels && pixel < tensors.pixels;
        shared[c * TILE_PITCH + thread % PIXELS] = inside ? OTHER::load(source + static_cast<i64>(first_channel + c) * tensors.pixels + pixel) : 0.0f;
      }
      __syncthreads();
    }
    for (int i = thread; i < UNITS * PIXELS; i += THREADS) {
      const int c = i % UNITS * UNIT, pixel = i / UNITS;
      if (first_pixel + pixel >= tensors.pixels || first_channel + c >= tensors.written) continue;
      float values[UNIT];
      if constexpr (TO_NHWC) {
#pragma unroll
        for (int u = 0; u < UNIT; ++u) values[u] = shared[(c + u) * TILE_PITCH + pixel];
        store_nhwc(args, tensors, first_pixel + pixel, first_channel + c, values);
      } else {
        load_nhwc(args, tensors, first_pixel + pixel, first_channel + c, values);
#pragma unroll
        for (int u = 0; u < UNIT; ++u) shared[(c + u) * TILE_PITCH + pixel] = values[u];
      }
    }
    if constexpr (!TO_NHWC) {
      __syncthreads();
      auto* target = static_cast<Nchw*>(args.y) + tensors.nchw;
#pragma unroll
      for (int i = 0; i < TILE_C * PIXELS / THREADS; ++i) {
        const int c = i * (THREADS / PIXELS) + thread / PIXELS, pixel = first_pixel + thread % PIXELS;
        if (first_channel + c < args.channels && pixel < tensors.pixels)
          OTHER::store(target + static_cast<i64>(first_channel + c) * tensors.pixels + pixel, shared[c * TILE_PITCH + thread % PIXELS]);
      }
    }
  }
};

}  // namespace tilewright
