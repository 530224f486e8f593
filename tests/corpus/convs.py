"""Convolutions and poolings in their corners, alone and with neighbours."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from .case import case, parsed, weights


def _image(*shape: int) -> np.ndarray:
    return weights("image", *shape)


@case(regions=1)
def not_a_bias() -> ModelProto:
    """A grouped convolution and an Add of a constant that differs by pixel."""
    text = "g (float[N,136,4,4] x) => (float[N,136,4,4] y) { c = Conv<group=4>(x, w)  y = Add(c, k) }"
    return parsed(text, {"w": (136, 34, 1, 1), "k": (1, 136, 4, 4)})


@case(regions=1)
def shared_weight() -> ModelProto:
    """Two equal convolutions, which become one, each with a BatchNormalization of its own."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y1, float[N,4,8,8] y2) {
      a = Conv<pads=[1,1,1,1]>(x, w)
      y1 = BatchNormalization(a, g1, b1, m1, v1)
      b = Conv<pads=[1,1,1,1]>(x, w)
      y2 = BatchNormalization(b, g2, b2, m2, v2)
    }"""
    statistics = {n: np.abs(weights(n, 4)) + 0.5 for n in ("g1", "b1", "m1", "v1", "g2", "b2", "m2", "v2")}
    return parsed(text, {"w": (4, 3, 3, 3), **statistics})


@case(regions=1)
def output_behind_identity() -> ModelProto:
    """The output's own name is that of an Identity."""
    text = "g (float[N,3,8,8] x) => (float[N,4,6,6] y) { c = Conv(x, w)  r = Relu(c)  y = Identity(r) }"
    return parsed(text, {"w": (4, 3, 3, 3)})


@case(regions=3)
def inner_outputs() -> ModelProto:
    """Tensors inside what would be one region that are outputs too."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] c, float[N,4,8,8] y, float[N,4,8,8] r, float[N,4,8,8] z) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      r = Relu(c)
      d = Conv<pads=[1,1,1,1]>(r, w2, b)
      z = Relu(d)
      y = Add(z, c)
    }"""
    return parsed(text, {"w": (4, 3, 3, 3), "w2": (4, 4, 3, 3), "b": (4,)})


@case()
def output_is_input() -> ModelProto:
    """An input and an initializer handed out as they are, beside a convolution."""
    text = "g (float[N,3,8,8] x) => (float[N,3,8,8] x, float[4] b, float[N,4,6,6] y) { y = Conv(x, w, b) }"
    return parsed(text, {"w": (4, 3, 3, 3), "b": (4,)})


@case(regions=1)
def negative_pad() -> ModelProto:
    """A Pad that crops, before a convolution."""
    text = "g (float[N,3,8,8] x) => (float[N,4,5,5] y) { p = Pad(x, pads)  y = Conv(p, w) }"
    return parsed(text, {"w": (4, 3, 3, 3), "pads": np.array([0, 0, -1, 0, 0, 0, 0, -1], np.int64)})


@case(regions=2)
def odd_pads() -> ModelProto:
    """Pads by reflection and by ones, which no convolution can take over."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y, float[N,4,8,8] z) {
      p = Pad<mode="reflect">(x, pads)
      y = Conv(p, w)
      q = Pad(x, pads, one)
      z = Conv(q, w)
    }"""
    return parsed(text, {"w": (4, 3, 3, 3), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "one": np.array(1, np.float32)})


@case()
def transposed() -> ModelProto:
    """Transposed convolutions: SAME_UPPER with output_padding, asymmetric pads."""
    text = """g (float[N,3,3,3] x) => (float[N,4,H,W] y, float[N,4,I,J] z) {
      y = ConvTranspose<strides=[2,2], auto_pad="SAME_UPPER", output_padding=[1,1]>(x, w)
      z = ConvTranspose<pads=[0,0,1,1]>(x, w)
    }"""
    return parsed(text, {"w": (3, 4, 3, 3)})


@case(regions=6)
def windows() -> ModelProto:
    """Asymmetric pads, dilation, strides, every auto_pad."""
    text = """g (float[N,3,11,9] x) => (float[N,4,A,B] a, float[N,4,C,D] b, float[N,4,E,F] c, float[N,4,G,H] d, float[N,4,I,J] e, float[N,4,K,L] f) {
      a = Conv<pads=[0,1,2,1]>(x, w)
      b = Conv<dilations=[2,3], pads=[2,3,2,3]>(x, w)
      c = Conv<strides=[2,3], auto_pad="SAME_UPPER">(x, w)
      d = Conv<strides=[3,2], auto_pad="SAME_LOWER">(x, w)
      e = Conv<auto_pad="SAME_LOWER">(x, even)
      f = Conv<auto_pad="VALID", strides=[1,2]>(x, w)
    }"""
    return parsed(text, {"w": (4, 3, 3, 3), "even": (4, 3, 2, 4)})


