"""Invalid graphs: each fault is one sentence that says where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, parser
from onnx.backend.test.loader import load_model_tests

from tilewright.optimizer.errors import ModelError
from tilewright.optimizer.graph.check import check_model

BRANCHES = "<then_branch = t () => (float[2] a) { a = Relu(%s) }, else_branch = e () => (float[2] b) { b = Neg(x) }>"
HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'


def parse(body: str) -> ModelProto:
    return parser.parse_model(HEAD + body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("g (float[2] x) => (float[2] y) { y = Add(x, q) }", "Add node that makes 'y': input 1 is 'q', which nothing defines"),
        ("g (float[2] x) => (float[2] y) { [named] y = Add(x, q) }", "Add node 'named': input 1 is 'q'"),
        ("g (float[2] x) => (float[2] y) { a = Relu(x) }", "output 'y' of graph 'g' is defined by nothing"),
        (
            "g (float[2] x) => (float[2] y) { a = Add(x, b)  b = Relu(a)  y = Neg(b) }",
            "cycle: Add node that makes 'a' reads the Relu node that makes 'b' reads the Add",
        ),
        ("g (float[2] x) => (float[2] y) { y = Relu(x)  y = Neg(x) }", "'y' is made twice: by the Relu node that makes 'y' and by the Neg node"),
        ("g (float[2] x) => (float[2] y) { x = Relu(x)  y = Neg(x) }", "'x' is made by the Relu node that makes 'x' but is an input or initializer"),
        ("g (float[2] x, float[2] x) => (float[2] y) { y = Neg(x) }", "graph 'g' has two inputs called 'x'"),
        ("g (float[2] x) => (float[2] y) { y = MaxPool(x) }", "MaxPool node that makes 'y': attribute 'kernel_shape', which MaxPool requires, is missing"),
        ("g (float[2] x) => (float[2] y) { y = Cast(x) }", "attribute 'to', which Cast requires, is missing"),
        ("g (float[2] x) => (float[2] y) { y = Conv(x) }", "Conv node that makes 'y': .*input size 1 not in range"),
        ("g (float[2] x) => (float[2] y) { y = other.Op(x) }", "Op node that makes 'y': the model imports no opset of domain 'other'"),
        ("g (bool c, float[2] x) => (float[2] y) { y = If(c) " + BRANCHES % "q" + " }", "Relu node that makes 'a': input 0 is 'q', which nothing defines"),
    ],
)
def test_fault(body: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_model(parse(body))


def test_missing_default_domain() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    del model.opset_import[:]
    with pytest.raises(ModelError, match="the model imports no opset of the default domain"):
        check_model(model)


def test_initializer_with_too_few_bytes() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "w"))
    model.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(ModelError, match=r"initializer 'w' holds 4 bytes, its shape \[2\] takes 8"):
        check_model(model)


@pytest.mark.parametrize("length", [True, False])
def test_external_data_that_is_too_short(tmp_path: Path, length: bool) -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    saved = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    check_model(saved, "m.onnx", tmp_path / "m.onnx")
    entries = saved.graph.initializer[0].external_data
    if length:
        next(e for e in entries if e.key == "length").value = "8"
    else:
        del entries[next(i for i, e in enumerate(entries) if e.key == "length")]
        (tmp_path / "m.data").write_bytes(b"12345678")
    with pytest.raises(ModelError, match=r"m.onnx: initializer 'w' holds 8 bytes, its shape \[3\] takes 12"):
        check_model(saved, "m.onnx", tmp_path / "m.onnx")


def test_cycle_through_a_sub_graph() -> None:
    body = "g (bool c, float[2] x) => (float[2] y) { r = Relu(y)  y = If(c) " + BRANCHES % "r" + " }"
    with pytest.raises(ModelError, match="cycle"):
        check_model(parse(body))


@pytest.mark.parametrize(
    "body",
    [
        "g (float[2] x) => (float[2] y) { y = Neg(a)  a = Relu(x) }",  # runtimes sort the nodes themselves
        "g (float[2] x) => (float[2] y) { y = DCNv2_TRT(x) }",  # an op that nobody knows
        "g (float[2] x) => (float[2] y, float[2] x) { y = Clip(x) }",
        "g (bool c, float[2] x) => (float[2] y) { y = If(c) " + BRANCHES % "x" + " }",
        "g (float[2] x) => (float[2] y) { a, b = Split(x)  y = Neg(a) }",
    ],
)
def test_accepted(body: str) -> None:
    check_model(parse(body))


def test_local_function_and_duplicate_node_names() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[2] x) => (float[2] y) { [n] a = my.Double(x)  [n] y = Neg(a) }
    <domain: "my", opset_import: ["": 17]> Double (v) => (w) { w = Add(v, v) }"""
    check_model(parser.parse_model(text))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_backend_case_is_accepted() -> None:
    cases = load_model_tests(kind="node")
    for case in cases:
        check_model(case.model)
    assert len(cases) > 1500, onnx.__version__
