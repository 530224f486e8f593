// Creation and runs of a custom node. All parsing happens at creation; a run evaluates integers, allocates outputs and launches.
#include "region_op.h"

#include <algorithm>
#include <cstring>

#include "check.h"
#include "status.h"
#include "target_class.h"

namespace tilewright {
namespace {

constexpr int kUint8 = 2;  // ONNX tensor element type

// A string attribute; empty where the node has none of that name.
std::string StringAttribute(const ort::Api& api, const ort::KernelInfo* info, const char* name) {
  size_t size = 0;
  if (ort::Status* missing = api.KernelInfoGetAttribute_string(info, name, nullptr, &size)) {
    api.ReleaseStatus(missing);
    return "";
  }
  std::string value(size, '\0');
  Check(api, api.KernelInfoGetAttribute_string(info, name, value.data(), &size), "reading an attribute");
  value.resize(size - 1);  // ends with a zero byte
  return value;
}

std::string NodeName(const ort::Api& api, const ort::KernelInfo* info) {
  size_t size = 0;
  Check(api, api.KernelInfo_GetNodeName(info, nullptr, &size), "reading the node's name");
  std::string name(size, '\0');
  Check(api, api.KernelInfo_GetNodeName(info, name.data(), &size), "reading the node's name");
  name.resize(size - 1);
  return name;
}

}  // namespace

// The values of one run; a thread reuses its buffers from run to run.
struct RegionOp::Run {
  ort::KernelContext* context;
  cuda::Stream* stream;
  RunValues values;
  std::vector<int64_t> dims;
  std::vector<uint64_t> inputs, outputs, scratch;
  ReadyLaunch launch;
};

RegionOp::RegionOp(const ort::Api& api, const ort::KernelInfo* info) : api_(api) {
  where_ = Text("tilewright: node '", NodeName(api, info), "': ");
  try {
    Check(api.KernelInfoGetAllocator(info, ort::kDefaultMemory, &allocator_), "finding the device's allocator");
    Check(api.AllocatorGetInfo(allocator_, &memory_), "finding the device's memory");
    Check(api.MemoryInfoGetId(memory_, &device_), "finding the device");
    const std::vector<cuda::Device>& gpus = cuda::Driver::Get().devices;
    if (device_ < 0 || static_cast<size_t>(device_) >= gpus.size()) throw Error(Text("there is no GPU ", device_));
    gpu_ = &gpus[static_cast<size_t>(device_)];
    ReadPlan(info);
    CheckInterface(info);
    ready_ = LoadKernels();
  } catch (const std::exception& error) {
    if (allocator_ != nullptr) api_.ReleaseAllocator(allocator_);
    throw Error(where_ + error.what());
  }
  Status::Process().nodes.fetch_add(1, std::memory_order_relaxed);
}

RegionOp::~RegionOp() {
  api_.ReleaseAllocator(allocator_);
}

void RegionOp::Check(ort::Status* status, const char* doing) const {
  tilewright::Check(api_, status, doing);
}

void RegionOp::Check(const RunError& error) const {
  if (error.what != nullptr) throw Error(Text(plan_name_, ", line ", error.line, ": ", error.what));
}

// Takes the best variant for this GPU, and the images of all variants: another node may use what this one carries.
void RegionOp::ReadPlan(const ort::KernelInfo* info) {
  for (const TargetClass& target : kTargetClasses) {
    std::string name = Text("plan_", target.suffix);
    std::string text = StringAttribute(api_, info, name.c_str());
    if (text.empty()) continue;
    LaunchPlan plan;
    try {
      plan = LaunchPlan::Parse(text);
    } catch (const Error& error) {
      throw Error(Text("attribute ", name, ": ", error.what()));
    }
    AddImages(info, plan);
    if (!plan_name_.empty() || !target.RunsOn(gpu_->major, gpu_->minor)) continue;
    plan_name_ = name;
    plan_ = std::move(plan);
  }
  if (plan_name_.empty()) {
    throw Error(Text("it has no launch plan for compute capability ", gpu_->major, ".", gpu_->minor, "; run optimize with a --target for it"));
  }
}

void RegionOp::AddImages(const ort::KernelInfo* info, const LaunchPlan& plan) {
  ort::Allocator* host = nullptr;
  Check(api_.GetAllocatorWithDefaultOptions(&host), "finding the host's allocator");
  for (const std::string& digest : plan.images) {
    std::string name = Text("image_", digest.substr(0, 16));
    ort::Value* tensor = nullptr;
    if (ort::Status* missing = api_.KernelInfoGetAttribute_tensor(info, name.c_str(), host, &tensor)) {
      api_.ReleaseStatus(missing);
      continue;
    }
    std::unique_ptr<ort::Value, void (*)(ort::Value*)> owned(tensor, api_.ReleaseValue);
    ort::TensorInfo* shape = nullptr;
    Check(api_.GetTensorTypeAndShape(tensor, &shape), "reading an image");
    std::unique_ptr<ort::TensorInfo, void (*)(ort::TensorInfo*)> owned_shape(shape, api_.ReleaseTensorTypeAndShapeInfo);
    int type = 0;
    size_t size = 0;
    void* bytes = nullptr;
    Check(api_.GetTensorElementType(shape, &type), "reading an image");
    if (type != kUint8) throw Error(Text("attribute ", name, " is no uint8 tensor"));
    Check(api_.GetTensorShapeElementCount(shape, &size), "reading an image");
    Check(api_.GetTensorMutableData(tensor, &bytes), "reading an image");
    ImageCache::Process().Add(digest, static_cast<const uint8_t*>(bytes), size);
  }
}

// The plan against the node: a plan of another node must not write past a buffer.
void RegionOp::CheckInterface(const ort::KernelInfo* info) const {
  size_t inputs = 0, outputs = 0;
  Check(api_.KernelInfo_GetInputCount(info, &inputs), "counting inputs");
  Check(api_.KernelInfo_GetOutputCount(info, &outputs), "counting outputs");
  if (static_cast<size_t>(plan_.input_count) > inputs) throw Error(Text(plan_name_, " reads input ", plan_.input_count - 1, " of ", inputs));
  if (plan_.outputs.size() != outputs) throw Error(Text(plan_name_, " has ", plan_.outputs.size(), " outputs, the node ", outputs));
  for (size_t i = 0; i < outputs; ++i) {
    ort::TypeInfo* type = nullptr;
    Check(api_.KernelInfo_GetOutputTypeInfo(info, i, &type), "reading an output's type");
    std::unique_ptr<ort::TypeInfo, void (*)(ort::TypeInfo*)> owned(type, api_.ReleaseTypeInfo);
    const ort::TensorInfo* tensor = nullptr;
    int dtype = 0;
    Check(api_.CastTypeInfoToTensorInfo(type, &tensor), "reading an output's type");
    if (tensor != nullptr) Check(api_.GetTensorElementType(tensor, &dtype), "reading an output's type");
    if (dtype != plan_.outputs[i].dtype) {
      throw Error(Text(plan_name_, " makes output ", i, " as ", plan_.outputs[i].dtype_name, ", the model says ONNX type ", dtype));
    }
  }
}

bool RegionOp::LoadKernels() {
  std::vector<LoadedKernel> kernels;
  for (const Launch& launch : plan_.launches) {
    const std::string& digest = plan_.images[static_cast<size_t>(launch.image)];
    std::optional<LoadedKernel> kernel = ImageCache::Process().Load(digest, launch.kernel, device_);
    if (!kernel) return false;
    size_t padded = (launch.arg_bytes + 7) / 8 * 8;  // a struct ends on its alignment
    if (kernel->arg_bytes < launch.arg_bytes || kernel->arg_bytes > padded) {
      throw Error(
          Text(plan_name_, ", line ", launch.line, ": ", launch.arg_bytes, " bytes of arguments for a kernel that takes ", kernel->arg_bytes));
    }
    kernels.push_back(*kernel);
  }
  kernels_ = std::move(kernels);
  return true;
}

// At the first run every node of the session exists, so an image that is still unknown is in none of them.
void RegionOp::LoadKernelsLate(cuda::Stream* stream) {
  std::lock_guard<std::mutex> lock(loading_);
  if (ready_) return;
  int is_capturing = 0;
  const cuda::Driver& driver = cuda::Driver::Get();
  driver.Check(driver.StreamIsCapturing(stream, &is_capturing), "looking at the stream");
  if (is_capturing != 0) throw Error("its first run is captured; run the session once before capturing it");
  if (!LoadKernels()) throw Error(MissingImage());
  ready_ = true;
}

std::string RegionOp::MissingImage() const {
  std::string missing;
  for (const Launch& launch : plan_.launches) {
    const std::string& digest = plan_.images[static_cast<size_t>(launch.image)];
    if (!ImageCache::Process().Load(digest, launch.kernel, device_)) missing = digest;
  }
  return Text("image ", missing, " is in no node of this model: re-run optimize; the node that carried the image was removed");
}

ort::Status* RegionOp::Compute(ort::KernelContext* context) noexcept {
  return AtBorder(api_, where_, [&] {
    static thread_local Run run;
    run.context = context;
    void* stream = nullptr;
    Check(api_.KernelContext_GetGPUComputeStream(context, &stream), "finding the stream");
    run.stream = static_cast<cuda::Stream*>(stream);
    if (!ready_.load(std::memory_order_acquire)) LoadKernelsLate(run.stream);
    ReadDims(&run);
    AllocateOutputs(&run);
    LaunchAll(&run);
  });
}

void RegionOp::ReadDims(Run* run) const {
  const std::vector<DimTable::Dim>& dims = plan_.dims.dims();
  run->dims.resize(dims.size());
  int64_t shape[Output::kMaxRank];
  for (size_t i = 0; i < dims.size(); ++i) {
    bool is_known = i > 0 && dims[i].input == dims[i - 1].input;  // `shape` still holds it
    if (!is_known) {
      const ort::Value* value = nullptr;
      Check(api_.KernelContext_GetInput(run->context, static_cast<size_t>(dims[i].input), &value), "reading an input");
      ort::TensorInfo* info = nullptr;
      std::fill(std::begin(shape), std::end(shape), -1);
      if (value == nullptr) throw Error(Text("input ", dims[i].input, " is absent"));
      Check(api_.GetTensorTypeAndShape(value, &info), "reading a shape");
      size_t rank = 0;
      ort::Status* status = api_.GetDimensionsCount(info, &rank);
      if (status == nullptr) status = api_.GetDimensions(info, shape, std::min(rank, Output::kMaxRank));
      api_.ReleaseTensorTypeAndShapeInfo(info);
      Check(status, "reading a shape");
    }
    if (static_cast<size_t>(dims[i].axis) >= Output::kMaxRank || shape[dims[i].axis] < 0) {
      throw Error(Text("input ", dims[i].input, " has no dim ", dims[i].axis));
    }
    run->dims[i] = shape[dims[i].axis];
  }
}

void RegionOp::AllocateOutputs(Run* run) const {
  run->inputs.assign(static_cast<size_t>(plan_.input_count), 0);
  run->outputs.assign(plan_.outputs.size(), 0);
  run->scratch.assign(plan_.scratch.size(), 0);
  run->values = {run->dims.data(), gpu_->multiprocessors, run->inputs.data(), run->outputs.data(), run->scratch.data()};
  void* address = nullptr;
  for (int input : plan_.input_pointers) {
    const ort::Value* value = nullptr;
    Check(api_.KernelContext_GetInput(run->context, static_cast<size_t>(input), &value), "reading an input");
    if (value == nullptr) continue;  // an absent optional input is a null pointer
    Check(api_.GetTensorMutableData(const_cast<ort::Value*>(value), &address), "reading an input");
    run->inputs[static_cast<size_t>(input)] = reinterpret_cast<uint64_t>(address);
  }
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    int64_t shape[Output::kMaxRank];
    Check(plan_.EvaluateOutput(plan_.outputs[i], run->values, shape));
    ort::Value* value = nullptr;
    Check(api_.KernelContext_GetOutput(run->context, i, shape, plan_.outputs[i].dims.size(), &value), "allocating an output");
    if (value == nullptr) continue;
    Check(api_.GetTensorMutableData(value, &address), "allocating an output");
    run->outputs[i] = reinterpret_cast<uint64_t>(address);
  }
}

