// y = EPILOGUE(x) over NHWC: adds, gates, scale and shift with an activation, and copies into a concat (with an empty epilogue).
#pragma once

#include "common.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace tilewright {

/// Parameters, in order:
///   TYPE        F16 or TF32
///   LANES       threads side by side along the channels
///   ROWS        rows that a thread takes, THREADS / LANES apart
///   THREADS     threads of a block
///   EPILOGUE    Epilogue<...>
/// Grid: (batch * p * q / (THREADS / LANES * ROWS), units of channels / LANES, 1), both rounded up.
template <class TYPE, int LANES, int ROWS, int THREADS_, class EPILOGUE>
struct Pointwise {
  struct Args {
    const void* x;
    const void* bias;
    void* y;
    const void* e0;
    const void* e1;
    const void* e2;
    int batch;
    int p;
    int q;
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
  static constexpr int SMEM_BYTES = 0;
  static constexpr int STEP = THREADS / LANES;
  static_assert(THREADS % LANES == 0 && ROWS >= 1, "whole rows of lanes");

  static __device__ __forceinline__ void run(const Args& args) {
    launch_dependents();
    const int channel = (blockIdx.y * LANES + threadIdx.x % LANES) * UNIT;
    const Out output(args, 0, args.channels, true);
    typename Out::Channels channel_values;
    output.load(channel_values, channel);
    dependency_wait();

    const i64 rows = static_cast<i64>(args.batch) * args.p * args.q;
    const i64 first = static_cast<i64>(blockIdx.x) * (STEP * ROWS) + threadIdx.x / LANES;
    if (channel >= output.written()) return;
    const FastDiv by_pixels(args.p * args.q);
    const bool units = in_units<TYPE>(args.x, args.x_pitch) && channel < args.channels;
    const auto* x = static_cast<const Storage*>(args.x) + channel;
    uint4 bits[ROWS];
    typename Out::Row row_values[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const i64 row = first + i * STEP;
      if (row >= rows) continue;
      bits[i] = load_unit<TYPE>(x + row * args.x_pitch, units, args.channels - channel);
      output.load(row_values[i], static_cast<int>(row), EPILOGUE::USES_SAMPLE ? by_pixels(static_cast<int>(row)) : 0, channel);
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const i64 row = first + i * STEP;
      if (row >= rows) continue;
      float values[UNIT];
      TYPE::unpack(bits[i], values);
      output.store(static_cast<int>(row), channel, values, channel_values, row_values[i]);
    }
  }
};

}  // namespace tilewright
