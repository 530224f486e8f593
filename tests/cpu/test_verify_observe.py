"""What of a model is compared, and the float32 reference of a float16 model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

from corpus.case import parsed, weights
from rule_harness import feeds_for, run
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.verify.compare import compare
from tilewright.optimizer.verify.observe import Observed, observe, with_probes
from tilewright.optimizer.verify.session import cpu_session
from tilewright.optimizer.verify.upcast import has_half, upcast, upcast_inputs

F32 = np.float32

# ---- what is compared


def observed(text: str, functions: str = "", **constants: Any) -> Observed:
    return observe(View(parsed(text + functions, constants or None, domains=', "local": 1' if functions else "")))


NOISE = "r = RandomNormal<shape=[2,3]>()"
ONE = "k = Constant<value_ints=[1]>()"


@pytest.mark.parametrize(("body", "outputs", "probes"), [
    ("y = Neg(x)  z = Abs(x)", "y z", ""),
    (f"{NOISE}  y = Add(x, r)  z = Abs(x)", "z", ""),
    (f"{NOISE}  s = Add(x, r)  y = Neg(s)  z = Abs(y)", "", ""),
    ("y = RandomUniformLike(x)  z = Abs(x)", "z", ""),
    ("p = Neg(x)  y = ArgMax(p)  z = Abs(x)", "z", "p"),
    (f"p = Neg(x)  {ONE}  y, z = TopK(p, k)", "", "p"),
    ("y = Neg(x)  z = ArgMax(y)", "y", ""),  # the output stands for the probe
    ("y = Neg(x)  z = NonZero(x)", "y", ""),  # the choice is made of an input: nothing to probe
    ("p = Neg(x)  i = ArgMax(p)  c = Cast<to=1>(i)  j = ArgMin(c)  y = Cast<to=1>(j)  z = Abs(x)", "z", "p"),
    (f"{NOISE}  s = Add(x, r)  y = ArgMax(s)  z = Abs(x)", "z", ""),  # a choice among random values
    ("t = Constant<value = bool {1}>()  q = Constant<value_float=0.5>()  y = Dropout(x, q, t)  z = Abs(x)", "z", ""),
    ("t = Constant<value = bool {0}>()  q = Constant<value_float=0.5>()  y = Dropout(x, q, t)  z = Abs(x)", "y z", ""),
    ("y = Dropout(x)  z = Abs(x)", "y z", ""),
    ("z = Abs(y)  y = Add(x, r)  r = RandomNormal<shape=[2,3]>()", "", ""),  # in no topological order
])  # fmt: skip
def test_random_outputs_are_left_out_and_choices_compared_before_they_are_made(body: str, outputs: str, probes: str) -> None:
    got = observed(f"g (float[2,3] x) => (float[?] y, float[?] z) {{ {body} }}")
    assert (got.outputs, got.probes) == (tuple(outputs.split()), tuple(probes.split()))
    assert set(got.skipped) == {"y", "z"} - set(got.outputs) and got.plain == (not probes and len(got.outputs) == 2)


def test_random_ops_inside_sub_graphs() -> None:
    branches = "then_branch = t () => (float[?] o) {{ {} }}, else_branch = e () => (float[?] q) {{ q = Neg(x) }}"
    made = "g (float[2,3] x, bool f) => (float[?] y, float[?] z) {{ {}  y = If(f) <{}>  z = Abs(x) }}"
    assert observed(made.format("", branches.format("o = RandomNormal<shape=[2,3]>()"))).outputs == ("z",)
    assert observed(made.format(NOISE, branches.format("o = Neg(r)"))).outputs == ("z",), "read from outside"
    assert observed(made.format("", branches.format("o = Abs(x)"))).outputs == ("y", "z")


def test_random_ops_inside_functions() -> None:
    text = "g (float[2,3] x) => (float[?] y, float[?] z) { y = local.noisy(x)  z = local.plain(x) }"
    functions = """<domain: "local", opset_import: ["": 17, "local": 1]> noisy (a) => (b) { b = local.inner(a) }
    <domain: "local", opset_import: ["": 17]> inner (a) => (b) { r = RandomNormalLike(a)  b = Add(a, r) }
    <domain: "local", opset_import: ["": 17]> plain (a) => (b) { b = Neg(a) }"""
    assert observed(text, functions).outputs == ("z",)


def test_probabilities_are_recognised_through_what_only_moves_them() -> None:
    got = observed("g (float[2,3] x) => (float[?] y, float[?] z, float[?] w) { s = Sigmoid(x)  y = Transpose(s)  z = Softmax(x)  w = Neg(s) }")
    assert got.scales == {"y": 0.1, "z": 0.1}


def test_probes_become_outputs() -> None:
    model = parsed("g (float[2,3] x) => (float[2,3] z, int64[1,3] y) { p = Neg(x)  y = ArgMax(p)  z = Abs(x) }")
    before = model.SerializeToString()
    probed = with_probes(model, observe(View(model)))
    assert [o.name for o in probed.graph.output] == ["z", "p"] and model.SerializeToString() == before
    assert probed.graph.output[0] == model.graph.output[0]
    x = feeds_for(model)["x"]
    z, p = cpu_session(probed).run(None, {"x": x})
    assert np.array_equal(z, abs(x)) and np.array_equal(p, -x)


# ---- the float32 reference


def half_net(**header: Any) -> ModelProto:
    return parsed(
        """g (float16[N,3,8,8] x) => (float16[N,4,8,8] y) {
          c = Conv<pads=[1,1,1,1]>(x, w)
          k = Constant<value = float16[1] {14336}>()
          s = Mul(c, k)
          f = Cast<to=1>(s)
          h = Cast<to=10>(f)
          y = Relu(h)
        }""",
        {"w": weights("w", 4, 3, 3, 3).astype(np.float16)},
        **header,
    )


def types_in(model: ModelProto) -> set[int]:
    """Element types of every input, output, weight and type attribute."""
    found = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)} | {t.data_type for t in model.graph.initializer}
    for attribute in (a for n in model.graph.node for a in n.attribute):
        found |= {attribute.t.data_type} if attribute.HasField("t") else {attribute.i} if attribute.name == "to" else set()
    return found


def test_the_reference_computes_in_float32() -> None:
    model = half_net()
    before = model.SerializeToString()
    single = upcast(model)
    assert types_in(model) == {TensorProto.FLOAT, TensorProto.FLOAT16} and types_in(single) == {TensorProto.FLOAT}
    assert model.SerializeToString() == before, "the model itself stays"
    onnx.checker.check_model(single, full_check=True)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float16)}
    (half,), (truth,) = run(model, feeds), run(single, upcast_inputs(feeds))
    error = compare("y", truth, half, same_dtype=False)
    assert truth.dtype == np.float32 and half.dtype == np.float16
    assert 1e-5 < error.relative < 2e-3, "rounding of float16, and nothing else"


def test_the_reference_reaches_sub_graphs_and_functions() -> None:
    model = parsed(
        """g (float16[2] x, bool f) => (float16[2] y) {
          y = If(f) <
            then_branch = t () => (float16[2] o) <float16[2] k = {15360, 16384}> { o = local.scaled(k) },
            else_branch = e () => (float16[2] q) { q = Cast<to=10>(x) }
          >
        }
        <domain: "local", opset_import: ["": 17]> scaled (a) => (b) { k = Constant<value = float16[1] {14336}>()  b = Mul(a, k) }""",
        domains=', "local": 1',
    )
    single = upcast(model)
    for flag, want in ((True, [0.5, 1.0]), (False, [3.0, 4.0])):
        (got,) = run(single, {"x": np.array([3, 4], F32), "f": np.array(flag)})
        assert got.dtype == np.float32 and got.tolist() == want


def test_only_half_inputs_are_changed() -> None:
    inputs = {"h": np.ones(2, np.float16), "f": np.ones(2, F32), "i": np.ones(2, np.int64)}
    assert {k: v.dtype.name for k, v in upcast_inputs(inputs).items()} == {"h": "float32", "f": "float32", "i": "int64"}


@pytest.mark.parametrize(("text", "expected"), [
    ("g (float[2] x) => (float[2] y) { y = Neg(x) }", False),
    ("g (float16[2] x) => (float16[2] y) { y = Neg(x) }", True),
    ("g (float[2] x) => (float[2] y) <float16[2] w = {15360, 16384}> { c = Cast<to=1>(w)  y = Add(x, c) }", True),
    ("g (float[2] x) => (float[2] y) { h = Cast<to=10>(x)  n = Exp(h)  y = Cast<to=1>(n) }", True),
    ("g (float[2] x) => (float[2] y) { w = Constant<value = float16[1] {2}>()  c = Cast<to=1>(w)  y = Add(x, c) }", True),
    ("""g (float[2] x, bool f) => (float[2] y) { y = If(f) <then_branch = t () => (float[2] o) { h = Cast<to=10>(x)  o = Cast<to=1>(h) },
        else_branch = e () => (float[2] q) { q = Neg(x) }> }""", True),
])  # fmt: skip
def test_models_with_half_arithmetic(text: str, expected: bool) -> None:
    assert has_half(parsed(text)) is expected
