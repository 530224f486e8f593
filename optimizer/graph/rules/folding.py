"""Constants for what is computed from constants and from known shapes.

Only ops of :data:`DETERMINISTIC` are folded. Quantised weights stay as they are (QuantizeLinear, DequantizeLinear are not listed), and so do
tensors that would make the file grow: a result may have :data:`SMALL` bytes, or as many as its operands, and a large weight that
other nodes go on reading is not copied (:data:`TINY` bytes aside).
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from ..evaluate import EvaluationError, evaluate
from ..view import Node, Tensor, constant_bytes, constant_value, consumers, is_constant
from .base import Refuse, require, rule
from .context import Context, stored

SMALL = 64 * 1024
TINY = 1024

# fmt: off
_ARITHMETIC = (
    "Abs", "Add", "And", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "HardSigmoid", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "PRelu", "Reciprocal", "Relu", "Round",
    "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
)
_MOVEMENT = (
    "Compress", "Concat", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Pad", "Range", "Reshape", "Shape", "Size", "Slice",
    "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze",
)
_REDUCTIONS = (
    "ArgMax", "ArgMin", "CumSum", "Gemm", "MatMul", "NonZero", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "ScatterElements", "ScatterND", "Softmax",
)
# fmt: on
DETERMINISTIC = (*_ARITHMETIC, *_MOVEMENT, *_REDUCTIONS, "Cast", "CastLike")
_GROWING = (*_ARITHMETIC, "ConstantOfShape", "Expand", "Gather", "GatherElements", "GatherND", "MatMul", "Pad", "Range", "Tile")


@rule("fold-constants", *DETERMINISTIC)
def fold_constants(ctx: Context, node: Node) -> list[str] | None:
    """Replaces a node whose inputs are all constant with its result."""
    operands = [t for t in node.inputs if t.name]
    if not operands or not all(is_constant(t) for t in operands) or not any(t.name for t in node.outputs):
        return None
    outputs = [t for t in node.outputs if t.name]
    require(not any(t in ctx.pinned for t in outputs), "the result is a graph output")
    limit = max(SMALL, sum(constant_bytes(t) for t in dict.fromkeys(operands)))
    expected = _result_bytes(ctx, node)
    require(expected is not None or not node.standard(*_GROWING), "the size of the result is unknown")
    require((expected or 0) <= limit, f"the result would have {expected} bytes, more than its operands")
    try:
        results = evaluate(node, [constant_value(t) if t.name else None for t in node.inputs], ctx.opset)
    except EvaluationError as cause:
        raise Refuse(str(cause)) from cause
    size = sum(v.nbytes for v in results)
    require(size <= limit, f"the result has {size} bytes, more than its operands")
    require(size <= TINY or not any(_is_copied(ctx, t) for t in dict.fromkeys(operands)), "a weight that stays for other nodes would be copied")
    label = node.label
    ctx.freeze(node, dict(zip(outputs, results, strict=True)))
    return [label]


@rule("fold-known-shape", *DETERMINISTIC)
def fold_known_shape(ctx: Context, node: Node) -> list[str] | None:
    """Replaces arithmetic on dims that are all known, starting with Shape, with its result."""
    if len(node.outputs) != 1 or all(is_constant(t) for t in node.inputs if t.name):
        return None
    out = node.outputs[0]
    dtype, shape = ctx.dtype(out), ctx.shape(out)
    if dtype not in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL) or shape is None or not all(isinstance(d, int) for d in shape):
        return None
    values = ctx.ints(out)
    if values is None or len(values) != math.prod(int(d) for d in shape):
        return None
    require(out not in ctx.pinned, "the result is a graph output")
    require(len(values) * 8 <= SMALL, "the result is large")
    label = node.label
    ctx.freeze(node, {out: np.array(values, dtype=onnx.helper.tensor_dtype_to_np_dtype(dtype)).reshape([int(d) for d in shape])})
    return [label]


def _is_copied(ctx: Context, operand: Tensor) -> bool:
    """Whether results that hold the values of ``operand`` would come on top of it: other nodes go on reading it, or fold into more than it is."""
    readers = list(dict.fromkeys(consumers(operand)))
    if constant_bytes(operand) <= TINY or len(readers) == 1:
        return False
    if not all(_may_fold(ctx, n) for n in readers):
        return True
    sizes = [_result_bytes(ctx, n) for n in readers]
    return any(s is None for s in sizes) or sum(s or 0 for s in sizes) > constant_bytes(operand)


def _may_fold(ctx: Context, node: Node) -> bool:
    constant = all(is_constant(t) for t in node.inputs if t.name)
    return constant and ctx.has(node) and node.standard(*DETERMINISTIC) and not any(t in ctx.pinned for t in node.outputs)


def _result_bytes(ctx: Context, node: Node) -> int | None:
    """Size of the first output, from shapes that are known or from the op; None where neither tells."""
    shape = ctx.shape(node.outputs[0])
    if shape is None or not all(isinstance(d, int) for d in shape):
        shape = _result_shape(ctx, node)
    if shape is None:
        return None
    dtype = ctx.dtype(node.outputs[0])
    widest = max((known.dtype.itemsize for t in node.inputs if t.name and (known := stored(t)) is not None), default=8)
    return math.prod(int(d) for d in shape) * (onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize if dtype else max(widest, 8))


def _result_shape(ctx: Context, node: Node) -> tuple[int, ...] | None:
    """Shape of the first output of an op that can make more than it reads, or None."""
    shapes = [tuple(known.shape) for t in node.inputs if t.name and (known := stored(t)) is not None]
    try:
        if node.standard("ConstantOfShape"):
            return _ints(ctx, node, 0)
        if node.standard("Expand"):
            return np.broadcast_shapes(shapes[0], _ints(ctx, node, 1))
        if node.standard("Tile"):
            return tuple(d * r for d, r in zip(shapes[0], _ints(ctx, node, 1), strict=True))
        if node.standard("Pad"):
            pads = list(node.attrs["pads"]) if "pads" in node.attrs else _ints(ctx, node, 1)
            return tuple(d + p + q for d, p, q in zip(shapes[0], pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))
        if node.standard("Range"):
            start, limit, delta = (np.asarray(constant_value(t)).item() for t in node.inputs)
            return (max(math.ceil((limit - start) / delta), 0),)
        if node.standard("MatMul"):
            return (*np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2]), *shapes[0][-2:-1], *shapes[1][-2:][1:])
        if node.standard("Gather"):
            axis = int(node.attrs.get("axis", 0))
            return (math.prod(shapes[0]) // max(shapes[0][axis], 1), *shapes[1])
        if node.standard("GatherElements"):
            return shapes[1]
        if node.standard("GatherND"):
            return (math.prod(shapes[1]), math.prod(shapes[0][1:]))
        return np.broadcast_shapes(*shapes) if node.standard(*_ARITHMETIC) else None
    except (ValueError, IndexError, ZeroDivisionError, OverflowError, TypeError):
        return None


def _ints(ctx: Context, node: Node, index: int) -> tuple[int, ...]:
    values = ctx.ints(node.inputs[index])
    if values is None:
        raise ValueError
    return tuple(values)


rules = (fold_constants, fold_known_shape)
