"""Quantised models: Q/DQ pairs stay whole and dequantised weights are not folded to floats."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from .case import case, parsed


def _int8(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)


SCALES = {"sx": np.array(0.05, np.float32), "zx": np.array(3, np.int8), "sw": np.array(0.02, np.float32), "zw": np.array(0, np.int8)}


@case(regions=0)
def qdq_conv() -> ModelProto:
    """A convolution between Q/DQ pairs; its weight is int8 behind a DequantizeLinear."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
      q = QuantizeLinear(x, sx, zx)
      d = DequantizeLinear(q, sx, zx)
      k = DequantizeLinear(w, sw, zw)
      c = Conv<pads=[1,1,1,1]>(d, k, b)
      r = Relu(c)
      p = QuantizeLinear(r, sx, zx)
      y = DequantizeLinear(p, sx, zx)
    }"""
    return parsed(text, {**SCALES, "w": _int8(4, 3, 3, 3), "b": (4,)})


@case(regions=0)
def conv_integer() -> ModelProto:
    """What dynamic quantisation makes of a convolution."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
      q, s, z = DynamicQuantizeLinear(x)
      i = ConvInteger<pads=[1,1,1,1]>(q, w, z)
      f = Cast<to=1>(i)
      m = Mul(s, sw)
      y = Mul(f, m)
    }"""
    return parsed(text, {"w": _int8(4, 3, 3, 3).view(np.uint8), "sw": SCALES["sw"]})


@case(regions=0)
def qlinear_conv() -> ModelProto:
    """The operator-oriented form."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
      q = QuantizeLinear(x, sx, zx)
      i = QLinearConv<pads=[1,1,1,1]>(q, sx, zx, w, sw, zw, sx, zx)
      y = DequantizeLinear(i, sx, zx)
    }"""
    return parsed(text, {**SCALES, "w": _int8(4, 3, 3, 3)})