// One block for all slots, or null. Nobody gives it back but us.
void* RegionOp::AllocateScratch(Run* run) const {
  uint64_t bytes = 0;
  Check(plan_.EvaluateScratch(run->values, run->scratch.data(), &bytes));
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  // NOTE: GetScratchBuffer knows the stream, so that the arena does not hand the block to another stream too early. It dereferences the stream
  // without a look, and a provider without streams has none.
  ort::Status* status = run->stream != nullptr ? api_.KernelContext_GetScratchBuffer(run->context, memory_, bytes, &block)
                                               : api_.AllocatorAlloc(allocator_, bytes, &block);
  Check(status, "allocating scratch memory");
  if (block == nullptr) throw Error(Text("no ", bytes, " bytes of scratch memory"));
  for (uint64_t& offset : run->scratch) offset += reinterpret_cast<uint64_t>(block);
  return block;
}

void RegionOp::LaunchAll(Run* run) const {
  auto give_back = [this](void* block) {
    if (ort::Status* status = api_.AllocatorFree(allocator_, block)) api_.ReleaseStatus(status);
  };
  // Given back when the last launch is queued: the arena reuses it in stream order.
  std::unique_ptr<void, decltype(give_back)> scratch(AllocateScratch(run), give_back);

  const cuda::Driver& driver = cuda::Driver::Get();
  for (size_t i = 0; i < plan_.launches.size(); ++i) {
    const Launch& launch = plan_.launches[i];
    ReadyLaunch& ready = run->launch;
    Check(plan_.EvaluateLaunch(launch, run->values, &ready));
    if (ready.skip) continue;
    cuda::LaunchAttribute overlap{};
    overlap.id = cuda::kProgrammaticStreamSerialization;
    overlap.value.flag = 1;
    const unsigned overlaps = launch.pdl && gpu_->major >= 9 ? 1 : 0;  // older GPUs refuse the attribute
    cuda::LaunchConfig config{{ready.grid[0], ready.grid[1], ready.grid[2]}, {launch.block, 1, 1}, ready.smem, run->stream, &overlap, overlaps};
    size_t arg_bytes = kernels_[i].arg_bytes;
    void* args[] = {cuda::kLaunchBufferPointer, ready.args, cuda::kLaunchBufferSize, &arg_bytes, cuda::kLaunchBufferEnd};
    if (cuda::Result result = driver.LaunchKernelEx(&config, kernels_[i].function, nullptr, arg_bytes > 0 ? args : nullptr)) {
      throw Error(Text(plan_name_, ", line ", launch.line, ": launching ", launch.kernel, ": ", driver.ErrorText(result)));
    }
    Status::Process().launches.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace tilewright
