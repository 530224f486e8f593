"""How the axes of one tensor lie in those of another that only moves its elements: followed through Reshape, Transpose, Gather and the like.

An axis is a product of factors, outermost first. A factor is (part of) one axis of the tensor that the walk began at, or one fixed index of an axis
that the walk came by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..dims import divide
from ..rules.context import Context
from ..symbols import Dim
from ..view import Node, Tensor, producer


@dataclass(frozen=True)
class Factor:
    """``size`` steps of ``stride`` elements along the axis ``name``; with ``index`` only that one of them."""

    name: str
    size: Dim
    stride: int = 1
    index: int | None = None


Axis: TypeAlias = tuple[Factor, ...]
Axes: TypeAlias = tuple[Axis, ...]


def whole(names: str, shape: Sequence[Dim]) -> Axes:
    """One factor an axis, named by the letters of ``names``."""
    return tuple(() if d == 1 else (Factor(n, d),) for n, d in zip(names, shape, strict=True))


def back(ctx: Context, node: Node, axes: Axes) -> Axes | None:
    """The axes of the first input of ``node``, given those of its output; None where it does more than move elements, or that cannot be told."""
    shape = ctx.shape(node.inputs[0]) if node.inputs else None
    if shape is None or not ctx.builtin(node) or not ctx.has(node):
        return None
    if node.standard("Transpose"):
        order = _order(node, len(shape))
        return tuple(axes[order.index(i)] for i in range(len(shape)))
    if node.standard("Slice"):
        return _sliced(ctx, node, axes, shape)
    return _gathered(ctx, node, axes, shape) if node.standard("Gather") else _in_order(ctx, node, axes, shape)


def forward(ctx: Context, node: Node, axes: Axes) -> Axes | None:
    """The axes of the output of ``node``, given those of its first input; None as for :func:`back`."""
    shape = ctx.shape(node.outputs[0])
    if shape is None or not ctx.builtin(node) or not ctx.has(node):
        return None
    return tuple(axes[i] for i in _order(node, len(shape))) if node.standard("Transpose") else _in_order(ctx, node, axes, shape)


def origin(ctx: Context, tensor: Tensor, axes: Axes, op: str) -> tuple[Tensor, Axes] | None:
    """The result of the next ``op`` upwards that ``tensor`` only rearranges, with its axes."""
    node = producer(tensor)
    while node is not None and not node.standard(op):
        moved = back(ctx, node, axes)
        if moved is None:
            return None
        tensor, axes = node.inputs[0], moved
        node = producer(tensor)
    return None if node is None else (tensor, axes)


def _in_order(ctx: Context, node: Node, axes: Axes, shape: Sequence[Dim]) -> Axes | None:
    """The axes on the other side of ``node``, where it leaves the elements in their order."""
    if node.standard("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return regroup(ctx, axes, shape)
    return axes if node.standard("Identity") else None


def _order(node: Node, rank: int) -> list[int]:
    return [int(i) for i in node.attrs.get("perm", range(rank - 1, -1, -1))]


def _gathered(ctx: Context, node: Node, axes: Axes, shape: Sequence[Dim]) -> Axes | None:
    """Gather of one index, which takes its axis away."""
    index, axis = ctx.ints(node.inputs[1]), int(node.attrs.get("axis", 0)) % len(shape)
    size = shape[axis]
    if index is None or len(index) != 1 or ctx.rank(node.inputs[1]) != 0 or not isinstance(size, int) or not size:
        return None
    taken = (Factor("", size, index=index[0] % size),) if size > 1 else ()
    return (*axes[:axis], taken, *axes[axis:])


def _sliced(ctx: Context, node: Node, axes: Axes, shape: Sequence[Dim]) -> Axes | None:
    """Slice of one of the equal parts of an axis."""
    given = [ctx.ints(t) if t.name else None for t in node.inputs[1:]] if len(node.inputs) > 1 else [node.attrs.get(n) for n in ("starts", "ends", "axes")]
    starts, ends, at, steps = [*given, *[None] * 4][:4]
    result = ctx.shape(node.outputs[0])
    if starts is None or ends is None or at is None or len(at) != 1 or steps not in (None, [1]) or result is None:
        return None
    axis = at[0] % len(shape)
    size, part = shape[axis], result[axis]
    if not isinstance(size, int) or not isinstance(part, int) or not part or size % part or size == part:
        return None
    start = starts[0] + size if starts[0] < 0 else starts[0]
    if start % part or not 0 <= start < size:
        return None
    return (*axes[:axis], (Factor("", size // part, index=start // part), *axes[axis]), *axes[axis + 1 :])


def regroup(ctx: Context, axes: Axes, shape: Sequence[Dim]) -> Axes | None:
    """The same elements in row-major order as axes of ``shape``; None where a size is not proven to fit."""
    queue = [f for axis in axes for f in axis]
    result: list[Axis] = []
    for size in shape:
        axis: list[Factor] = []
        left: Dim = size
        while left != 1:
            if not queue:
                return None
            step = _take(ctx, queue.pop(0), left)
            if step is None:
                return None
            taken, rest, left = step
            axis.append(taken)
            queue[:0] = [rest] if rest is not None else []
        result.append(tuple(axis))
    return None if queue else tuple(result)


def _take(ctx: Context, factor: Factor, left: Dim) -> tuple[Factor, Factor | None, Dim] | None:
    """What of ``factor`` goes into an axis that ``left`` is missing of, what of it is over, and what is missing then."""
    if factor.size == left or ctx.shapes.equal(factor.size, left):
        return factor, None, 1
    if isinstance(factor.size, int) and isinstance(left, int):
        if factor.size and left % factor.size == 0:
            return factor, None, left // factor.size
        if factor.index is not None or not left or factor.size % left:
            return None
        inner = factor.size // left
        return replace(factor, size=left, stride=factor.stride * inner), replace(factor, size=inner), 1
    quotient = divide(left, factor.size) if factor.size != 0 else None
    return None if quotient is None else (factor, None, quotient)
