"""Models of kinds that other optimizers are reported to break, through all of `optimize`, beside those of the corpus (long because a kind is a test)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from corpus.case import parsed, weights
from end_to_end import Optimized, answers, assert_right, assert_same, config, optimized
from rule_harness import feeds_for
from tilewright.optimizer import pipeline
from tilewright.optimizer.pipeline import optimize
from tilewright.optimizer.result import Check
from tilewright.optimizer.verify import bisect

WEIGHTS = {"w": (4, 3, 3, 3), "v": (4, 4, 3, 3), "b": (4,)}
CONV_RELU = "c = Conv<pads=[1,1,1,1]>(x, w, b)  y = Relu(c)"
IMAGE = {"x": weights("image", 2, 3, 8, 8)}
BATCHNORM = {"w": (4, 3, 3, 3), "g": (4,), "b": (4,), "m": (4,)}


def net(
    body: str, constants: Mapping[str, Any] | None = None, inputs: str = "float[N,3,8,8] x", outputs: str = "float[N,4,8,8] y", **header: Any
) -> ModelProto:
    """The model of ``body``; without ``constants`` it has the weights w and v and the bias b."""
    return parsed(f"g ({inputs}) => ({outputs}) {{ {body} }}", WEIGHTS if constants is None else constants, **header)


def chain(op: Callable[[int], onnx.NodeProto], length: int) -> ModelProto:
    """Convolution, Relu, ``length`` nodes that lead from t0 to t<length>, convolution."""
    model = net("t = Conv<pads=[1,1,1,1]>(x, w, b)  t0 = Relu(t)")
    model.graph.node.extend(op(i) for i in range(length))
    model.graph.node.append(helper.make_node("Conv", [f"t{length}", "v"], ["y"], pads=[1, 1, 1, 1]))
    return model


def assert_right_either_way(done: Optimized) -> None:
    """Right answers on the image, whichever branch the input f takes."""
    for flag in (True, False):
        assert_right(done, {**IMAGE, "f": np.array(flag)})


# ---- If, Loop, Scan, sequences, functions


def test_one_name_for_different_weights(tmp_path: Path) -> None:
    """Initializers of two branches that share a name, and hide one of the main graph from nobody."""
    model = parsed(
        """g (float[N,3,8,8] x, bool f) => (float[N,4,8,8] y, float[N,4,8,8] z) {
          z = Conv<pads=[1,1,1,1]>(x, w, b)
          y = If(f) <
            then_branch = t () => (float[P,4,8,8] o) <float[4] k = {1, 2, 3, 4}> { o = Conv<pads=[1,1,1,1]>(x, w, k) },
            else_branch = e () => (float[P,4,8,8] q) <float[4] k = {5, 6, 7, 8}> { q = Conv<pads=[1,1,1,1]>(x, w, k) }
          >
        }""",
        WEIGHTS,
    )
    done = optimized(model, tmp_path)
    assert done.regions == 3
    assert_right_either_way(done)


def test_branches_that_give_optionals(tmp_path: Path) -> None:
    model = parsed(
        """g (float[N,3,8,8] x, bool f) => (float[N,4,8,8] y) {
          o = If(f) <
            then_branch = t () => (optional(float[P,4,8,8]) u) { c = Conv<pads=[1,1,1,1]>(x, w, b)  u = Optional(c) },
            else_branch = e () => (optional(float[P,4,8,8]) q) { d = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(d)  q = Optional(r) }
          >
          y = OptionalGetElement(o)
        }""",
        WEIGHTS,
    )
    done = optimized(model, tmp_path)
    assert done.regions == 2
    assert_right_either_way(done)


def test_sequence_in_a_loop(tmp_path: Path) -> None:
    """A Loop that collects what its convolution gives in a sequence."""
    model = parsed(
        """g (float[N,4,8,8] x, int64 n) => (seq(float[N,4,8,8]) s) {
          yes = Constant<value = bool {1}>()
          none = SequenceEmpty()
          last, s = Loop(n, yes, x, none) <
            body = l (int64 i, bool c, float[?,4,8,8] state, seq(float[?,4,8,8]) so_far) => (bool c2, float[?,4,8,8] next, seq(float[?,4,8,8]) more) {
              c2 = Identity(c)
              k = Conv<pads=[1,1,1,1]>(state, v, b)
              next = Sigmoid(k)
              more = SequenceInsert(so_far, next)
            }
          >
        }""",
        {"v": (4, 4, 3, 3), "b": (4,)},
    )
    done = optimized(model, tmp_path)
    assert done.regions == 1
    assert_right(done, {"x": weights("x", 1, 4, 8, 8), "n": np.array(3, np.int64)})


def test_body_of_sequence_map_is_left_alone(tmp_path: Path) -> None:
    """ONNX Runtime expands it itself and then loads no calls of functions in it; its inputs cannot be made up, so only loading would show it."""
    model = parsed(
        """g (seq(float[1,3,8,8]) s, bool f) => (seq(float[1,4,8,8]) t) {
          t = SequenceMap(s, f) <body = m (float[1,3,8,8] a, bool g) => (float[1,4,8,8] o) {
            c = Conv<pads=[1,1,1,1]>(a, w, b)
            o = If(g) <then_branch = p () => (float[1,4,8,8] q) { q = Conv<pads=[1,1,1,1]>(c, v) }, else_branch = r () => (float[1,4,8,8] u) { u = Relu(c) }>
          }>
        }""",
        WEIGHTS,
    )
    done = optimized(model, tmp_path)
    assert done.regions == 0 and "inside SequenceMap" in done.result.refusals[0].reason
    assert_right(done, {"s": [weights("a", 1, 3, 8, 8), weights("c", 1, 3, 8, 8)], "f": np.array(True)})


def test_function_with_branches_is_inlined(tmp_path: Path) -> None:
    model = parsed(
        """g (float[N,3,8,8] x, bool f) => (float[N,4,8,8] y) { y = my.F(x, w, f) }
        <domain: "my", opset_import: ["": 17]>
        F (x, w, f) => (y) {
          y = If(f) <
            then_branch = t () => (float[P,4,8,8] o) { o = Conv<pads=[1,1,1,1]>(x, w) },
            else_branch = e () => (float[P,4,8,8] q) { k = Conv<pads=[1,1,1,1]>(x, w)  q = Relu(k) }
          >
        }""",
        {"w": (4, 3, 3, 3)},
        domains=', "my": 1',
    )
    done = optimized(model, tmp_path)
    assert done.regions == 2
    assert_right_either_way(done)


def test_function_that_a_loop_calls(tmp_path: Path) -> None:
    model = parsed(
        """g (float[N,4,8,8] x, int64 n) => (float[N,4,8,8] y) {
          yes = Constant<value = bool {1}>()
          y = Loop(n, yes, x) <body = l (int64 i, bool c, float[?,4,8,8] s) => (bool c2, float[?,4,8,8] t) { c2 = Identity(c)  h = my.F(s, v)  t = Neg(h) }>
        }
        <domain: "my", opset_import: ["": 17]>
        F (x, w) => (y) { k = Conv<pads=[1,1,1,1]>(x, w)  y = Tanh(k) }""",
        {"v": (4, 4, 3, 3)},
        domains=', "my": 1',
    )
    done = optimized(model, tmp_path)
    assert done.regions == 1
    assert_right(done, {"x": weights("x", 1, 4, 8, 8), "n": np.array(3, np.int64)})


def test_functions_of_another_opset_stay(tmp_path: Path) -> None:
    """One was written for an older opset and calls one that is inlined elsewhere; both are still there for it."""
    model = parsed(
        """g (float[N,4,8,8] x) => (float[N,4,8,8] y) { a = my.New(x, v)  y = my.Old(a, v) }
        <domain: "my", opset_import: ["": 17]>
        New (x, w) => (y) { k = Conv<pads=[1,1,1,1]>(x, w)  y = Tanh(k) }
        <domain: "my", opset_import: ["": 12, "my": 1]>
        Old (x, w) => (y) { k = Conv<pads=[1,1,1,1]>(x, w)  n = Neg(k)  y = my.New(n, w) }""",
        {"v": (4, 4, 3, 3)},
        domains=', "my": 1',
    )
    done = optimized(model, tmp_path)
    assert done.regions == 1 and {"Old", "New"} <= {f.name for f in done.after.functions}
    assert "Old" in [n.op_type for n in done.after.graph.node]
    assert_right(done, feeds_for(model, dim=2))


def test_function_called_relu(tmp_path: Path) -> None:
    """A local function in the default domain that is not the op of its name: as ONNX Runtime takes it."""
    model = net(CONV_RELU)
    model.functions.append(helper.make_function("", "Relu", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]))
    assert_right(optimized(model, tmp_path), IMAGE)


# ---- names


def test_names_of_the_writer_in_the_model(tmp_path: Path) -> None:
    """Tensors called t1, t2, w0, y0 and x0, as in function bodies and in the models that regions are checked with."""
    body = """t1 = Conv<pads=[1,1,1,1]>(x0, w0, b)  t2 = Relu(t1)  n = Neg(t2)  t3 = Conv<pads=[1,1,1,1]>(n, v, b)  t4 = Add(t3, t2)
      m = Sin(t4)  y0 = Conv<pads=[1,1,1,1]>(m, v)"""
    done = optimized(net(body, {**WEIGHTS, "w0": (4, 3, 3, 3)}, "float[N,3,8,8] x0", "float[N,4,8,8] y0"), tmp_path)
    assert done.regions == 3 and len(done.result.checks) >= 5
    assert_right(done, {"x0": IMAGE["x"]})


def test_value_info_of_a_name_that_a_rewrite_chooses(tmp_path: Path) -> None:
    model = net("c = Conv<pads=[1,1,1,1]>(x, w, b)  d = Relu(c)  y = Conv<pads=[1,1,1,1]>(d, v, b)")
    model.graph.value_info.extend(helper.make_tensor_value_info(n, TensorProto.INT64, [7]) for n in ("d_nhwc", "w_packed", "FusedConvRegion_d"))
    done = optimized(model, tmp_path)
    assert done.regions == 2
    assert_right(done, IMAGE)


def test_both_names_of_the_default_domain(tmp_path: Path) -> None:
    model = net(CONV_RELU)
    model.graph.node[0].domain = "ai.onnx"
    model.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    done = optimized(model, tmp_path)
    assert done.regions == 1
    assert_right(done, IMAGE)


@pytest.mark.parametrize("names", [("", ""), ("n", "n"), ("first", "second")], ids=["none", "equal", "own"])
def test_faulty_region_is_dropped_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]) -> None:
    """What failed verification is left out of the next attempt, and nothing fails for good."""
    model = net("c = Conv<pads=[1,1,1,1]>(x, w, b)  d = Sin(c)  y = Conv<pads=[1,1,1,1]>(d, v, b)")
    for node, name in zip((model.graph.node[0], model.graph.node[2]), names, strict=True):
        node.name = name

    def check_region(emitted: Any, *_: Any) -> list[Check]:
        region = emitted.lowered.region
        return [Check("made to fail", float(region.output.name == "y"), 0.0, 1e-4, region=region.label)]

    monkeypatch.setattr(pipeline, "check_region", check_region)
    result = optimize(model, config(), tmp_path / "fast.onnx")
    assert len(result.regions) == (0 if names == ("n", "n") else 1), "of one name, both go"
    assert any("its results differ" in r.reason for r in result.refusals)


def test_model_that_does_not_load_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inputs cannot be made up: still the result is loaded, and the region that spoils it is found and left out."""
    model = net("c = Conv<pads=[1,1,1,1]>(x, w, b)  d = Sin(c)  y = Conv<pads=[1,1,1,1]>(d, v, b)  s = SequenceInsert(q, y)",
                inputs="float[N,3,8,8] x, seq(float[N,4,8,8]) q", outputs="seq(float[N,4,8,8]) s")  # fmt: skip
    right = pipeline.export_model

    def export_model(view: Any, *rest: Any) -> ModelProto:
        made = right(view, *rest)
        for node in made.graph.node:
            if node.domain == "tilewright" and "w_packed" in node.input:
                node.op_type = "FusedConvRegion_sm90_99"  # a function that is not there
        return made

    monkeypatch.setattr(pipeline, "export_model", export_model)
    tried: list[list[str]] = []
    monkeypatch.setattr(pipeline, "bisect", lambda labels, fails: tried.append(labels) or bisect.bisect(labels, fails))
    result = optimize(model, config(), tmp_path / "fast.onnx")
    assert len(tried) == 1 and [r.name for r in result.regions] == ["Conv(y)"]
    assert any("does not load" in r.reason for r in result.refusals) and result.not_verified
    feeds = {**IMAGE, "q": [weights("q", 2, 4, 8, 8)]}
    assert_same(answers(model, feeds), answers(tmp_path / "fast.onnx", feeds))


