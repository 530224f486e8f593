// C functions for Python (ctypes): the status of the process, and the parsers and evaluators for tests. None of them needs ONNX Runtime or a GPU.
// Texts are returned in buffers of the caller, cut to their size; the result is 0 where all went well.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "image.h"
#include "launch_plan.h"
#include "matmul_planner.h"
#include "sha256.h"
#include "status.h"

#define TILEWRIGHT_EXPORT extern "C" __attribute__((visibility("default")))

namespace tilewright {
namespace {

constexpr int kBadInput = 1;  // 2 and 3 are Outcomes, 4 a missing dim
constexpr int kMissingDim = 4;

void Put(const std::string& text, char* out, size_t size) {
  if (size == 0) return;
  size_t length = std::min(text.size(), size - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

// Input shapes: `dims` one after the other, `ranks` says how many belong to each input.
bool FillDims(const DimTable& table, const int64_t* dims, const int32_t* ranks, int32_t inputs, std::vector<int64_t>* values) {
  for (const DimTable::Dim& dim : table.dims()) {
    if (dim.input >= inputs || dim.axis >= ranks[dim.input]) return false;
    const int64_t* shape = dims;
    for (int i = 0; i < dim.input; ++i) shape += ranks[i];
    values->push_back(shape[dim.axis]);
  }
  return true;
}

// Addresses that tell where they came from: buffer `index` of the `kind`-th kind.
std::vector<uint64_t> FakeAddresses(size_t count, uint64_t kind) {
  std::vector<uint64_t> addresses(count);
  for (size_t i = 0; i < count; ++i) addresses[i] = kind << 60 | static_cast<uint64_t>(i) << 40;
  return addresses;
}

void Fail(const RunError& error) {
  if (error.what != nullptr) throw Error(Text("launch plan, line ", error.line, ": ", error.what));
}

std::string DryRun(const LaunchPlan& plan, const std::vector<int64_t>& dims, int64_t sms) {
  std::vector<uint64_t> inputs = FakeAddresses(static_cast<size_t>(plan.input_count), 1);
  std::vector<uint64_t> outputs = FakeAddresses(plan.outputs.size(), 2);
  std::vector<uint64_t> scratch(plan.scratch.size());
  RunValues values{dims.data(), sms, inputs.data(), outputs.data(), scratch.data()};
  std::ostringstream out;
  for (const Output& output : plan.outputs) {
    int64_t shape[Output::kMaxRank];
    Fail(plan.EvaluateOutput(output, values, shape));
    out << "output " << output.dtype_name;
    for (size_t i = 0; i < output.dims.size(); ++i) out << ' ' << shape[i];
    out << '\n';
  }
  uint64_t total = 0;
  Fail(plan.EvaluateScratch(values, scratch.data(), &total));
  for (uint64_t& offset : scratch) offset += uint64_t{3} << 60;
  out << "scratch " << total << '\n';
  ReadyLaunch ready;
  for (const Launch& launch : plan.launches) {
    Fail(plan.EvaluateLaunch(launch, values, &ready));
    out << "launch " << launch.image << ' ' << launch.kernel;
    if (ready.skip) {
      out << " skipped\n";
      continue;
    }
    out << " grid " << ready.grid[0] << ' ' << ready.grid[1] << ' ' << ready.grid[2] << " block " << launch.block << " smem " << ready.smem << " pdl "
        << launch.pdl << " args ";
    for (size_t i = 0; i < launch.arg_bytes; ++i) out << "0123456789abcdef"[ready.args[i] >> 4] << "0123456789abcdef"[ready.args[i] & 15];
    out << '\n';
  }
  return out.str();
}

// Runs `body`, which returns the result; an exception's text goes to `out`.
template <class Body>
int Guarded(char* out, size_t size, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    Put(error.what(), out, size);
    return kBadInput;
  }
}

}  // namespace
}  // namespace tilewright

using namespace tilewright;

// What the library did in this process, as JSON; valid until the calling thread asks again.
TILEWRIGHT_EXPORT const char* tilewright_status() {
  static thread_local std::string text;
  text = Status::Process().ToJson();
  return text.c_str();
}

// The value of a launch expression. 1: malformed, 2: division by zero, 3: overflow, 4: the inputs have no such dim.
TILEWRIGHT_EXPORT int tilewright_eval(const char* text, size_t length, const int64_t* dims, const int32_t* ranks, int32_t inputs, int64_t sms,
                                      int64_t* result, char* error, size_t error_size) {
  return Guarded(error, error_size, [&] {
    DimTable table;
    LaunchExpr expr = LaunchExpr::Parse({text, length}, &table);
    std::vector<int64_t> values;
    if (!FillDims(table, dims, ranks, inputs, &values)) {
      Put("the node has no such dim", error, error_size);
      return kMissingDim;
    }
    LaunchExpr::Outcome outcome = expr.Evaluate(values.data(), sms, result);
    if (outcome == LaunchExpr::Outcome::kOk) return 0;
    Put(OutcomeText(outcome), error, error_size);
    return outcome == LaunchExpr::Outcome::kDivisionByZero ? 2 : 3;
  });
}

// 0 where `text` is a launch plan that a node could carry.
TILEWRIGHT_EXPORT int tilewright_check_plan(const char* text, size_t length, char* error, size_t error_size) {
  return Guarded(error, error_size, [&] {
    LaunchPlan::Parse({text, length});
    return 0;
  });
}

// Everything that a run of the plan would compute, as text: output shapes, scratch bytes, grids and packed arguments (in hexadecimal; buffer n
// is at n << 40, plus 1, 2 or 3 << 60 for inputs, outputs and scratch).
TILEWRIGHT_EXPORT int tilewright_run_plan(const char* text, size_t length, const int64_t* dims, const int32_t* ranks, int32_t inputs, int64_t sms,
                                          char* out, size_t out_size) {
  return Guarded(out, out_size, [&] {
    LaunchPlan plan = LaunchPlan::Parse({text, length});
    std::vector<int64_t> values;
    if (!FillDims(plan.dims, dims, ranks, inputs, &values)) throw Error("the node has no such dim");
    Put(DryRun(plan, values, sms), out, out_size);
    return 0;
  });
}

// The entry of an image container that a GPU of capability major.minor would load, as "cubin|ptx <arch>[a] <offset> <size>" or "none".
TILEWRIGHT_EXPORT int tilewright_check_image(const void* bytes, size_t size, int major, int minor, char* out, size_t out_size) {
  return Guarded(out, out_size, [&] {
    std::vector<ImageEntry> entries = ParseImage(static_cast<const uint8_t*>(bytes), size);
    const ImageEntry* entry = ChooseEntry(entries, major, minor);
    std::string text = "none";
    if (entry != nullptr) {
      const char* kind = entry->kind == ImageEntry::kCubin ? "cubin " : "ptx ";
      text = Text(kind, entry->arch, entry->exact_arch ? "a " : " ", entry->offset, " ", entry->size);
    }
    Put(text, out, out_size);
    return 0;
  });
}

// SHA-256 in hexadecimal; `digest` has room for 65 characters.
TILEWRIGHT_EXPORT void tilewright_sha256(const void* bytes, size_t size, char* digest) {
  Put(Sha256(bytes, size), digest, 65);
}

// A planner of matrix products for the pool that `text` describes, or null; tilewright_planner_free takes it back.
TILEWRIGHT_EXPORT MatmulPlanner* tilewright_planner_new(const char* text, size_t length, char* error, size_t error_size) {
  std::unique_ptr<MatmulPlanner> planner;
  Guarded(error, error_size, [&] {
    planner = std::make_unique<MatmulPlanner>(Pool::Parse({text, length}));
    return 0;
  });
  return planner.release();
}

TILEWRIGHT_EXPORT void tilewright_planner_free(MatmulPlanner* planner) {
  delete planner;
}

// What the planner chooses for the product of m x k by k x n matrices. 1: a dim is negative or the matrices are too large.
TILEWRIGHT_EXPORT int tilewright_planner_plan(MatmulPlanner* planner, int64_t batch, int64_t m, int64_t n, int64_t k, Choice* choice) {
  return planner->Plan({batch, m, n, k}, choice) ? 0 : kBadInput;
}

// The planner's makespan of two kinds of units, in microseconds.
TILEWRIGHT_EXPORT double tilewright_makespan(double long_us, int64_t long_count, double short_us, int64_t short_count, int64_t slots) {
  return Makespan(long_us, static_cast<double>(long_count), short_us, static_cast<double>(short_count), static_cast<double>(slots));
}
