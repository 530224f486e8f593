"""``softmax(Q K^T) V`` over heads becomes one MultiHeadAttention of ONNX Runtime; the matrix products before and after it stay what they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from ..rules.base import require, rule
from ..rules.context import Context, missing
from ..symbols import Dim
from ..view import MICROSOFT, Node, Tensor, Variable, constant_bytes, constant_value, consumers, is_constant, producer
from .axes import Axes, Factor, back, forward, whole
from .mask import NO_MASK, Mask, added, as_bias, filled

NAME = "fuse-attention"
_LARGEST_HEAD = 256  # elements of a head beyond which ONNX Runtime has no fused kernel


@dataclass(frozen=True)
class Scores:
    """What a softmax is taken of: ``scale`` times the ``product`` of queries and keys, masked.

    Attributes:
        cast: Whether it is computed in another data type than the product.
        nodes: The nodes from the product to the softmax, both left out.
    """

    product: Node
    mask: Mask = NO_MASK
    scale: float = 1.0
    cast: bool = False
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Heads:
    """Where heads lie side by side: part ``index`` of ``parts`` of the last axis of ``source`` [batch, sequence, parts * heads * size], times ``scale``."""

    source: Tensor
    parts: int = 1
    index: int = 0
    scale: float = 1.0


@rule(NAME, "Softmax")
def fuse_attention(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``softmax(Q K^T) V`` with ``MultiHeadAttention``, which reads queries, keys and values as [batch, sequence, heads * size]."""
    weights = _readers(ctx, node)
    scores = _scores(ctx, node.inputs[0]) if weights is not None else None
    if weights is None or scores is None:
        return None
    mixing = weights[-1]
    tensors = [*scores.product.inputs, mixing.inputs[1]]
    shapes = [ctx.shape(t) or () for t in tensors]
    if any(len(s) != 4 for s in shapes):
        return None  # NOTE: of another rank are products that are no heads, most of them no attention at all
    heads, size = _check(ctx, node, scores, mixing, shapes)
    inner = [scores.product, *scores.nodes, *weights[:-1]]
    require(all(ctx.only_reader(n.outputs[0], r) for n, r in zip(inner, [*inner[1:], mixing], strict=True)), "its scores are used elsewhere")
    places = [_heads(ctx, t, n, s) for t, n, s in zip(tensors, ("bhsd", "bhdt", "bhtd"), shapes, strict=True)]
    joined = _joined(ctx, mixing)
    scale = scores.scale * places[0].scale * places[1].scale
    require(scale > 0 and places[2].scale == 1, "its scores are turned around, or its values are scaled")
    last = joined[-1]
    bias = as_bias(ctx, scores.mask, scores.product.outputs[0], [p.source for p in places[:2]], last)
    inputs = [_part(ctx, place, last) for place in places]
    labels = [n.label for n in [*inner, mixing, *joined]]
    optional = [] if bias is None else [missing(), missing(), bias]
    ctx.become(last, NAME, "MultiHeadAttention", [*inputs, *optional], _attributes(ctx, scores, heads, size, scale), MICROSOFT)
    return labels


def _attributes(ctx: Context, scores: Scores, heads: int, size: int, scale: float) -> dict[str, Any]:
    attrs: dict[str, Any] = {"num_heads": heads}
    rounding = 1e-3 if ctx.dtype(scores.product.inputs[0]) == TensorProto.FLOAT16 else 1e-6
    if not math.isclose(scale, 1 / math.sqrt(size), rel_tol=rounding):
        attrs["scale"] = float(np.float32(scale))
    if scores.mask.causal:
        attrs["unidirectional"] = 1
    return attrs


