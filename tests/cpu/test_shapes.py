"""Shape inference against the shapes that ONNX Runtime computes, rule by rule and on whole graphs."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from dynamic_models import arithmetic, cnn, control, fpn, transformer, with_constants
from shape_oracle import check
from tilewright.optimizer.graph import shapes as shapes_module
from tilewright.optimizer.graph.shape_rules import RULES
from tilewright.optimizer.graph.shape_rules.registry import rule
from tilewright.optimizer.graph.shapes import Shapes, infer
from tilewright.optimizer.graph.view import Tensor, View

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def inferred(model: ModelProto) -> tuple[Shapes, dict[str, Tensor]]:
    """Shapes of a model, and its tensors by name, those of sub-graphs included."""
    view = View(model)
    shapes = infer(view)
    assert shapes.problems == ()
    tensors = {t.name: t for t in view.graph.inputs}
    tensors |= {t.name: t for n in view.nodes() for t in [*n.inputs, *n.outputs]}
    return shapes, tensors


def text_of(model: ModelProto, name: str) -> str:
    shapes, tensors = inferred(model)
    shape = shapes.shape(tensors[name])
    return "?" if shape is None else "[" + ", ".join(map(str, shape)) + "]"


def graph(body: str, inputs: str = "float[N,C,H,W] x", opset: int = 17, arrays: dict[str, np.ndarray] | None = None) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (y) {{ {body} }}')
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in (arrays or {}).items())
    return model


INT = np.int64
W3 = {"w": floats(8, 4, 3, 3)}
RULE_CASES = [
    # body, opset, constants, shape of y
    ("y = Conv<strides=[2,2],pads=[1,1,1,1]>(x,w)", 17, W3, "[N, 8, floor((H + 1)/2), floor((W + 1)/2)]"),
    ("y = Conv<dilations=[2,1],pads=[0,1,2,0]>(x,w)", 17, W3, "[N, 8, H - 2, W - 1]"),
    ('y = Conv<auto_pad="SAME_LOWER",strides=[3,1]>(x,w)', 17, W3, "[N, 8, floor((H + 2)/3), W]"),
    ('y = Conv<auto_pad="VALID",strides=[1,2]>(x,w)', 17, W3, "[N, 8, H - 2, floor((W + 1)/2) - 1]"),
    ("y = ConvTranspose<strides=[2,2],pads=[1,1,1,1],output_padding=[1,0],group=2>(x,w)", 17, {"w": floats(4, 3, 3, 3)}, "[N, 6, 2*H, 2*W - 1]"),
    ("y = ConvTranspose<output_shape=[20,30],strides=[2,2]>(x,w)", 17, {"w": floats(4, 3, 3, 3)}, "[N, 3, 20, 30]"),
    ("y = MaxPool<kernel_shape=[3,2],strides=[2,2],ceil_mode=1>(x)", 17, {}, "[N, C, floor(H/2), floor((W + 1)/2)]"),
    ("y = AveragePool<kernel_shape=[2,2],strides=[2,3],ceil_mode=1,pads=[0,0,1,1]>(x)", 17, {}, "[N, C, floor((H + 1)/2), floor((W + 2)/3)]"),
    ("y = GlobalAveragePool(x)", 17, {}, "[N, C, 1, 1]"),
    ("y = DepthToSpace<blocksize=2>(x)", 17, {}, "[N, floor(C/4), 2*H, 2*W]"),
    ("y = Flatten<axis=-2>(x)", 17, {}, "[C*N, H*W]"),
    ("y = Transpose(x)", 17, {}, "[W, H, C, N]"),
    ("y = Reshape(x,s)", 17, {"s": np.array([0, -1, 4], INT)}, "[N, floor(C*H*W/4), 4]"),
    ("y = Reshape<allowzero=1>(x,s)", 17, {"s": np.array([0, 4], INT)}, "[0, 4]"),
    ("y = Squeeze<axes=[0]>(x)", 11, {}, "[C, H, W]"),
    ("y = Squeeze(x)", 17, {}, "?"),
    ("y = Unsqueeze<axes=[0,5]>(x)", 11, {}, "[1, N, C, H, W, 1]"),
    ("y = Unsqueeze(x,s)", 13, {"s": np.array([-1], INT)}, "[N, C, H, W, 1]"),
    ("y = Slice<starts=[1,-3],ends=[9223372036854775807,-1],axes=[2,3]>(x)", 9, {}, "[N, C, max(H - 1, 0), max(W - max(W - 3, 0) - 1, 0)]"),
    ("a, y = Split<axis=2>(x)", 11, {}, "[N, C, floor(H/2), W]"),
    ("a, y = Split<axis=2,num_outputs=2>(x)", 18, {}, "[N, C, H - floor((H + 1)/2), W]"),
    ("y = Upsample<scales=[1.0,1.0,2.0,1.5]>(x)", 7, {}, "[N, C, 2*H, W + floor(W/2)]"),
    ("y = Upsample(x,s)", 9, {"s": np.array([1, 1, 2, 2], np.float32)}, "[N, C, 2*H, 2*W]"),
    ("y = Resize(x,s)", 10, {"s": np.array([1, 1, 0.5, 2], np.float32)}, "[N, C, floor(H/2), 2*W]"),
    ("y = Resize<axes=[2,3]>(x,,,s)", 18, {"s": np.array([7, 9], INT)}, "[N, C, 7, 9]"),
    ("y = Pad<pads=[0,0,1,2,0,0,3,-4]>(x)", 9, {}, "[N, C, H + 4, W - 2]"),
    ("y = ReduceMean<axes=[-1,1],keepdims=0>(x)", 13, {}, "[N, H]"),
    ("y = ReduceMean(x,s)", 18, {"s": np.array([2, 3], INT)}, "[N, C, 1, 1]"),
    ("y = ArgMax<axis=1>(x)", 13, {}, "[N, 1, H, W]"),
    ("y, i = TopK<axis=3,k=5>(x)", 9, {}, "[N, C, H, 5]"),
    ("y = Gather<axis=1>(x,s)", 13, {"s": np.array([[0, 1, 2]], INT)}, "[N, 1, 3, H, W]"),
    ('y = Einsum<equation="nchw,ncvw->nhv">(x,x)', 13, {}, "[N, H, H]"),
    ("y = MatMul(x,w)", 13, {"w": floats(2, 1, 3, 5)}, "[2, C, H, 5]"),
    (
        "s = Shape(x) m = Slice(s,i,j) n = Concat<axis=0>(m,k) y = Reshape(x,n)",
        13,
        {"i": np.array([2], INT), "j": np.array([3], INT), "k": np.array([-1], INT)},
        "[H, C*N*W]",
    ),
    ("s = Shape(w) m = Concat<axis=0>(q,s) y = Reshape(w,m)", 13, {"w": floats(2, 3), "q": np.array([1], INT)}, "[1, 2, 3]"),
    ("s = Shape(x) y = Expand(x,s)", 13, {}, "[N, C, H, W]"),
    ("y = Tile(x,s)", 13, {"s": np.array([2, 1, 3, 1], INT)}, "[2*N, C, 3*H, W]"),
    ("y = Add(x,b)", 13, {"b": floats(3, 1, 1)}, "[N, 3, H, W]"),
    ("y = Where(c,x,b)", 13, {"c": np.array([True]), "b": floats(1)}, "[N, C, H, W]"),
]


@pytest.mark.parametrize(("body", "opset", "arrays", "expected"), RULE_CASES, ids=[c[0] for c in RULE_CASES])
def test_rule(body: str, opset: int, arrays: dict[str, np.ndarray], expected: str) -> None:
    assert text_of(graph(body, opset=opset, arrays=arrays), "y") == expected


@pytest.mark.parametrize("behind", [None, 0, 1, 2, 3, 5, -2])
def test_slices_as_numpy_makes_them(behind: int | None) -> None:
    """Every start, end and step near the borders of an open dim; ends that are the dim less (or more than) a number."""
    far = 2**62
    ends = [0, 1, 3, 7, far, -1, -2, -4, -far] if behind is None else [0]
    known = 0
    for start in (0, 1, 2, 5, -1, -3, -far, far):
        for end in ends:
            for step in (1, 2, 3, -1, -2):
                arrays = {n: np.array([v], INT) for n, v in (("s", start), ("e", end), ("a", 1), ("t", step), ("k", behind or 0), ("one", 1), ("two", 2))}
                body = "y = Slice(x, s, e, a, t)" if behind is None else "h = Shape(x) d = Slice(h, one, two) f = Sub(d, k) y = Slice(x, s, f, a, t)"
                shapes, tensors = inferred(graph(body, "float[N,D] x", 13, arrays))
                dim = shapes.shape(tensors["y"])[1]
                if str(dim).startswith("_u"):
                    continue
                known += 1
                for size in range(8):
                    stop = end if behind is None else size - behind
                    assert shapes.evaluate(dim, {"D": size}) == len(range(size)[start:stop:step]), (start, stop, step, size, dim)
    assert known >= (200 if behind is None else 24 if behind <= 2 else 0)


DYNAMIC = [
    (cnn, [{"x": floats(n, 3, h, w)} for n, h, w in ((1, 64, 96), (2, 75, 81), (3, 66, 127), (0, 64, 64))], 17, 0),
    (transformer, [{"ids": RNG.integers(0, 50, (b, s)), "mask": RNG.integers(0, 2, (b, s))} for b, s in ((1, 7), (3, 16), (2, 2), (4, 1))], 76, 1),
    (fpn, [{"x": floats(n, 3, h, w)} for n, h, w in ((1, 64, 96), (2, 75, 81), (3, 66, 127))], 42, 0),
    (arithmetic, [{"x": floats(*s)} for s in ((1, 2, 14, 6), (2, 3, 15, 8), (3, 1, 3, 4), (2, 2, 6, 3))], 51, 0),
    (control, [{"x": floats(n, 5), "flag": np.array(n % 2 == 0), "count": np.array(k)} for n, k in ((1, 3), (2, 2), (4, 1))], 15, 3),
]


@pytest.mark.parametrize(("build", "feeds", "tensors", "open_dims"), DYNAMIC, ids=[d[0].__name__ for d in DYNAMIC])
def test_every_tensor_of_a_dynamic_graph(build: object, feeds: list[dict[str, np.ndarray]], tensors: int, open_dims: int) -> None:
    model = build()
    for feed in feeds:
        tally = check(model, feed)
        assert tally.wrong == []
        assert tally.tensors == tally.known_rank == tensors
        assert tally.dims - tally.known_dims == open_dims


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 16, 18, 21])
def test_old_and_new_opsets(opset: int) -> None:
    """The same graph spelt for each opset: axes and pads move from attributes to inputs, Upsample becomes Resize."""
    consts = {"w": floats(6, 3, 3, 3), "shape": np.array([0, 6, -1], INT), "slope": floats(6, 1, 1)}
    pads, ends = np.array([0, 0, 1, 0, 0, 0, 2, 1], INT), np.array([2**62, -1], INT)
    lines = ["c = Conv<strides=[2,2]>(x, w)", "p = PRelu(c, slope)", "r = Reshape(p, shape)", "sh = Shape(p)"]
    lines.append("b = BatchNormalization(p, s6, s6, s6, v6)")
    consts |= {"s6": floats(6), "v6": np.ones(6, np.float32), "starts": np.array([1, 0], INT), "ends": ends, "axes": np.array([2, 3], INT), "pads": pads}
    consts["roi"] = np.zeros(0, np.float32)
    consts |= {"scales": np.array([1, 1, 2, 1.5], np.float32), "a1": np.array([1], INT), "k": np.array([2], INT), "sizes": np.array([2, 4], INT)}
    lines.append("sl = Slice<starts=[1,0],ends=[4611686018427387904,-1],axes=[2,3]>(b)" if opset < 10 else "sl = Slice(b, starts, ends, axes)")
    lines.append("pd = Pad<pads=[0,0,1,0,0,0,2,1]>(sl)" if opset < 11 else "pd = Pad(sl, pads)")
    scaled = {7: "Upsample<scales=[1.0,1.0,2.0,1.5]>(pd)", 8: "Upsample<scales=[1.0,1.0,2.0,1.5]>(pd)", 9: "Upsample(pd, scales)", 10: "Resize(pd, scales)"}
    lines.append("u = " + scaled.get(opset, "Resize(pd, roi, scales)"))
    lines += ["us = Unsqueeze<axes=[1]>(u)", "sq = Squeeze<axes=[1]>(us)"] if opset < 13 else ["us = Unsqueeze(u, a1)", "sq = Squeeze(us, a1)"]
    lines.append("s1, s2 = Split<axis=1,split=[2,4]>(sq)" if opset < 13 else "s1, s2 = Split<axis=1>(sq, sizes)")
    lines.append("t, i = TopK<axis=2,k=2>(s2)" if opset < 10 else "t, i = TopK<axis=2>(s2, k)")
    lines.append("m = ReduceMean<axes=[1]>(t)" if opset < 18 else "m = ReduceMean(t, a1)")
    lines.append("y = ReduceSum<axes=[1]>(m)" if opset < 13 else "y = ReduceSum(m, a1)")
    model = graph("\n".join(lines), "float[N,3,H,W] x", opset, consts)
    used = {n for node in model.graph.node for n in node.input}
    for index in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[index].name not in used:
            del model.graph.initializer[index]
    for feed in ({"x": floats(2, 3, 21, 18)}, {"x": floats(1, 3, 32, 33)}):
        tally = check(model, feed)
        assert tally.wrong == []
        assert tally.known_dims == tally.dims


def test_a_wrong_declared_output_shape_is_not_believed() -> None:
    """An OCR model of a popular package declares its rank-3 output as [1, seqlen]."""
    text = """<ir_version: 6, opset_import: ["": 12]>
    ocr (float[1,1,64,image_width] input1) => (float[1,seqlen] out) <float[1,seqlen] declared, int64[3] s = {0, 1, 10}> {
      c = Conv<kernel_shape=[64,4], strides=[1,4]>(input1, w)
      t = Transpose<perm=[3,0,1,2]>(c)
      declared = Reshape(t, s)
      out = Identity(declared)
    }"""
    model = with_constants(text, {"w": floats(10, 1, 64, 4)})
    shapes, tensors = inferred(model)
    assert [str(d) for d in shapes.shape(tensors["out"])] == ["floor(image_width/4)", "1", "10"]
    tally = check(model, {"input1": floats(1, 1, 64, 64)})
    assert tally.wrong == [] and tally.known_rank == tally.tensors


def test_bounds_divisibility_and_equality() -> None:
    model = graph("a = Conv<strides=[2,2],pads=[1,1,1,1]>(x,w) b = Upsample(a,s) c = MaxPool<kernel_shape=[1,1],strides=[2,2]>(x) y = Relu(b)",
                  "float[N,4,H,W] x", 9, W3 | {"s": np.array([1, 1, 2, 2], np.float32)})  # fmt: skip
    view = View(model)
    shapes = infer(view, {"H": (32, 512), "N": (1, 64)})
    tensors = {t.name: t for n in view.nodes() for t in n.outputs}
    n, channels, height, width = shapes.shape(tensors["b"])
    assert shapes.bounds(n) == (1, 64)
    assert shapes.bounds(height) == (32, 512)
    assert shapes.bounds(width) == (0, None)
    assert shapes.divisible(height, 2) and not shapes.divisible(height, 4) and shapes.divisible(channels, 8)
    assert shapes.equal(shapes.shape(tensors["a"])[2], shapes.shape(tensors["c"])[2])
    assert not shapes.equal(height, shapes.shape(view.graph.inputs[0])[2])
    assert shapes.evaluate(height, {"H": 33}) == 34
    assert shapes.symbols == ("N", "H", "W")
    assert shapes.static(tensors["b"]) is None and shapes.rank(tensors["b"]) == 4


def test_shapes_do_not_depend_on_ranges() -> None:
    view = View(graph("y = Slice<starts=[-1],ends=[9223372036854775807],axes=[2]>(x)", opset=9))
    assert str(infer(view)) == str(infer(view, {"H": (1, 1), "N": (8, 8)}))


def test_inputs_of_every_kind() -> None:
    model = graph("y = Identity(a)", "float[a0,3,a2,W] a, float[b0,N] b, float[N] c")
    a, b = (model.graph.input[i].type.tensor_type.shape.dim for i in (0, 1))
    a[0].dim_value, a[2].dim_value, b[0].dim_param = -1, 0, "?"
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [2])
    optional = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2])))
    free, scalar = helper.make_tensor_value_info("free", TensorProto.INT64, None), helper.make_tensor_value_info("s", TensorProto.BOOL, [])
    model.graph.input.extend([sequence, optional, free, scalar])
    shapes, tensors = inferred(model)
    found = {name: (shapes.dtype(t), shapes.shape(t) if shapes.shape(t) is None else tuple(map(str, shapes.shape(t)))) for name, t in tensors.items()}
    assert found["a"] == (TensorProto.FLOAT, ("a_0", "3", "a_2", "W"))
    assert found["b"] == (TensorProto.FLOAT, ("b_0", "N"))
    assert found["q"] == found["o"] == (None, None)
    assert found["free"] == (TensorProto.INT64, None)
    assert found["s"] == (TensorProto.BOOL, ())
    assert shapes.symbols == ("a_0", "a_2", "W", "b_0", "N")


def test_an_overridable_initializer_is_no_constant() -> None:
    model = graph("y = Reshape(x, s)", "float[N,6] x, int64[2] s", arrays={"s": np.array([3, -1], INT)})
    assert text_of(model, "y") == "[_u0, _u1]"
    view = View(model, freeze_initializers=True)
    assert [str(d) for d in infer(view).shape(view.graph.outputs[0])] == ["3", "2*N"]


def test_nodes_in_any_order() -> None:
    assert text_of(graph("y = Flatten(a) a = MaxPool<kernel_shape=[2,2]>(x)"), "y") == "[N, C*H*W - C*H - C*W + C]"


def test_unknown_ops_give_unknown_outputs() -> None:
    body = "{ a = acme.Magic(x) b = DCNv2_TRT(x) c = Relu(a) y = Add(b, x) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "acme": 1]> g (float[N] x) => (y) {body}')
    shapes, tensors = inferred(model)
    for name in "abcy":
        assert shapes.shape(tensors[name]) is None and (shapes.dtype(tensors[name]) is None) == (name != "y")


def test_an_invalid_node_is_reported_and_does_not_stop_the_walk() -> None:
    view = View(graph("a = Transpose<perm=[0,1,2,9]>(x) y = Relu(x)"))
    shapes = infer(view)
    assert shapes.shape(view.graph.outputs[0]) is not None
    assert [p.nodes for p in shapes.problems] == [("Transpose(a)",)]


def test_local_functions_are_followed() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[N,C] x) => (y) { a = my.Down<k = 3>(x) y = my.Down(a) }
    <domain: "my", opset_import: ["": 13]> Down <k: int = 2> (v) => (w) {
      s = Shape(v)  one = Constant<value_ints = [1]>()  n = Gather(s, one)  r = Constant<value_int: int = @k>()  m = Mul(n, r)
      minus = Constant<value_ints = [-1]>()  t = Concat<axis = 0>(minus, m)  e = Concat<axis = 0>(v, v, v, v, v, v)  w = Reshape(e, t)
    }"""
    assert text_of(parser.parse_model(text), "y") == "[6*N, 6*C]"


