// The instructions of include/mma.cuh in C++.
#pragma once

#include "common.cuh"

namespace tilewright {

inline void ldmatrix_x4(u32 address, u32& a, u32& b, u32& c, u32& d) {
  const u32 mine[1] = {address};
  const auto addresses = emulator::exchange(mine);
  const int lane = emulator::current->lane;
  u32* results[4] = {&a, &b, &c, &d};
  for (int matrix = 0; matrix < 4; ++matrix) {
    const u32 row = addresses[8 * matrix + lane / 4][0];
    if (row % 16) std::abort();
    std::memcpy(results[matrix], &emulator::shared.at(row + lane % 4 * 4), 4);
  }
}

template <class T>
struct Mma;

/// a is M x K in fragments of rows lane / 4 + {0, 8}, b is K x N in columns lane / 4; `element` reads element k of a lane's words.
template <int K, class Element>
inline void multiply_fragments(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], const Element& element) {
  const u32 words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const auto lanes = emulator::exchange(words);
  const int lane = emulator::current->lane;
  constexpr int EACH = K / 8;  // neighbours of K in one word
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    float sum = c[i];
    for (int k = 0; k < K; ++k) {
      const int quad = k / EACH % 4, high = k / (4 * EACH), within = k % EACH;
      const u32 left = lanes[row * 4 + quad][2 * high + i / 2], right = lanes[column * 4 + quad][4 + high];
      sum += element(left, within) * element(right, within);
    }
    c[i] = sum;
  }
}

template <>
struct Mma<F16> {
  static inline void round(u32&) {}

  static inline void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    multiply_fragments<16>(c, a, b, [](u32 word, int i) {
      const unsigned short bits = static_cast<unsigned short>(word >> 16 * i);
      _Float16 value;
      std::memcpy(&value, &bits, 2);
      return static_cast<float>(value);
    });
  }
};

template <>
struct Mma<TF32> {
  /// To nearest, ties away from zero.
  static inline void round(u32& word) {
    if ((word & 0x7f800000u) != 0x7f800000u) word = (word + 0x1000u) & ~0x1fffu;
  }

  static inline void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    multiply_fragments<8>(c, a, b, [](u32 word, int) { return __uint_as_float(word & ~0x1fffu); });
  }
};

}  // namespace tilewright
