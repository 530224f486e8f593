// ONNX Runtime's C ABI as far as this library needs it, written by hand so that no ONNX Runtime package is needed to build.
// OrtApi is an append-only table of function pointers: a slot number is a permanent name. OrtCustomOp is an append-only struct whose `version`
// says how far it is filled in. ort_abi_check.cc compares all of this with the official header where the build is given one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewright::ort {

struct Status;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct TypeInfo;
struct TensorInfo;
struct Allocator;
struct MemoryInfo;

constexpr uint32_t kApiVersion = 18;  // the oldest API with every slot below; ONNX Runtime 1.18
constexpr int kErrorFail = 1;         // ORT_FAIL
constexpr int kDefaultMemory = 0;     // OrtMemTypeDefault: device memory

using ApiTable = const void* const*;

struct ApiBase {
  ApiTable (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// X(slot, name, function type)
#define TILEWRIGHT_ORT_API(X)                                                                                   \
  X(0, CreateStatus, Status*(int, const char*))                                                                 \
  X(2, GetErrorMessage, const char*(const Status*))                                                             \
  X(26, CreateCustomOpDomain, Status*(const char*, CustomOpDomain**))                                           \
  X(27, CustomOpDomain_Add, Status*(CustomOpDomain*, const struct CustomOp*))                                   \
  X(28, AddCustomOpDomain, Status*(SessionOptions*, CustomOpDomain*))                                           \
  X(51, GetTensorMutableData, Status*(Value*, void**))                                                          \
  X(55, CastTypeInfoToTensorInfo, Status*(const TypeInfo*, const TensorInfo**))                                 \
  X(60, GetTensorElementType, Status*(const TensorInfo*, int*))                                                 \
  X(61, GetDimensionsCount, Status*(const TensorInfo*, size_t*))                                                \
  X(62, GetDimensions, Status*(const TensorInfo*, int64_t*, size_t))                                            \
  X(64, GetTensorShapeElementCount, Status*(const TensorInfo*, size_t*))                                        \
  X(65, GetTensorTypeAndShape, Status*(const Value*, TensorInfo**))                                             \
  X(72, MemoryInfoGetId, Status*(const MemoryInfo*, int*))                                                      \
  X(75, AllocatorAlloc, Status*(Allocator*, size_t, void**))                                                    \
  X(76, AllocatorFree, Status*(Allocator*, void*))                                                              \
  X(77, AllocatorGetInfo, Status*(const Allocator*, const MemoryInfo**))                                        \
  X(78, GetAllocatorWithDefaultOptions, Status*(Allocator**))                                                   \
  X(87, KernelInfoGetAttribute_string, Status*(const KernelInfo*, const char*, char*, size_t*))                 \
  X(90, KernelContext_GetInput, Status*(const KernelContext*, size_t, const Value**))                           \
  X(91, KernelContext_GetOutput, Status*(KernelContext*, size_t, const int64_t*, size_t, Value**))              \
  X(93, ReleaseStatus, void(Status*))                                                                           \
  X(96, ReleaseValue, void(Value*))                                                                             \
  X(98, ReleaseTypeInfo, void(TypeInfo*))                                                                       \
  X(99, ReleaseTensorTypeAndShapeInfo, void(TensorInfo*))                                                       \
  X(130, AddSessionConfigEntry, Status*(SessionOptions*, const char*, const char*))                             \
  X(132, ReleaseAllocator, void(Allocator*))                                                                    \
  X(193, KernelContext_GetGPUComputeStream, Status*(const KernelContext*, void**))                              \
  X(230, KernelInfo_GetInputCount, Status*(const KernelInfo*, size_t*))                                         \
  X(231, KernelInfo_GetOutputCount, Status*(const KernelInfo*, size_t*))                                        \
  X(235, KernelInfo_GetOutputTypeInfo, Status*(const KernelInfo*, size_t, TypeInfo**))                          \
  X(236, KernelInfoGetAttribute_tensor, Status*(const KernelInfo*, const char*, Allocator*, Value**))           \
  X(237, HasSessionConfigEntry, Status*(const SessionOptions*, const char*, int*))                              \
  X(244, KernelInfo_GetNodeName, Status*(const KernelInfo*, char*, size_t*))                                    \
  X(277, KernelContext_GetScratchBuffer, Status*(const KernelContext*, const MemoryInfo*, size_t, void**))      \
  X(278, KernelInfoGetAllocator, Status*(const KernelInfo*, int, Allocator**))

// The table with types: `api.CreateStatus(...)`.
struct Api {
#define TILEWRIGHT_MEMBER(slot, name, ...) \
  using name##Type = __VA_ARGS__;          \
  name##Type* name;
  TILEWRIGHT_ORT_API(TILEWRIGHT_MEMBER)
#undef TILEWRIGHT_MEMBER

  explicit Api(ApiTable table) {
#define TILEWRIGHT_LOAD(slot, name, ...) name = reinterpret_cast<name##Type*>(const_cast<void*>(table[slot]));
    TILEWRIGHT_ORT_API(TILEWRIGHT_LOAD)
#undef TILEWRIGHT_LOAD
  }
};

struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, ApiTable, const KernelInfo*);  // not called where CreateKernelV2 is set
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  int (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  int (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);  // not called where KernelComputeV2 is set
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const CustomOp*, size_t);
  int (*GetOutputCharacteristic)(const CustomOp*, size_t);
  int (*GetInputMemoryType)(const CustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, ApiTable, const KernelInfo*, void**);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  void* InferOutputShapeFn;  // this and what follows may be null
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  void* GetMayInplace;
  void* ReleaseMayInplace;
  void* GetAliasMap;
  void* ReleaseAliasMap;
};
static_assert(sizeof(CustomOp) == 26 * sizeof(void*), "layout of OrtCustomOp at API 18");

}  // namespace tilewright::ort
