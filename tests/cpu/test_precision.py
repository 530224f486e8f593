"""Conversion to float16: what changes, what stays, and that the result is a valid model with the same answers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper, parser

from dynamic_models import cnn, fpn, transformer
from shape_oracle import session
from tilewright.optimizer.emit.export import export_model
from tilewright.optimizer.graph.precision import HalfReport, correct_types, to_half
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View

RNG = np.random.default_rng(0)
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def floats(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def build(body: str, arrays: dict[str, np.ndarray], inputs: str = "float[N,4,H,W] x", opset: int = 17, outputs: str = "float[?,?,?,?] y") -> ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}')
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


def convert(model: ModelProto, **options: object) -> tuple[ModelProto, HalfReport]:
    """The converted model, checked as strictly as the onnx package can."""
    before = model.SerializeToString()
    view = View(model)
    report = to_half(view, infer(view), **options)
    result = export_model(view)
    correct_types(view, result)
    assert model.SerializeToString() == before
    onnx.checker.check_model(result, full_check=True)
    names = [n.name for n in result.graph.node if n.name]
    assert len(names) == len(set(names))
    assert str(infer(View(result)).problems) == "()"
    return result, report


def dtypes(model: ModelProto) -> dict[str, int]:
    view = View(model)
    shapes = infer(view)
    return {t.name: shapes.dtype(t) for n in view.nodes() for t in [*n.inputs, *n.outputs] if t.name}


def ops(model: ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node if n.op_type != "Constant"]


def reasons(report: HalfReport) -> dict[str, tuple[str, ...]]:
    return {k.reason: k.nodes for k in report.refused}


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return session(model, optimized=True).run(None, feeds)


def close(model: ModelProto, converted: ModelProto, feeds: dict[str, np.ndarray], bound: float = 4e-3) -> None:
    for a, b in zip(run(model, feeds), run(converted, feeds), strict=True):
        if a.dtype == np.float32:
            assert a.dtype == b.dtype and a.shape == b.shape
            assert np.linalg.norm(a - b) <= bound * max(1e-6, np.linalg.norm(a))


CONV = {"w": floats(4, 4, 3, 3, scale=0.2), "b": floats(4)}


def test_one_cast_in_one_cast_out() -> None:
    model = build("c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) m = MaxPool<kernel_shape=[2,2]>(r) y = Add(m, m)", CONV)
    result, report = convert(model)
    assert ops(result) == ["Cast", "Conv", "Relu", "MaxPool", "Add", "Cast"]
    assert report.casts == 2 and len(report.converted) == 4 and report.refused == ()
    assert [t.data_type for t in result.graph.initializer] == [HALF, HALF]
    assert [v.name for v in (*result.graph.input, *result.graph.output)] == ["x", "y"]
    close(model, result, {"x": floats(2, 4, 8, 9)})


def test_a_tensor_read_in_both_types_is_cast_once() -> None:
    body = "c = Conv<pads=[1,1,1,1]>(x, w) a = Exp(c) a2 = Exp(c) d = Conv<pads=[1,1,1,1]>(c, w) e = Conv<pads=[1,1,1,1]>(c, w) f = Add(a, a2) g = Add(d, e)"
    body += " y = Add(f, g)"
    result, report = convert(build(body, CONV | {"w": floats(4, 4, 3, 3, scale=0.1)}))
    assert report.casts == 4  # x, c for Exp, f, y
    assert ops(result).count("Cast") == 4
    assert reasons(report) == {"Exp is not run in float16": ("Exp(a)", "Exp(a2)")}
    assert dtypes(result)["f"] == FLOAT and dtypes(result)["g"] == HALF
    close(build(body, CONV), convert(build(body, CONV))[0], {"x": floats(1, 4, 6, 6)})


def test_a_weight_of_both_types_keeps_both() -> None:
    body = "c = Conv<pads=[1,1,1,1]>(x, w) e = Exp(w) s = ReduceSum(e) y = Mul(c, s)"
    result, _ = convert(build(body, {"w": floats(4, 4, 3, 3, scale=0.05)}))
    assert sorted((t.name, t.data_type) for t in result.graph.initializer) == [("w", FLOAT), ("w_fp16", HALF)]


def test_light_ops_without_a_convolution_stay() -> None:
    model = build("a = Relu(x) b = Add(a, x) y = Softmax(b)", {})
    result, report = convert(model)
    assert result.SerializeToString() == model.SerializeToString()
    assert report == HalfReport()


def test_what_only_feeds_float16_is_float16() -> None:
    """An embedding and its sum become float16 as a whole; the tables are stored once."""
    body = "e = Gather(table, ids) p = Gather(positions, ids) a = Add(e, p) n = LayerNormalization(a, g, g) y = MatMul(n, m)"
    arrays = {"table": floats(9, 8), "positions": floats(9, 8), "g": floats(8), "m": floats(8, 8)}
    model = build(body, arrays, "int64[B,S] ids", outputs="float[?,?,?] y")
    result, report = convert(model)
    assert report.casts == 1 and {t.data_type for t in result.graph.initializer} == {HALF}
    close(model, result, {"ids": np.array([[1, 2, 8]])})


@pytest.mark.parametrize(
    ("body", "constant", "reason"),
    [
        ("c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, k)", 1e5, "a constant exceeds the float16 range"),
        ("c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, k)", 1e-9, "a constant vanishes in float16"),
        ("c = Conv<pads=[1,1,1,1]>(x, w) y = Mul(c, k)", -3.4e38, "a constant exceeds the float16 range"),
        ("m = Mul(w, k) y = Conv<pads=[1,1,1,1]>(x, m)", 7e4, "a constant exceeds the float16 range"),
    ],
)
def test_constants_out_of_range_keep_the_node(body: str, constant: float, reason: str) -> None:
    model = build(body, CONV | {"k": np.full((1, 4, 1, 1), constant, np.float32)})
    result, report = convert(model)
    assert reason in reasons(report)
    kept = next(n for n in result.graph.node if n.op_type in ("Add", "Mul"))
    assert {dtypes(result)[t] for t in (*kept.input, *kept.output)} == {FLOAT}


def test_zero_and_infinite_constants_are_in_range() -> None:
    values = np.array([0, np.inf, -np.inf, 1], np.float32).reshape(1, 4, 1, 1)
    _, report = convert(build("c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, k)", CONV | {"k": values}))
    assert report.refused == ()


def test_a_mask_of_huge_negatives_reaches_softmax_in_float32() -> None:
    body = "q = MatMul(x, w) s = Add(q, mask) p = Softmax<axis=-1>(s) y = MatMul(p, w)"
    mask = np.where(np.tri(8) > 0, 0, np.finfo(np.float32).min).astype(np.float32)
    mask[3] = np.finfo(np.float32).min  # a row that is masked as a whole is NaN once it is -inf
    model = build(body, {"w": floats(8, 8), "mask": mask}, "float[B,8,8] x", outputs="float[?,?,?] y")
    result, report = convert(model)
    kinds = dtypes(result)
    assert kinds["s"] == kinds["p"] == FLOAT and kinds["q"] == HALF
    assert reasons(report) == {"a constant exceeds the float16 range": ("Add(s)",), "an operand may exceed the float16 range": ("Softmax(p)",)}
    close(model, result, {"x": floats(2, 8, 8)})


def test_bounds_of_clip_saturate() -> None:
    constants = CONV | {"low": np.float32(0), "high": np.float32(3.4e38)}
    model = build("c = Conv<pads=[1,1,1,1]>(x, w) y = Clip(c, low, high)", constants)
    result, report = convert(model)
    assert report.refused == () and ops(result) == ["Cast", "Conv", "Clip", "Cast"]
    high = next(t for t in result.graph.initializer if t.name == "high_fp16")
    assert numpy_helper.to_array(high) == np.float16(65504)
    close(model, result, {"x": floats(1, 4, 5, 5)})


def test_clip_before_opset_12_only_where_the_caller_fuses_it() -> None:
    arrays = CONV | {"low": np.float32(0), "high": np.float32(6)}
    model = build("c = Conv<pads=[1,1,1,1]>(x, w) k = Clip(c, low, high) y = Conv<pads=[1,1,1,1]>(k, w)", arrays, opset=11)
    assert convert(model)[1].casts == 4
    result, report = convert(model, also=("Clip",))
    assert report.casts == 2
    close(model, result, {"x": floats(1, 4, 5, 5)})


def test_squares_and_sums_stay() -> None:
    body = "c = Conv<pads=[1,1,1,1]>(x, w) s = Mul(c, c) m = ReduceMean<axes=[1]>(s) e = Add(m, eps) r = Sqrt(e) n = Div(c, r) y = Conv<pads=[1,1,1,1]>(n, w)"
    model = build(body, CONV | {"eps": np.array([1e-12], np.float32)})
    result, report = convert(model)
    kinds = dtypes(result)
    assert kinds["s"] == kinds["m"] == kinds["e"] == kinds["r"] == FLOAT and kinds["n"] == HALF
    assert "a square may exceed the float16 range" in reasons(report)
    close(model, result, {"x": floats(1, 4, 6, 6)})


def test_an_unfolded_batch_normalization_with_extreme_variances() -> None:
    """The statistics of a published detector: 1e7 to 1e8, beyond the range; the node stays float32."""
    arrays = {"w": floats(4, 4, 3, 3, scale=300), "s": np.ones(4, np.float32), "v": np.full(4, 9.8e7, np.float32)}
    model = build("c = Conv<pads=[1,1,1,1]>(x, w) n = BatchNormalization(c, s, s, s, v) y = Relu(n)", arrays)
    result, report = convert(model)
    assert reasons(report) == {"a constant exceeds the float16 range": ("BatchNormalization(n)",)}
    assert dtypes(result)["n"] == FLOAT
    close(model, result, {"x": floats(1, 4, 6, 6)})


def test_resize_keeps_its_scales_and_names_stay_unique() -> None:
    """Every node name is empty in the original."""
    scales = np.array([1, 1, 2, 1.5], np.float32)
    model = build("a = Conv<pads=[1,1,1,1]>(x, w) r = Resize(a, , scales) y = Conv<pads=[1,1,1,1]>(r, w)", CONV | {"scales": scales})
    result, report = convert(model)
    resize = next(n for n in result.graph.node if n.op_type == "Resize")
    assert list(resize.input) == ["a", "", "scales"] and dtypes(result)["scales"] == FLOAT and dtypes(result)["r"] == HALF
    assert report.casts == 2
    close(model, result, {"x": floats(1, 4, 6, 6)})


def test_sizes_through_floats_keep_valid_types() -> None:
    """Shape, Cast to float, Mul, Cast back; and a size as a factor of data, which may be too large and therefore stays float32."""
    body = """a = Conv<pads=[1,1,1,1]>(x, w) s = Shape(a) f = Cast<to=1>(s) m = Mul(f, two) i = Cast<to=7>(m) r = Resize(a, , , i)
      two_dims = Constant<value_ints=[2]>() h = Gather(f, two_dims) q = Sqrt(h) d = Div(r, q) y = Conv<pads=[1,1,1,1]>(d, w)"""
    model = build(body, CONV | {"two": np.array([1, 1, 2, 2], np.float32)})
    result, report = convert(model)
    kinds = dtypes(result)
    assert kinds["f"] == kinds["m"] == kinds["h"] == FLOAT and kinds["i"] == TensorProto.INT64 and kinds["r"] == HALF
    assert "an operand may exceed the float16 range" in reasons(report)
    close(model, result, {"x": floats(1, 4, 6, 6)})
    limited = View(model)
    to_half(limited, infer(limited, dict.fromkeys("NHW", (1, 512))))
    made = {t.name: n for n in limited.nodes() for t in n.outputs}  # with limits on the dims the factor is float16 too
    assert made["d"].inputs[1].name == "q" and made["q"].inputs[0].name == "h"


def test_casts_of_integers_become_casts_to_float16_where_only_that_is_read() -> None:
    body = "f = Cast<to=1>(mask) n = Sub(one, f) b = Mul(n, big) q = MatMul(x, w) s = Add(q, b) p = Softmax<axis=-1>(s) y = MatMul(p, w)"
    arrays = {"w": floats(8, 8), "one": np.float32(1), "big": np.float32(-10000)}
    model = build(body, arrays, "float[B,8,8] x, int64[B,1,8] mask", outputs="float[?,?,?] y")
    result, report = convert(model)
    assert report.casts == 2 and report.refused == ()
    assert [n.attribute[0].i for n in result.graph.node if n.op_type == "Cast"][:2] == [HALF, HALF]
    close(model, result, {"x": floats(2, 8, 8), "mask": np.array([[[1, 1, 1, 1, 1, 0, 0, 0]], [[1, 1, 1, 0, 0, 0, 0, 0]]])})


def test_quantized_patterns_are_not_touched() -> None:
    body = """qx = QuantizeLinear(x, sc, zp) dx = DequantizeLinear(qx, sc, zp) dw = DequantizeLinear(qw, sc, zp) c = Conv<pads=[1,1,1,1]>(dx, dw)
      r = Relu(c) qr = QuantizeLinear(r, sc, zp) dr = DequantizeLinear(qr, sc, zp) y = Conv<pads=[1,1,1,1]>(dr, dw)"""
    arrays = {"sc": np.float32(0.05), "zp": np.int8(0), "qw": RNG.integers(-9, 9, (4, 4, 3, 3)).astype(np.int8)}
    model = build(body, arrays)
    result, report = convert(model)
    assert result.SerializeToString() == model.SerializeToString()
    assert reasons(report)["part of a quantized pattern"] == ("Conv(c)", "Relu(r)", "Conv(y)")


def test_a_float16_model_is_left_alone() -> None:
    model = build("c = Conv<pads=[1,1,1,1]>(x, w) y = Relu(c)", {"w": CONV["w"].astype(np.float16)}, "float16[N,4,H,W] x", outputs="float16[?,?,?,?] y")
    result, report = convert(model)
    assert result.SerializeToString() == model.SerializeToString() and report == HalfReport()


def test_inputs_and_outputs_become_float16_on_request() -> None:
    model = build("c = Conv<pads=[1,1,1,1]>(x, w) y = Relu(c) e = Exp(x) z = Neg(e)", CONV, outputs="float[?,?,?,?] y, float[?,?,?,?] z")
    result, report = convert(model, keep_io_types=False)
    assert [v.type.tensor_type.elem_type for v in (*result.graph.input, *result.graph.output)] == [HALF, HALF, HALF]
    assert report.casts == 2 and ops(result) == ["Cast", "Conv", "Relu", "Exp", "Neg", "Cast"]
    x = floats(1, 4, 5, 5, scale=0.5)
    for a, b in zip(run(model, {"x": x}), run(result, {"x": x.astype(np.float16)}), strict=True):
        assert b.dtype == np.float16
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)


def test_declared_types_follow() -> None:
    model = build("c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Exp(r)", CONV)
    model = onnx.shape_inference.infer_shapes(model)
    assert {v.name for v in model.graph.value_info} >= {"c", "r"}
    result, _ = convert(model)
    assert not result.graph.value_info
    run(result, {"x": floats(1, 4, 5, 5)})


def test_weights_in_constant_nodes() -> None:
    model = build("y = Conv<pads=[1,1,1,1]>(x, w)", {})
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(CONV["w"])))
    result, _ = convert(model)
    assert ops(result) == ["Cast", "Conv", "Cast"] and len(result.graph.node) == 3
    close(model, result, {"x": floats(1, 4, 5, 5)})


def test_an_intermediate_that_is_an_output_keeps_its_name_and_type() -> None:
    model = build("c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Conv<pads=[1,1,1,1]>(r, w)", CONV, outputs="float[?,?,?,?] r, float[?,?,?,?] y")
    result, report = convert(model)
    assert report.casts == 3 and [o.name for o in result.graph.output] == ["r", "y"]
    close(model, result, {"x": floats(1, 4, 5, 5)})


SUB = """a = Conv<pads=[1,1,1,1]>(x, w)
  y = If(flag) <
    then_branch = t () => (float[?,?,?,?] ty) { tc = Conv<pads=[1,1,1,1]>(a, w) ty = Relu(tc) },
    else_branch = e () => (float[?,?,?,?] ey) { ex = Exp(a) ey = Mul(ex, x) }
  >"""


def test_branches_are_converted_inside() -> None:
    model = build(SUB, CONV | {"w": CONV["w"] * 0.3}, "float[N,4,H,W] x, bool flag")
    result, report = convert(model)
    assert "Conv(tc)" in report.converted and "Conv(a)" in report.converted
    then = next(a.g for n in result.graph.node for a in n.attribute if a.name == "then_branch")
    assert [n.op_type for n in then.node] == ["Conv", "Relu", "Cast"] and [o.name for o in then.output] == ["ty"]
    for flag in (True, False):
        close(model, result, {"x": floats(1, 4, 5, 5), "flag": np.array(flag)})


def test_loops_keep_the_types_of_carried_tensors() -> None:
    body = """yes = Constant<value = bool {1}>()
      z, st = Loop(count, yes, x) <body = l (int64 i, bool c, float[?,?,?,?] v) => (bool c2, float[?,?,?,?] v2, float[?,?,?,?] s) {
        c2 = Identity(c) k = Conv<pads=[1,1,1,1]>(v, w) v2 = Tanh(k) s = Relu(k) }>
      y = Conv<pads=[1,1,1,1]>(z, w)"""
    model = build(body, CONV, "float[N,4,H,W] x, int64 count", outputs="float[?,?,?,?] y, float[?,?,?,?,?] st")
    result, report = convert(model)
    assert len(report.converted) == 4
    close(model, result, {"x": floats(1, 4, 5, 5), "count": np.array(3)}, bound=1e-2)


@pytest.mark.parametrize(("make", "feeds", "converted"), [
    (cnn, {"x": floats(2, 3, 75, 81)}, 13),
    (transformer, {"ids": RNG.integers(0, 50, (3, 16)), "mask": RNG.integers(0, 2, (3, 16))}, 25),
    (fpn, {"x": floats(1, 3, 64, 96)}, 8),
], ids=["cnn", "transformer", "fpn"])  # fmt: skip
def test_whole_graphs(make: object, feeds: dict[str, np.ndarray], converted: int) -> None:
    model = make()
    result, report = convert(model)
    assert len(report.converted) >= converted
    close(model, result, feeds, bound=1e-2)
    again, second = convert(result)
    assert second.converted == () and again.SerializeToString() == result.SerializeToString()
