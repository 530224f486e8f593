// Halves on a CPU: the part of CUDA's header that the kernel templates use.
#pragma once

#include "device.h"

struct __half {
  _Float16 value;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half h) {
  return static_cast<float>(h.value);
}
inline __half __float2half_rn(float f) {
  return {static_cast<_Float16>(f)};
}
inline float2 __half22float2(__half2 h) {
  return {__half2float(h.x), __half2float(h.y)};
}
inline __half2 __floats2half2_rn(float a, float b) {
  return {__float2half_rn(a), __float2half_rn(b)};
}
