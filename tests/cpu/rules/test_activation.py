"""Activations: every spelling is recognised, and becomes the op where the opset has it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto

from activation_spellings import activation_model, spellings
from rule_harness import check, model, node, optimize
from tilewright.optimizer.graph.activations import match_activation
from tilewright.optimizer.graph.view import View, producer

CASES = [(opset, kind, name) for opset in (9, 11, 13, 17, 20) for kind, ways in spellings(opset).items() for name, _ in ways]
OPS = {"relu": "Relu", "clip": "Clip", "leaky_relu": "LeakyRelu", "prelu": "PRelu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hard_sigmoid": "HardSigmoid"}
SINCE = {"hard_swish": ("HardSwish", 14), "mish": ("Mish", 18), "gelu": ("Gelu", 20), "gelu_tanh": ("Gelu", 20)}


def nodes_of(opset: int, kind: str, name: str) -> list[NodeProto]:
    return dict(spellings(opset)[kind])[name]


@pytest.mark.parametrize(("opset", "kind", "name"), CASES)
def test_spelling(opset: int, kind: str, name: str) -> None:
    """Recognised as it stands and after canonicalize; the values stay; the op is used where it exists."""
    nodes = nodes_of(opset, kind, name)
    m = activation_model(nodes, opset)
    view = View(m)
    match = match_activation(view.graph, producer(view.graph.outputs[0]))
    assert match is not None and str(match.activation) == kind and match.x.name == "x"
    assert {n.op for n in match.nodes} == {n.op_type for n in nodes} and len(match.nodes) == len(nodes)
    assert (match.slope is not None) == (kind == "prelu")

    result = optimize(m)
    check(result)
    plain = kind.split("(", maxsplit=1)[0]
    op, since = SINCE.get(plain, (OPS.get(plain, ""), 7))
    if op and opset >= since:
        assert result.ops == ["Tanh", "Mul", op]
    again = View(result.after)
    match = match_activation(again.graph, producer(again.graph.outputs[0]))
    a = float(kind.removeprefix(f"{plain}(").partition(",")[0]) if "(" in kind else 0.0
    assert match is not None and match.x.name == "x" and match.activation.kind == plain and match.activation.a == pytest.approx(a, rel=1e-4)


@pytest.mark.parametrize(("kind", "name"), [(k, n) for o, k, n in CASES if o == 20])
def test_half_precision(kind: str, name: str) -> None:
    """The constants of a float16 model are rounded, and recognised all the same."""
    result = optimize(activation_model(nodes_of(20, kind, name), 20, TensorProto.FLOAT16))
    check(result, bound=3e-3)
    view = View(result.after)
    match = match_activation(view.graph, producer(view.graph.outputs[0]))
    assert match is not None and match.activation.kind == kind.split("(", maxsplit=1)[0] and match.x.name == "x"


@pytest.mark.parametrize("kind", ["hard_swish", "gelu", "mish", "leaky_relu(0.1,0)"])
def test_double_precision_keeps_its_ops(kind: str) -> None:
    """ONNX Runtime's CPU lacks these ops in float64."""
    name, nodes = spellings(20)[kind][0 if kind == "hard_swish" else -1]
    result = optimize(activation_model(nodes, 20, TensorProto.DOUBLE))
    assert len(result.ops) == len(nodes) + 2 and "data type" in result.reason("spell-activation"), name


def test_intermediate_result_used_elsewhere() -> None:
    nodes = [
        node("Sigmoid", ["x"], "s"),
        node("Mul", ["x", "s"], "y"),
        node("Add", ["x", "c3"], "a"),
        node("Clip", ["a", "c0", "c6"], "r"),
        node("Mul", ["x", "r"], "p"),
        node("Div", ["p", "c6"], "y"),
        node("Neg", ["r"], "z"),
    ]
    m = activation_model(nodes[2:])
    m.graph.output.add().CopyFrom(m.graph.output[0])
    m.graph.output[1].name = "z"
    result = optimize(m)
    assert result.counts["HardSwish"] == 0 and "used elsewhere" in result.reason("spell-activation")
    check(result)


def test_intermediate_result_that_is_an_output() -> None:
    m = activation_model([node("Relu", ["x"], "z"), node("Min", ["z", "c6"], "y")])
    m.graph.output.add().CopyFrom(m.graph.output[0])
    m.graph.output[1].name = "z"
    result = optimize(m)
    assert result.ops == ["Tanh", "Mul", "Relu", "Min"]
    check(result)


