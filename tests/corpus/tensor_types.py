"""Types beside the float tensor: optional, sequence, map, string, sparse, small floats and integers, nothing at all."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .case import Feeds, case, parsed, weights
from .headers import CONV_WEIGHTS, conv_relu


def _image(n: int = 2) -> np.ndarray:
    return weights("image", n, 3, 8, 8)


@case(regions=1, feeds=lambda: {"x": _image(), "maybe": None})
def optional() -> ModelProto:
    """An optional input that is not given."""
    text = """g (float[N,3,8,8] x, optional(float[2]) maybe) => (float[N,4,8,8] y, bool h) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      h = OptionalHasElement(maybe)
    }"""
    return parsed(text, CONV_WEIGHTS)


@case(regions=1, feeds=lambda: {"x": _image(), "parts": [_image(1), _image(1)]})
def sequence() -> ModelProto:
    """Sequences as input, as output and between."""
    text = """g (float[N,3,8,8] x, seq(float[1,3,8,8]) parts) => (float[N,4,8,8] y, seq(float[M,3,8,8]) s, int64 n) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      s = SequenceInsert(parts, x)
      n = SequenceLength(s)
    }"""
    return parsed(text, CONV_WEIGHTS)


@case(regions=1, feeds=lambda: {"x": _image(), "m": {"a": 1.0, "c": 2.0}})
def map_type() -> ModelProto:
    """A map as input, of the classical-learning domain."""
    model = conv_relu()
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.input.append(helper.make_value_info("m", kind))
    model.graph.node.append(helper.make_node("DictVectorizer", ["m"], ["v"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]))
    model.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [1, 3]))
    return model


@case(regions=1, feeds=lambda: {"x": _image(), "s": np.array(["b", "zz"], dtype=object)})
def strings() -> ModelProto:
    """String tensors as input, initializer, constant and output."""
    text = """g (float[N,3,8,8] x, string[2] s) => (float[N,4,8,8] y, string[3] t, bool[2] e) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      k = Constant<value_strings=["k"]>()
      t = Concat<axis=0>(s, k)
      e = Equal(s, words)
    }"""
    model = parsed(text, CONV_WEIGHTS, opset=19, ir=9)
    model.graph.initializer.append(numpy_helper.from_array(np.array(["b", "\u00e9"], dtype=object), "words"))
    return model


@case(regions=1, valid=False)
def sparse_initializer() -> ModelProto:
    """A sparse initializer that a MatMul reads (shape inference takes it for a scalar), and a sparse constant."""
    text = """g (float[N,3,8,8] x, float[2,3] m) => (float[N,4,8,8] y, float[2,4] p, float[3] q) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      p = MatMul(m, s)
      d = Constant<sparse_value = S>()
      q = Neg(d)
    }"""
    model = parsed(text.replace("<sparse_value = S>", ""), CONV_WEIGHTS)
    values, indices = numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "s"), numpy_helper.from_array(np.array([1, 10], np.int64), "s_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    inner, places = numpy_helper.from_array(np.array([3.0], np.float32), "v"), numpy_helper.from_array(np.array([2], np.int64), "i")
    next(n for n in model.graph.node if n.op_type == "Constant").attribute.append(
        helper.make_attribute("sparse_value", helper.make_sparse_tensor(inner, places, [3]))
    )
    return model


@case(regions=1)
def no_elements() -> ModelProto:
    """Tensors without elements, in the graph and as weights, raw and typed."""
    text = """g (float[N,3,8,8] x, float[0,3] e) => (float[N,4,8,8] y, float[K,3] j, int64[0] n) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      j = Concat<axis=0>(e, rows, none)
      n = Identity(empty)
    }"""
    constants = {**CONV_WEIGHTS, "rows": (2, 3), "none": np.zeros((0, 3), np.float32)}
    model = parsed(text, constants)
    model.graph.initializer.append(helper.make_tensor("empty", TensorProto.INT64, [0], []))
    return model


@case(regions=2)
def no_batch() -> ModelProto:
    """A batch that is declared empty beside one that is open."""
    text = """g (float[0,3,8,8] x, float[N,3,8,8] z) => (float[0,4,8,8] y, float[N,4,8,8] v) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      d = Conv<pads=[1,1,1,1]>(z, w, b)
      v = Relu(d)
    }"""
    return parsed(text, CONV_WEIGHTS)


@case(regions=0)
def overridable() -> ModelProto:
    """Initializers that are inputs too (IR 4 and later): a caller may override them."""
    model = conv_relu()
    model.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in model.graph.initializer)
    return model


@case(regions=1)
def packed_types() -> ModelProto:
    """Weights of types that numpy has no name for: bfloat16, float8, 4-bit integers; floats as typed data."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y, float[3] a, float[3] f, float[3] i) {
      c = Conv<pads=[1,1,1,1]>(x, w, typed)
      y = Relu(c)
      a = Cast<to=1>(half)
      f = Cast<to=1>(eight)
      i = Cast<to=1>(four)
    }"""
    model = parsed(text, {"w": (4, 3, 3, 3)}, ir=10, opset=21)
    model.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [4], [0.5, 1.5, -2.0, 0.0]))
    values = np.array([1.0, -2.0, 3.0], np.float32)
    for name, kind in (("half", ml_dtypes.bfloat16), ("eight", ml_dtypes.float8_e4m3fn), ("four", ml_dtypes.int4)):
        model.graph.initializer.append(numpy_helper.from_array(values.astype(kind), name))
    return model


@case(regions=1)
def scalars() -> ModelProto:
    """Inputs, weights and outputs of rank 0."""
    text = """g (float[N,3,8,8] x, float s) => (float[N,4,8,8] y, float t) {
      c = Conv<pads=[1,1,1,1]>(x, w, b)
      y = Relu(c)
      t = Mul(s, k)
    }"""
    return parsed(text, {**CONV_WEIGHTS, "k": np.array(2.5, np.float32)})


def feeds_of_optional() -> Feeds:
    """The optional input as given."""
    return {"x": _image(), "maybe": np.ones(2, np.float32)}
