// Compiled only where ONNXRUNTIME_INCLUDE_DIR is given: our view of the ABI against the official header.
#include <onnxruntime_c_api.h>

#include "ort_abi.h"

namespace tilewright {

#define TILEWRIGHT_CHECK_SLOT(slot, name, ...) static_assert(offsetof(::OrtApi, name) == (slot) * sizeof(void*), #name);
TILEWRIGHT_ORT_API(TILEWRIGHT_CHECK_SLOT)

#define TILEWRIGHT_CHECK_FIELD(name) static_assert(offsetof(::OrtCustomOp, name) == offsetof(ort::CustomOp, name), #name);
TILEWRIGHT_CHECK_FIELD(version)
TILEWRIGHT_CHECK_FIELD(GetName)
TILEWRIGHT_CHECK_FIELD(GetExecutionProviderType)
TILEWRIGHT_CHECK_FIELD(GetInputType)
TILEWRIGHT_CHECK_FIELD(GetInputTypeCount)
TILEWRIGHT_CHECK_FIELD(GetOutputType)
TILEWRIGHT_CHECK_FIELD(GetOutputTypeCount)
TILEWRIGHT_CHECK_FIELD(KernelDestroy)
TILEWRIGHT_CHECK_FIELD(GetInputMemoryType)
TILEWRIGHT_CHECK_FIELD(CreateKernelV2)
TILEWRIGHT_CHECK_FIELD(KernelComputeV2)
TILEWRIGHT_CHECK_FIELD(GetStartVersion)
TILEWRIGHT_CHECK_FIELD(GetEndVersion)
TILEWRIGHT_CHECK_FIELD(ReleaseAliasMap)
static_assert(ORT_FAIL == ort::kErrorFail && OrtMemTypeDefault == ort::kDefaultMemory, "enumerators");

}  // namespace tilewright
