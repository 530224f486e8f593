"""What is done to attention scores before their softmax: a factor, a bias that is added, or a fill where a condition does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..rules.base import require
from ..rules.context import Context
from ..symbols import Dim
from ..view import Node, Tensor, constant_bytes, constant_value, is_constant, producer
from .axes import origin, whole

_RULE = "fuse-attention"

HIDDEN = -1e4
"""A score that is lower by this and more has no weight in any float type."""

HIDDEN_FOR_GOOD = -1e9
"""A float32 score that this is added to is lost in rounding, so that a row of such scores alone stays as even as one of fills."""

LARGEST_MASK = 1 << 23  # bytes of a constant mask that is looked at


@dataclass(frozen=True)
class Mask:
    """What hides keys from queries.

    Attributes:
        bias: A tensor to add to the scores, or None.
        condition: Where a score stays, or None; ``fill`` takes its place where it does not hold (``keep``: where it holds).
        causal: Whether every query sees just the keys up to its own position; then there is no tensor.
    """

    bias: Tensor | None = None
    condition: Tensor | None = None
    keep: bool = True
    fill: float = 0.0
    causal: bool = False


NO_MASK = Mask()


def added(bias: Tensor) -> Mask:
    """The mask that ``scores + bias`` is."""
    values = _small(bias)
    if values is not None and values.dtype.kind == "f" and _is_triangle(values == 0) and (values[values != 0] <= HIDDEN).all():
        return Mask(causal=True)
    return Mask(bias=bias)


def filled(ctx: Context, node: Node, side: int) -> Mask:
    """The mask of ``Where(condition, scores, fill)`` or ``Where(condition, fill, scores)``; ``side`` is the input that fills."""
    value = constant_value(node.inputs[side]) if is_constant(node.inputs[side]) else None
    require(value is not None and value.size == 1 and float(value.ravel()[0]) <= HIDDEN, "its mask fills in no constant that hides the score")
    assert value is not None
    condition, fill = node.inputs[0], float(value.ravel()[0])
    if _is_causal(ctx, condition, keep=side == 2):
        return Mask(causal=True)
    require(value.dtype == np.float32 and fill <= HIDDEN_FOR_GOOD, "a query that its mask hides every key from would see them otherwise")
    return Mask(condition=condition, keep=side == 2, fill=fill)


def _small(tensor: Tensor) -> np.ndarray | None:
    return constant_value(tensor) if 0 < constant_bytes(tensor) <= LARGEST_MASK else None


def _is_triangle(seen: np.ndarray) -> bool:
    """Whether the last two axes are square and true up to the diagonal, and there is nothing else."""
    rows, columns = (1, 1, *seen.shape)[-2:]
    return rows == columns and seen.size == rows * columns and rows > 1 and bool((seen.reshape(rows, columns) == np.tri(rows, dtype=bool)).all())


def _is_causal(ctx: Context, condition: Tensor, keep: bool) -> bool:
    values = _small(condition)
    if values is not None:
        return _is_triangle(values if keep else ~values)
    node = producer(condition)
    if node is None or not node.standard("LessOrEqual", "GreaterOrEqual", "Less", "Greater") or not ctx.builtin(node):
        return False
    lower, upper = node.inputs if node.op.startswith("Less") else node.inputs[::-1]
    key, query = (lower, upper) if keep else (upper, lower)
    strict = node.op in ("Less", "Greater")
    return strict != keep and _counts_along(ctx, key, query)


def _counts_along(ctx: Context, key: Tensor, query: Tensor) -> bool:
    """Whether both are one Range, ``key`` along the last axis and ``query`` along the one before."""
    found = []
    for tensor, axis in ((key, "t"), (query, "s")):
        shape = ctx.shape(tensor)
        if shape is None or not 2 <= len(shape) <= 4:
            return False
        names = "bhst"[4 - len(shape) :]
        source = origin(ctx, tensor, whole(names, shape), "Range")
        if source is None or [f.name for axis_ in source[1] for f in axis_] != [axis]:
            return False
        found.append(source[0])
    range_ = producer(found[0])
    step = constant_value(range_.inputs[2]) if range_ is not None and is_constant(range_.inputs[2]) else None
    return found[0] is found[1] and step is not None and float(step) > 0


def as_bias(ctx: Context, mask: Mask, scores: Tensor, sides: Sequence[Tensor], before: Node) -> Tensor | None:
    """The mask as the tensor [batch or 1, heads or 1, queries, keys] that the op adds to its scores; made once for all that share it.

    Args:
        scores: The scores, [batch, heads, queries, keys].
        sides: Tensors [batch, queries, ...] and [batch, keys, ...] that are there at run time.
        before: The node that new ones stand in front of.
    """
    source, shape = mask.bias if mask.bias is not None else mask.condition, ctx.shape(scores)
    if source is None or shape is None:
        return None
    dims = ctx.shape(source)
    known = dims is not None and all(d == 1 or ctx.shapes.equal(d, s) for d, s in zip(dims[::-1], shape[::-1], strict=False))
    require(known, "the shape of its mask is not known")
    dims = (1,) * (4 - len(dims or ())) + (dims or ())
    # NOTE: the kernels of ONNX Runtime 1.20 and 1.21 read a mask that differs by batch but not by head at the wrong place, so it is given for every head.
    heads = shape[1] if dims[0] != 1 else dims[1]
    key = (source, mask.keep, mask.fill, heads, shape[2:])
    if key not in ctx.memo:
        bias = source if mask.condition is None else _fill(ctx, mask, before)
        wanted = (dims[0], heads, *shape[2:])
        if ctx.rank(source) != 4 or any((d == 1) != (w == 1) for d, w in zip(dims, wanted, strict=True)):
            (bias,) = ctx.insert(before, "Expand", [bias, _extent(ctx, source, wanted, sides, before)], [f"{source.name}_wide"], _RULE)
        ctx.memo[key] = bias
    found: Tensor = ctx.memo[key]
    return found


def _fill(ctx: Context, mask: Mask, before: Node) -> Tensor:
    assert mask.condition is not None
    zero, fill = (ctx.constant(f"{mask.condition.name}_{n}", np.array(v, np.float32)) for n, v in (("seen", 0), ("hidden", mask.fill)))
    inputs = [mask.condition, *((zero, fill) if mask.keep else (fill, zero))]
    return ctx.insert(before, "Where", inputs, [f"{mask.condition.name}_bias"], _RULE)[0]


def _extent(ctx: Context, source: Tensor, shape: Sequence[Dim], sides: Sequence[Tensor], before: Node) -> Tensor:
    """The shape [1, heads or 1, queries, keys] as a tensor."""
    if isinstance(shape[2], int) and isinstance(shape[3], int):
        return ctx.constant(f"{source.name}_shape", np.array([1, *shape[1:]], np.int64))
    lengths: list[Tensor] = []
    for side in sides[:1] if ctx.shapes.equal(*shape[2:]) else sides:
        side = _above(ctx, side)
        (extent,) = ctx.insert(before, "Shape", [side], [f"{side.name}_shape"], _RULE)
        lengths += ctx.insert(before, "Gather", [extent, ctx.constant(f"{side.name}_axis", np.array([1], np.int64))], [f"{side.name}_length"], _RULE)
    front = ctx.constant(f"{source.name}_heads", np.array([1, shape[1]], np.int64))
    return ctx.insert(before, "Concat", [front, lengths[0], lengths[-1]], [f"{source.name}_shape"], _RULE, {"axis": 0})[0]


def _above(ctx: Context, tensor: Tensor) -> Tensor:
    """What a linear layer that ``tensor`` comes from reads, of the same batch and length: so the layer keeps one reader."""
    node = producer(tensor)
    if node is None or not node.standard("Add", "MatMul", "Split", "Slice") or not ctx.has(node):
        return tensor
    index = next((i for i, t in enumerate(node.inputs[:2]) if not is_constant(t)), 0)
    source = node.inputs[index]
    same = ctx.rank(source) == 3 == ctx.rank(tensor) and ctx.shapes.equal((ctx.shape(source) or (0, 0))[1], (ctx.shape(tensor) or (0, 0))[1])
    return _above(ctx, source) if same and (node.op != "MatMul" or is_constant(node.inputs[1])) else tensor
