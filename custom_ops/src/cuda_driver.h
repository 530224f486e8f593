// The CUDA driver, opened at run time: the library builds without a CUDA toolkit and loads on machines without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tilewright::cuda {

using Result = int;
using DeviceHandle = int;
struct Context;
struct Library;
struct Kernel;
struct Function;
struct Stream;

constexpr int kOldestDriver = 13000;  // cubins of NVRTC 13.0 need driver 580, which calls itself 13.0

struct LaunchAttribute {
  unsigned id;
  unsigned padding;
  union {
    unsigned char bytes[64];
    int flag;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72, "layout of CUlaunchAttribute");

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  Stream* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56, "layout of CUlaunchConfig");

constexpr unsigned kProgrammaticStreamSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
inline void* const kLaunchBufferEnd = nullptr;            // CU_LAUNCH_PARAM_END, _BUFFER_POINTER, _BUFFER_SIZE
inline void* const kLaunchBufferPointer = reinterpret_cast<void*>(1);
inline void* const kLaunchBufferSize = reinterpret_cast<void*>(2);

enum DeviceAttribute { kMultiprocessors = 16, kCapabilityMajor = 75, kCapabilityMinor = 76, kSharedPerBlockOptin = 97 };
enum FunctionAttribute { kStaticShared = 1, kMaxDynamicShared = 8 };

// X(member, exported symbol, parameter types); every function returns CUresult.
#define TILEWRIGHT_CUDA_API(X)                                                                                       \
  X(Init, "cuInit", unsigned)                                                                                        \
  X(DriverGetVersion, "cuDriverGetVersion", int*)                                                                    \
  X(GetErrorString, "cuGetErrorString", Result, const char**)                                                        \
  X(DeviceGetCount, "cuDeviceGetCount", int*)                                                                        \
  X(DeviceGet, "cuDeviceGet", DeviceHandle*, int)                                                                    \
  X(DeviceGetName, "cuDeviceGetName", char*, int, DeviceHandle)                                                      \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", int*, int, DeviceHandle)                                             \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", Context**, DeviceHandle)                                     \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", Context*)                                                                 \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", Context**)                                                                  \
  X(LibraryLoadData, "cuLibraryLoadData", Library**, const void*, int*, void**, unsigned, int*, void**, unsigned)    \
  X(LibraryGetKernel, "cuLibraryGetKernel", Kernel**, Library*, const char*)                                         \
  X(KernelGetFunction, "cuKernelGetFunction", Function**, Kernel*)                                                   \
  X(FuncGetAttribute, "cuFuncGetAttribute", int*, int, Function*)                                                    \
  X(FuncSetAttribute, "cuFuncSetAttribute", Function*, int, int)                                                     \
  X(FuncGetParamInfo, "cuFuncGetParamInfo", Function*, size_t, size_t*, size_t*)                                     \
  X(StreamIsCapturing, "cuStreamIsCapturing", Stream*, int*)                                                         \
  X(LaunchKernelEx, "cuLaunchKernelEx", const LaunchConfig*, Function*, void**, void**)

struct Device {
  DeviceHandle handle = 0;
  std::string name;
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  int shared_per_block = 0;  // with opt-in, bytes
};

// The driver of this process and the GPUs that it shows; opened once, at the first call of Get.
class Driver {
 public:
  static const Driver& Get();

  std::string problem;  // why no kernel can run here; empty where one can
  int version = 0;      // 13000 is 13.0
  std::vector<Device> devices;

#define TILEWRIGHT_MEMBER(member, symbol, ...) Result (*member)(__VA_ARGS__) = nullptr;
  TILEWRIGHT_CUDA_API(TILEWRIGHT_MEMBER)
#undef TILEWRIGHT_MEMBER

  std::string ErrorText(Result result) const;
  void Check(Result result, const char* doing) const;  // throws Error unless `result` is 0

 private:
  Driver();
  std::string Open();
};

// Makes the primary context of a device current while it lives: the one that ONNX Runtime, as every user of the CUDA runtime, works in.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, DeviceHandle device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace tilewright::cuda
