"""Shape rules of pointwise ops, and their effect on known contents of shape-carrying tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from onnx import TensorProto

from .. import dims
from ..bounds import interval
from ..symbols import Dim, add, is_whole, mul, scale, sub, terms
from .registry import MAX_VALUES, Call, Fact, Shape, Values, rule

_FLOATS: dict[int, int] = {TensorProto.FLOAT: 24, TensorProto.DOUBLE: 53, TensorProto.FLOAT16: 11, TensorProto.BFLOAT16: 8}
_INTEGER_RANGE: dict[int, tuple[int, int]] = {
    TensorProto.BOOL: (0, 1), TensorProto.INT8: (-(2**7), 2**7 - 1), TensorProto.UINT8: (0, 2**8 - 1), TensorProto.INT16: (-(2**15), 2**15 - 1),
    TensorProto.UINT16: (0, 2**16 - 1), TensorProto.INT32: (-(2**31), 2**31 - 1), TensorProto.UINT32: (0, 2**32 - 1),
    TensorProto.INT64: (-(2**63), 2**63 - 1), TensorProto.UINT64: (0, 2**64 - 1),
}  # fmt: skip


def is_float(dtype: int | None) -> bool:
    """Whether contents of ``dtype`` may have fractions."""
    return dtype in _FLOATS


def fits(entry: Dim, dtype: int | None) -> bool:
    """Whether ``dtype`` holds ``entry`` exactly. NOTE: sizes are taken to fit into 32 bits and, as floats, to be below 2**24."""
    if dtype in _INTEGER_RANGE:
        low, high = _INTEGER_RANGE[dtype]
        return is_whole(entry) and (not isinstance(entry, int) or low <= entry <= high) and (dtype != TensorProto.BOOL or isinstance(entry, int))
    if dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return isinstance(entry, int) and abs(entry) <= 1 << _FLOATS[dtype]
    return dtype in _FLOATS and all(c.denominator & (c.denominator - 1) == 0 and abs(c.numerator) < 2 ** _FLOATS[dtype] for c, _ in terms(entry))


Operation = Callable[..., Dim | None]  # on entries; None where the result is not known


def combine(operation: Operation, dtype: int | None, *operands: Values | None, exact: bool = True) -> Values | None:
    """``operation`` entry by entry on broadcast contents, or None where an operand or a result is not known exactly in ``dtype``."""
    known = [o for o in operands if o is not None]
    if len(known) < len(operands):
        return None
    try:
        grid = np.broadcast(*known) if len(known) > 1 else known[0]
    except ValueError:
        return None
    if grid.size > MAX_VALUES:
        return None
    result = np.empty(grid.shape, dtype=object)
    columns = [np.broadcast_to(o, grid.shape).ravel() for o in known]
    for i, entries in enumerate(zip(*columns, strict=True)):
        entry = operation(*entries)
        if entry is None or (exact and not fits(entry, dtype)):
            return None
        result.reshape(-1)[i] = entry
    return result


def divide(a: Dim, b: Dim, whole: bool) -> Dim | None:
    """``Div`` of integers (towards zero) or, not ``whole``, of floats: by a number, or where it leaves no rest."""
    if isinstance(b, int) and b == 0:
        return None
    if whole:
        return dims.truncdiv(a, b)
    exact = dims.divide(a, b)
    if exact is not None or not isinstance(b, int):
        return exact
    # NOTE: a quotient that is no binary fraction is rounded; floor, ceil and truncation of it are still exact below 2**24, and
    # ``combine`` drops it after any other op.
    return scale(a, Fraction(1, b))


def truncate(a: Dim) -> Dim | None:
    """Towards zero; None where the sign is open."""
    if is_whole(a):
        return a
    low, high = interval(a)
    if low is not None and low >= 0:
        return dims.floordiv(a, 1)
    return dims.ceildiv(a, 1) if high is not None and high <= 0 else None


def _decided(difference: Dim, test: Callable[[int], bool]) -> Dim | None:
    """``test(difference)`` where all values that it may take agree."""
    low, high = interval(difference)
    if isinstance(difference, int):
        return int(test(difference))
    if low is not None and low > 0:
        return int(test(1))
    return int(test(-1)) if high is not None and high < 0 else None


def _compare(a: Dim, b: Dim, op: str) -> Dim | None:
    difference = sub(a, b)
    if op == "GreaterOrEqual" and dims.at_least(a, b):
        return 1
    if op == "LessOrEqual" and dims.at_least(b, a):
        return 1
    if op == "Less" and dims.at_least(a, b):
        return 0
    if op == "Greater" and dims.at_least(b, a):
        return 0
    tests = {"Equal": operator.eq, "Less": operator.lt, "Greater": operator.gt, "LessOrEqual": operator.le, "GreaterOrEqual": operator.ge}
    return _decided(difference, lambda d: tests[op](d, 0))


def _rational(a: Dim) -> Fraction | None:
    parts = terms(a)
    return Fraction(0) if not parts else parts[0][0] if len(parts) == 1 and parts[0][1] == 1 else None


def _fraction_only(function: Callable[[Fraction], int]) -> Operation:
    def apply(a: Dim) -> Dim | None:
        number = _rational(a)
        return None if number is None else function(number)

    return apply


def _positive_power(a: Dim, b: Dim) -> Dim | None:
    return mul(1, *([a] * b)) if isinstance(b, int) and 0 <= b <= 4 else None


_BINARY: dict[str, Operation] = {
    "Add": add, "Sub": sub, "Mul": mul, "Max": dims.maximum, "Min": dims.minimum, "Pow": _positive_power,
    "And": lambda a, b: a & b, "Or": lambda a, b: a | b, "Xor": lambda a, b: a ^ b,
}  # fmt: skip
_UNARY: dict[str, Operation] = {
    "Neg": lambda a: mul(-1, a), "Abs": lambda a: dims.maximum(a, mul(-1, a)), "Not": lambda a: 1 - a if isinstance(a, int) else None,
    "Floor": lambda a: a if is_whole(a) else dims.floordiv(a, 1), "Ceil": lambda a: a if is_whole(a) else dims.ceildiv(a, 1),
    "Round": _fraction_only(round), "Sign": _fraction_only(lambda a: (a > 0) - (a < 0)), "Identity": lambda a: a, "Relu": lambda a: dims.maximum(a, 0),
}  # fmt: skip


@rule(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Clip", "Cos", "Cosh", "CumProd", "CumSum", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LeakyRelu",
    "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not", "RMSNormalization", "Reciprocal", "Relu", "ReverseSequence",
    "Round", "ScaledTanh", "Scatter", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "Softsign",
    "Sqrt", "Swish", "Tan", "Tanh", "TensorScatter", "ThresholdedRelu", "Trilu",
)  # fmt: skip
def same_shape(call: Call) -> list[Fact]:
    """One output of the shape of input 0."""
    fact, operation = call.fact(0), _UNARY.get(call.node.op)
    value = combine(operation, fact.dtype, call.value(0)) if operation and fact.shape is not None and _followed(fact) else None
    dtype = fact.dtype if call.node.op == "Identity" else None
    return [Fact(fact.shape, value, dtype)]


def _followed(fact: Fact) -> bool:
    return fact.shape is not None and len(fact.shape) <= 2 and all(isinstance(d, int) and d <= MAX_VALUES for d in fact.shape)


@rule("Dropout")
def dropout(call: Call) -> list[Fact]:
    """The data and, since opset 10 as booleans, a mask of its shape."""
    return [Fact(call.shape(0)), Fact(call.shape(0))]


@rule("BatchNormalization")
def batch_normalization(call: Call) -> list[Fact]:
    """Same shape; running and saved statistics have the shape of the scale."""
    return [Fact(call.shape(0)), *[Fact(call.shape(1))] * 4]


@rule("PRelu")
def prelu(call: Call) -> list[Fact]:
    """Same shape: the slope is broadcast to the data."""
    return [Fact(call.shape(0))]


def _binary_value(call: Call, shape: Shape) -> Values | None:
    op = call.node.op
    if not _followed(Fact(shape)) or len(call.node.inputs) != 2 or call.dtype(0) is None:
        return None
    if any(call.fact(i).value is None and not call.engine.is_constant(call.node.inputs[i]) for i in (0, 1)):
        return None
    a, b, dtype = call.value(0), call.value(1), call.dtype(0)
    whole = not is_float(dtype)
    if op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        return combine(lambda x, y: _compare(x, y, op), TensorProto.BOOL, _exact(a, dtype), _exact(b, dtype))
    if op == "Div":
        return combine(lambda x, y: divide(x, y, whole), dtype, _exact(a, dtype), _exact(b, dtype), exact=whole)
    if op == "Mod" and whole and not call.attr("fmod", 0):
        return combine(lambda x, y: dims.mod(x, y) if y != 0 else None, dtype, a, b)
    return combine(_BINARY[op], dtype, _exact(a, dtype), _exact(b, dtype)) if op in _BINARY else None


def _exact(value: Values | None, dtype: int | None) -> Values | None:
    """``value`` where no entry is a rounded quotient (see :func:`divide`)."""
    return value if value is not None and all(fits(e, dtype) for e in value.flat) else None


@rule(
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "BitShift", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor", "Sum", "Mean", "Max", "Min",
)  # fmt: skip
def broadcast(call: Call) -> list[Fact]:
    """All inputs broadcast to one shape, as in numpy."""
    shape = call.broadcast(*(call.shape(i) for i in range(len(call.node.inputs))))
    return [Fact(shape, _binary_value(call, shape))]


@rule("Where")
def where(call: Call) -> list[Fact]:
    """Condition and both choices broadcast to one shape."""
    shape = call.broadcast(call.shape(0), call.shape(1), call.shape(2))
    value = None
    if _followed(Fact(shape)):

        def choose(condition: Dim, a: Dim, b: Dim) -> Dim | None:
            return (a if condition else b) if isinstance(condition, int) else a if dims.equal(a, b) else None

        value = combine(choose, call.dtype(1), call.value(0), call.value(1), call.value(2))
    return [Fact(shape, value)]


@rule("Cast", "CastLike")
def cast(call: Call) -> list[Fact]:
    """Same shape, another dtype; contents are followed where the cast keeps them exactly."""
    to = call.dtype(1) if call.node.op == "CastLike" else int(call.attr("to"))
    fact = call.fact(0)
    value = None
    if to is not None and _followed(fact):
        if to == TensorProto.BOOL:
            value = combine(lambda a: int(a != 0) if isinstance(a, int) else 1 if dims.at_least(a, 1) else None, to, call.value(0))
        else:
            value = combine(truncate if is_float(fact.dtype) and not is_float(to) else lambda a: a, to, call.value(0))
    return [Fact(fact.shape, value, to)]
