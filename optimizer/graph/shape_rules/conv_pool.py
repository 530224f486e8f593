"""Shape rules of convolutions and poolings: ``[N, C, spatial...]`` to ``[N, M, spatial...]``."""

from __future__ import annotations

from collections.abc import Sequence

from ..dims import ceildiv, floordiv
from ..symbols import Dim, add, mul, sub
from .registry import Call, CannotInfer, Fact, Shape, rule


def _window(call: Call, weights: Shape | None, count: int) -> list[Dim]:
    """Kernel size of each spatial dim, from the attribute or the weights."""
    kernel = call.attr("kernel_shape")
    if kernel:
        return [int(k) for k in kernel]
    if weights is None or len(weights) != count + 2:
        raise CannotInfer("the kernel size is unknown")
    return list(weights[2:])


def _per_axis(call: Call, name: str, count: int, default: int) -> list[int]:
    values = [int(v) for v in call.attr(name, [])] or [default] * count
    if len(values) != count:
        raise CannotInfer(f"attribute {name} has {len(values)} values for {count} dims")
    return values


def _spatial(call: Call, dims: Sequence[Dim], kernel: Sequence[Dim], dilated: bool = True, pooling: bool = False) -> list[Dim]:
    """Output sizes of a sliding window (convolution or pooling) over ``dims``.

    With ceil_mode the last window must start inside the image or its leading padding, as in ONNX Runtime.
    """
    count = len(dims)
    strides = _per_axis(call, "strides", count, 1)
    dilations = _per_axis(call, "dilations", count, 1) if dilated else [1] * count
    auto_pad = call.attr("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return [ceildiv(d, s) for d, s in zip(dims, strides, strict=True)]
    pads = [0] * (2 * count) if auto_pad == "VALID" else _per_axis(call, "pads", 2 * count, 0)
    result = []
    for i, (dim, stride) in enumerate(zip(dims, strides, strict=True)):
        extent = add(mul(dilations[i], sub(kernel[i], 1)), 1)
        room = sub(add(dim, pads[i], pads[i + count]), extent)  # positions of the first window
        if not call.attr("ceil_mode", 0):
            if pooling and isinstance(room, int) and -stride < room < 0:
                room = 0  # ONNX Runtime rounds towards zero
            result.append(add(floordiv(room, stride), 1))
            continue
        by_room, by_start = add(room, 2 * stride - 1), add(dim, pads[i] + stride - 1)
        fewer = sub(by_room, by_start)
        if not isinstance(fewer, int):
            raise CannotInfer("the kernel size is unknown")
        result.append(floordiv(by_room if fewer < 0 else by_start, stride))
    return result


def _convolution(call: Call, x: int, w: int, dilated: bool = True) -> list[Fact]:
    image, weights = call.need(x), call.shape(w)
    if len(image) < 3:
        raise CannotInfer("a convolution needs at least one spatial dim")
    spatial = _spatial(call, image[2:], _window(call, weights, len(image) - 2), dilated)
    channels = weights[0] if weights else call.engine.fresh()
    return [Fact((image[0], channels, *spatial))]


@rule("Conv", "ConvInteger", "DeformConv")
def conv(call: Call) -> list[Fact]:
    """``[N, C, ...] * [M, C/group, k...] -> [N, M, ...]``."""
    return _convolution(call, 0, 1)


@rule("QLinearConv")
def qlinear_conv(call: Call) -> list[Fact]:
    """As Conv; the weights are input 3."""
    return _convolution(call, 0, 3)


@rule("ConvTranspose")
def conv_transpose(call: Call) -> list[Fact]:
    """``[N, C, ...] * [C, M/group, k...] -> [N, M, ...]``; auto_pad SAME gives ``dim * stride``."""
    image, weights = call.need(0), call.shape(1)
    count = len(image) - 2
    kernel = _window(call, weights, count)
    strides, dilations = _per_axis(call, "strides", count, 1), _per_axis(call, "dilations", count, 1)
    extra = _per_axis(call, "output_padding", count, 0)
    auto_pad, given = call.attr("auto_pad", "NOTSET"), call.attr("output_shape", [])
    channels = mul(weights[1], call.attr("group", 1)) if weights else call.engine.fresh()
    if given:
        return [Fact((image[0], channels, *(int(d) for d in given[-count:])))]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        # NOTE: runtimes disagree on whether output_padding adds to a SAME size, so such sizes stay open.
        return [Fact((image[0], channels, *(mul(d, s) if not any(extra) else call.engine.fresh() for d, s in zip(image[2:], strides, strict=True))))]
    pads = [0] * (2 * count) if auto_pad == "VALID" else _per_axis(call, "pads", 2 * count, 0)
    spatial = [
        add(mul(strides[i], sub(dim, 1)), extra[i] + 1 - pads[i] - pads[i + count], mul(dilations[i], sub(kernel[i], 1))) for i, dim in enumerate(image[2:])
    ]
    return [Fact((image[0], channels, *spatial))]


@rule("MaxPool", "AveragePool", "LpPool")
def pool(call: Call) -> list[Fact]:
    """Pooling with a window; MaxPool's second output are indices of the same shape."""
    image = call.need(0)
    fact = Fact((*image[:2], *_spatial(call, image[2:], _window(call, None, len(image) - 2), pooling=True)))
    return [fact, fact]


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call) -> list[Fact]:
    """``[N, C, ...] -> [N, C, 1, ...]``."""
    image = call.need(0)
    return [Fact((*image[:2], *([1] * (len(image) - 2))))]


@rule("DepthToSpace")
def depth_to_space(call: Call) -> list[Fact]:
    """``[N, C*b*b, H, W] -> [N, C, H*b, W*b]``."""
    n, c, h, w = call.need(0)
    block = call.attr("blocksize")
    return [Fact((n, floordiv(c, block * block), mul(h, block), mul(w, block)))]


@rule("SpaceToDepth")
def space_to_depth(call: Call) -> list[Fact]:
    """``[N, C, H*b, W*b] -> [N, C*b*b, H, W]``."""
    n, c, h, w = call.need(0)
    block = call.attr("blocksize")
    return [Fact((n, mul(c, block * block), floordiv(h, block), floordiv(w, block)))]
