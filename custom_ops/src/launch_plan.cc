// Parser and evaluator of launch plans. Parsing bounds every count, index and size; evaluating allocates nothing.
#include "launch_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "words.h"

namespace tilewright {
namespace {

constexpr size_t kMaxText = 1 << 20;
constexpr size_t kMaxStatements = 1024;  // of each kind, and arguments of one launch
constexpr int kMaxIndex = 9999;
constexpr uint64_t kScratchAlignment = 256;

struct DType {
  const char* name;
  int onnx;
};
constexpr DType kDTypes[] = {{"f32", 1},  {"u8", 2},   {"i8", 3},    {"i32", 6},     {"i64", 7},    {"bool", 9},
                             {"f16", 10}, {"f64", 11}, {"bf16", 16}, {"f8e4m3", 17}, {"f8e5m2", 19}};

class PlanParser {
 public:
  explicit PlanParser(std::string_view text) : rest_(text) {}

  LaunchPlan Run() {
    if (rest_.size() > kMaxText) throw Error(Text("launch plan of ", rest_.size(), " bytes; at most ", kMaxText, " are allowed"));
    try {
      NextLine();
      if (words_.size() != 2 || words_[0] != "tilewright" || words_[1] != "1") {
        throw Error("'tilewright 1' expected: a plan of another version, or none");
      }
      while (!rest_.empty()) {
        NextLine();
        Statement();
      }
      for (const DimTable::Dim& dim : plan_.dims.dims()) plan_.input_count = std::max(plan_.input_count, dim.input + 1);
    } catch (const Error& error) {
      throw Error(Text("launch plan, line ", line_, ": ", error.what()));
    }
    return std::move(plan_);
  }

 private:
  void NextLine() {
    ++line_;
    TakeLine(&rest_, &words_);
  }

  void Statement() {
    std::string_view name = words_[0];
    if (name == "output") return AddOutput();
    if (name == "scratch") return AddScratch();
    if (name == "image") return AddImage();
    if (name == "launch") return AddLaunch();
    if (name != "when" && name != "pdl" && name != "arg") throw Error(Text("unknown statement '", name.substr(0, 40), "'"));
    if (plan_.launches.empty()) throw Error(Text("'", name, "' before the first launch"));
    Launch& launch = plan_.launches.back();
    if (name == "arg") return AddArg(&launch);
    Words(name == "when" ? 2 : 1);
    bool& given = name == "when" ? launch.has_when : launch.pdl;
    if (given) throw Error(Text("a second '", name, "' for one launch"));
    given = true;
    if (name == "when") launch.when = Expr(1);
  }

  void Words(size_t count) const {
    if (words_.size() != count) throw Error(Text("'", words_[0], "' takes ", count - 1, " values, not ", words_.size() - 1));
  }

  template <class List>
  void Room(const List& list) const {
    if (list.size() == kMaxStatements) throw Error(Text("more than ", kMaxStatements, " of '", words_[0], "'"));
  }

  LaunchExpr Expr(size_t word) { return LaunchExpr::Parse(words_[word], &plan_.dims); }

  int Integer(size_t word, size_t below, const char* what) const {
    std::string_view text = words_[word];
    int value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 || static_cast<size_t>(value) >= below) {
      throw Error(Text("'", text.substr(0, 40), "' is no ", what, " (there are ", below, ")"));
    }
    return value;
  }

