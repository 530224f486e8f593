// Recursive-descent parser to a small stack program, and its evaluator. Every operation is checked for overflow.
#include "launch_expr.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "check.h"

namespace tilewright {

int DimTable::Slot(int input, int axis) {
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (dims_[i].input == input && dims_[i].axis == axis) return static_cast<int>(i);
  }
  if (dims_.size() == kMaxDims) throw Error(Text("more than ", kMaxDims, " different dims"));
  dims_.push_back({input, axis});
  return static_cast<int>(dims_.size()) - 1;
}

class ExprParser {
 public:
  ExprParser(std::string_view text, DimTable* dims) : text_(text), dims_(dims) {}

  LaunchExpr Run() {
    if (text_.size() > LaunchExpr::kMaxText) {
      throw Error(Text("launch expression of ", text_.size(), " characters; at most ", LaunchExpr::kMaxText, " are allowed"));
    }
    Comparison();
    if (at_ != text_.size()) Fail(Text("unexpected '", text_[at_], "' at ", at_));
    return std::move(expr_);
  }

 private:
  using Op = LaunchExpr::Op;
  struct Spelling {
    const char* text;
    Op op;
    int arity;
  };
  static constexpr Spelling kComparisons[] = {{"<=", Op::kLessEqual, 2}, {">=", Op::kGreaterEqual, 2}, {"==", Op::kEqual, 2},
                                              {"!=", Op::kNotEqual, 2},  {"<", Op::kLess, 2},          {">", Op::kGreater, 2}};
  static constexpr Spelling kSums[] = {{"+", Op::kAdd, 2}, {"-", Op::kSub, 2}};
  static constexpr Spelling kProducts[] = {{"*", Op::kMul, 2}, {"//", Op::kFloorDiv, 2}, {"%", Op::kMod, 2}};
  static constexpr Spelling kFunctions[] = {
      {"min(", Op::kMin, 2}, {"max(", Op::kMax, 2}, {"ceildiv(", Op::kCeilDiv, 2}, {"align(", Op::kAlign, 2}, {"select(", Op::kSelect, 3}};

  [[noreturn]] void Fail(const std::string& what) const {
    std::string_view shown = text_.substr(0, 80);
    throw Error(Text("launch expression '", shown, shown.size() < text_.size() ? "...'" : "'", ": ", what));
  }

  bool Take(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  template <size_t N>
  const Spelling* TakeOneOf(const Spelling (&spellings)[N]) {
    for (const Spelling& spelling : spellings) {
      if (Take(spelling.text)) return &spelling;
    }
    return nullptr;
  }

  void Emit(Op op, int64_t value = 0) {
    bool is_leaf = op == Op::kConst || op == Op::kDim || op == Op::kSms;
    if (!is_leaf && ++ops_ > LaunchExpr::kMaxOps) Fail(Text("more than ", LaunchExpr::kMaxOps, " operations"));
    expr_.steps_.push_back({op, value});
  }

  void Comparison() {
    Sum();
    if (const Spelling* op = TakeOneOf(kComparisons)) {
      Sum();
      Emit(op->op);
    }
  }

  void Sum() {
    Product();
    while (const Spelling* op = TakeOneOf(kSums)) {
      Product();
      Emit(op->op);
    }
  }

  void Product() {
    Unary();
    while (const Spelling* op = TakeOneOf(kProducts)) {
      Unary();
      Emit(op->op);
    }
  }

  void Unary() {
    if (++depth_ > LaunchExpr::kMaxDepth) Fail(Text("nested deeper than ", LaunchExpr::kMaxDepth));
    if (Take("-")) {
      Unary();
      Emit(Op::kNegate);
    } else {
      Primary();
    }
    --depth_;
  }

  void Primary() {
    if (at_ == text_.size()) Fail("it ends too early");
    if (IsDigit()) return Emit(Op::kConst, Integer(std::numeric_limits<int64_t>::max()));
    if (Take("sms")) return Emit(Op::kSms);
    if (Take("i")) {
      int input = static_cast<int>(Integer(9999));
      if (!Take(".")) Fail(Text("'.' expected at ", at_));
      int axis = static_cast<int>(Integer(99));
      return Emit(Op::kDim, dims_->Slot(input, axis));
    }
    if (Take("(")) {
      Comparison();
      return Close();
    }
    const Spelling* function = TakeOneOf(kFunctions);
    if (function == nullptr) Fail(Text("unexpected '", text_[at_], "' at ", at_));
    int count = 0;
    do {
      Comparison();
      ++count;
    } while (count < 4 && Take(","));
    if (count != function->arity) Fail(Text(function->text, ") takes ", function->arity, " arguments"));
    Close();
    Emit(function->op);
  }

  void Close() {
    if (!Take(")")) Fail(Text("')' expected at ", at_));
  }

  bool IsDigit() const { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; }

  int64_t Integer(int64_t largest) {
    if (!IsDigit()) Fail(Text("a digit expected at ", at_));
    int64_t value = 0;
    for (; IsDigit(); ++at_) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value) || value > largest) {
        Fail(Text("a number above ", largest));
      }
    }
    return value;
  }

  std::string_view text_;
  DimTable* dims_;
  LaunchExpr expr_;
  size_t at_ = 0;
  int depth_ = 0;
  int ops_ = 0;
};

