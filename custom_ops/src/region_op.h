// FusedConvRegion and PolyMatMul at run time: one node of a session, its launch plan and its kernels.
//
// The attributes of a node: `plan_<class>`, a string, is its launch plan for one target class (target_class.h); `image_<16 hexadecimal digits>`, a
// uint8 tensor, is an image that a plan names by its SHA-256, on the first node of the model that uses it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "image_cache.h"
#include "launch_plan.h"
#include "ort_abi.h"

namespace tilewright {

class RegionOp {
 public:
  // Reads the node: its plan for this GPU, and the images that it carries. Throws Error.
  RegionOp(const ort::Api& api, const ort::KernelInfo* info);
  ~RegionOp();
  RegionOp(const RegionOp&) = delete;
  RegionOp& operator=(const RegionOp&) = delete;

  // One run: allocates the outputs and launches on the stream of `context`. Never synchronises. Threads may share a node.
  ort::Status* Compute(ort::KernelContext* context) noexcept;

 private:
  struct Run;

  void ReadPlan(const ort::KernelInfo* info);
  void AddImages(const ort::KernelInfo* info, const LaunchPlan& plan);
  void CheckInterface(const ort::KernelInfo* info) const;
  bool LoadKernels();  // false where a node that carries an image has not been created yet
  void LoadKernelsLate(cuda::Stream* stream);
  std::string MissingImage() const;

  void ReadDims(Run* run) const;
  void AllocateOutputs(Run* run) const;
  void* AllocateScratch(Run* run) const;
  void LaunchAll(Run* run) const;
  void Check(ort::Status* status, const char* doing) const;
  void Check(const RunError& error) const;

  ort::Api api_;
  std::string where_;
  ort::Allocator* allocator_ = nullptr;
  const ort::MemoryInfo* memory_ = nullptr;
  int device_ = 0;  // ordinal
  const cuda::Device* gpu_ = nullptr;
  std::string plan_name_;
  LaunchPlan plan_;
  std::vector<LoadedKernel> kernels_;  // one a launch
  std::atomic<bool> ready_{false};
  std::mutex loading_;
};

}  // namespace tilewright
