"""Shape rules of Resize and Upsample."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .. import dims
from ..symbols import Dim, mul, number
from ..symbols import scale as scaled
from .registry import Call, Fact, rule

_EXACT = 2**8  # numerators of scales up to this keep float32 products exact for dims below 2**16


def _scaled_dim(dim: Dim, scale: Dim) -> Dim | None:
    """``floor(dim * scale)`` as ONNX Runtime computes it, in float32; None where that rounds."""
    if isinstance(scale, int):
        return mul(dim, scale)
    if not scale.is_Rational:
        return None
    factor = Fraction(int(scale.p), int(scale.q))
    if isinstance(dim, int):
        return int(np.float32(float(factor)) * np.float32(dim))
    return dims.floordiv(scaled(dim, factor), 1) if factor.numerator <= _EXACT else None


@rule("Resize", "Upsample")
def resize(call: Call) -> list[Fact]:
    """``sizes``, or ``floor(dim * scale)``; Upsample has ``scales`` as an attribute up to opset 8."""
    source = call.need(0)
    unknown = [Fact(call.fresh(len(source)))]
    scales_at = 2 if call.node.op == "Resize" and call.opset >= 11 else 1
    axes = [call.axis(int(a), len(source)) for a in call.attr("axes", [])] or list(range(len(source)))
    result = list(source)
    if call.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return unknown
    sizes_given = call.has(3) and call.shape(3) != (0,)
    if sizes_given:
        sizes = call.entries(3)
        if sizes is None or len(sizes) != len(axes) or call.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            return unknown
        for place, size in zip(axes, sizes, strict=True):
            result[place] = size if dims.at_least(size, 0) else call.engine.fresh()
        return [Fact(tuple(result))]
    if call.node.op == "Upsample" and call.opset < 9:
        given = [number(np.float32(s).item()) for s in call.attr("scales")]
    else:
        entries = call.entries(scales_at)
        if entries is None or len(entries) != len(axes):
            return unknown
        given = entries
    for place, scale in zip(axes, given, strict=True):
        size = _scaled_dim(source[place], scale)
        result[place] = call.engine.fresh() if size is None else size
    return [Fact(tuple(result))]
