// Floating-point instructions that C++ has no word for.
#pragma once

namespace tilewright {

constexpr float LOWEST = -3.402823466e+38f;  // the finite float furthest below zero

__device__ __forceinline__ float infinity() {
  return __uint_as_float(0x7f800000u);
}

/// The larger of two numbers, NaN if one of them is (fmaxf would drop the NaN).
__device__ __forceinline__ float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

/// The smaller of two numbers, NaN if one of them is.
__device__ __forceinline__ float min_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

/// 1 / a within two units in the last place, for normal a.
__device__ __forceinline__ float reciprocal(float a) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}

}  // namespace tilewright
