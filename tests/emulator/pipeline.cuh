// The instructions of include/pipeline.cuh in C++.
#pragma once

#include "common.cuh"

namespace tilewright {

inline unsigned char* shared_memory() {
  return emulator::shared.data();
}

/// Addresses of shared memory count from its start.
inline u32 shared_address(const void* pointer) {
  return static_cast<u32>(static_cast<const unsigned char*>(pointer) - emulator::shared.data());
}

inline void arrive(const emulator::Copy& copy) {
  unsigned char* target = &emulator::shared.at(copy.target);
  if (copy.target % copy.bytes || copy.target + copy.bytes > emulator::shared.size()) std::abort();
  if (copy.valid) {
    if (reinterpret_cast<u64>(copy.source) % copy.bytes) std::abort();
    std::memcpy(target, copy.source, copy.bytes);
  } else {
    std::memset(target, 0, copy.bytes);
  }
}

template <int BYTES>
inline void copy_async(u32 target, const void* source, bool valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
  const emulator::Copy copy = {target, source, BYTES, valid};
  if (emulator::late_copies) {
    emulator::current->open.push_back(copy);
  } else {
    arrive(copy);
  }
}

inline void copy_commit() {
  emulator::current->groups.push_back(std::move(emulator::current->open));
  emulator::current->open.clear();
}

template <int PENDING>
inline void copy_wait() {
  auto& groups = emulator::current->groups;
  while (groups.size() > PENDING) {
    for (const emulator::Copy& copy : groups.front()) arrive(copy);
    groups.erase(groups.begin());
  }
}

inline void launch_dependents() {}
inline void dependency_wait() {}

}  // namespace tilewright
