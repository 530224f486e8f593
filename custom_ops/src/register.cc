// RegisterCustomOps: which names this process can serve, as anchor pairs (an anchor that ONNX Runtime sees as the op's schema, but at a version that
// no model imports, and a kernel below it; so that the model's function describes the op and stands in wherever the kernel cannot run).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_driver.h"
#include "ort_abi.h"
#include "region_op.h"
#include "status.h"
#include "target_class.h"

#ifndef TILEWRIGHT_EXECUTION_PROVIDER  // tests without a GPU set another
#define TILEWRIGHT_EXECUTION_PROVIDER "CUDAExecutionProvider"
#endif

namespace tilewright {
namespace {

constexpr char kDomain[] = "tilewright";
constexpr char kRegisteredKey[] = "tilewright.registered";
// Names of each kind of op and each class; a name is a distinct function body.
constexpr struct {
  const char* name;
  int count;
} kPools[] = {{"FusedConvRegion", 1024}, {"PolyMatMul", 256}};
constexpr int kAnchorVersion = 1000;
constexpr int kTestedMajor = 1, kTestedMinor = 32;  // the newest ONNX Runtime that the anchor scheme was tried on

// One OrtCustomOp of an anchor pair. ONNX Runtime keeps pointers to it as long as any session lives, so none is ever destroyed.
struct Op : ort::CustomOp {
  Op(const ort::Api& ort_api, std::string op_name, bool anchor) : ort::CustomOp{}, api(ort_api), name(std::move(op_name)), is_anchor(anchor) {
    version = ort::kApiVersion;
    GetName = [](const ort::CustomOp* op) { return Of(op).name.c_str(); };
    GetExecutionProviderType = [](const ort::CustomOp*) -> const char* { return TILEWRIGHT_EXECUTION_PROVIDER; };
    // No inputs and outputs are declared: there is then no type constraint that a node could miss.
    GetInputTypeCount = GetOutputTypeCount = [](const ort::CustomOp*) { return size_t{0}; };
    GetInputType = GetOutputType = [](const ort::CustomOp*, size_t) { return 0; };
    GetInputCharacteristic = GetOutputCharacteristic = [](const ort::CustomOp*, size_t) { return 0; };
    GetInputMemoryType = [](const ort::CustomOp*, size_t) { return 0; };
    GetVariadicInputMinArity = GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
    GetVariadicInputHomogeneity = GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
    GetStartVersion = [](const ort::CustomOp* op) { return Of(op).is_anchor ? kAnchorVersion : 1; };
    if (!is_anchor) GetEndVersion = [](const ort::CustomOp*) { return kAnchorVersion - 1; };
    CreateKernelV2 = Create;
    KernelComputeV2 = Compute;
    KernelDestroy = [](void* kernel) { delete static_cast<RegionOp*>(kernel); };
  }

  static const Op& Of(const ort::CustomOp* op) { return *static_cast<const Op*>(op); }

  static ort::Status* Create(const ort::CustomOp* op, ort::ApiTable, const ort::KernelInfo* info, void** kernel) {
    const ort::Api& api = Of(op).api;
    return AtBorder(api, "", [&] { *kernel = new RegionOp(api, info); });
  }

  static ort::Status* Compute(void* kernel, ort::KernelContext* context) { return static_cast<RegionOp*>(kernel)->Compute(context); }

  ort::Api api;
  std::string name;
  bool is_anchor;
};

// Why a runtime of this version is left alone, or ''.
std::string UntestedRuntime(const std::string& runtime) {
  int major = 0, minor = 0;
  bool is_read = std::sscanf(runtime.c_str(), "%d.%d", &major, &minor) == 2;
  if (is_read && (major < kTestedMajor || (major == kTestedMajor && minor <= kTestedMinor))) return "";
  const char* allowed = std::getenv("TILEWRIGHT_ALLOW_UNTESTED_RUNTIME");
  if (allowed != nullptr && std::strcmp(allowed, "1") == 0) return "";
  return Text("ONNX Runtime ", runtime, " is newer than the tested ", kTestedMajor, ".", kTestedMinor,
              " (TILEWRIGHT_ALLOW_UNTESTED_RUNTIME=1 tries it)");
}

// The target classes that every visible GPU runs; `reason` says why there are none.
std::vector<std::string> RunnableClasses(std::string* reason) {
  std::vector<std::string> classes;
  const cuda::Driver& driver = cuda::Driver::Get();
  *reason = driver.problem;
  if (!reason->empty()) return classes;
  for (const TargetClass& target : kTargetClasses) {
    bool runs = true;
    for (const cuda::Device& gpu : driver.devices) runs = runs && target.RunsOn(gpu.major, gpu.minor);
    if (runs) classes.push_back(target.suffix);
  }
  if (classes.empty()) *reason = "not every visible GPU has compute capability 8.0 or higher";
  return classes;
}

void AddOp(const ort::Api& api, ort::CustomOpDomain* domain, const std::string& name) {
  for (bool is_anchor : {true, false}) {  // in this order: the op's schema takes its version from the first
    auto op = std::make_unique<Op>(api, name, is_anchor);
    Check(api, api.CustomOpDomain_Add(domain, op.get()), "adding an op");
    op.release();
  }
}

// The domain with the pools of each class; made once, as every session of the process registers the same.
ort::CustomOpDomain* MakeDomain(const ort::Api& api, const std::vector<std::string>& classes) {
  ort::CustomOpDomain* domain = nullptr;
  Check(api, api.CreateCustomOpDomain(kDomain, &domain), "making the domain");
  for (const auto& pool : kPools) {
    for (const std::string& suffix : classes) {
      for (int n = 0; n < pool.count; ++n) AddOp(api, domain, Text(pool.name, "_", suffix, "_", n));
    }
  }
  return domain;
}

void Register(const ort::Api& api, ort::SessionOptions* options) {
  static ort::CustomOpDomain* domain = nullptr;
  static std::mutex making;
  int is_registered = 0;  // a domain that is added twice is an error
  Check(api, api.HasSessionConfigEntry(options, kRegisteredKey, &is_registered), "looking at the session options");
  if (is_registered != 0) return;

  std::lock_guard<std::mutex> lock(making);
  if (domain == nullptr) {
    std::string reason;
    std::vector<std::string> classes = RunnableClasses(&reason);
    if (classes.empty()) return Status::Process().NothingRegistered(reason);
    domain = MakeDomain(api, classes);
    Status::Process().Registered(classes);
  }
  Check(api, api.AddCustomOpDomain(options, domain), "adding the domain");
  Check(api, api.AddSessionConfigEntry(options, kRegisteredKey, "1"), "marking the session options");
}

}  // namespace
}  // namespace tilewright

// ONNX Runtime's entry point. Registers nothing, and succeeds, where no kernel could run.
extern "C" __attribute__((visibility("default"))) tilewright::ort::Status* RegisterCustomOps(tilewright::ort::SessionOptions* options,
                                                                                             const tilewright::ort::ApiBase* base) {
  using namespace tilewright;
  std::string runtime = base->GetVersionString();
  Status& status = Status::Process();
  status.Runtime(runtime);
  std::string refusal = UntestedRuntime(runtime);
  ort::ApiTable table = refusal.empty() ? base->GetApi(ort::kApiVersion) : nullptr;
  if (refusal.empty() && table == nullptr) refusal = Text("ONNX Runtime ", runtime, " is older than 1.18");
  if (!refusal.empty()) {
    status.NothingRegistered(refusal);
    return nullptr;
  }
  const ort::Api api(table);
  return AtBorder(api, "tilewright: ", [&] { Register(api, options); });
}
