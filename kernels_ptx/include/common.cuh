// Integer types, element types in units of 16 bytes, and division by a number that is only known at run time.
#pragma once

#include <cuda_fp16.h>

#include "numeric.cuh"

namespace tilewright {

using i64 = long long;
using u32 = unsigned int;
using u64 = unsigned long long;

template <class T>
__host__ __device__ constexpr T cdiv(T a, T b) {
  return (a + b - 1) / b;
}

/// The first of two types where CHOICE, else the second.
template <bool CHOICE, class A, class B>
struct Select {
  using Type = A;
};

template <class A, class B>
struct Select<false, A, B> {
  using Type = B;
};

/// Halves in memory; products of halves, sums in fp32.
struct F16 {
  using Storage = __half;
  static constexpr int UNIT = 8;  // elements in 16 bytes

  static __device__ __forceinline__ float load(const __half* source) { return __half2float(*source); }

  static __device__ __forceinline__ void store(__half* target, float value) { *target = __float2half_rn(value); }

  static __device__ __forceinline__ void unpack(const uint4& bits, float (&values)[UNIT]) {
    const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }

  static __device__ __forceinline__ uint4 pack(const float (&values)[UNIT]) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
      words[i] = reinterpret_cast<const u32&>(pair);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

/// Floats in memory; products in TF32 on tensor cores and in fp32 elsewhere, sums in fp32.
struct TF32 {
  using Storage = float;
  static constexpr int UNIT = 4;

  static __device__ __forceinline__ float load(const float* source) { return *source; }

  static __device__ __forceinline__ void store(float* target, float value) { *target = value; }

  static __device__ __forceinline__ void unpack(const uint4& bits, float (&values)[UNIT]) {
    values[0] = __uint_as_float(bits.x);
    values[1] = __uint_as_float(bits.y);
    values[2] = __uint_as_float(bits.z);
    values[3] = __uint_as_float(bits.w);
  }

  static __device__ __forceinline__ uint4 pack(const float (&values)[UNIT]) {
    return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]), __float_as_uint(values[3]));
  }
};

/// One unit of elements at `source`: all of it where `whole` says that 16 bytes may be read there, else the first `count` and zeros.
// NOTE: an ordinary load, never ld.global.nc: what the kernel before wrote may not be read through the non-coherent path by a
// kernel that was launched before that write (programmatic dependent launch).
template <class T>
__device__ __forceinline__ uint4 load_unit(const typename T::Storage* source, bool whole, int count) {
  if (whole) return *reinterpret_cast<const uint4*>(source);
  float values[T::UNIT];
#pragma unroll
  for (int i = 0; i < T::UNIT; ++i) values[i] = i < count ? T::load(source + i) : 0.0f;
  return T::pack(values);
}

/// Writes a unit: all of it where `whole`, else the first `count` elements.
template <class T>
__device__ __forceinline__ void store_unit(typename T::Storage* target, bool whole, int count, const float (&values)[T::UNIT]) {
  if (whole) {
    *reinterpret_cast<uint4*>(target) = T::pack(values);
    return;
  }
#pragma unroll
  for (int i = 0; i < T::UNIT; ++i) {
    if (i < count) T::store(target + i, values[i]);
  }
}

/// Whether rows of `pitch` elements from `tensor` on can be read and written in units.
template <class T>
__device__ __forceinline__ bool in_units(const void* tensor, int pitch) {
  return reinterpret_cast<u64>(tensor) % 16 == 0 && pitch % T::UNIT == 0;
}

/// Division of numbers in [0, 2^31) by a divisor in [1, 2^31): a reciprocal once, then a multiplication and a correction each.
class FastDiv {
 public:
  __device__ __forceinline__ explicit FastDiv(int divisor) : divisor_(divisor) {
    // An estimate of 2^32 / divisor that is never too large (the factor is 2^32 less 2^-21 of it), then one Newton step: after that,
    // floor(n * estimate / 2^32) is short by one at most.
    const u32 estimate = static_cast<u32>(reciprocal(static_cast<float>(divisor)) * 4294965248.0f);
    estimate_ = estimate + __umulhi(estimate, 0u - estimate * static_cast<u32>(divisor));
  }

  __device__ __forceinline__ int operator()(int n) const {
    int remainder;
    return divide(n, remainder);
  }

  __device__ __forceinline__ int divide(int n, int& remainder) const {
    int quotient = static_cast<int>(__umulhi(static_cast<u32>(n), estimate_));
    remainder = n - quotient * divisor_;
    if (remainder >= divisor_) {
      remainder -= divisor_;
      ++quotient;
    }
    return quotient;
  }

 private:
  int divisor_;
  u32 estimate_;
};

}  // namespace tilewright
