// Launch expressions: 64-bit integer arithmetic over the dims of a node's inputs. The grammar is that of optimizer/launch.py, and
// tests/vectors/launch_expr.json holds the cases that both sides evaluate.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tilewright {

// The (input, axis) pairs that the expressions of one plan read. An expression names them by position, so that a run reads each shape once.
class DimTable {
 public:
  struct Dim {
    int input;
    int axis;
  };
  static constexpr size_t kMaxDims = 256;

  int Slot(int input, int axis);  // adds the pair where it is new
  const std::vector<Dim>& dims() const { return dims_; }

 private:
  std::vector<Dim> dims_;
};

class LaunchExpr {
 public:
  static constexpr size_t kMaxText = 4096;
  static constexpr int kMaxDepth = 64;  // of brackets and signs
  static constexpr int kMaxOps = 256;   // operators, signs and functions

  enum class Outcome { kOk, kDivisionByZero, kOverflow };

  // Throws Error where `text` is outside the grammar or the limits.
  static LaunchExpr Parse(std::string_view text, DimTable* dims);

  // `dims` holds the value of each slot of the table; nothing is allocated.
  Outcome Evaluate(const int64_t* dims, int64_t sms, int64_t* result) const noexcept;

 private:
  friend class ExprParser;

  enum class Op : uint8_t {
    kConst,
    kDim,
    kSms,
    kNegate,
    kAdd,
    kSub,
    kMul,
    kFloorDiv,
    kMod,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kEqual,
    kNotEqual,
    kMin,
    kMax,
    kCeilDiv,
    kAlign,
    kSelect
  };
  struct Step {  // of a stack machine
    Op op;
    int64_t value;  // of a constant, or the slot of a dim
  };
  // A bracket or sign holds back at most three left operands (one a precedence level) and two earlier arguments of a function.
  static constexpr int kMaxStack = 6 * (kMaxDepth + 1);

  static Outcome Apply(Op op, int64_t a, int64_t b, int64_t* result) noexcept;

  std::vector<Step> steps_;
};

const char* OutcomeText(LaunchExpr::Outcome outcome);

}  // namespace tilewright
