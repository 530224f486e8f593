// What is done to a result on its way to memory: a chain of pointwise ops, and the store that keeps padding channels zero.
//
// A channel is the stage's own (0 is its first one, wherever it lies in y); a row is a pixel of y in [N, P, Q] order; a sample is its n.
// Operands come from the kernel's Args: `bias` (float vector, null for none) and e0 .. e2 with their pitches. Every op passes NaN on.
#pragma once

#include "common.cuh"

namespace tilewright {

/// What an op reads besides the value: nothing, a float for each channel, or an element of a tensor for each channel of each row or sample.
enum class Reads { NOTHING, CHANNEL, ROW, SAMPLE };

constexpr int BIAS = -1;  // the operand index of `bias`; 0 .. 2 are e0 .. e2

struct MapOp {
  static constexpr Reads READS = Reads::NOTHING;
  static constexpr int OPERAND = 0;
};

template <int INDEX>
struct ChannelOp {
  static constexpr Reads READS = Reads::CHANNEL;
  static constexpr int OPERAND = INDEX;
};

template <int INDEX>
struct RowOp {
  static constexpr Reads READS = Reads::ROW;
  static constexpr int OPERAND = INDEX;
};

template <int INDEX>
struct SampleOp {
  static constexpr Reads READS = Reads::SAMPLE;
  static constexpr int OPERAND = INDEX;
};

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

__device__ __forceinline__ float hard_sigmoid(float x, float a, float b) {
  return max_nan(min_nan(a * x + b, 1.0f), 0.0f);
}

struct Relu : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return max_nan(x, 0.0f); }
};

/// Between two floats, given as their bits; either may be infinite.
template <u32 LOW, u32 HIGH>
struct Clip : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return min_nan(max_nan(x, __uint_as_float(LOW)), __uint_as_float(HIGH)); }
};

template <u32 SLOPE>
struct LeakyRelu : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return x < 0.0f ? x * __uint_as_float(SLOPE) : x; }
};

struct Sigmoid : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return sigmoid(x); }
};

struct Tanh : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return tanhf(x); }
};

/// max(0, min(1, A x + B)).
template <u32 A, u32 B>
struct HardSigmoid : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return hard_sigmoid(x, __uint_as_float(A), __uint_as_float(B)); }
};

struct HardSwish : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return x * hard_sigmoid(x, 1.0f / 6.0f, 0.5f); }
};

struct Silu : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return x * sigmoid(x); }
};

/// x times the normal distribution function at x.
struct Gelu : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
};

/// GELU by its tanh formula.
struct GeluTanh : MapOp {
  static __device__ __forceinline__ float apply(float x, float) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  }
};

/// x tanh(log(1 + e^x)), with tanh(log(y)) = (y^2 - 1) / (y^2 + 1).
struct Mish : MapOp {
  static __device__ __forceinline__ float apply(float x, float) {
    if (x > 20.0f) return x;
    const float e = __expf(x), n = e * (e + 2.0f);
    return x * __fdividef(n, n + 2.0f);
  }
};

/// A x + B.
template <u32 A, u32 B>
struct Affine : MapOp {
  static __device__ __forceinline__ float apply(float x, float) { return x * __uint_as_float(A) + __uint_as_float(B); }
};

struct Bias : ChannelOp<BIAS> {
  static __device__ __forceinline__ float apply(float x, float b) { return x + b; }
};

template <int I>
struct ScaleVec : ChannelOp<I> {
  static __device__ __forceinline__ float apply(float x, float scale) { return x * scale; }
};

template <int I>
struct ShiftVec : ChannelOp<I> {
  static __device__ __forceinline__ float apply(float x, float shift) { return x + shift; }
};

template <int I>
struct PReluVec : ChannelOp<I> {
  static __device__ __forceinline__ float apply(float x, float slope) { return x < 0.0f ? x * slope : x; }
};

template <int I>
struct AddFull : RowOp<I> {
  static __device__ __forceinline__ float apply(float x, float e) { return x + e; }
};

template <int I>
struct MulFull : RowOp<I> {
  static __device__ __forceinline__ float apply(float x, float e) { return x * e; }
};

