"""If, Loop and Scan whose bodies hold convolutions and read tensors and weights of the graphs around them."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from .case import Feeds, case, parsed, weights

WEIGHTS = {"w": (4, 3, 3, 3), "v": (4, 4, 3, 3), "b": (4,)}


def _image() -> np.ndarray:
    return weights("image", 2, 3, 8, 8)


def if_feeds(flag: bool) -> Feeds:
    """Inputs of :func:`conv_in_if` for either branch."""
    return {"x": _image(), "flag": np.array(flag)}


@case(regions=4, feeds=lambda: if_feeds(True))
def conv_in_if() -> ModelProto:
    """Convolutions before, in both branches, and behind an If; the branches use one name for different tensors."""
    text = """g (float[N,3,8,8] x, bool flag) => (float[N,4,8,8] y) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      r = Relu(c)
      s = If(flag) <
        then_branch = t () => (float[P,4,8,8] o) { k = Conv<pads=[1,1,1,1]>(r, v, b)  o = Relu(k) },
        else_branch = e () => (float[P,4,8,8] q) { k = Conv<pads=[2,2,2,2], dilations=[2,2]>(r, v, b)  q = Sigmoid(k) }
      >
      d = Conv<pads=[1,1,1,1]>(s, v, b)
      y = Relu(d)
    }"""
    return parsed(text, WEIGHTS)


@case(regions=1, feeds=lambda: {"x": weights("pixel", 1, 4, 1, 1), "flag": np.array(False)})
def outer_names() -> ModelProto:
    """Branches that hand an outer tensor out as it is, or squeezed along axes that an outer initializer holds."""
    text = """g (float[1,4,1,1] x, bool flag) => (float[?] y) {
      c = Conv(x, k, b)
      r = Relu(c)
      s = Squeeze(r, ends)
      y = If(flag) <
        then_branch = t () => (float[?] o) { o = Squeeze(r, ends) },
        else_branch = e () => (float[?] q) { q = Identity(s) }
      >
    }"""
    return parsed(text, {"k": (4, 4, 1, 1), "b": (4,), "ends": np.array([0, 2, 3], np.int64)})


@case(regions=2, feeds=lambda: {"x": weights("start", 2, 4, 8, 8), "n": np.array(3, np.int64)})
def conv_in_loop() -> ModelProto:
    """A convolution that a Loop runs n times, with a weight of the body's own and a bias of the outer graph; scan outputs."""
    text = """g (float[N,4,8,8] x, int64 n) => (float[N,4,8,8] y, float[M,N,4,8,8] all) {
      yes = Constant<value = bool {1}>()
      last, all = Loop(n, yes, x) <
        body = l (int64 i, bool c, float[?,4,8,8] state) => (bool c2, float[?,4,8,8] next, float[?,4,8,8] out)
        <float[1] half = {0.5}>
        {
          c2 = Identity(c)
          h = Mul(state, half)
          k = Conv<pads=[1,1,1,1]>(h, v, b)
          next = Relu(k)
          out = Identity(next)
        }
      >
      d = Conv<pads=[1,1,1,1]>(last, v, b)
      y = Tanh(d)
    }"""
    return parsed(text, {"v": (4, 4, 3, 3), "b": (4,)})


@case(regions=1, feeds=lambda: {"x": weights("frames", 5, 1, 3, 8, 8)})
def conv_in_scan() -> ModelProto:
    """A convolution over the frames of a Scan, added to a running state."""
    text = """g (float[T,1,3,8,8] x) => (float[1,4,8,8] sum, float[T,1,4,8,8] y) {
      sum, y = Scan<num_scan_inputs=1, body = s (float[1,4,8,8] state, float[1,3,8,8] frame) => (float[1,4,8,8] next, float[1,4,8,8] out) {
        k = Conv<pads=[1,1,1,1]>(frame, w, b)
        next = Add(k, state)
        out = Sin(next)
      }>(zero, x)
    }"""
    return parsed(text, {"w": (4, 3, 3, 3), "b": (4,), "zero": np.zeros((1, 4, 8, 8), np.float32)})


@case(regions=2, feeds=lambda: {"x": _image(), "flag": np.array(True), "deep": np.array(True)})
def nested_ifs() -> ModelProto:
    """An If in a branch of an If; the inner branches convolve with weights of the main graph."""
    text = """g (float[N,3,8,8] x, bool flag, bool deep) => (float[N,4,8,8] y) {
      y = If(flag) <
        then_branch = t () => (float[P,4,8,8] o) {
          n = Neg(x)
          o = If(deep) <
            then_branch = tt () => (float[P,4,8,8] i) { k = Conv<pads=[1,1,1,1]>(n, w, b)  i = Relu(k) },
            else_branch = te () => (float[P,4,8,8] j) { k = Conv<pads=[1,1,1,1]>(x, w, b)  j = HardSigmoid(k) }
          >
        },
        else_branch = e () => (float[P,4,8,8] q) { a = Concat<axis=1>(x, x)  q = Slice(a, from, to, one) }
      >
    }"""
    ends = {"from": np.array([0], np.int64), "to": np.array([4], np.int64), "one": np.array([1], np.int64)}
    return parsed(text, {"w": (4, 3, 3, 3), "b": (4,), **ends})
