// Parser of image containers and the choice among their entries.
#include "image.h"

#include <cstring>

#include "check.h"

namespace tilewright {
namespace {

constexpr char kMagic[] = "TWIMG001";
constexpr size_t kHeaderSize = 16;
constexpr size_t kEntrySize = 32;
constexpr size_t kAlignment = 16;
constexpr uint32_t kMaxEntries = 64;
constexpr uint32_t kExactArch = 1;

template <class T>
T Read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));  // little endian on both sides
  return value;
}

// The driver takes a cubin without its size and walks its tables, so those must lie inside the blob.
void CheckElf(const uint8_t* blob, size_t size) {
  if (size < 64 || std::memcmp(blob,
                               "\x7f"
                               "ELF\x02\x01",
                               6) != 0)
    throw Error("is no 64-bit ELF file");
  uint64_t table = Read<uint64_t>(blob + 40);
  uint64_t entry = Read<uint16_t>(blob + 58);
  uint64_t count = Read<uint16_t>(blob + 60);
  if (table > size || entry * count > size - table || (count > 0 && entry < 64)) throw Error("is cut off");
  for (uint64_t i = 0; i < count; ++i) {
    const uint8_t* header = blob + table + i * entry;
    constexpr uint32_t kNoBits = 8;
    uint64_t offset = Read<uint64_t>(header + 24);
    uint64_t length = Read<uint32_t>(header + 4) == kNoBits ? 0 : Read<uint64_t>(header + 32);
    if (length > 0 && (offset > size || length > size - offset)) throw Error("is cut off");
  }
}

}  // namespace

std::vector<ImageEntry> ParseImage(const uint8_t* bytes, size_t size) {
  if (size < kHeaderSize || std::memcmp(bytes, kMagic, 8) != 0) throw Error("image container: the magic TWIMG001 is missing");
  uint32_t count = Read<uint32_t>(bytes + 8);
  if (count == 0 || count > kMaxEntries || Read<uint32_t>(bytes + 12) != 0) throw Error(Text("image container: bad header (", count, " entries)"));
  size_t table_end = kHeaderSize + count * kEntrySize;
  if (table_end > size) throw Error("image container: cut off in its table");

  std::vector<ImageEntry> entries;
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t* at = bytes + kHeaderSize + i * kEntrySize;
    uint32_t kind = Read<uint32_t>(at);
    uint32_t arch = Read<uint32_t>(at + 4);
    uint32_t flags = Read<uint32_t>(at + 8);
    uint64_t offset = Read<uint64_t>(at + 16);
    uint64_t length = Read<uint64_t>(at + 24);
    std::string where = Text("image container: entry ", i, " ");
    bool is_known = (kind == ImageEntry::kCubin || kind == ImageEntry::kPtx) && flags <= kExactArch && Read<uint32_t>(at + 12) == 0;
    if (!is_known || arch < 10 || arch > 9999) throw Error(where + "is of an unknown kind");
    if (offset < table_end || offset % kAlignment != 0 || offset > size || length == 0 || length > size - offset) {
      throw Error(where + "lies outside the container");
    }
    if (kind == ImageEntry::kCubin) {
      try {
        CheckElf(bytes + offset, length);
      } catch (const Error& error) {
        throw Error(where + error.what());
      }
    }
    entries.push_back({static_cast<ImageEntry::Kind>(kind), static_cast<int>(arch), flags == kExactArch, offset, length});
  }
  return entries;
}

const ImageEntry* ChooseEntry(const std::vector<ImageEntry>& entries, int major, int minor) {
  const int device = major * 10 + minor;
  const ImageEntry* best = nullptr;
  int best_rank = 0;
  for (const ImageEntry& entry : entries) {
    int rank = 0;
    if (entry.kind == ImageEntry::kCubin && entry.exact_arch) {
      rank = entry.arch == device ? 1 << 20 : 0;
    } else if (entry.kind == ImageEntry::kCubin) {
      rank = entry.arch / 10 == major && entry.arch <= device ? (1 << 16) + entry.arch : 0;
    } else if (!entry.exact_arch || entry.arch == device) {
      rank = entry.arch <= device ? entry.arch : 0;
    }
    if (rank > best_rank) {
      best = &entry;
      best_rank = rank;
    }
  }
  return best;
}

}  // namespace tilewright