/// x - e.
template <int I>
struct SubFull : RowOp<I> {
  static __device__ __forceinline__ float apply(float x, float e) { return x - e; }
};

/// e - x.
template <int I>
struct RSubFull : RowOp<I> {
  static __device__ __forceinline__ float apply(float x, float e) { return e - x; }
};

template <int I>
struct MulGate : SampleOp<I> {
  static __device__ __forceinline__ float apply(float x, float e) { return x * e; }
};

template <int I>
struct AddGate : SampleOp<I> {
  static __device__ __forceinline__ float apply(float x, float e) { return x + e; }
};

template <int INDEX, class Args>
__device__ __forceinline__ const void* operand(const Args& args) {
  static_assert(INDEX >= BIAS && INDEX <= 2, "operands are bias and e0 .. e2");
  if constexpr (INDEX == BIAS) return args.bias;
  if constexpr (INDEX == 0) return args.e0;
  if constexpr (INDEX == 1) return args.e1;
  if constexpr (INDEX == 2) return args.e2;
}

template <int INDEX, class Args>
__device__ __forceinline__ int operand_pitch(const Args& args) {
  return INDEX == 0 ? args.e0_pitch : INDEX == 1 ? args.e1_pitch : args.e2_pitch;
}

/// The values that the ops of a chain read for one unit of channels, whatever the row.
template <class T, class... Ops>
struct ChannelValues {
  template <class Args>
  __device__ __forceinline__ void load(const Args&, int, int) {}
};

template <class T, class Op, class... Rest>
struct ChannelValues<T, Op, Rest...> {
  float values[Op::READS == Reads::CHANNEL ? T::UNIT : 1];
  ChannelValues<T, Rest...> rest;

  /// For channels `channel` and on; those from `end` on do not exist.
  template <class Args>
  __device__ __forceinline__ void load(const Args& args, int channel, int end) {
    if constexpr (Op::READS == Reads::CHANNEL) {
      const float* source = static_cast<const float*>(operand<Op::OPERAND>(args));
      const int count = source != nullptr ? end - channel : 0;
      source += channel;
#pragma unroll
      for (int i = 0; i < T::UNIT; ++i) values[i] = i < count ? __ldg(source + i) : 0.0f;
    }
    rest.load(args, channel, end);
  }
};

/// The elements that the ops of a chain read for one unit of channels of one row.
template <class T, class... Ops>
struct RowValues {
  template <class Args>
  __device__ __forceinline__ void load(const Args&, bool, int, int, int, int) {}
};

template <class T, class Op, class... Rest>
struct RowValues<T, Op, Rest...> {
  uint4 bits;
  RowValues<T, Rest...> rest;

  template <class Args>
  __device__ __forceinline__ void load(const Args& args, bool whole, int row, int sample, int channel, int end) {
    if constexpr (Op::READS == Reads::ROW || Op::READS == Reads::SAMPLE) {
      const auto* source = static_cast<const typename T::Storage*>(operand<Op::OPERAND>(args));
      const i64 first = static_cast<i64>(Op::READS == Reads::ROW ? row : sample) * operand_pitch<Op::OPERAND>(args) + channel;
      bits = load_unit<T>(source + first, whole, end - channel);
    }
    rest.load(args, whole, row, sample, channel, end);
  }
};

template <class T>
__device__ __forceinline__ void apply_chain(float (&)[T::UNIT], const ChannelValues<T>&, const RowValues<T>&) {}

template <class T, class Op, class... Rest>
__device__ __forceinline__ void apply_chain(float (&x)[T::UNIT], const ChannelValues<T, Op, Rest...>& channels,
                                            const RowValues<T, Op, Rest...>& row) {
  float other[T::UNIT] = {};
  if constexpr (Op::READS == Reads::ROW || Op::READS == Reads::SAMPLE) T::unpack(row.bits, other);
#pragma unroll
  for (int i = 0; i < T::UNIT; ++i) {
    if constexpr (Op::READS == Reads::CHANNEL) other[i] = channels.values[i];
    x[i] = Op::apply(x[i], other[i]);
  }
  apply_chain<T, Rest...>(x, channels.rest, row.rest);
}

