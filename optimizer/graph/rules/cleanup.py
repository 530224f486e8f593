"""Nodes that nobody needs: dead ones, those that change nothing, and twins."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto

from ..view import Constant, Node, Tensor, constant_bytes, constant_value, consumers, is_constant, producer, subgraphs
from .base import Refuse, require, rule
from .context import Context, optional

SAME_CONTENT_BYTES = 1024
"""Constants up to this size count as equal, for :data:`merge_twins`, when their content is; larger ones when they are one tensor."""

_RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_QUANTIZED = ("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QuantizeLinear")
_TO_THE_END = np.iinfo(np.int32).max


@rule("remove-dead")
def remove_dead(ctx: Context, node: Node) -> list[str] | None:
    """Removes a node whose results nobody uses, and then what only it needed."""
    return ctx.remove(node) if ctx.is_dead(node) else None


@rule("remove-identity", "Identity")
def remove_identity(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Identity(x)`` with ``x``."""
    return _forward(ctx, node, node.inputs[0], "remove-identity")


@rule("remove-dropout", "Dropout")
def remove_dropout(ctx: Context, node: Node) -> list[str] | None:
    """Replaces a Dropout that does not train with its input."""
    training = optional(node, 2)
    if training is not None:
        flag = constant_value(training) if is_constant(training) else None
        require(flag is not None, "training_mode is not constant")
        require(not np.any(flag), "it trains")
    require(not any(t in ctx.pinned or t.outputs for t in node.outputs[1:]), "its mask is used")
    while len(node.outputs) > 1:
        node.outputs.pop()
    return _forward(ctx, node, node.inputs[0], "remove-dropout")


@rule("remove-no-op", "Cast", "Concat", "Expand", "Max", "Mean", "Min", "Pad", "Reshape", "Slice", "Sum", "Transpose")
def remove_no_op(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``op(x)`` with ``x`` where op provably changes neither values nor shape nor type."""
    return _forward(ctx, node, node.inputs[0], "remove-no-op") if node.inputs and _is_no_op(ctx, node) else None


@rule("sum-to-add", "Sum")
def sum_to_add(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Sum(a, b)``, in which older exporters write residual connections, with ``a + b``."""
    if len(node.inputs) != 2:
        return None
    ctx.become(node, "sum-to-add", "Add", list(node.inputs))
    return [node.label]


def _is_no_op(ctx: Context, node: Node) -> bool:
    x, out = node.inputs[0], node.outputs[0]
    if node.standard("Cast"):
        return ctx.dtype(x) is not None and ctx.dtype(x) == node.attrs.get("to")
    if node.standard("Concat", "Max", "Mean", "Min", "Sum"):
        return len(node.inputs) == 1
    if node.standard("Transpose"):
        perm = node.attrs.get("perm")
        return ctx.rank(x) in (0, 1) if perm is None else list(perm) == list(range(len(perm)))
    if node.standard("Pad"):
        amounts = node.attrs.get("pads") if len(node.inputs) < 2 else ctx.ints(node.inputs[1])
        return amounts is not None and not any(amounts)
    if node.standard("Slice"):
        return _slices_nothing(ctx, node)
    return ctx.same_shape(x, out)


def _slices_nothing(ctx: Context, node: Node) -> bool:
    if ctx.same_shape(node.inputs[0], node.outputs[0]):
        steps = optional(node, 4)
        return steps is None or all(s > 0 for s in ctx.ints(steps) or [0])
    parts = [ctx.ints(t) if t.name else None for t in node.inputs[1:3]] if len(node.inputs) > 2 else [node.attrs.get("starts"), node.attrs.get("ends")]
    steps = optional(node, 4)
    if parts[0] is None or parts[1] is None or (steps is not None and set(ctx.ints(steps) or [0]) != {1}):
        return False
    return not any(parts[0]) and all(end >= _TO_THE_END for end in parts[1])


def _forward(ctx: Context, node: Node, source: Tensor, name: str) -> list[str]:
    labels = [node.label]
    require(ctx.forward(node, source, name), "it gives a graph output its name")
    return labels


@rule("merge-twins")
def merge_twins(ctx: Context, node: Node) -> list[str] | None:
    """Replaces a deterministic node that computes what an earlier one computed with the earlier one's results.

    Quantised ops and their neighbours stay: runtimes know them by patterns in which each has a scale of its own.
    """
    if not node.standard() or not ctx.builtin(node) or node.op in (*_RANDOM, "Constant") or subgraphs(node) or _belongs_to_quantization(node):
        return None
    if not onnx.defs.has(node.op) or not node.inputs or not any(t.name for t in node.outputs):
        return None
    first = ctx.memo.setdefault(_key(node), node)
    if first is node or not ctx.has(first):
        ctx.memo[_key(node)] = node
        return None
    require(not any(t in ctx.pinned for t in node.outputs), "the twin is a graph output")
    labels = [node.label, first.label]
    for mine, its in zip(node.outputs, first.outputs, strict=True):
        if mine.name:
            ctx.redirect(mine, its)
    ctx.remove(node)
    return labels


def _belongs_to_quantization(node: Node) -> bool:
    neighbours = [producer(t) for t in node.inputs] + [n for t in node.outputs for n in consumers(t)]
    return any(n is not None and n.op in _QUANTIZED for n in (node, *neighbours))


def _key(node: Node) -> Hashable:
    attrs = tuple(sorted((k, _content(v)) for k, v in node.attrs.items()))
    return node.op, attrs, tuple(_constant_key(t) if t.name else None for t in node.inputs), tuple(bool(t.name) for t in node.outputs)


def _content(value: object) -> str:
    if isinstance(value, AttributeProto):
        return str(value.SerializeToString(deterministic=True))
    if isinstance(value, Constant):
        return f"{value.dtype}{value.shape}{value.values.tobytes().hex()}" if value.nbytes <= SAME_CONTENT_BYTES and value.dtype != object else f"id{id(value)}"
    if isinstance(value, gs.Graph):
        raise Refuse("it has a body")
    return f"{type(value).__name__}{value!r}"


def _constant_key(tensor: Tensor) -> Hashable:
    if not is_constant(tensor) or constant_bytes(tensor) > SAME_CONTENT_BYTES:
        return tensor
    values = constant_value(tensor)
    return tensor if values is None or values.dtype == object else (str(values.dtype), values.shape, values.tobytes())


rules = (remove_dead, remove_identity, remove_dropout, remove_no_op, sum_to_add, merge_twins)
