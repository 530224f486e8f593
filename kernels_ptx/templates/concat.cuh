// y = EPILOGUE(x0 | x1 | ...): up to eight NHWC tensors side by side along the channels, in one launch.
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32
///   SOURCES     tensors that are read, 1 to 8; the others are null
///   LANES       threads side by side along the channels
///   THREADS     threads of a block
///   EPILOGUE    Epilogue<...>; channels count from the first one of x0
/// `channels` is the sum of x<i>_channels. Grid: (batch * p * q / (THREADS / LANES), units of channels / LANES, 1), both rounded up.
template <class TYPE, int SOURCES, int LANES, int THREADS_, class EPILOGUE>
struct Concat {
  struct Args {
    const void* x0;
    const void* x1;
    const void* x2;
    const void* x3;
    const void* x4;
    const void* x5;
    const void* x6;
    const void* x7;
    const void* bias;
    void* y;
    const void* e0;
    const void* e1;
    const void* e2;
    int batch;
    int p;
    int q;
    int x0_pitch;
    int x1_pitch;
    int x2_pitch;
    int x3_pitch;
    int x4_pitch;
    int x5_pitch;
    int x6_pitch;
    int x7_pitch;
    int x0_channels;
    int x1_channels;
    int x2_channels;
    int x3_channels;
    int x4_channels;
    int x5_channels;
    int x6_channels;
    int x7_channels;
    int y_pitch;
    int y_offset;
    int y_zero_to;
    int channels;
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
  static constexpr int STEP = THREADS / LANES;
  static_assert(THREADS % LANES == 0, "whole rows of lanes");
  static_assert(SOURCES >= 1 && SOURCES <= 8, "one to eight tensors");

  /// Where a channel of the result comes from.
  struct Piece {
    const Storage* x;
    int pitch;
    int channel;   // in x
    int channels;  // of x
  };

  template <int I>
  static __device__ __forceinline__ Piece source(const Args& args) {
    if constexpr (I == 0) return {static_cast<const Storage*>(args.x0), args.x0_pitch, 0, args.x0_channels};
    if constexpr (I == 1) return {static_cast<const Storage*>(args.x1), args.x1_pitch, 0, args.x1_channels};
    if constexpr (I == 2) return {static_cast<const Storage*>(args.x2), args.x2_pitch, 0, args.x2_channels};
    if constexpr (I == 3) return {static_cast<const Storage*>(args.x3), args.x3_pitch, 0, args.x3_channels};
    if constexpr (I == 4) return {static_cast<const Storage*>(args.x4), args.x4_pitch, 0, args.x4_channels};
    if constexpr (I == 5) return {static_cast<const Storage*>(args.x5), args.x5_pitch, 0, args.x5_channels};
    if constexpr (I == 6) return {static_cast<const Storage*>(args.x6), args.x6_pitch, 0, args.x6_channels};
    if constexpr (I == 7) return {static_cast<const Storage*>(args.x7), args.x7_pitch, 0, args.x7_channels};
  }

  /// The piece that holds `channel`; past the last one, a piece without channels.
  template <int I = 0>
  static __device__ __forceinline__ Piece find(const Args& args, int channel) {
    if constexpr (I < SOURCES) {
      Piece piece = source<I>(args);
      if (channel < piece.channels) {
        piece.channel = channel;
        return piece;
      }
      return find<I + 1>(args, channel - piece.channels);
    } else {
      return {nullptr, 0, 0, 0};
    }
  }

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int channel = (blockIdx.y * LANES + threadIdx.x % LANES) * UNIT;
    const Out output(args, 0, args.channels, true);
    typename Out::Channels channel_values;
    output.load(channel_values, channel);
    const Piece piece = find(args, channel);
    const bool whole = piece.channel % UNIT == 0 && piece.channel + UNIT <= piece.channels && in_units<TYPE>(piece.x, piece.pitch);
    dependency_wait();

    const i64 row = static_cast<i64>(blockIdx.x) * STEP + threadIdx.x / LANES;
    if (channel >= output.written() || row >= static_cast<i64>(args.batch) * args.p * args.q) return;
    typename Out::Row row_values;
    output.load(row_values, static_cast<int>(row), EPILOGUE::USES_SAMPLE ? FastDiv(args.p * args.q)(static_cast<int>(row)) : 0, channel);
    float values[UNIT];
    if (whole) {
      TYPE::unpack(*reinterpret_cast<const uint4*>(piece.x + row * piece.pitch + piece.channel), values);
    } else {
#pragma unroll
      for (int i = 0; i < UNIT; ++i) {
        const Piece one = find(args, channel + i);
        values[i] = one.x != nullptr ? TYPE::load(one.x + row * one.pitch + one.channel) : 0.0f;
      }
    }
    output.store(static_cast<int>(row), channel, values, channel_values, row_values);
  }
};

}  // namespace tilewright
