// Shared memory, asynchronous copies into it, and the edges of programmatic dependent launch.
#pragma once

#include "common.cuh"

namespace tilewright {

/// The block's dynamic shared memory; the only shared memory that templates use.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char tilewright_shared[];
  return tilewright_shared;
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// Starts a copy of BYTES (4, 8 or 16) to shared memory; zeros arrive where not `valid`, and then `source` is not read.
template <int BYTES>
__device__ __forceinline__ void copy_async(u32 target, const void* source, bool valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
  const int size = valid ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(BYTES), "r"(size) : "memory");
  }
}

/// Closes the group of copies that this thread started since the last call.
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until all but this thread's last PENDING groups have arrived.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// Lets the next kernel of the stream start its part before dependency_wait(); nothing happens unless it was launched for that.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits for the kernels before this one. Every thread of every kernel calls it before its first dependent read and its first write, also
/// threads that do neither: a kernel that ended early would release the next one while its own predecessor still runs.
__device__ __forceinline__ void dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace tilewright