def _check(ctx: Context, softmax: Node, scores: Scores, mixing: Node, shapes: Sequence[tuple[Dim, ...]]) -> tuple[int, int]:
    """The number and the size of the heads, where the op can stand for what is computed."""
    (batch, heads, _, size), keys, values = shapes
    dtype = ctx.dtype(scores.product.inputs[0])
    require(dtype in (TensorProto.FLOAT, TensorProto.FLOAT16), "its data type is unknown, or ONNX Runtime's op does not take it")
    require(ctx.dtype(mixing.inputs[1]) == dtype, "its values have another data type than its queries")
    require(isinstance(heads, int) and isinstance(size, int), "the number or the size of its heads is not known")
    same = all(ctx.shapes.equal(a, b) for s in (keys, values) for a, b in zip(s[:2], (batch, heads), strict=True))
    require(same, "its keys or values are not known to be of the same batch and number of heads as its queries")
    assert isinstance(heads, int) and isinstance(size, int)
    require(size <= _LARGEST_HEAD, f"its heads have {size} elements, more than {_LARGEST_HEAD}")
    require(ctx.shapes.equal(values[3], size), "heads of values have another size than heads of keys")
    require(int(softmax.attrs.get("axis", -1 if ctx.opset >= 13 else 1)) % 4 == 3, "its softmax is not over the keys")
    require(ctx.same_shape(scores.product.outputs[0], softmax.inputs[0]), "its mask is not known to fit into the shape of the scores")
    require(not scores.cast or scores.mask in (NO_MASK, Mask(causal=True)), "its mask has another data type than its queries")
    return heads, size


def _readers(ctx: Context, softmax: Node) -> list[Node] | None:
    """The nodes from ``softmax`` to the product of weights and values, both counted; None where it leads to no such product."""
    nodes = [softmax]
    while True:
        reader = next(iter(consumers(nodes[-1].outputs[0])), None)
        if reader is None or not ctx.has(reader) or not ctx.builtin(reader) or reader.inputs[0] is not nodes[-1].outputs[0]:
            return None
        nodes.append(reader)
        if reader.standard("MatMul"):
            return nodes if not is_constant(reader.inputs[1]) else None
        if not reader.standard("Cast", "Identity"):
            return None


def _scores(ctx: Context, tensor: Tensor) -> Scores | None:
    """How ``tensor`` comes from a product of queries and keys; None where it does not."""
    node = producer(tensor)
    if node is None or not ctx.has(node) or not ctx.builtin(node):
        return None
    if node.standard("MatMul"):
        return Scores(node) if not any(is_constant(t) for t in node.inputs) else None
    factor = _factor(node)
    if factor is not None:
        above = _scores(ctx, node.inputs[factor[0]])
        require(above is None or above.mask is NO_MASK, "its scores are scaled after they are masked")
        return above and replace(above, scale=above.scale * factor[1], nodes=(*above.nodes, node))
    if node.standard("Cast", "Identity"):
        above = _scores(ctx, node.inputs[0])
        return above and replace(above, cast=above.cast or node.op == "Cast", nodes=(*above.nodes, node))
    return _masked(ctx, node) if node.standard("Add", "Where") else None


def _masked(ctx: Context, node: Node) -> Scores | None:
    sides = [(0, 1), (1, 0)] if node.op == "Add" else [(1, 2), (2, 1)]
    for own, other in sides:
        above = _scores(ctx, node.inputs[own])
        if above is not None and ctx.rank(above.product.outputs[0]) == 4:
            mask = added(node.inputs[other]) if node.op == "Add" else filled(ctx, node, other)
            require(above.mask is NO_MASK, "more than one mask is laid on its scores")
            return replace(above, mask=mask, nodes=(*above.nodes, node))
    return None


def _factor(node: Node) -> tuple[int, float] | None:
    """Which input ``node`` scales and by how much, where it multiplies with or divides by a scalar constant."""
    if not node.standard("Mul", "Div") or len(node.inputs) != 2:
        return None
    for index in (1, 0) if node.op == "Mul" else (1,):
        value = constant_value(node.inputs[index]) if 0 < constant_bytes(node.inputs[index]) <= 8 else None
        if value is not None and value.size == 1 and value.ndim <= 4 and value.dtype.kind == "f" and value.any():
            number = float(value.ravel()[0])
            return 1 - index, number if node.op == "Mul" else 1 / number
    return None