# ---- weights


def test_weights_that_others_read(tmp_path: Path) -> None:
    """One weight of two convolutions (once through Identity), of other ops, and an output itself: it stays, and stays right."""
    body = "c = Conv<pads=[1,1,1,1]>(x, w, b)  y = Relu(c)  a = Abs(w)  i = Identity(w)  z = Conv(x, i, b)"
    done = optimized(net(body, outputs="float[N,4,8,8] y, float[4,3,3,3] a, float[N,4,6,6] z, float[4,3,3,3] w"), tmp_path)
    assert done.regions == 2 and sum(t.name == "w_packed" for t in done.after.graph.initializer) == 1
    assert_right(done, IMAGE)


@pytest.mark.parametrize(("body", "inputs"), [
    ("c = Conv<pads=[1,1,1,1]>(x, k, b)  y = Relu(c)", "float[N,3,8,8] x, float[4,3,3,3] k"),
    ("k = Mul(w, s)  c = Conv<pads=[1,1,1,1]>(x, k, b)  y = Relu(c)", "float[N,3,8,8] x, float s"),
    ("c = Conv<pads=[1,1,1,1]>(x, w, d)  y = Relu(c)", "float[N,3,8,8] x, float[4] d"),
], ids=["input", "computed", "bias"])  # fmt: skip
def test_weights_that_are_not_constant(tmp_path: Path, body: str, inputs: str) -> None:
    done = optimized(net(body, inputs=inputs), tmp_path)
    assert done.regions == 0 and "not constant" in done.result.refusals[0].reason
    assert_right(done, feeds_for(done.before, dim=2))