  void AddOutput() {
    Room(plan_.outputs);
    if (words_.size() < 2 || words_.size() - 2 > Output::kMaxRank) throw Error(Text("an output has a dtype and at most ", Output::kMaxRank, " dims"));
    auto dtype = std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DType& d) { return words_[1] == d.name; });
    if (dtype == std::end(kDTypes)) throw Error(Text("unknown dtype '", words_[1].substr(0, 40), "'"));
    Output output{dtype->onnx, dtype->name, {}, line_};
    for (size_t word = 2; word < words_.size(); ++word) output.dims.push_back(Expr(word));
    plan_.outputs.push_back(std::move(output));
  }

  void AddScratch() {
    Room(plan_.scratch);
    Words(2);
    plan_.scratch.push_back({Expr(1), line_});
  }

  void AddImage() {
    Room(plan_.images);
    Words(2);
    if (words_[1].size() != 64 || words_[1].find_first_not_of("0123456789abcdef") != std::string_view::npos) {
      throw Error("an image is named by 64 hexadecimal digits");
    }
    plan_.images.emplace_back(words_[1]);
  }

  void AddLaunch() {
    Room(plan_.launches);
    Words(8);
    Launch launch;
    launch.line = line_;
    launch.image = Integer(1, plan_.images.size(), "image index");
    launch.kernel = std::string(words_[2]);
    bool is_printable = std::all_of(launch.kernel.begin(), launch.kernel.end(), [](char c) { return c > ' ' && c < 127; });
    if (launch.kernel.empty() || launch.kernel.size() > 4096 || !is_printable) throw Error("a kernel name is 1 to 4096 printable characters");
    launch.block = static_cast<unsigned>(Integer(3, 1025, "block size"));
    if (launch.block == 0) throw Error("a block has at least one thread");
    launch.smem = Expr(4);
    for (size_t axis = 0; axis < 3; ++axis) launch.grid[axis] = Expr(5 + axis);
    plan_.launches.push_back(std::move(launch));
  }

  void AddArg(Launch* launch) {
    Room(launch->args);
    if (words_.size() < 2) throw Error("an argument has a kind");
    Arg arg{};
    arg.line = line_;
    std::string_view kind = words_[1];
    size_t bytes = 8;
    if (kind == "in" || kind == "out" || kind == "ws") {
      Words(4);
      arg.kind = kind == "in" ? Arg::Kind::kInput : kind == "out" ? Arg::Kind::kOutput : Arg::Kind::kScratch;
      size_t count = kind == "in" ? kMaxIndex + 1 : kind == "out" ? plan_.outputs.size() : plan_.scratch.size();
      arg.index = Integer(2, count, kind == "in" ? "input" : kind == "out" ? "output" : "scratch slot");
      arg.value = Expr(3);
      if (kind == "in") UseInput(arg.index);
    } else if (kind == "i32" || kind == "i64") {
      Words(3);
      arg.kind = kind == "i32" ? Arg::Kind::kInt32 : Arg::Kind::kInt64;
      arg.value = Expr(2);
      if (kind == "i32") bytes = 4;
    } else if (kind == "f32") {
      Words(3);
      arg.kind = Arg::Kind::kFloat32;
      arg.number = Number(words_[2]);
      bytes = 4;
    } else if (kind == "null") {
      Words(2);
      arg.kind = Arg::Kind::kNull;
    } else {
      throw Error(Text("unknown argument kind '", kind.substr(0, 40), "'"));
    }
    arg.position = (launch->arg_bytes + bytes - 1) / bytes * bytes;
    launch->arg_bytes = arg.position + bytes;
    if (launch->arg_bytes > Launch::kMaxArgBytes) throw Error(Text("more than ", Launch::kMaxArgBytes, " bytes of arguments"));
    launch->args.push_back(std::move(arg));
  }

  void UseInput(int index) {
    std::vector<int>& used = plan_.input_pointers;
    if (std::find(used.begin(), used.end(), index) == used.end()) used.push_back(index);
    plan_.input_count = std::max(plan_.input_count, index + 1);
  }

  static float Number(std::string_view text) {
    double value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) throw Error(Text("'", text.substr(0, 40), "' is no number"));
    if (std::isfinite(value) && std::fabs(value) > std::numeric_limits<float>::max()) throw Error(Text(value, " does not fit in 32 bits"));
    return static_cast<float>(value);
  }

  std::string_view rest_;
  std::vector<std::string_view> words_;
  int line_ = 0;
  LaunchPlan plan_;
};

