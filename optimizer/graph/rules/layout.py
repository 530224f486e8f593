"""Chains of Transpose, Reshape, Cast, Squeeze and Unsqueeze become one node or none."""

from __future__ import annotations

from onnx import TensorProto

from ..view import Constant, Node, Tensor, producer
from .base import require, rule
from .context import Context, optional

_F16, _BF16, _F32, _F64 = (int(t) for t in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE))
_INTEGERS: dict[int, tuple[int, int]] = {
    TensorProto.BOOL: (0, 1), TensorProto.UINT8: (0, 8), TensorProto.UINT16: (0, 16), TensorProto.UINT32: (0, 32), TensorProto.UINT64: (0, 64),
    TensorProto.INT8: (1, 7), TensorProto.INT16: (1, 15), TensorProto.INT32: (1, 31), TensorProto.INT64: (1, 63),
}  # fmt: skip
"""Whether an integer type has a sign, and its other bits."""

_WIDER_FLOATS: dict[int, tuple[int, ...]] = {_F16: (_F32, _F64), _BF16: (_F32, _F64), _F32: (_F64,)}


@rule("merge-transposes", "Transpose")
def merge_transposes(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Transpose(Transpose(x, p), q)`` with ``Transpose(x, r)``, or with ``x``."""
    inner = _feeder(ctx, node, "Transpose")
    if inner is None:
        return None
    first, second = inner.attrs.get("perm"), node.attrs.get("perm")
    rank = len(first or second or ()) or ctx.rank(inner.inputs[0])
    require(rank is not None, "neither has a permutation and the rank is unknown")
    first = list(first or range(rank - 1, -1, -1)) if rank else []
    second = list(second or range(rank - 1, -1, -1)) if rank else []
    perm = [first[i] for i in second]
    labels = [inner.label, node.label]
    if perm == sorted(perm):
        ctx.forward(node, inner.inputs[0], "merge-transposes")
    else:
        ctx.become(node, "merge-transposes", "Transpose", [inner.inputs[0]], {"perm": perm})
    return labels


@rule("merge-reshapes", "Reshape")
def merge_reshapes(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Reshape(Reshape(x, s), t)``, the inner one also Flatten, Squeeze or Unsqueeze, with ``Reshape(x, t)``."""
    inner = _feeder(ctx, node, "Reshape", "Flatten", "Squeeze", "Unsqueeze")
    if inner is None or len(node.inputs) < 2:
        return None
    target = ctx.ints(node.inputs[1])
    require(target is not None, "the shape is not known")
    require(0 not in (target or []), "the shape copies a dim of what it reshapes, or has no elements")
    labels = [inner.label, node.label]
    ctx.become(node, "merge-reshapes", "Reshape", [inner.inputs[0], node.inputs[1]], node.attrs)
    return labels


@rule("merge-casts", "Cast")
def merge_casts(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Cast(Cast(x, a), b)`` with ``Cast(x, b)``, or with ``x``, where the first Cast loses nothing."""
    inner = _feeder(ctx, node, "Cast")
    if inner is None:
        return None
    source, between, target = ctx.dtype(inner.inputs[0]), inner.attrs.get("to"), node.attrs.get("to")
    require(source is not None, "the data type is unknown")
    require(_lossless(source, between), "the first Cast may lose digits")
    # NOTE: from an integer to a float by way of another float the last digit may be rounded otherwise.
    require(target == source or _family(source) == _family(between), "the first Cast changes the kind of number")
    require(target == source or _family(target) != "other", "the second Cast makes neither numbers nor booleans")
    labels = [inner.label, node.label]
    if target == source:
        ctx.forward(node, inner.inputs[0], "merge-casts")
    else:
        ctx.become(node, "merge-casts", "Cast", [inner.inputs[0]], node.attrs)
    return labels


def _family(dtype: int | None) -> str:
    return "float" if dtype in (_F16, _BF16, _F32, _F64) else "integer" if dtype in _INTEGERS else "other"


def _lossless(source: int | None, target: int | None) -> bool:
    if source is None or target is None:
        return False
    if source in _INTEGERS and target in _INTEGERS:
        (signed, bits), (wide_signed, wide_bits) = _INTEGERS[source], _INTEGERS[target]
        return wide_bits >= bits and wide_signed >= signed and target != TensorProto.BOOL
    if source in _INTEGERS:
        digits = {_F16: 11, _BF16: 8, _F32: 24, _F64: 53}
        return _INTEGERS[source][1] <= digits.get(target, 0)
    return target in _WIDER_FLOATS.get(source, ())


@rule("cancel-squeeze", "Squeeze", "Unsqueeze")
def cancel_squeeze(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Squeeze(Unsqueeze(x, axes), axes)``, or the two the other way round, with ``x``."""
    inner = _feeder(ctx, node, "Unsqueeze" if node.op == "Squeeze" else "Squeeze")
    if inner is None:
        return None
    first, second = _axes(ctx, inner), _axes(ctx, node)
    require(first is not None and second is not None, "the axes are not known")
    assert first is not None and second is not None
    if sorted(first) != sorted(second):
        rank = ctx.rank(node.inputs[0] if node.op == "Squeeze" else inner.inputs[0])
        require(rank is not None, "axes count from both ends and the rank is unknown")
        require(sorted(a % (rank or 1) for a in first) == sorted(a % (rank or 1) for a in second), "the axes differ")
    labels = [inner.label, node.label]
    ctx.forward(node, inner.inputs[0], "cancel-squeeze")
    return labels


def _axes(ctx: Context, node: Node) -> list[int] | None:
    tensor = optional(node, 1)
    if tensor is not None:
        return ctx.ints(tensor)
    axes = node.attrs.get("axes")
    return None if axes is None else list(axes)


def _feeder(ctx: Context, node: Node, *ops: str) -> Node | None:
    """The node that makes the first input of ``node``, if it is one of ``ops`` in this graph."""
    source: Tensor = node.inputs[0]
    inner = None if isinstance(source, Constant) else producer(source)
    return inner if inner is not None and inner.standard(*ops) and ctx.builtin(inner) and ctx.has(inner) else None


rules = (merge_transposes, merge_reshapes, merge_casts, cancel_squeeze)