def test_facts_inside_sub_graphs_and_after_loops() -> None:
    shapes, tensors = inferred(control())
    assert [str(d) for d in shapes.shape(tensors["ta"])] == ["2*N", "C"]
    assert [str(d) for d in shapes.shape(tensors["same"])] == ["N", "C"]
    assert [str(d) for d in shapes.shape(tensors["fixed"])] == ["N", "2*C"]
    assert [str(d) for d in shapes.shape(tensors["k2"])] == ["N", "C"]
    assert [str(d) for d in shapes.shape(tensors["kept"])] == ["N", "C"]
    grown, inside = shapes.shape(tensors["grown"]), shapes.shape(tensors["g2"])
    assert str(grown[1]) == "C" and not shapes.equal(grown[0], inside[0])
    assert [str(d) for d in shapes.shape(tensors["outs"])] == ["C + 5", "N"]


def test_stable_text_form() -> None:
    shapes, _ = inferred(graph("s = Shape(x) y = Relu(x)"))
    assert str(shapes) == "x: float[N, C, H, W]\ns: int64[4] = [N, C, H, W]\ny: float[N, C, H, W]"


def test_rules_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="op ::Conv has two shape rules"):
        rule("Conv")(RULES["", "Conv"])


def test_constants_added_later_are_known() -> None:
    view = View(graph("y = Relu(x)"))
    shapes = infer(view)
    constant = view.constant("k", np.array([[1, 2]], np.int32))
    assert shapes.static(constant) == (1, 2) and shapes.dtype(constant) == TensorProto.INT32 and list(shapes.value(constant).flat) == [1, 2]
    assert shapes_module.infer(view).shape(view.variable("loose")) is None