// Evaluates `expr` into `value`; what it says where that fails or the value is outside [low, high].
const char* Within(const LaunchExpr& expr, const RunValues& values, int64_t low, int64_t high, const char* otherwise, int64_t* value) noexcept {
  LaunchExpr::Outcome outcome = expr.Evaluate(values.dims, values.sms, value);
  if (outcome != LaunchExpr::Outcome::kOk) return OutcomeText(outcome);
  return *value < low || *value > high ? otherwise : nullptr;
}

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt32Min = std::numeric_limits<int32_t>::min();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();

}  // namespace

LaunchPlan LaunchPlan::Parse(std::string_view text) {
  return PlanParser(text).Run();
}

RunError LaunchPlan::EvaluateOutput(const Output& output, const RunValues& values, int64_t* shape) const noexcept {
  for (const LaunchExpr& dim : output.dims) {
    if (const char* what = Within(dim, values, 0, kInt64Max, "a dim of an output is negative", shape++)) return {what, output.line};
  }
  return {};
}

RunError LaunchPlan::EvaluateScratch(const RunValues& values, uint64_t* offsets, uint64_t* total) const noexcept {
  constexpr int64_t kMostBytes = int64_t{1} << 50;  // below any sum that could overflow
  *total = 0;
  for (const Scratch& slot : scratch) {
    int64_t bytes = 0;
    if (const char* what = Within(slot.bytes, values, 0, kMostBytes, "the size of a scratch slot is negative or absurd", &bytes)) {
      return {what, slot.line};
    }
    *offsets++ = *total;
    *total += (static_cast<uint64_t>(bytes) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }
  return {};
}

RunError LaunchPlan::EvaluateLaunch(const Launch& launch, const RunValues& values, ReadyLaunch* ready) const noexcept {
  int64_t value = 1;
  ready->skip = false;
  if (launch.has_when) {
    if (const char* what = Within(launch.when, values, kInt64Min, kInt64Max, "", &value)) return {what, launch.line};
    ready->skip = value == 0;
  }
  for (int axis = 0; axis < 3 && !ready->skip; ++axis) {
    if (const char* what =
            Within(launch.grid[axis], values, 0, axis == 0 ? kInt32Max : 65535, "a grid dim is outside the hardware's limits", &value)) {
      return {what, launch.line};
    }
    ready->grid[axis] = static_cast<unsigned>(value);
    ready->skip = value == 0;
  }
  if (ready->skip) return {};
  if (const char* what = Within(launch.smem, values, 0, kInt32Max, "the shared memory size is negative or absurd", &value)) {
    return {what, launch.line};
  }
  ready->smem = static_cast<unsigned>(value);

  std::memset(ready->args, 0, launch.arg_bytes);
  for (const Arg& arg : launch.args) {
    unsigned char* at = ready->args + arg.position;
    if (arg.kind == Arg::Kind::kNull) continue;
    if (arg.kind == Arg::Kind::kFloat32) {
      std::memcpy(at, &arg.number, sizeof(arg.number));
      continue;
    }
    bool narrow = arg.kind == Arg::Kind::kInt32;
    bool number = narrow || arg.kind == Arg::Kind::kInt64;
    int64_t low = narrow ? kInt32Min : number ? kInt64Min : 0;
    const char* otherwise = narrow ? "an integer argument does not fit in 32 bits" : "the offset of a pointer is negative";
    if (const char* what = Within(arg.value, values, low, narrow ? kInt32Max : kInt64Max, otherwise, &value)) return {what, arg.line};
    if (!number) {
      const uint64_t* bases = arg.kind == Arg::Kind::kInput ? values.inputs : arg.kind == Arg::Kind::kOutput ? values.outputs : values.scratch;
      value = static_cast<int64_t>(bases[arg.index] + static_cast<uint64_t>(value));
    }
    std::memcpy(at, &value, narrow ? 4 : 8);  // little endian, as CUDA's hosts are
  }
  return {};
}

}  // namespace tilewright
