// Tensor-core products of one warp: fragments of 16 x 32 bytes (A) and 8 x 32 bytes (B), K contiguous in shared memory.
#pragma once

#include "common.cuh"

namespace tilewright {

/// Four 8 x 16-byte matrices; lane l gives the address of row l % 8 of matrix l / 8 and receives word l % 4 of row l / 4 of each.
__device__ __forceinline__ void ldmatrix_x4(u32 address, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address) : "memory");
}

/// One step of the product: 32 bytes of K, that is 16 halves or 8 floats.
template <class T>
struct Mma;

template <>
struct Mma<F16> {
  static __device__ __forceinline__ void round(u32&) {}

  /// c (16 x 8, fp32) += a (16 x 16) * b (16 x 8).
  static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <>
struct Mma<TF32> {
  /// Rounds an operand to TF32, to nearest: the tensor core itself would cut the low bits off.
  static __device__ __forceinline__ void round(u32& word) { asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(__uint_as_float(word))); }

  /// c (16 x 8, fp32) += a (16 x 8) * b (8 x 8).
  static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

}  // namespace tilewright
