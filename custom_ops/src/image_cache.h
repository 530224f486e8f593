// The images of this process: nodes add the bytes that they carry, nodes load kernels by digest. Kernels stay loaded for the life of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda_driver.h"
#include "image.h"

namespace tilewright {

// A kernel in the primary context of one device, ready to be launched and captured.
struct LoadedKernel {
  cuda::Function* function = nullptr;
  size_t arg_bytes = 0;  // of the parameters that it declares
};

class ImageCache {
 public:
  static ImageCache& Process();

  // Keeps a copy of the bytes. Throws Error where they are no image, or their SHA-256 is not `digest`.
  void Add(const std::string& digest, const uint8_t* bytes, size_t size);

  // The kernel of an image on a device (ordinal); nothing where no node has added the image. Throws Error where it cannot be loaded.
  std::optional<LoadedKernel> Load(const std::string& digest, const std::string& kernel, int device);

  size_t loaded() const;  // images loaded, counted once a device

 private:
  struct Image {
    std::vector<uint8_t> bytes;
    std::vector<ImageEntry> entries;
    std::map<int, cuda::Library*> libraries;  // by device
  };

  cuda::Library* LibraryOf(const std::string& digest, Image* image, const cuda::Device& device);

  mutable std::mutex mutex_;
  std::map<std::string, Image> images_;
  std::map<std::pair<cuda::Library*, std::string>, LoadedKernel> kernels_;
};

}  // namespace tilewright
