"""Dims of a region's tensors as launch expressions over the dims of its node's inputs."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Expr, ceildiv, const, dim, expr, function, maximum
from ..plan.regions.region import Stage, Window
from .lowered import NHWC


@dataclass(frozen=True)
class Extent:
    """Batch, height and width of one tensor."""

    n: Expr
    h: Expr
    w: Expr

    @property
    def pixels(self) -> Expr:
        """Rows of the tensor as a matrix of channels."""
        return self.n * self.h * self.w


def input_extent(index: int, layout: str, rank: int) -> Extent:
    """Extent of the node's input ``index`` in ``layout``; sequences have height 1."""
    first = 1 if layout == NHWC else 2
    n = dim(index, 0)
    return Extent(n, const(1), dim(index, first)) if rank == 3 else Extent(n, dim(index, first), dim(index, first + 1))


def input_rows(index: int, rank: int) -> Extent:
    """Extent of the node's input ``index`` as rows of its last axis."""
    rows = dim(index, 0)
    for axis in range(1, rank - 1):
        rows = rows * dim(index, axis)
    return Extent(rows, const(1), const(1))


@dataclass(frozen=True)
class Padding:
    """Pads before and after one axis."""

    begin: Expr
    end: Expr


def window_padding(window: Window, axis: int, size: Expr) -> Padding:
    """Pads of ``axis`` (0 height, 1 width) of an input of ``size``; SAME pads follow from the size, as ONNX says."""
    if not window.auto_pad:
        return Padding(const(window.pads[axis]), const(window.pads[axis + 2]))
    kernel, stride, dilation = window.kernel[axis], window.strides[axis], window.dilations[axis]
    out = ceildiv(size, stride)
    total = maximum((out - 1) * stride + ((kernel - 1) * dilation + 1) - size, 0)
    small = total // 2
    large = total - small
    return Padding(small, large) if window.auto_pad == "same_upper" else Padding(large, small)


def window_output(window: Window, axis: int, size: Expr, pooling: bool = False) -> Expr:
    """Output size of a convolution or ``pooling`` along ``axis``.

    In ceil mode the last window must start inside the input or its leading pad (ONNX, since opset 22's wording; ONNX Runtime likewise). An input that
    is smaller than the window by less than a stride still gives one result of a pooling: ONNX Runtime rounds towards zero there.
    """
    if window.auto_pad:
        return ceildiv(size, window.strides[axis])
    kernel, stride, dilation = window.kernel[axis], window.strides[axis], window.dilations[axis]
    begin, end = window.pads[axis], window.pads[axis + 2]
    span = size + (begin + end - ((kernel - 1) * dilation + 1))
    if not window.ceil_mode:
        return (span + span.compare("<", 0) * (stride - 1) if pooling else span) // stride + 1
    up = ceildiv(span, stride) + 1
    return function("select", ((up - 1) * stride).compare(">=", size + begin), up - 1, up)


def stage_extent(stage: Stage, source: Extent) -> Extent:
    """Extent of what ``stage`` computes from ``source``."""
    if stage.kind.startswith("global"):
        return Extent(source.n, const(1), const(1))
    if stage.window is None:
        return source
    height, width = (window_output(stage.window, axis, size, stage.kind != "conv") for axis, size in enumerate((source.h, source.w)))
    return Extent(source.n, height, width)


__all__ = ["Extent", "Padding", "expr", "input_extent", "input_rows", "stage_extent", "window_output", "window_padding"]
