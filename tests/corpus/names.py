"""Names that are missing, doubled, strange, or the ones that a rewrite would choose."""

from __future__ import annotations

from onnx import ModelProto

from .case import case, parsed
from .headers import CONV_WEIGHTS

TWO_CONVS = {**CONV_WEIGHTS, "w2": (4, 4, 3, 3)}


@case(regions=2)
def no_names() -> ModelProto:
    """Nodes without names, weights in Constant nodes, around a Resize whose scales are floats."""
    text = """g (float[N,3,8,8] x) => (float[N,4,16,16] y) {
      w = Constant<value = float[4,3,1,1] {1,2,3,4,5,6,7,8,9,1,2,3}>()
      b = Constant<value_floats=[0.5,1.0,1.5,2.0]>()
      scales = Constant<value_floats=[1.0,1.0,2.0,2.0]>()
      c = Conv(x, w, b)
      r = Resize<mode="nearest">(c, "", scales)
      y = Conv<pads=[1,1,1,1]>(r, w2, b)
    }"""
    return parsed(text, {"w2": (4, 4, 3, 3)})


@case(regions=2, runs=False)
def doubled_names() -> ModelProto:
    """All nodes of one name, which the checker takes and ONNX Runtime does not."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
      [n] c = Conv<pads=[1,1,1,1]>(x, w, b)
      [n] d = Sin(c)
      [n] y = Conv<pads=[1,1,1,1]>(d, w2, b)
    }"""
    return parsed(text, TWO_CONVS)


@case(regions=2)
def taken_names() -> ModelProto:
    """Tensors and nodes that are called what a rewrite would call its own."""
    text = """g (float[N,3,8,8] x) => (float[N,4,8,8] y, float[N,4,8,8] c_nhwc, float[N,4,8,8] FusedConvRegion_conv) {
      [conv] c = Conv<pads=[1,1,1,1]>(x, w, b)
      [FusedConvRegion_conv] FusedConvRegion_conv = Sin(c)
      [FusedConvRegion_portable_0] c_nhwc = Cos(w_packed)
      [second] y = Conv<pads=[1,1,1,1]>(c, w2, b_packed)
    }"""
    return parsed(text, {"w": (4, 3, 3, 3), "w2": (4, 4, 3, 3), "b": (4,), "w_packed": (1, 4, 8, 8), "b_packed": (4,)})


@case(regions=2)
def strange_names() -> ModelProto:
    """Names with slashes, colons, blanks, quotes and other alphabets."""
    model = parsed(
        """g (float[N,3,8,8] x) => (float[N,4,8,8] y) {
          [a] c = Conv<pads=[1,1,1,1]>(x, w, b)
          [e] d = Sin(c)
          [f] y = Conv<pads=[1,1,1,1]>(d, w2, b)
        }""",
        TWO_CONVS,
    )
    new = {
        "x": "input:0",
        "y": "\u51fa\u529b/ y ",
        "c": "/layer.1/conv\n0",
        "d": "d'\"\\",
        "w": "w [1x2]",
        "b": "b,<b>",
        "w2": "%w2",
        "a": "/a b:0",
        "e": "",
        "f": "\u00e9",
    }
    graph = model.graph
    for item in (*graph.input, *graph.output, *graph.initializer, *graph.node):
        item.name = new[item.name]
    for node in graph.node:
        node.input[:] = [new[n] for n in node.input]
        node.output[:] = [new[n] for n in node.output]
    return model


@case(regions=2, valid=False)
def any_order() -> ModelProto:
    """Nodes in no topological order, which ONNX Runtime takes and the checker does not."""
    model = strange_names()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    return model