def test_image_is_its_own_weight(tmp_path: Path) -> None:
    done = optimized(net("y = Conv(x, x)", {}, "float[3,3,3,3] x", "float[3,3,1,1] y"), tmp_path)
    assert_right(done, feeds_for(done.before))


def test_weights_without_elements(tmp_path: Path) -> None:
    """No output channels: ONNX Runtime takes no such model, but it passes through."""
    model = net(CONV_RELU + "  z = Conv(x, none)", {**WEIGHTS, "none": np.zeros((0, 3, 3, 3), np.float32)}, outputs="float[N,4,8,8] y, float[N,0,6,6] z")
    done = optimized(model, tmp_path)
    assert done.regions == 1 and any("no elements" in r.reason for r in done.result.refusals)
    assert model.graph.node[2] in list(done.after.graph.node)


@pytest.mark.parametrize(("variance", "folded"), [
    ([0, 1e-30, 1e8, 1e30], True), ([np.inf, 1, 1, 1], True), ([-1, 1, 1, 1], False), ([np.nan, 1, 1, 1], False),
], ids=["extreme", "infinite", "negative", "nan"])  # fmt: skip
def test_batchnorm_statistics(tmp_path: Path, variance: list[float], folded: bool) -> None:
    """Folded where that is exact; where it is not finite, ONNX Runtime's answers all the same, and no warning of numpy's."""
    body = "c = Conv<pads=[1,1,1,1]>(x, w)  y = BatchNormalization(c, g, b, m, var)"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = optimized(net(body, {**BATCHNORM, "var": np.array(variance, np.float32)}), tmp_path)
    assert done.regions == 1 and ("BatchNormalization" not in done.result.ops_after) == folded
    assert_right(done, IMAGE)


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    """NaN and infinity stay where they are: the region is made only where the body gives them in the same places."""
    values = weights("w", 4, 3, 3, 3)
    values[0, 0, 1, 1], values[1, 1, 1, 1] = np.nan, np.inf
    done = optimized(net("c = Conv<pads=[1,1,1,1]>(x, w, b)  d = Sin(c)  y = Conv<pads=[1,1,1,1]>(d, v)", {**WEIGHTS, "w": values}), tmp_path)
    assert not np.isfinite(answers(done.path, IMAGE)["y"]).all()
    assert_right(done, IMAGE)


