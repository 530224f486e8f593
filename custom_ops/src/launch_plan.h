// Launch plans: what one node does at run time. The text form is that of LaunchPlan.to_text in optimizer/launch.py; the parser takes any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launch_expr.h"

namespace tilewright {

// What went wrong while a plan was evaluated; `what` is null where nothing did.
struct RunError {
  const char* what = nullptr;
  int line = 0;  // of the plan's text
};

struct Output {
  static constexpr size_t kMaxRank = 16;
  int dtype;  // ONNX tensor element type
  std::string dtype_name;
  std::vector<LaunchExpr> dims;
  int line;
};

struct Scratch {
  LaunchExpr bytes;
  int line;
};

struct Arg {
  enum class Kind : uint8_t { kInput, kOutput, kScratch, kInt32, kInt64, kFloat32, kNull };
  Kind kind;
  int index;         // of an input, output or scratch slot
  float number;      // of kFloat32
  LaunchExpr value;  // byte offset of a pointer, or the integer
  size_t position;   // byte in the argument buffer
  int line;
};

struct Launch {
  static constexpr size_t kMaxArgBytes = 4096;  // what every CUDA kernel can take
  int image;
  std::string kernel;
  unsigned block;
  LaunchExpr smem;
  LaunchExpr grid[3];
  LaunchExpr when;
  bool has_when = false;
  bool pdl = false;
  std::vector<Arg> args;
  size_t arg_bytes = 0;
  int line;
};

// What the expressions of a run read and where its arguments point.
struct RunValues {
  const int64_t* dims;  // by slot of LaunchPlan::dims
  int64_t sms;
  const uint64_t* inputs;  // device addresses
  const uint64_t* outputs;
  const uint64_t* scratch;
};

// One launch with its numbers.
struct ReadyLaunch {
  bool skip;  // `when` is 0 or the grid is empty
  unsigned grid[3];
  unsigned smem;
  alignas(16) unsigned char args[Launch::kMaxArgBytes];
};

struct LaunchPlan {
  DimTable dims;
  std::vector<Output> outputs;
  std::vector<Scratch> scratch;
  std::vector<std::string> images;  // SHA-256 of each, in hexadecimal
  std::vector<Launch> launches;
  int input_count = 0;              // one past the highest input that the plan names
  std::vector<int> input_pointers;  // inputs whose addresses the kernels take

  // Throws Error with the line where `text` is not a plan.
  static LaunchPlan Parse(std::string_view text);

  // `shape` has room for Output::kMaxRank dims.
  RunError EvaluateOutput(const Output& output, const RunValues& values, int64_t* shape) const noexcept;

  // Offsets of the slots in one block, each 256-aligned, and the block's size; `offsets` has room for one number a slot.
  RunError EvaluateScratch(const RunValues& values, uint64_t* offsets, uint64_t* total) const noexcept;

  RunError EvaluateLaunch(const Launch& launch, const RunValues& values, ReadyLaunch* ready) const noexcept;
};

}  // namespace tilewright
