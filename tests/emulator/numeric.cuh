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

/// Wrong by `emulator::reciprocal_error` units in the last place; the instruction may be by two.
inline float reciprocal(float a) {
  float result = 1.0f / a;
  for (int i = 0; i < std::abs(emulator::reciprocal_error); ++i) result = std::nextafter(result, emulator::reciprocal_error > 0 ? INFINITY : 0.0f);
  return result;
}

}  // namespace tilewright
