// Compiled, never run: our view of the CUDA driver's ABI against the official header that NVIDIA's Python package holds.
#include <cuda.h>

#include <cstddef>
#include <string_view>

#include "cuda_driver.h"

namespace tilewright::cuda {

template <class... A, class... B>
constexpr bool SameParameters(CUresult (*)(A...), Result (*)(B...)) {
  return sizeof...(A) == sizeof...(B) && ((sizeof(A) == sizeof(B)) && ...);
}

// Pasting gives the name as the header's macros know it, so that the versions (_v2) of symbols are compared too.
#define PASTED(member) cu##member
#define QUOTED(name) QUOTED_AS_IS(name)
#define QUOTED_AS_IS(name) #name
#define CHECK_FUNCTION(member, symbol, ...)                                                                                                     \
  static_assert(SameParameters(static_cast<decltype(&::cu##member)>(nullptr), static_cast<Result (*)(__VA_ARGS__)>(nullptr)), symbol);          \
  static_assert(std::string_view(symbol) == QUOTED(PASTED(member)), symbol);
TILEWRIGHT_CUDA_API(CHECK_FUNCTION)

static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig) && offsetof(LaunchConfig, block) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(LaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes) &&
              offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs) &&
              offsetof(LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));
static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute) && offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(kProgrammaticStreamSerialization == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(kMultiprocessors == static_cast<int>(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
static_assert(kCapabilityMajor == static_cast<int>(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
static_assert(kCapabilityMinor == static_cast<int>(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
static_assert(kSharedPerBlockOptin == static_cast<int>(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
static_assert(kStaticShared == static_cast<int>(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
static_assert(kMaxDynamicShared == static_cast<int>(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES));

}  // namespace tilewright::cuda