/// The ops that a kernel applies to its fp32 results, in order, before it stores them.
template <class... Ops>
struct Epilogue {
  static constexpr int CHANNEL_OPS = (0 + ... + (Ops::READS == Reads::CHANNEL));
  static constexpr int ROW_OPS = (0 + ... + (Ops::READS == Reads::ROW || Ops::READS == Reads::SAMPLE));
  static constexpr bool USES_SAMPLE = (false || ... || (Ops::READS == Reads::SAMPLE));

  template <class T>
  using Channels = ChannelValues<T, Ops...>;
  template <class T>
  using Row = RowValues<T, Ops...>;

  template <class T>
  static __device__ __forceinline__ void apply(float (&x)[T::UNIT], const Channels<T>& channels, const Row<T>& row) {
    apply_chain<T, Ops...>(x, channels, row);
  }

  /// Whether the tensors that the ops read can be read in units.
  template <class T, class Args>
  static __device__ __forceinline__ bool operands_in_units(const Args& args) {
    return (true && ... && operand_in_units<T, Ops>(args));
  }

 private:
  template <class T, class Op, class Args>
  static __device__ __forceinline__ bool operand_in_units(const Args& args) {
    if constexpr (Op::READS == Reads::ROW || Op::READS == Reads::SAMPLE) {
      return in_units<T>(operand<Op::OPERAND>(args), operand_pitch<Op::OPERAND>(args));
    }
    return true;
  }
};

/// The way of results to y, a unit of channels at a time. Args needs y, y_pitch, y_offset, y_zero_to, bias and the operands.
template <class T, class E, class Args>
class Output {
 public:
  using Channels = typename E::template Channels<T>;
  using Row = typename E::template Row<T>;

  /// For units that start at multiples of UNIT from channel `first` on. Channels from `end` on are not this stage's; where `last`, those
  /// up to y_zero_to are written as zeros.
  __device__ __forceinline__ Output(const Args& args, int first, int end, bool last) : args_(args), end_(end) {
    written_ = last ? max(end, args.y_zero_to - args.y_offset) : end;
    const bool aligned = first % T::UNIT == 0;
    read_units_ = aligned && E::template operands_in_units<T>(args);
    write_units_ = aligned && in_units<T>(args.y, args.y_pitch) && args.y_offset % T::UNIT == 0;
  }

  /// One past the last channel that is written.
  __device__ __forceinline__ int written() const { return written_; }

  /// Whether every unit is read and written in one piece, as WHOLE below demands.
  __device__ __forceinline__ bool whole() const { return read_units_ && write_units_ && written_ % T::UNIT == 0; }

  __device__ __forceinline__ void load(Channels& channels, int channel) const { channels.load(args_, channel, end_); }

  template <bool WHOLE = false>
  __device__ __forceinline__ void load(Row& operands, int row, int sample, int channel) const {
    if (channel < end_) operands.load(args_, WHOLE || read_units_, row, sample, channel, end_);
  }

  /// Applies the epilogue to channels `channel` and on of a row and writes them.
  template <bool WHOLE = false>
  __device__ __forceinline__ void store(int row, int channel, float (&values)[T::UNIT], const Channels& channels, const Row& operands) const {
    E::template apply<T>(values, channels, operands);
#pragma unroll
    for (int i = 0; i < T::UNIT; ++i) {
      if (channel + i >= end_) values[i] = 0.0f;
    }
    auto* target = static_cast<typename T::Storage*>(args_.y) + static_cast<i64>(row) * args_.y_pitch + args_.y_offset + channel;
    store_unit<T>(target, WHOLE || (write_units_ && channel + T::UNIT <= written_), written_ - channel, values);
  }

  /// Writes one zero.
  __device__ __forceinline__ void store_zero(int row, int channel) const {
    T::store(static_cast<typename T::Storage*>(args_.y) + static_cast<i64>(row) * args_.y_pitch + args_.y_offset + channel, 0.0f);
  }

 private:
  const Args& args_;
  int end_, written_;
  bool read_units_, write_units_;
};

}  // namespace tilewright
