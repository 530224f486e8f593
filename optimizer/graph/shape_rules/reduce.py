"""Shape rules of reductions, selections by rank, and normalizations with several outputs."""

from __future__ import annotations

import math

from onnx import TensorProto

from .. import dims
from ..symbols import Dim, add, mul
from .registry import Call, Fact, Shape, Values, array, rule


def _reduced(call: Call, axes: list[int], source: Shape) -> Shape:
    gone = {call.axis(a, len(source)) for a in axes} if axes else set(range(len(source)))
    keep = bool(call.attr("keepdims", 1))
    return tuple(1 if i in gone else d for i, d in enumerate(source) if keep or i not in gone)


def _fold(call: Call, result: Shape) -> Values | None:
    """Contents of a reduction of a whole one-dimensional tensor to one number."""
    op, source = call.node.op, call.shape(0)
    whole = source is not None and len(source) == 1 and math.prod(d for d in result if isinstance(d, int)) == 1
    value = call.value(0) if whole and call.dtype(0) in (TensorProto.INT64, TensorProto.INT32) else None
    if value is None or value.size == 0:
        return None
    total: Dim = value.flat[0]
    for entry in value.flat[1:]:
        if op == "ReduceSum":
            total = add(total, entry)
        elif op == "ReduceProd":
            total = mul(total, entry)
        elif op in ("ReduceMax", "ReduceMin"):
            total = dims.maximum(total, entry) if op == "ReduceMax" else dims.minimum(total, entry)
        else:
            return None
    known = op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
    return array([total], [int(d) for d in result if isinstance(d, int)]) if known else None


@rule(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def reduce(call: Call) -> list[Fact]:
    """Dims at ``axes`` (all by default) become 1, or go away without ``keepdims``."""
    source, axes = call.need(0), call.axes(1)
    if axes is None:
        count = (call.shape(1) or (None,))[0]
        if call.attr("keepdims", 1):
            return [Fact(call.fresh(len(source)))]
        noop = count == 0 and call.attr("noop_with_empty_axes", 0)
        return [Fact(source if noop else call.fresh(len(source) - count) if isinstance(count, int) and count else None)]
    if not axes and call.attr("noop_with_empty_axes", 0):
        return [Fact(source, call.value(0) if call.node.op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin") else None)]
    result = _reduced(call, axes, source)
    return [Fact(result, _fold(call, result))]


@rule("ArgMax", "ArgMin")
def arg_reduce(call: Call) -> list[Fact]:
    """The dim at ``axis`` becomes 1, or goes away without ``keepdims``."""
    return [Fact(_reduced(call, [int(call.attr("axis", 0))], call.need(0)))]


@rule("TopK")
def top_k(call: Call) -> list[Fact]:
    """Values and indices: the dim at ``axis`` becomes ``k``, an attribute up to opset 9."""
    source = list(call.need(0))
    entries = call.entries(1) if call.opset >= 10 else [int(call.attr("k"))]
    source[call.axis(int(call.attr("axis", -1)), len(source))] = entries[0] if entries else call.engine.fresh()
    return [Fact(tuple(source)), Fact(tuple(source))]


@rule("NonZero")
def non_zero(call: Call) -> list[Fact]:
    """One column an element that is not 0: ``[rank, any]``."""
    source = call.shape(0)
    return [Fact((max(len(source), 1) if source is not None else call.engine.fresh(), call.engine.fresh()))]


@rule("NonMaxSuppression")
def non_max_suppression(call: Call) -> list[Fact]:
    """``[any, 3]``."""
    return [Fact((call.engine.fresh(), 3))]


@rule("LayerNormalization")
def layer_normalization(call: Call) -> list[Fact]:
    """The data; mean and inverse deviation, where the normalized dims are 1."""
    source = call.need(0)
    axis = call.axis(int(call.attr("axis", -1)), len(source))
    kept = (*source[:axis], *([1] * (len(source) - axis)))
    stash = int(call.attr("stash_type", TensorProto.FLOAT))
    return [Fact(source), Fact(kept, dtype=stash), Fact(kept, dtype=stash)]


@rule("QuantizeLinear")
def quantize_linear(call: Call) -> list[Fact]:
    """Same shape; dtype of the zero point, else ``output_dtype``, else uint8."""
    asked = int(call.attr("output_dtype", 0)) or TensorProto.UINT8
    return [Fact(call.shape(0), dtype=call.dtype(2) if call.has(2) else asked)]


@rule("DequantizeLinear")
def dequantize_linear(call: Call) -> list[Fact]:
    """Same shape; dtype of the scale, or ``output_dtype``."""
    return [Fact(call.shape(0), dtype=int(call.attr("output_dtype", 0)) or call.dtype(1))]


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> list[Fact]:
    """The data as uint8, a scalar scale and a scalar zero point."""
    return [Fact(call.shape(0)), Fact(()), Fact(())]
