"""BatchNormalization that follows a Conv, ConvTranspose, Gemm or MatMul becomes part of its weight and bias.

One that follows something else stays as it is.
"""

from __future__ import annotations

import numpy as np

from ..view import Node, producer
from .base import require, rule
from .channels import ChannelOp, feeder, fold_channels
from .context import Context


@rule("fold-batchnorm", "BatchNormalization")
def fold_batchnorm(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``BatchNormalization(Conv(x, w, b))`` with ``Conv(x, w', b')``; Conv also ConvTranspose or Gemm."""
    maker = producer(node.inputs[0])
    if maker is None or not maker.standard("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    _check_inference(ctx, node)
    if maker.op == "MatMul":
        return _fold_matmul(ctx, node, maker)
    op = feeder(ctx, node.inputs[0], node)
    if op is None:
        return None
    scale, shift = _scale_and_shift(ctx, node, op.channels)
    return _absorb(ctx, node, op, scale, shift)


def _absorb(ctx: Context, node: Node, op: ChannelOp, scale: np.ndarray, shift: np.ndarray) -> list[str]:
    fold_channels(ctx, op, scale, shift, "fold-batchnorm")
    labels = [op.node.label, node.label]
    op.node.outputs = [node.outputs[0]]
    ctx.remove(node)
    return labels


def _fold_matmul(ctx: Context, node: Node, maker: Node) -> list[str]:
    product = maker.outputs[0]
    require(ctx.rank(maker.inputs[0]) == 2 and ctx.rank(maker.inputs[1]) == 2, "the factors of the MatMul are not known to be matrices")
    require(product not in ctx.pinned, "the intermediate result is a graph output")
    require(ctx.only_reader(product, node), "the intermediate result is used elsewhere")
    weight = ctx.known(maker.inputs[1], "the weight")
    op = ChannelOp(maker, weight, np.zeros(weight.shape[1]), axis=1, groups=1, rank=2)
    scale, shift = _scale_and_shift(ctx, node, op.channels)
    labels = _absorb(ctx, node, op, scale, shift)
    maker.op = "Gemm"
    return labels


def _check_inference(ctx: Context, node: Node) -> None:
    """Refuses a BatchNormalization that trains, keeps running statistics, or has statistics for each position."""
    require(not node.attrs.get("training_mode", 0), "it trains")
    require(bool(node.attrs.get("spatial", 1)), "it has statistics for each position (spatial is 0)")
    extra = [t for t in node.outputs[1:] if t.name]
    require(not extra or (ctx.opset >= 14 and not any(t.outputs or t in ctx.pinned for t in extra)), "it has outputs of training")


def _scale_and_shift(ctx: Context, node: Node, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """What the node multiplies each channel by and then adds, float64."""
    names = ("the scale", "the bias", "the mean", "the variance")
    gamma, beta, mean, variance = (ctx.known(t, what).astype(np.float64) for t, what in zip(node.inputs[1:], names, strict=True))
    require(all(v.shape == (channels,) for v in (gamma, beta, mean, variance)), f"its constants are not vectors of {channels} channels")
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + float(np.float32(node.attrs.get("epsilon", 1e-5))))
        return scale, beta - mean * scale


rules = (fold_batchnorm,)