LaunchExpr LaunchExpr::Parse(std::string_view text, DimTable* dims) {
  return ExprParser(text, dims).Run();
}

namespace {

using Outcome = LaunchExpr::Outcome;

// `a / b` rounded to minus infinity, `b` neither 0 nor -1.
int64_t FloorDiv(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

// `a / b` rounded to plus infinity, `b` neither 0 nor -1.
int64_t CeilDiv(int64_t a, int64_t b) {
  return a / b + (a % b != 0 && (a < 0) == (b < 0));
}

Outcome Checked(bool overflow) {
  return overflow ? Outcome::kOverflow : Outcome::kOk;
}

}  // namespace

LaunchExpr::Outcome LaunchExpr::Apply(Op op, int64_t a, int64_t b, int64_t* result) noexcept {
  bool divides = op == Op::kFloorDiv || op == Op::kMod || op == Op::kCeilDiv || op == Op::kAlign;
  if (divides && b == 0) return Outcome::kDivisionByZero;
  if (divides && b == -1) {  // the quotient -a is exact but may overflow, and the processor traps where it does
    if (op == Op::kMod) return *result = 0, Outcome::kOk;
    if (op == Op::kAlign) return *result = a, Outcome::kOk;
    return Checked(__builtin_sub_overflow(int64_t{0}, a, result));
  }
  switch (op) {
    case Op::kAdd: return Checked(__builtin_add_overflow(a, b, result));
    case Op::kSub: return Checked(__builtin_sub_overflow(a, b, result));
    case Op::kMul: return Checked(__builtin_mul_overflow(a, b, result));
    case Op::kFloorDiv: *result = FloorDiv(a, b); break;
    case Op::kMod: *result = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0); break;
    case Op::kCeilDiv: *result = CeilDiv(a, b); break;
    case Op::kAlign: return Checked(__builtin_mul_overflow(CeilDiv(a, b), b, result));
    case Op::kLess: *result = a < b; break;
    case Op::kLessEqual: *result = a <= b; break;
    case Op::kGreater: *result = a > b; break;
    case Op::kGreaterEqual: *result = a >= b; break;
    case Op::kEqual: *result = a == b; break;
    case Op::kNotEqual: *result = a != b; break;
    case Op::kMin: *result = std::min(a, b); break;
    case Op::kMax: *result = std::max(a, b); break;
    default: return Outcome::kOverflow;  // not a binary operation: cannot happen
  }
  return Outcome::kOk;
}

LaunchExpr::Outcome LaunchExpr::Evaluate(const int64_t* dims, int64_t sms, int64_t* result) const noexcept {
  int64_t stack[kMaxStack];
  int64_t* top = stack;  // one past the last value
  for (const Step& step : steps_) {
    switch (step.op) {
      case Op::kConst: *top++ = step.value; break;
      case Op::kDim: *top++ = dims[step.value]; break;
      case Op::kSms: *top++ = sms; break;
      case Op::kNegate:
        if (__builtin_sub_overflow(int64_t{0}, top[-1], &top[-1])) return Outcome::kOverflow;
        break;
      case Op::kSelect:
        top -= 2;
        top[-1] = top[-1] != 0 ? top[0] : top[1];
        break;
      default:
        --top;
        if (Outcome outcome = Apply(step.op, top[-1], top[0], &top[-1]); outcome != Outcome::kOk) return outcome;
    }
  }
  *result = top[-1];
  return Outcome::kOk;
}

const char* OutcomeText(LaunchExpr::Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "ok";
    case Outcome::kDivisionByZero: return "division by zero";
    case Outcome::kOverflow: return "64-bit overflow";
  }
  return "";
}

}  // namespace tilewright
