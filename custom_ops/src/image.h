// Image containers: the code of one compiled unit for several GPUs, as one block of bytes. The parser takes any bytes.
//
//   char[8] "TWIMG001", u32 count, u32 0, then `count` entries of
//   { u32 kind (1 cubin, 2 PTX), u32 arch (90 is compute capability 9.0), u32 flags (1: that architecture alone), u32 0, u64 offset, u64 size },
//   then the blobs at their offsets from the start, each 16-aligned; all numbers little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewright {

struct ImageEntry {
  enum Kind : uint32_t { kCubin = 1, kPtx = 2 };
  Kind kind;
  int arch;         // 90 is compute capability 9.0
  bool exact_arch;  // an "a" architecture: runs on no other
  size_t offset;
  size_t size;
};

// Throws Error where the bytes are no container, an entry leaves them, or a blob is not what its kind says.
std::vector<ImageEntry> ParseImage(const uint8_t* bytes, size_t size);

// The best entry for a GPU of this compute capability, or null: its exact architecture, then machine code of the same major
// and the highest minor that is not above, then PTX.
const ImageEntry* ChooseEntry(const std::vector<ImageEntry>& entries, int major, int minor);

}  // namespace tilewright