def test_speed_on_a_static_and_a_dynamic_graph() -> None:
    """1000 static nodes in half a second, 300 dynamic ones in two (limits doubled for a busy machine)."""
    block = "c{i} = Conv<pads=[1,1,1,1]>({p},w) b{i} = Add(c{i},bias) r{i} = Relu(b{i}) s{i} = Add(r{i},{p})"
    block += " q{i} = Concat<axis=1>(s{i},r{i}) t{i}, u{i} = Split<axis=1>(q{i})"
    lines, previous = [], "x"
    for i in range(167):
        lines.append(block.format(i=i, p=previous))
        previous = f"t{i}"
    constants = {"w": floats(4, 4, 3, 3), "bias": floats(1, 4, 1, 1)}
    static = graph("\n".join([*lines, f"y = Relu({previous})"]), "float[1,4,32,32] x", 11, constants)
    lines, previous = [], "x"
    for i in range(42):
        lines.append(block.format(i=i, p=previous) + f" d{i} = MaxPool<kernel_shape=[3,3],strides=[{1 + (i % 8 == 0)},1],pads=[1,1,1,1],ceil_mode=1>(t{i})")
        previous = f"d{i}"
    dynamic = graph("\n".join([*lines, f"y = Relu({previous})"]), "float[N,4,H,W] x", 11, constants)
    for model, nodes, limit in ((static, 1000, 0.5), (dynamic, 290, 2.0)):
        view = View(model)
        assert len(view.graph.nodes) >= nodes
        start = time.perf_counter()
        shapes = infer(view)
        elapsed = time.perf_counter() - start
        assert shapes.rank(view.graph.outputs[0]) == 4
        assert elapsed < 2 * limit, f"{len(view.graph.nodes)} nodes took {elapsed:.2f} s (onnx {onnx.__version__})"
