// The instructions of include/numeric.cuh in C++.
#pragma once

#include "device.h"

namespace tilewright {

constexpr float LOWEST = -3.402823466e+38f;

inline float infinity() {
  return INFINITY;
}
inline float max_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
}
inline float min_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
}

/// One unit in the last place too large, the worst that the instruction may do.
inline float reciprocal(float a) {
  return std::nextafter(1.0f / a, INFINITY);
}

}  // namespace tilewright