def test_inputs_that_are_not_finite(tmp_path: Path) -> None:
    """NaN and infinities of a pixel reach the same outputs: through convolution, residual, pooling and activations."""
    body = """c = Conv<pads=[1,1,1,1]>(x, w, b)  d = Sigmoid(c)  e = Mul(c, d)  f = Conv<pads=[1,1,1,1]>(e, v)  g = Add(f, e)
      y = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(g)"""
    done = optimized(net(body), tmp_path)
    assert done.regions >= 2
    for value in (np.nan, np.inf, -np.inf):
        image = IMAGE["x"].copy()
        image[1, 2, 5, 6] = value
        expected = answers(done.before, {"x": image})["y"]
        assert not np.isfinite(expected[1]).all() and np.isfinite(expected[0]).all()
        assert_right(done, {"x": image})


def test_bias_that_is_left_out(tmp_path: Path) -> None:
    done = optimized(net('c = Conv<pads=[1,1,1,1]>(x, w, "")  y = Dropout(c)'), tmp_path)
    assert done.regions == 1
    assert_right(done, IMAGE)


def test_training_ops(tmp_path: Path) -> None:
    """Statistics of the batch and a mask that is used: both nodes stay."""
    body = """c = Conv<pads=[1,1,1,1]>(x, w)  t, rm, rv = BatchNormalization<training_mode=1>(c, g, b, m, var)  d = Conv<pads=[1,1,1,1]>(t, v)
      y, mask = Dropout(d)"""
    done = optimized(net(body, {**BATCHNORM, **WEIGHTS, "var": np.ones(4, np.float32)}, "float[2,3,8,8] x",
                         "float[2,4,8,8] y, bool[2,4,8,8] mask, float[4] rm, float[4] rv"), tmp_path)  # fmt: skip
    assert done.regions == 2 and {"BatchNormalization", "Dropout"} <= done.result.ops_after.keys()
    assert_right(done, IMAGE)


