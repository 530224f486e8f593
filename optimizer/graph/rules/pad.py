"""Pads become part of the Conv or pooling behind them; automatic padding of a Conv becomes explicit where the amounts are known."""

from __future__ import annotations

import numpy as np

from ..view import Node, Tensor, constant_value, is_constant, producer
from .base import Refuse, require, rule
from .context import Context, optional

_NOT_NEGATIVE = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt")
_KEEPS_SIGN = ("Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@rule("fold-pad", "Conv", "MaxPool", "AveragePool")
def fold_pad(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``Conv(Pad(x))`` with ``Conv(x)`` that pads by itself; Conv also MaxPool or AveragePool."""
    pad = producer(node.inputs[0])
    if pad is None or not pad.standard("Pad") or not ctx.builtin(pad):
        return None
    value = _pad_value(pad)
    begin, end = _spatial_pads(ctx, pad, node)
    mode = node.attrs.get("auto_pad", "NOTSET")
    require(mode in ("NOTSET", "VALID", ""), f"auto_pad is {mode}")
    spatial = len(begin)
    own = [0] * (2 * spatial) if mode == "VALID" else list(node.attrs.get("pads", [0] * (2 * spatial)))
    require(len(own) == 2 * spatial, "its pads and those of the Pad differ in length")
    pads = [a + b for a, b in zip(own, [*begin, *end], strict=True)]
    attrs = {k: v for k, v in node.attrs.items() if k != "auto_pad"} | {"pads": pads}
    if node.op == "Conv":
        require(value == 0.0, f"it pads with {value:g}")
    else:
        _check_pool(ctx, node, pad, value, own, pads)
        if node.op == "AveragePool":
            attrs["count_include_pad"] = 1
    labels = [pad.label, node.label]
    ctx.become(node, "fold-pad", node.op, [pad.inputs[0], *node.inputs[1:]], attrs)
    return labels


def _pad_value(pad: Node) -> float:
    require(pad.attrs.get("mode", "constant") == "constant", f"its mode is {pad.attrs.get('mode')}")
    tensor = optional(pad, 2)
    if tensor is None:
        return float(pad.attrs.get("value", 0.0))
    value = constant_value(tensor) if is_constant(tensor) else None
    if value is None or value.size != 1:
        raise Refuse("the value that it pads with is not constant")
    return float(value.ravel()[0])


def _spatial_pads(ctx: Context, pad: Node, node: Node) -> tuple[list[int], list[int]]:
    """What ``pad`` adds before and behind each spatial dim; refuses pads elsewhere, negative and unknown ones."""
    amounts = list(pad.attrs["pads"]) if "pads" in pad.attrs else ctx.ints(pad.inputs[1])
    if amounts is None:
        raise Refuse("the pads are not constant")
    axes = optional(pad, 3)
    if axes is not None:
        rank, known = _rank(ctx, pad, node), ctx.ints(axes)
        if rank is None or known is None:
            raise Refuse("the axes of the pads are not known")
        full = [0] * (2 * rank)
        for i, axis in enumerate(known):
            full[axis % rank] += amounts[i]
            full[axis % rank + rank] += amounts[i + len(known)]
        amounts = full
    rank = len(amounts) // 2
    begin, end = amounts[:rank], amounts[rank:]
    require(not any(begin[:2] + end[:2]), "it pads batch or channels")
    require(min(amounts, default=0) >= 0, "it cuts (negative pads)")
    return begin[2:], end[2:]


def _rank(ctx: Context, pad: Node, node: Node) -> int | None:
    weight = ctx.shape(node.inputs[1]) if node.op == "Conv" else None
    kernel = node.attrs.get("kernel_shape")
    return len(weight) if weight is not None else len(kernel) + 2 if kernel else ctx.rank(pad.inputs[0])


def _check_pool(ctx: Context, node: Node, pad: Node, value: float, own: list[int], pads: list[int]) -> None:
    kernel = list(node.attrs["kernel_shape"])
    require(not node.attrs.get("ceil_mode", 0), "ceil_mode is set")
    require(all(d == 1 for d in node.attrs.get("dilations", [1])), "the window is dilated")
    require(all(p < k for p, k in zip(pads, kernel * 2, strict=True)), "the pads reach past the window")
    if node.op == "AveragePool":
        require(value == 0.0, f"it pads with {value:g}")
        require(not any(own) or bool(node.attrs.get("count_include_pad", 0)), "the pool pads too, and does not count that")
        return
    require(not any(t.outputs or t in ctx.pinned for t in node.outputs[1:]), "indices into the padded input are used")
    lowest = value == -np.inf or value <= -float(np.finfo(np.float32).max)
    require(lowest or (value == 0.0 and _not_negative(ctx, pad.inputs[0])), f"it pads with {value:g}, which may be the largest value of a window")


def _not_negative(ctx: Context, tensor: Tensor, depth: int = 8) -> bool:
    """Whether an op that makes ``tensor`` proves that no element is below 0."""
    node = producer(tensor)
    if node is None or depth == 0 or not ctx.builtin(node):
        return False
    if node.standard("Clip"):
        low = optional(node, 1)
        value = node.attrs.get("min") if low is None else constant_value(low) if is_constant(low) else None
        return value is not None and bool(np.all(np.asarray(value) >= 0))
    if node.standard("Concat"):
        return all(_not_negative(ctx, t, depth - 1) for t in node.inputs)
    return node.standard(*_NOT_NEGATIVE) or (node.standard(*_KEEPS_SIGN) and _not_negative(ctx, node.inputs[0], depth - 1))


@rule("explicit-pads", "Conv")
def explicit_pads(ctx: Context, node: Node) -> list[str] | None:
    """Replaces ``auto_pad`` of a Conv with the ``pads`` that it stands for."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode not in ("VALID", "SAME_UPPER", "SAME_LOWER"):
        return None
    weight = ctx.shape(node.inputs[1])
    require("kernel_shape" in node.attrs or weight is not None, "the size of the window is not known")
    kernel = list(node.attrs.get("kernel_shape") or (weight or ())[2:])
    begin, end = [0] * len(kernel), [0] * len(kernel)
    strides, dilations = (list(node.attrs.get(k, [1] * len(kernel))) for k in ("strides", "dilations"))
    for i in range(len(kernel) if mode != "VALID" else 0):
        total = _same_padding(ctx, node, i, kernel[i], strides[i], dilations[i])
        begin[i], end[i] = (total // 2, total - total // 2) if mode == "SAME_UPPER" else (total - total // 2, total // 2)
    attrs = {k: v for k, v in node.attrs.items() if k != "auto_pad"} | {"pads": [*begin, *end]}
    ctx.become(node, "explicit-pads", "Conv", node.inputs, attrs)
    return [node.label]


def _same_padding(ctx: Context, node: Node, index: int, kernel: object, stride: int, dilation: int) -> int:
    """Rows that SAME adds so that the output has ``ceil(input / stride)`` of them."""
    require(isinstance(kernel, int), "the size of the window is not known")
    window = (int(kernel) - 1) * dilation + 1  # type: ignore[call-overload]
    if stride == 1:
        return int(window) - 1
    shape = ctx.shape(node.inputs[0])
    size = shape[index + 2] if shape is not None else None
    if not isinstance(size, int):
        raise Refuse("the padding depends on the size of the input, which is not fixed")
    return int(max((-(-size // stride) - 1) * stride + window - size, 0))


rules = (explicit_pads, fold_pad)
