"""Scaling and shifting the output channels of a Conv, ConvTranspose or Gemm by changing its weight and bias.

The arithmetic is in float64 and rounded once to the type of the weight. A weight is never changed in place: other nodes that read it
keep the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..view import Node, Tensor, producer
from .base import require
from .context import Context, folded_name, optional

OPS = ("Conv", "ConvTranspose", "Gemm")
_WORST_ROUNDING = 2.0**-8  # relative error of a channel after rounding; only underflow exceeds it


@dataclass(frozen=True)
class ChannelOp:
    """An op whose output channels have weights of their own.

    Attributes:
        node: The Conv, ConvTranspose or Gemm.
        weight: Its weight as the node has it.
        bias: Bias of each channel, float64, with ``beta`` of a Gemm in it; zeros where there is none.
        axis: Axis of ``weight`` that output channels lie on (within a group, for ConvTranspose).
        groups: Blocks of axis 0 of ``weight`` that have channels of their own; 1 except for ConvTranspose.
        rank: Rank of the output; channels are its axis 1.
    """

    node: Node
    weight: np.ndarray
    bias: np.ndarray
    axis: int
    groups: int
    rank: int

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return int(self.weight.shape[self.axis]) * self.groups


def channel_op(ctx: Context, node: Node) -> ChannelOp:
    """What ``node``, one of :data:`OPS`, lets a rule fold into; refuses where weight or bias are not constant floats."""
    weight = ctx.known(node.inputs[1], "the weight")
    bias = optional(node, 2)
    beta = 1.0
    if node.op == "Gemm":
        require(weight.ndim == 2, "the weight is no matrix")
        axis, groups, rank = (0 if node.attrs.get("transB", 0) else 1), 1, 2
        beta = float(node.attrs.get("beta", 1.0))
    else:
        require(weight.ndim >= 3, "the weight has no spatial dims")
        groups, rank = (int(node.attrs.get("group", 1)) if node.op == "ConvTranspose" else 1), weight.ndim
        axis = 1 if node.op == "ConvTranspose" else 0
    channels = weight.shape[axis] * groups
    values = np.zeros(channels) if bias is None else ctx.known(bias, "the bias").astype(np.float64)
    require(values.size in (1, channels) and (values.ndim < 2 or values.shape[-1] == values.size), "the bias is not one value for each channel")
    return ChannelOp(node, weight, np.broadcast_to(values.ravel(), channels) * beta, axis, groups, rank)


def feeder(ctx: Context, tensor: Tensor, reader: Node) -> ChannelOp | None:
    """The op of :data:`OPS` that makes ``tensor`` for ``reader`` alone; None where another op makes it, refuses where others read it."""
    node = producer(tensor)
    if node is None or not node.standard(*OPS) or not ctx.builtin(node):
        return None
    require(tensor not in ctx.pinned, "the intermediate result is a graph output")
    require(ctx.only_reader(tensor, reader), "the intermediate result is used elsewhere")
    return channel_op(ctx, node)


def fold_channels(ctx: Context, op: ChannelOp, scale: np.ndarray, shift: np.ndarray, rule: str) -> None:
    """Makes ``op`` compute ``scale * op + shift``, one float64 value of each for a channel; refuses where its type cannot hold the result."""
    changed = bool(np.any(scale != 1.0))
    with np.errstate(all="ignore"):
        set_weights(ctx, op, _times(op, scale) if changed else None, op.bias * scale + shift, rule)


def set_weights(ctx: Context, op: ChannelOp, weight: np.ndarray | None, bias: np.ndarray, rule: str) -> None:
    """Gives ``op`` a new weight (None to keep it) and bias, both float64; refuses, with nothing changed, where its type cannot hold them."""
    node, old_bias = op.node, optional(op.node, 2)
    rounded = None if weight is None else fit(weight, op.weight.dtype, "weight")
    if rounded is not None and weight is not None and rounded.dtype.itemsize < 4:
        error = _norms(op, weight - rounded.astype(np.float64))
        require(bool(np.all(error <= _WORST_ROUNDING * _norms(op, weight))), f"the folded weight of a channel is too small for {rounded.dtype}")
    rounded_bias = fit(bias, op.weight.dtype, "bias")
    inputs = list(node.inputs)
    if rounded is not None:
        inputs[1] = ctx.constant(folded_name(inputs[1]), rounded)
    if old_bias is not None or np.any(bias):
        name = folded_name(old_bias) if old_bias is not None else f"{node.name or node.outputs[0].name}_bias"
        inputs[2:] = [ctx.constant(name, rounded_bias)]
    ctx.rewire(node, inputs)
    if node.op == "Gemm":
        node.attrs.pop("beta", None)
    node.rule = rule


def _times(op: ChannelOp, scale: np.ndarray) -> np.ndarray:
    """The weight, float64, each output channel times its scale."""
    shape = op.weight.shape
    spread = [1] * (len(shape) + 1)
    spread[0], spread[op.axis + 1] = op.groups, shape[op.axis]
    blocks = op.weight.reshape(op.groups, shape[0] // op.groups, *shape[1:])
    product: np.ndarray = np.multiply(blocks, scale.reshape(spread), dtype=np.float64)
    return product.reshape(shape)


def _norms(op: ChannelOp, values: np.ndarray) -> np.ndarray:
    """Norm of the weight of each output channel."""
    blocks = values.reshape(op.groups, values.shape[0] // op.groups, *values.shape[1:])
    squares: np.ndarray = np.sum(blocks * blocks, axis=tuple(a for a in range(1, blocks.ndim) if a != op.axis + 1))
    norms: np.ndarray = np.sqrt(squares)
    return norms


def fit(values: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """``values``, float64, in the type ``dtype``; refuses where they leave its range."""
    require(bool(np.all(np.isfinite(values))), f"the folded {what} is not finite")
    largest = float(np.max(np.abs(values), initial=0.0))
    limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    require(largest <= limit, f"the folded {what} reaches {largest:.3g}, beyond the range of {dtype}")
    return values.astype(dtype)


def per_channel(values: np.ndarray, channels: int, rank: int) -> np.ndarray:
    """``values``, a constant that is combined with a tensor ``[N, channels, ...]`` of ``rank`` dims, as one float64 for each channel.

    Refuses where it says different things for different positions or images, or makes the result larger.
    """
    require(values.ndim <= rank, f"the constant has {values.ndim} dims, the tensor {rank}")
    shape = (1,) * (rank - values.ndim) + values.shape
    varying = [axis for axis, dim in enumerate(shape) if dim != 1]
    require(all(axis == 1 for axis in varying), f"the constant of shape {list(values.shape)} does not hold one value for each channel")
    require(not varying or shape[1] == channels, f"the constant has {shape[1]} channels, the tensor {channels}")
    return np.broadcast_to(values.astype(np.float64).ravel(), channels)