WRONG = {
    "other slope": [node("Add", ["x", "c3"], "a"), node("Clip", ["a", "c0", "c6"], "r"), node("Mul", ["x", "r"], "p"), node("Div", ["p", "c5"], "y")],
    "other offset": [node("Add", ["x", "c2"], "a"), node("Clip", ["a", "c0", "c6"], "r"), node("Mul", ["x", "r"], "p"), node("Div", ["p", "c6"], "y")],
    "gate of another tensor": [node("Sigmoid", ["v"], "s"), node("Mul", ["x", "s"], "y")],
    "quick gelu": [node("Mul", ["x", "c1.702"], "a"), node("Sigmoid", ["a"], "s"), node("Mul", ["x", "s"], "y")],
    "gelu of another width": [node("Erf", ["x"], "e"), node("Add", ["e", "c1"], "g"), node("Mul", ["x", "g"], "m"), node("Mul", ["m", "c0.5"], "y")],
    "gelu of half the height": [
        node("Div", ["x", "c1.4142135623730951"], "t"),
        node("Erf", ["t"], "e"),
        node("Add", ["e", "c1"], "g"),
        node("Mul", ["x", "g"], "y"),
    ],
    "slope above one": [node("Mul", ["x", "c1.5"], "m"), node("Max", ["x", "m"], "y")],
    "softplus of another tensor": [node("Softplus", ["v"], "p"), node("Tanh", ["p"], "t"), node("Mul", ["x", "t"], "y")],
    "maximum of two tensors": [node("Max", ["x", "v"], "y")],
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_activation_stays(case: str) -> None:
    result = optimize(activation_model(WRONG[case], 20))
    assert result.ops == ["Tanh", "Mul", *(n.op_type for n in WRONG[case])] and not result.report.applied
    check(result)


def test_constant_that_varies_is_no_scalar() -> None:
    m = model([node("Max", ["x", "c"], "y")], {"x": [4, 2]}, ["y"], {"c": np.zeros(2, np.float32)})
    assert optimize(m).ops == ["Max"]


@pytest.mark.parametrize(("shape", "op"), [((3,), "Relu"), ((), "Max")])
def test_constant_that_adds_a_dim(shape: tuple[int, ...], op: str) -> None:
    result = optimize(model([node("Max", ["x", "c"], "y")], {"x": shape}, ["y"], {"c": np.zeros((1,), np.float32)}))
    assert result.ops == [op] and ("may add dims" in result.reason("spell-activation")) == (op == "Max")
    check(result)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_scalars_of_any_rank(shape: tuple[int, ...]) -> None:
    for kind, op in (("gelu", "Gelu"), ("hard_swish", "HardSwish")):
        result = optimize(activation_model(spellings(20)[kind][0][1], 20, constant=lambda v: np.full(shape, v) if v not in (0.0, 6.0) else np.array(v)))
        assert result.ops[-1] == op
        check(result)


def test_integers_stay() -> None:
    m = model(
        [node("Max", ["x", "zero"], "a"), node("Clip", ["a", "zero", "top"], "y")],
        {"x": [4]},
        ["y"],
        {"zero": np.array(0), "top": np.array(6)},
        dtype=TensorProto.INT64,
    )
    assert optimize(m).ops == ["Max", "Clip"]


def test_bounds_that_the_caller_gives_stay() -> None:
    assert optimize(model([node("Clip", ["x", "", "top"], "y")], {"x": [4], "top": []}, ["y"])).ops == ["Clip"]


def test_largest_float_is_no_bound() -> None:
    result = optimize(model([node("Clip", ["x", "zero", "top"], "y")], {"x": [4]}, ["y"], {"zero": np.float32(0), "top": np.float32(3.4028234663852886e38)}))
    assert result.ops == ["Relu"]
    check(result)
    half = {"zero": np.float16(0), "top": np.float16(65504)}
    assert optimize(model([node("Clip", ["x", "zero", "top"], "y")], {"x": [4]}, ["y"], half, dtype=TensorProto.FLOAT16)).ops == ["Clip"]


def test_activation_in_a_branch_of_a_tensor_from_outside() -> None:
    from onnx import helper

    branches = [
        helper.make_graph(
            [node("Sigmoid", ["x"], f"s{i}"), node("Mul", ["x", f"s{i}"], f"r{i}")], f"b{i}", [], [helper.make_tensor_value_info(f"r{i}", 1, [3])]
        )
        for i in (0, 1)
    ]
    view = View(model([node("If", ["c"], "y", then_branch=branches[0], else_branch=branches[1])], {"x": [3], "c": []}, ["y"], dtypes={"c": TensorProto.BOOL}))
    body = view.graph.nodes[0].attrs["then_branch"]
    match = match_activation(body, body.nodes[-1])
    assert match is not None and match.activation.kind == "silu" and match.x.name == "x"
    inner = match_activation(view.graph, body.nodes[-1])
    assert inner is None
