// A libcuda for tests on machines without a GPU: device memory is host memory, and the kernels below run at once, on the host.
// TILEWRIGHT_FAKE_GPUS names the devices, e.g. "9.0,8.9"; TILEWRIGHT_FAKE_DRIVER the driver's version. What was launched is kept as text.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "cuda_driver.h"

namespace cuda = tilewright::cuda;

namespace {

constexpr int kInvalidValue = 1, kNotFound = 500;

struct HostKernel {
  size_t arg_bytes;
  void (*run)(const cuda::LaunchConfig& config, const unsigned char* args);
};

template <class Args, void (*Body)(const cuda::LaunchConfig&, const Args&)>
HostKernel Host() {
  return {sizeof(Args), [](const cuda::LaunchConfig& config, const unsigned char* bytes) {
            Args args;
            std::memcpy(&args, bytes, sizeof(args));
            Body(config, args);
          }};
}

struct AddArgs {  // y = x + value
  const float* x;
  float* y;
  int n;
  float value;
};
void Add(const cuda::LaunchConfig&, const AddArgs& a) {
  for (int i = 0; i < a.n; ++i) a.y[i] = a.x[i] + a.value;
}

struct PackedArgs {  // ends on 4 bytes, so the struct is padded
  const float* x;
  float* y;
  const float* absent;
  int n;
};
void Negate(const cuda::LaunchConfig&, const PackedArgs& a) {
  for (int i = 0; i < a.n; ++i) a.y[i] = a.absent != nullptr ? a.absent[i] : -a.x[i];
}

void Nothing(const cuda::LaunchConfig&, const int&) {}

const std::map<std::string, HostKernel>& Kernels() {
  static const std::map<std::string, HostKernel> kernels = {
      {"add", Host<AddArgs, Add>()}, {"negate", Host<PackedArgs, Negate>()}, {"nothing", Host<int, Nothing>()}};
  return kernels;
}

struct FakeKernel {
  std::string name;
  HostKernel host;
  int max_dynamic_shared = 49152;
};

std::mutex mutex;
std::string log;

const char* Setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::vector<std::string> Gpus() {
  std::istringstream list(Setting("TILEWRIGHT_FAKE_GPUS", "9.0"));
  std::vector<std::string> gpus;
  for (std::string gpu; std::getline(list, gpu, ',');) gpus.push_back(gpu);
  return gpus;
}

}  // namespace

extern "C" {

const char* fake_cuda_log() {
  std::lock_guard<std::mutex> lock(mutex);
  static std::string copy;
  copy = log;
  log.clear();
  return copy.c_str();
}

int cuInit(unsigned) {
  return std::atoi(Setting("TILEWRIGHT_FAKE_INIT", "0"));
}
int cuDriverGetVersion(int* version) {
  return *version = std::atoi(Setting("TILEWRIGHT_FAKE_DRIVER", "13000")), 0;
}
int cuGetErrorString(int result, const char** text) {
  return *text = result == kNotFound ? "named symbol not found" : "invalid value", 0;
}
int cuDeviceGetCount(int* count) {
  return *count = static_cast<int>(Gpus().size()), 0;
}
int cuDeviceGet(int* device, int ordinal) {
  return *device = ordinal, 0;
}
int cuDeviceGetName(char* name, int size, int) {
  return std::strncpy(name, "Fake GPU", static_cast<size_t>(size)), 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const std::string gpu = Gpus()[static_cast<size_t>(device)];
  const size_t dot = gpu.find('.');
  *value = attribute == cuda::kCapabilityMajor   ? std::atoi(gpu.c_str())
           : attribute == cuda::kCapabilityMinor ? std::atoi(gpu.c_str() + dot + 1)
           : attribute == cuda::kMultiprocessors ? 132
                                                 : 232448;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  return *context = &log, 0;
}
int cuCtxPushCurrent_v2(void*) {
  return 0;
}
int cuCtxPopCurrent_v2(void**) {
  return 0;
}
int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
  const char* text = static_cast<const char*>(code);
  if (std::strncmp(text, "bad", 3) == 0) return kInvalidValue;
  *library = new std::string(text);  // the names of the kernels that the image holds
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  auto found = Kernels().find(name);
  if (found == Kernels().end() || static_cast<std::string*>(library)->find(name) == std::string::npos) return kNotFound;
  *kernel = new FakeKernel{name, found->second};
  return 0;
}
int cuKernelGetFunction(void** function, void* kernel) {
  return *function = kernel, 0;
}
int cuFuncGetAttribute(int* value, int, void*) {
  return *value = 1024, 0;
}
int cuFuncSetAttribute(void* function, int, int value) {
  return static_cast<FakeKernel*>(function)->max_dynamic_shared = value, 0;
}
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  *offset = 0;
  *size = static_cast<FakeKernel*>(function)->host.arg_bytes;
  return index == 0 ? 0 : kInvalidValue;
}
int cuStreamIsCapturing(void*, int* is_capturing) {
  return *is_capturing = 0, 0;
}
int cuLaunchKernelEx(const cuda::LaunchConfig* config, void* function, void**, void** extra) {
  const auto& kernel = *static_cast<FakeKernel*>(function);
  const size_t arg_bytes = *static_cast<size_t*>(extra[3]);
  if (arg_bytes != kernel.host.arg_bytes || static_cast<int>(config->shared_bytes) > kernel.max_dynamic_shared) return kInvalidValue;
  kernel.host.run(*config, static_cast<const unsigned char*>(extra[1]));
  std::ostringstream line;
  line << kernel.name << " grid " << config->grid[0] << ' ' << config->grid[1] << ' ' << config->grid[2] << " block " << config->block[0] << " smem "
       << config->shared_bytes << " pdl " << config->attribute_count << '\n';
  std::lock_guard<std::mutex> lock(mutex);
  log += line.str();
  return 0;
}
}