def _heads(ctx: Context, tensor: Tensor, names: str, shape: tuple[Dim, ...]) -> Heads:
    """Where the heads that ``tensor`` holds along the axes ``names`` lie side by side."""
    axes, scale = whole(names, shape), 1.0
    wanted = {n: s for n, s in zip(names, shape, strict=True) if s != 1}
    while True:
        place = _place(ctx, tensor, axes, wanted)
        node = producer(tensor)
        if place is not None and node is not None and node.standard("Slice"):
            place = _place(ctx, node.inputs[0], back(ctx, node, axes) or (), wanted) or place
        if place is not None:
            return replace(place, scale=scale)
        factor = _factor(node) if node is not None else None
        moved = back(ctx, node, axes) if node is not None and factor is None else axes
        require(node is not None and moved is not None, f"heads of {tensor.name!r} do not come from [batch, sequence, heads * size]")
        assert node is not None and moved is not None
        tensor, axes = node.inputs[factor[0] if factor is not None else 0], moved
        scale *= factor[1] if factor is not None else 1.0


def _place(ctx: Context, tensor: Tensor, axes: Axes, wanted: dict[str, Dim]) -> Heads | None:
    if len(axes) != 3:
        return None
    order = [n for n in ("b", "s" if "s" in wanted else "t", "h", "d") if n in wanted]
    rows = [f for axis in axes[:2] for f in axis]
    columns, part = list(axes[2]), Factor("", 1, index=0)
    if columns and columns[0].index is not None:
        part = columns.pop(0)
    if [(f.name, f.size, f.index) for f in (*rows, *columns)] != [(n, wanted[n], None) for n in order] or any(f.name != "b" for f in axes[0]):
        return None
    if any(f.name == "b" for f in axes[1]):
        return None
    assert isinstance(part.size, int) and part.index is not None
    return Heads(tensor, part.size, part.index)


def _part(ctx: Context, place: Heads, before: Node) -> Tensor:
    """The place as a tensor of its own; one Split serves all parts."""
    if place.parts == 1:
        return place.source
    key = ("split", place.source, place.parts)
    if key not in ctx.memo:
        shape = ctx.shape(place.source)
        assert shape is not None and isinstance(shape[2], int)
        sizes, name = [shape[2] // place.parts] * place.parts, place.source.name
        ctx.memo[key] = split(ctx, before, place.source, sizes, name, [f"{name}_part"] * place.parts, NAME)
    found: Tensor = ctx.memo[key][place.index]
    return found


def split(ctx: Context, before: Node, source: Tensor, sizes: Sequence[int], name: str, names: Sequence[str], rule_name: str) -> list[Variable]:
    """The parts of ``source`` [batch, sequence, width] of so many columns each, called ``names``; ``name`` begins that of their sizes."""
    if ctx.opset < 13:
        return ctx.insert(before, "Split", [source], names, rule_name, {"axis": 2, "split": list(sizes)})
    parts = ctx.constant(f"{name}_parts", np.array(sizes, np.int64))
    return ctx.insert(before, "Split", [source, parts], names, rule_name, {"axis": 2})


def _joined(ctx: Context, mixing: Node) -> list[Node]:
    """The nodes behind ``mixing`` that put the heads side by side again, [batch, sequence, heads * size]."""
    tensor, shape = mixing.outputs[0], ctx.shape(mixing.outputs[0])
    require(shape is not None and len(shape) == 4, "the shape of its result is not known")
    assert shape is not None
    axes = whole("bhsd", shape)
    wanted = {n: s for n, s in zip("bhsd", shape, strict=True) if s != 1}
    nodes: list[Node] = []
    while _place(ctx, tensor, axes, wanted) is None:
        readers = consumers(tensor)
        moved = forward(ctx, readers[0], axes) if len(readers) == 1 and tensor not in ctx.pinned else None
        require(moved is not None, "its result is not put together as [batch, sequence, heads * size]")
        assert moved is not None
        nodes.append(readers[0])
        tensor, axes = readers[0].outputs[0], moved
    return nodes


rules = (fuse_attention,)
