"""One normal form for matrix products."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from rule_harness import check, model, node, optimize, weights


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
@pytest.mark.parametrize("size", [5, 1])
def test_matmul_and_bias(order: list[str], size: int) -> None:
    m = model([node("MatMul", ["x", "w"], "a"), node("Add", order, "y")], {"x": ["n", 4]}, ["y"], {"w": weights(4, 5), "b": weights(size)})
    result = optimize(m)
    assert result.ops == ["Gemm"] and result.rules == {"matmul-add-to-gemm"}
    check(result)


def test_both_factors_computed() -> None:
    m = model([node("MatMul", ["x", "v"], "a"), node("Add", ["a", "b"], "y")], {"x": ["n", 4], "v": [4, 5]}, ["y"], {"b": weights(5)})
    result = optimize(m)
    assert result.ops == ["Gemm"]
    check(result)


REFUSED = {
    "rank 3": ({"x": [2, 3, 4]}, (5,), ["y"], "not known to be matrices"),
    "vector": ({"x": [4]}, (5,), ["y"], "not known to be matrices"),
    "matrix": ({"x": [3, 4]}, (3, 5), ["y"], "is no vector"),
    "output": ({"x": [3, 4]}, (5,), ["y", "a"], "is a graph output"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_matmul_and_bias_refused(case: str) -> None:
    inputs, bias, outputs, reason = REFUSED[case]
    result = optimize(model([node("MatMul", ["x", "w"], "a"), node("Add", ["a", "b"], "y")], inputs, outputs, {"w": weights(4, 5), "b": weights(*bias)}))
    assert result.ops == ["MatMul", "Add"] and reason in result.reason("matmul-add-to-gemm")
    check(result)


def test_bias_that_widens_the_product() -> None:
    result = optimize(model([node("MatMul", ["x", "w"], "a"), node("Add", ["a", "b"], "y")], {"x": [3, 4]}, ["y"], {"w": weights(4, 1), "b": weights(5)}))
    assert result.ops == ["MatMul", "Add"] and "one value for each column" in result.reason("matmul-add-to-gemm")


def test_product_that_others_read() -> None:
    nodes = [node("MatMul", ["x", "w"], "a"), node("Add", ["a", "b"], "c"), node("Mul", ["a", "c"], "y")]
    result = optimize(model(nodes, {"x": [3, 4]}, ["y"], {"w": weights(4, 5), "b": weights(5)}))
    assert result.ops == ["MatMul", "Add", "Mul"] and "used elsewhere" in result.reason("matmul-add-to-gemm")


def test_integers_stay() -> None:
    m = model(
        [node("MatMul", ["x", "w"], "a"), node("Add", ["a", "b"], "y")],
        {"x": [3, 4]},
        ["y"],
        {"w": np.ones((4, 5), np.int32), "b": np.ones(5, np.int32)},
        dtype=TensorProto.INT32,
    )
    result = optimize(m)
    assert result.ops == ["MatMul", "Add"] and "no floating-point" in result.reason("matmul-add-to-gemm")


@pytest.mark.parametrize("attrs", [{"alpha": 0.5}, {"beta": 3.0}, {"transB": 1}, {"alpha": -2.0, "beta": 0.0, "transB": 1}])
def test_scalars_and_transposition(attrs: dict[str, float]) -> None:
    constants = {"w": weights(5, 4) if "transB" in attrs else weights(4, 5), "b": weights(5)}
    result = optimize(model([node("Gemm", ["x", "w", "b"], "y", **attrs)], {"x": ["n", 4]}, ["y"], constants))
    assert result.ops == ["Gemm"] and not result.after.graph.node[0].attribute and len(result.after.graph.initializer) == 2
    check(result)


def test_transposed_constant_on_the_left() -> None:
    result = optimize(model([node("Gemm", ["w", "x"], "y", transA=1, transB=1)], {"x": ["n", 4]}, ["y"], {"w": weights(4, 5)}))
    assert [a.name for a in result.after.graph.node[0].attribute] == ["transB"]
    check(result)


def test_weight_that_others_read_is_not_copied() -> None:
    nodes = [node("Gemm", ["x", "w", "b"], "a", transB=1, alpha=2.0), node("MatMul", ["a", "w"], "y")]
    result = optimize(model(nodes, {"x": [3, 4]}, ["y"], {"w": weights(5, 4), "b": weights(5)}))
    assert (
        result.ops == ["Gemm", "MatMul"]
        and "of this node alone" in result.reason("fold-gemm-transpose")
        and "of this node alone" in result.reason("fold-gemm-alpha")
    )


def test_large_weight_is_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.optimizer.graph.rules import matmul

    monkeypatch.setattr(matmul, "LARGEST_COPY", 16)
    result = optimize(model([node("Gemm", ["x", "w"], "y", transB=1)], {"x": [3, 4]}, ["y"], {"w": weights(5, 4)}))
    assert result.after.graph == result.before.graph and "is large" in result.reason("fold-gemm-transpose")


def test_scale_in_half_precision_stays() -> None:
    m = model([node("Gemm", ["x", "w"], "y", alpha=1e-6)], {"x": [3, 4]}, ["y"], {"w": weights(4, 5, dtype=np.float16)}, dtype=TensorProto.FLOAT16)
    result = optimize(m)
    assert result.after.graph == m.graph and "too small for float16" in result.reason("fold-gemm-alpha")


def test_gemm_of_computed_tensors_stays() -> None:
    m = model([node("Gemm", ["x", "v", "c"], "y", transB=1, beta=0.5)], {"x": [3, 4], "v": [5, 4], "c": [5]}, ["y"])
    result = optimize(m)
    assert result.after.graph == m.graph and "'c' is not constant" in result.reason("fold-gemm-beta")


def test_matmul_of_a_transposed_constant() -> None:
    result = optimize(
        model(
            [node("Transpose", ["w"], "v", perm=[1, 0]), node("MatMul", ["x", "v"], "a"), node("Add", ["a", "b"], "y")],
            {"x": ["n", 4]},
            ["y"],
            {"w": weights(5, 4), "b": weights(5)},
        )
    )
    assert result.ops == ["Gemm"]
    check(result)