# ---- graphs


@pytest.mark.parametrize(("model", "regions"), [
    (lambda: net("y = RandomNormal<shape=[1,3,8,8], seed=1.0>()", {}, "", "float[1,3,8,8] y"), 0),
    (lambda: net("k = RandomNormal<shape=[1,3,8,8]>()  y = Conv(k, w, b)", inputs="", outputs="float[1,4,6,6] y"), 1),
    (lambda: net("", {}, "float[3] x", "float[3] x"), 0),
    (lambda: net("c = Conv(k, w, b)  y = Mul(c, s)", {**WEIGHTS, "k": (1, 3, 8, 8)}, "float s", "float[1,4,6,6] y"), 0),
], ids=["random", "no inputs", "no nodes", "constant image"])  # fmt: skip
def test_graphs_without_something(tmp_path: Path, model: Callable[[], ModelProto], regions: int) -> None:
    done = optimized(model(), tmp_path)
    assert done.regions == regions
    feeds = feeds_for(done.before)
    expected, got = answers(done.before, feeds), answers(done.path, feeds)
    assert {k: v.shape for k, v in expected.items()} == {k: v.shape for k, v in got.items()}


def test_what_nobody_reads(tmp_path: Path) -> None:
    """Inputs of any type that no node reads are still inputs; nodes whose results go nowhere do no harm."""
    model = net(f"{CONV_RELU}  dead = Conv(c, v)  gone = Relu(dead)", inputs="float[N,3,8,8] x, float[5] u, string[1] s")
    done = optimized(model, tmp_path)
    assert [i.name for i in done.after.graph.input] == ["x", "u", "s"]
    assert_right(done, {**IMAGE, "u": np.ones(5, np.float32), "s": np.array(["a"], dtype=object)})


