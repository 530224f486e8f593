"""Multiplications and additions of constants beside a Conv, ConvTranspose or Gemm become part of its weight and bias."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..activations import match_activation
from ..view import Node, consumers, is_constant, producer
from .base import require, rule
from .channels import OPS, channel_op, feeder, fold_channels, per_channel, set_weights
from .context import Context

_Pair = tuple[np.ndarray, np.ndarray]
_AFTER: dict[tuple[str, int], Callable[[np.ndarray], _Pair]] = {
    ("Add", 0): lambda c: (np.ones_like(c), c),
    ("Add", 1): lambda c: (np.ones_like(c), c),
    ("Sub", 0): lambda c: (np.ones_like(c), -c),
    ("Sub", 1): lambda c: (-np.ones_like(c), c),
    ("Mul", 0): lambda c: (c, np.zeros_like(c)),
    ("Mul", 1): lambda c: (c, np.zeros_like(c)),
    ("Div", 0): lambda c: (1.0 / c, np.zeros_like(c)),
}
"""Scale and shift of a channel x by the op and by which operand x is; the constant is the other operand."""


@rule("fold-scale-after", "Add", "Sub", "Mul", "Div")
def fold_after(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Conv(x, w, b) * s``, ``+ s``, ``- s`` or ``/ s``, s constant for each channel, with ``Conv(x, w', b')``."""
    index = _variable_operand(node)
    if index is None or (node.op, index) not in _AFTER:
        return None
    maker = producer(node.inputs[index])
    if maker is None or not maker.standard(*OPS):
        return None
    values = ctx.known(node.inputs[1 - index], "the constant")
    op = feeder(ctx, node.inputs[index], node)
    if op is None:
        return None
    with np.errstate(all="ignore"):
        scale, shift = _AFTER[node.op, index](per_channel(values, op.channels, op.rank))
    fold_channels(ctx, op, scale, shift, "fold-scale-after")
    labels = [op.node.label, node.label]
    op.node.outputs = [node.outputs[0]]
    ctx.remove(node)
    return labels


@rule("fold-scale-before", "Conv")
def fold_before(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Conv(x * s, w, b)``, or ``x + s`` where nothing is padded, s constant for each channel, with ``Conv(x, w', b')``.

    The last multiplication of an activation (``x * clip(x + 3, 0, 6) / 6``) stays with it.
    """
    maker = producer(node.inputs[0])
    if maker is None or not maker.standard("Add", "Sub", "Mul", "Div") or not ctx.has(maker) or not ctx.builtin(maker):
        return None
    index = None if match_activation(ctx.graph, maker, ctx.members) else _variable_operand(maker)
    if index is None or (maker.op, index) not in _AFTER:
        return None
    x = maker.inputs[index]
    values = ctx.known(maker.inputs[1 - index], "the constant")
    require(set(consumers(maker.outputs[0])) == {node} and maker.outputs[0] not in ctx.pinned, "the intermediate result is used elsewhere")
    op = channel_op(ctx, node)
    groups = int(node.attrs.get("group", 1))
    channels = op.weight.shape[1] * groups
    shape = ctx.shape(x)
    require(shape is not None and len(shape) == op.rank, "the rank of the input is not known to be that of the weight")
    require(values.size == 1 or (shape is not None and shape[1] == channels), "the channels of the input are not known")
    with np.errstate(all="ignore"):
        scale, shift = _AFTER[maker.op, index](per_channel(values, channels, op.rank))
    require(bool(np.all(np.isfinite(scale)) and np.all(np.isfinite(shift))), "the constant is not finite")
    blocks = op.weight.astype(np.float64).reshape(groups, -1, *op.weight.shape[1:])
    spread = (groups, 1, op.weight.shape[1], *[1] * (op.rank - 2))
    added = np.zeros(op.channels)
    if np.any(shift):
        require(not _pads(node), "the addition comes before padding")
        require(op.weight.dtype.itemsize >= 4, f"the sum over the weight may not fit {op.weight.dtype}")
        added = (blocks * shift.reshape(spread)).sum(axis=tuple(range(2, blocks.ndim))).ravel()
    weight = (blocks * scale.reshape(spread)).reshape(op.weight.shape) if np.any(scale != 1.0) else None
    set_weights(ctx, op, weight, op.bias + added, "fold-scale-before")
    labels = [maker.label, node.label]
    ctx.rewire(node, [x, *node.inputs[1:]])
    return labels


def _variable_operand(node: Node) -> int | None:
    """Index of the operand that is not constant, where the other one is."""
    if len(node.inputs) != 2:
        return None
    constant = [is_constant(t) for t in node.inputs]
    return constant.index(False) if sorted(constant) == [False, True] else None


def _pads(node: Node) -> bool:
    """Whether the Conv may pad."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    return any(node.attrs.get("pads", ())) if mode == "NOTSET" else mode != "VALID"


rules = (fold_after, fold_before)