@case(regions=3)
def groups() -> ModelProto:
    """Depthwise with and without a multiplier, and a few groups."""
    text = """g (float[N,6,8,8] x) => (float[N,6,8,8] a, float[N,12,8,8] b, float[N,4,8,8] c) {
      a = Conv<group=6, pads=[1,1,1,1]>(x, dw)
      b = Conv<group=6, pads=[1,1,1,1]>(x, multiplied)
      c = Conv<group=2, pads=[1,1,1,1]>(x, grouped)
    }"""
    return parsed(text, {"dw": (6, 1, 3, 3), "multiplied": (12, 1, 3, 3), "grouped": (4, 3, 3, 3)})


@case(regions=2)
def one_dimension() -> ModelProto:
    """Convolution and pooling of signals."""
    text = """g (float[N,3,L] x) => (float[N,4,M] y) {
      c = Conv<pads=[2,1], strides=[2], dilations=[2]>(x, w, b)
      r = LeakyRelu<alpha=0.1>(c)
      y = AveragePool<kernel_shape=[3], strides=[2], pads=[1,0], ceil_mode=1>(r)
    }"""
    return parsed(text, {"w": (4, 3, 3), "b": (4,)})


@case(regions=0)
def three_dimensions() -> ModelProto:
    """Volumes, which are left alone."""
    text = "g (float[N,3,5,6,7] x) => (float[N,4,3,4,5] y) { c = Conv(x, w)  y = Relu(c) }"
    return parsed(text, {"w": (4, 3, 3, 3, 3)})


@case(regions=5)
def pools() -> ModelProto:
    """ceil_mode, count_include_pad, dilation and SAME in poolings; one over the whole image."""
    text = """g (float[N,5,9,10] x) => (float[N,5,A,B] a, float[N,5,C,D] b, float[N,5,E,F] c, float[N,5,G,H] d, float[N,5,1,1] e) {
      a = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)
      b = AveragePool<kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1], count_include_pad=1>(x)
      c = MaxPool<kernel_shape=[2,2], dilations=[2,3], pads=[1,1,0,1]>(x)
      d = AveragePool<kernel_shape=[4,3], strides=[3,2], auto_pad="SAME_LOWER">(x)
      e = GlobalAveragePool(x)
    }"""
    return parsed(text)


@case(regions=0)
def pool_indices() -> ModelProto:
    """A pooling whose indices are used."""
    return parsed("g (float[N,5,8,8] x) => (float[N,5,4,4] y, int64[N,5,4,4] i) { y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }")


@case()
def residual_net() -> ModelProto:
    """Stem, residual block, squeeze-and-excite gate, dense block by Concat, head: what a network is made of."""
    text = """g (float[N,3,H,W] x) => (float[N,10] y) {
      s = Conv<strides=[2,2], pads=[1,1,1,1]>(x, stem, b8)
      s2 = BatchNormalization(s, gamma, beta, mean, variance)
      s3 = Relu(s2)
      p = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(s3)
      a = Conv<pads=[1,1,1,1]>(p, w88, b8)
      a2 = HardSwish(a)
      c = Conv(a2, w11, b8)
      r = Add(c, p)
      r2 = Relu(r)
      g = GlobalAveragePool(r2)
      g2 = Conv(g, squeeze, b4)
      g3 = Relu(g2)
      g4 = Conv(g3, excite, b8)
      g5 = HardSigmoid<alpha=0.2, beta=0.5>(g4)
      e = Mul(r2, g5)
      d = Conv<pads=[1,1,1,1]>(e, w48, b4)
      d2 = Sigmoid(d)
      d3 = Mul(d, d2)
      k = Concat<axis=1>(e, d3)
      h = Conv<strides=[2,2], pads=[1,1,1,1], group=12>(k, dw)
      h2 = Clip(h, zero, six)
      pool = GlobalAveragePool(h2)
      f = Flatten(pool)
      y = Gemm<transB=1>(f, fc, fb)
    }"""
    shapes = {
        "stem": (8, 3, 3, 3), "w88": (8, 8, 3, 3), "w11": (8, 8, 1, 1), "squeeze": (4, 8, 1, 1), "excite": (8, 4, 1, 1), "w48": (4, 8, 3, 3),
        "dw": (12, 1, 3, 3),
        "b8": (8,), "b4": (4,), "fc": (10, 12), "fb": (10,),
    }  # fmt: skip
    batchnorm = {name: np.abs(weights(name, 8)) + 0.5 for name in ("gamma", "beta", "mean", "variance")}
    return parsed(text, {**shapes, **batchnorm, "zero": np.array(0, np.float32), "six": np.array(6, np.float32)})
