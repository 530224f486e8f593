"""Chains of Transpose, Reshape, Cast, Squeeze and Unsqueeze."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto

from rule_harness import check, model, node, optimize


@pytest.mark.parametrize(
    ("first", "second", "ops"),
    [
        ([0, 2, 3, 1], [0, 3, 1, 2], ["Exp"]),
        ([0, 2, 3, 1], [0, 2, 3, 1], ["Exp", "Transpose"]),
        (None, None, ["Exp"]),
        (None, [3, 2, 1, 0], ["Exp"]),
        ([1, 0, 2, 3], None, ["Exp", "Transpose"]),
    ],
)
def test_transposes(first: list[int] | None, second: list[int] | None, ops: list[str]) -> None:
    attrs = [{} if p is None else {"perm": p} for p in (first, second)]
    result = optimize(
        model([node("Exp", ["x"], "a"), node("Transpose", ["a"], "b", **attrs[0]), node("Transpose", ["b"], "y", **attrs[1])], {"x": ["n", 3, 4, 5]}, ["y"])
    )
    assert result.ops == ops
    check(result)


def test_transposes_between_input_and_output_become_identity() -> None:
    result = optimize(model([node("Transpose", ["x"], "b", perm=[1, 0]), node("Transpose", ["b"], "y", perm=[1, 0])], {"x": [3, 4]}, ["y"]))
    assert result.ops == ["Identity"]
    check(result)


def test_inner_transpose_that_others_read_stays_for_them() -> None:
    nodes = [node("Transpose", ["x"], "b", perm=[1, 0]), node("Transpose", ["b"], "c", perm=[1, 0]), node("Exp", ["c"], "y"), node("Neg", ["b"], "z")]
    result = optimize(model(nodes, {"x": [3, 4]}, ["y", "z"]))
    assert result.counts == {"Transpose": 1, "Exp": 1, "Neg": 1} and result.after.graph.node[1].input[0] == "x"
    check(result)


def test_transposes_of_unknown_rank_stay() -> None:
    nodes = [node("Reshape", ["x", "s"], "a"), node("Transpose", ["a"], "b"), node("Transpose", ["b"], "c"), node("ReduceSum", ["c"], "y", keepdims=0)]
    result = optimize(model(nodes, {"x": ["n"], "s": ["k"]}, ["y"], dtypes={"s": TensorProto.INT64}))
    assert result.counts["Transpose"] == 2 and "rank is unknown" in result.reason("merge-transposes")


INNER = {
    "Reshape": (node("Reshape", ["x", "s"], "a"), {"s": np.array([0, -1])}),
    "Flatten": (node("Flatten", ["x"], "a", axis=2), {}),
    "Unsqueeze": (node("Unsqueeze", ["x", "s"], "a"), {"s": np.array([1])}),
    "Squeeze": (node("Squeeze", ["x", "s"], "a"), {"s": np.array([1])}),
}


@pytest.mark.parametrize("inner", INNER)
def test_reshapes(inner: str) -> None:
    what, constants = INNER[inner]
    result = optimize(model([what, node("Reshape", ["a", "t"], "y")], {"x": ["n", 1, 4]}, ["y"], constants | {"t": np.array([-1, 2, 2])}))
    assert result.ops == ["Reshape"] and result.after.graph.node[0].input[0] == "x"
    check(result)


def test_reshape_that_copies_a_dim_stays() -> None:
    nodes = [node("Reshape", ["x", "s"], "a"), node("Reshape", ["a", "t"], "y")]
    result = optimize(model(nodes, {"x": ["n", 4]}, ["y"], {"s": np.array([2, -1]), "t": np.array([0, 2, -1])}))
    assert result.ops == ["Reshape", "Reshape"] and "copies a dim" in result.reason("merge-reshapes")
    check(result)


def test_reshape_to_a_computed_shape_stays() -> None:
    nodes = [node("Reshape", ["x", "s"], "a"), node("Reshape", ["a", "t"], "b"), node("Exp", ["b"], "y")]
    result = optimize(model(nodes, {"x": ["n", 4], "t": [2]}, ["y"], {"s": np.array([-1])}, dtypes={"t": TensorProto.INT64}))
    assert result.counts["Reshape"] == 2 and "is not known" in result.reason("merge-reshapes")


I32, I64, I8, F16, F32, F64, BOOL = (getattr(TensorProto, k) for k in ("INT32", "INT64", "INT8", "FLOAT16", "FLOAT", "DOUBLE", "BOOL"))


@pytest.mark.parametrize(
    ("source", "between", "target", "ops"),
    [
        (F16, F32, F16, ["Exp"]),
        (F16, F32, F64, ["Exp", "Cast"]),
        (I32, I64, I32, ["Abs"]),
        (I32, F64, I32, ["Abs"]),
        (I8, I32, I64, ["Abs", "Cast"]),
        (F32, F64, F16, ["Exp", "Cast"]),
        (I32, I64, F32, ["Abs", "Cast"]),
        (I32, I64, BOOL, ["Abs", "Cast"]),
    ],
)
def test_casts(source: int, between: int, target: int, ops: list[str]) -> None:
    nodes = [node(ops[0], ["x"], "a"), node("Cast", ["a"], "b", to=between), node("Cast", ["b"], "y", to=target)]
    result = optimize(model(nodes, {"x": [3]}, ["y"], dtypes={"x": source, "y": target}))
    assert result.ops == ops
    check(result)


@pytest.mark.parametrize(
    ("source", "between", "target", "reason"),
    [
        (F32, F16, F32, "lose digits"),
        (I64, F32, I64, "lose digits"),
        (F32, I32, F32, "lose digits"),
        (I32, BOOL, I32, "lose digits"),
        (I8, F32, F64, "kind of number"),
        (F16, F32, TensorProto.STRING, "neither numbers"),
    ],
)
def test_casts_refused(source: int, between: int, target: int, reason: str) -> None:
    result = optimize(model([node("Cast", ["x"], "b", to=between), node("Cast", ["b"], "y", to=target)], {"x": [3]}, ["y"], dtypes={"x": source, "y": target}))
    assert result.ops == ["Cast", "Cast"] and reason in result.reason("merge-casts")


def squeeze(op: str, axes: list[int], source: str, out: str, opset: int) -> tuple[NodeProto, dict[str, np.ndarray]]:
    if opset < 13:
        return node(op, [source], out, axes=axes), {}
    return node(op, [source, f"axes of {out}"], out), {f"axes of {out}": np.array(axes)}


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("first", "second"), [([0, 2], [2, 0]), ([1], [-4]), ([-1], [4])])
def test_unsqueeze_and_squeeze(opset: int, first: list[int], second: list[int]) -> None:
    (a, ca), (b, cb) = squeeze("Unsqueeze", first, "x", "a", opset), squeeze("Squeeze", second, "a", "b", opset)
    dims = ["n", 3, 4, 5] if first != [0, 2] else ["n", 3]
    result = optimize(model([a, b, node("Exp", ["b"], "y")], {"x": dims}, ["y"], ca | cb, opset=opset))
    assert result.ops == ["Exp"] and "cancel-squeeze" in result.rules
    check(result)


@pytest.mark.parametrize("opset", [11, 17])
def test_squeeze_and_unsqueeze(opset: int) -> None:
    (a, ca), (b, cb) = squeeze("Squeeze", [1], "x", "a", opset), squeeze("Unsqueeze", [-3], "a", "b", opset)
    result = optimize(model([a, b, node("Exp", ["b"], "y")], {"x": ["n", 1, 4, 5]}, ["y"], ca | cb, opset=opset))
    assert result.ops == ["Exp"]
    check(result)


def test_axes_that_differ() -> None:
    (a, ca), (b, cb) = squeeze("Unsqueeze", [0], "x", "a", 17), squeeze("Squeeze", [1], "a", "b", 17)
    result = optimize(model([a, b, node("Exp", ["b"], "y")], {"x": [1, 4]}, ["y"], ca | cb))
    assert result.ops == ["Unsqueeze", "Squeeze", "Exp"] and "axes differ" in result.reason("cancel-squeeze")


def test_squeeze_of_every_dim_of_one() -> None:
    a, ca = squeeze("Unsqueeze", [0], "x", "a", 17)
    result = optimize(model([a, node("Squeeze", ["a"], "b"), node("Exp", ["b"], "y")], {"x": [1, 4]}, ["y"], ca))
    assert result.counts["Squeeze"] == 1 and "axes are not known" in result.reason("cancel-squeeze")
