// Loading of images: everything that may not happen while a stream is captured happens here, before.
#include "image_cache.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "check.h"
#include "sha256.h"

namespace tilewright {
namespace {

// TILEWRIGHT_TRUSTED_DIGESTS: the digests that may be loaded, separated by commas or white space, or @file with them.
void CheckTrusted(const std::string& digest) {
  const char* setting = std::getenv("TILEWRIGHT_TRUSTED_DIGESTS");
  if (setting == nullptr) return;
  std::string trusted = setting;
  if (!trusted.empty() && trusted[0] == '@') {
    std::ifstream file(trusted.substr(1));
    if (!file) throw Error("the file that TILEWRIGHT_TRUSTED_DIGESTS names cannot be read");
    trusted.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::replace(trusted.begin(), trusted.end(), ',', ' ');
  std::istringstream words(trusted);
  std::istream_iterator<std::string> begin(words), end;
  if (std::find(begin, end, digest) == end) throw Error(Text("image ", digest, " is not among TILEWRIGHT_TRUSTED_DIGESTS"));
}

}  // namespace

ImageCache& ImageCache::Process() {
  static ImageCache& cache = *new ImageCache;  // never destroyed, as the driver may be gone by then
  return cache;
}

void ImageCache::Add(const std::string& digest, const uint8_t* bytes, size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto known = images_.find(digest);
  if (known != images_.end() && known->second.bytes.size() == size && std::memcmp(known->second.bytes.data(), bytes, size) == 0) return;
  std::string actual = Sha256(bytes, size);
  if (actual != digest) throw Error(Text("image ", digest, " is damaged: its bytes have the digest ", actual));
  Image image;
  image.entries = ParseImage(bytes, size);
  image.bytes.assign(bytes, bytes + size);
  images_.emplace(digest, std::move(image));
}

cuda::Library* ImageCache::LibraryOf(const std::string& digest, Image* image, const cuda::Device& device) {
  const cuda::Driver& driver = cuda::Driver::Get();
  auto known = image->libraries.find(device.handle);
  if (known != image->libraries.end()) return known->second;
  CheckTrusted(digest);
  const ImageEntry* choice = ChooseEntry(image->entries, device.major, device.minor);
  if (choice == nullptr) throw Error(Text("image ", digest, " has no code for compute capability ", device.major, ".", device.minor));
  const uint8_t* blob = image->bytes.data() + choice->offset;
  std::string ptx;  // the driver wants it to end with a zero byte
  if (choice->kind == ImageEntry::kPtx) ptx.assign(blob, blob + choice->size);
  const void* code = choice->kind == ImageEntry::kPtx ? static_cast<const void*>(ptx.c_str()) : blob;
  cuda::Library* library = nullptr;
  driver.Check(driver.LibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0), Text("loading image ", digest).c_str());
  image->libraries.emplace(device.handle, library);
  return library;
}

std::optional<LoadedKernel> ImageCache::Load(const std::string& digest, const std::string& name, int ordinal) {
  const cuda::Driver& driver = cuda::Driver::Get();
  const cuda::Device& device = driver.devices.at(static_cast<size_t>(ordinal));
  std::lock_guard<std::mutex> lock(mutex_);
  auto image = images_.find(digest);
  if (image == images_.end()) return std::nullopt;
  cuda::Library* library = LibraryOf(digest, &image->second, device);
  auto known = kernels_.find({library, name});
  if (known != kernels_.end()) return known->second;

  LoadedKernel loaded;
  cuda::Kernel* kernel = nullptr;
  std::string doing = Text("kernel ", name, " of image ", digest);
  driver.Check(driver.LibraryGetKernel(&kernel, library, name.c_str()), doing.c_str());
  cuda::PrimaryContext context(driver, device.handle);
  driver.Check(driver.KernelGetFunction(&loaded.function, kernel), doing.c_str());
  int static_shared = 0;
  driver.Check(driver.FuncGetAttribute(&static_shared, cuda::kStaticShared, loaded.function), doing.c_str());
  driver.Check(driver.FuncSetAttribute(loaded.function, cuda::kMaxDynamicShared, device.shared_per_block - static_shared), doing.c_str());
  size_t offset = 0, size = 0;
  for (size_t i = 0; driver.FuncGetParamInfo(loaded.function, i, &offset, &size) == 0; ++i) loaded.arg_bytes = offset + size;
  kernels_.emplace(std::make_pair(library, name), loaded);
  return loaded;
}

size_t ImageCache::loaded() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const auto& [digest, image] : images_) count += image.libraries.size();
  return count;
}

}  // namespace tilewright