def test_deep_graph(tmp_path: Path) -> None:
    """2,000 nodes in a row: nothing recurses along them."""
    done = optimized(chain(lambda i: helper.make_node("Sin" if i % 2 else "Neg", [f"t{i}"], [f"t{i + 1}"]), 2000), tmp_path)
    assert done.regions == 2
    assert_right(done, IMAGE)


def test_many_equal_regions(tmp_path: Path) -> None:
    """200 residual additions of one kind share one body and one kernel."""
    done = optimized(chain(lambda i: helper.make_node("Add", [f"t{i}", f"t{max(0, i - 1)}"], [f"t{i + 1}"]), 200), tmp_path)
    assert done.regions > 100 and len(done.after.functions) < 10 and done.result.bytes_after < 1 << 20
    image = {"x": (IMAGE["x"] * 1e-20).astype(np.float32)}  # the sums grow as Fibonacci's
    assert_right(done, image)


def test_sixteen_shapes_of_one_model(tmp_path: Path) -> None:
    """A text recogniser's: batch and width are open, and no shape is refused or wrong."""
    body = """c = Conv<pads=[1,1,1,1], strides=[2,1]>(x, w, b)  d = Relu(c)  e = Conv<pads=[1,1,1,1], strides=[2,2]>(d, v, b)  f = HardSwish(e)
      g = Conv<pads=[1,1,1,1], group=4>(f, dw)  h = MaxPool<kernel_shape=[2,2], strides=[2,1]>(g)  y = Conv<strides=[2,1]>(h, v)"""
    model = net(body, {**WEIGHTS, "dw": (4, 1, 3, 3)}, "float[B,3,48,W] x", "float[B,4,H,V] y")
    done = optimized(model, tmp_path)
    assert done.regions == 5
    for batch in (1, 2, 3, 8):
        for width in (90, 91, 160, 237):
            assert_right(done, {"x": weights(f"{batch} {width}", batch, 3, 48, width)})


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 3, 0, 8)], ids=["batch", "height"])
def test_empty_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Open dims that are 0 at run time; ONNX Runtime itself takes no empty height, and says so with and without our nodes."""
    done = optimized(net(CONV_RELU, inputs="float[N,3,H,W] x", outputs="float[N,4,H,W] y"), tmp_path)
    assert done.regions == 1
    feeds = {"x": np.zeros(shape, np.float32)}
    try:
        expected = answers(done.before, feeds)
    except Exception:
        with pytest.raises(Exception, match="Conv"):
            answers(done.path, feeds)
    else:
        assert_same(expected, answers(done.path, feeds))


@pytest.mark.parametrize("opset", range(7, 23))
def test_every_opset(tmp_path: Path, opset: int) -> None:
    """Conv, BatchNormalization, residual, pooling and Gemm, from opset 7 on."""
    body = """c = Conv<pads=[1,1,1,1]>(x, w)  n = BatchNormalization(c, g, b, m, var)  r = Relu(n)  d = Conv<pads=[1,1,1,1]>(r, v, b)  a = Add(d, r)
      p = GlobalAveragePool(a)  f = Flatten(p)  y = Gemm<transB=1>(f, fc, b)"""
    constants = {**BATCHNORM, "v": (4, 4, 3, 3), "var": np.array([0.5, 1, 2, 3], np.float32), "fc": (4, 4)}
    done = optimized(net(body, constants, outputs="float[N,4] y", opset=opset, ir=8 if opset < 20 else 10), tmp_path)
    assert done.regions >= 2 and "BatchNormalization" not in done.result.ops_after
    assert done.after.opset_import[0] == done.before.opset_import[0]
    assert_right(done, IMAGE)
