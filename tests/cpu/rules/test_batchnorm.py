"""BatchNormalization becomes part of the weight and bias in front of it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto

from rule_harness import check, feeds_for, model, node, optimize, run, weights

REASON = "fold-batchnorm"


def statistics(channels: int, dtype: type = np.float32, seed: int = 0, tag: str = "") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    ranges = {"g": (0.5, 2.0), "b": (-1.0, 1.0), "m": (-1.0, 1.0), "v": (0.1, 4.0)}
    return {tag + k: rng.uniform(low, high, channels).astype(dtype) for k, (low, high) in ranges.items()}


def norm(source: str, out: str | list[str] = "y", tag: str = "", **attrs: object) -> NodeProto:
    return node("BatchNormalization", [source, *(tag + k for k in "gbmv")], out, **attrs)


CONVS = {
    "1-D": ("Conv", (6, 4, 3), [2, 4, 9], {}),
    "2-D with bias": ("Conv", (6, 4, 3, 3), [2, 4, 8, 7], {"pads": [1, 1, 1, 1], "bias": True}),
    "3-D": ("Conv", (6, 4, 1, 2, 3), [1, 4, 3, 4, 5], {}),
    "depthwise, multiplier 2": ("Conv", (8, 1, 3, 3), [1, 4, 8, 7], {"group": 4}),
    "grouped, dilated": ("Conv", (6, 2, 3, 3), ["n", 4, 9, 9], {"group": 2, "dilations": [2, 2]}),
    "transposed": ("ConvTranspose", (4, 6, 3, 3), [1, 4, 5, 5], {"strides": [2, 2], "bias": True}),
    "transposed, grouped": ("ConvTranspose", (4, 3, 2, 2), [1, 4, 5, 5], {"group": 2}),
    "T11 asymmetric": ("Conv", (6, 4, 3, 3), [1, 4, 8, 7], {"pads": [0, 1, 2, 1]}),
    "T11 asymmetric, transposed": ("ConvTranspose", (4, 6, 3, 3), [1, 4, 8, 7], {"pads": [0, 0, 1, 1], "bias": True}),
    "T10": ("ConvTranspose", (1, 2, 3, 3), [1, 1, 3, 3], {"auto_pad": "SAME_UPPER", "strides": [2, 2], "output_padding": [1, 1]}),
}


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("opset", [8, 11, 17])
def test_conv(case: str, opset: int) -> None:
    op, shape, dims, options = CONVS[case]
    channels = shape[1] * options.get("group", 1) if op == "ConvTranspose" else shape[0]
    attrs = {k: v for k, v in options.items() if k != "bias"}
    inputs = ["x", "w", "bias"] if "bias" in options else ["x", "w"]
    m = model(
        [node(op, inputs, "c", **attrs), norm("c")], {"x": dims}, ["y"], {"w": weights(*shape), "bias": weights(channels)} | statistics(channels), opset=opset
    )
    result = optimize(m)
    assert result.ops == [op] and result.rules == {REASON}
    check(result)


@pytest.mark.parametrize("attrs", [{"transB": 1}, {}, {"alpha": 0.5, "beta": 2.0}, {"transA": 1}])
@pytest.mark.parametrize("bias", [(5,), (1, 5), (1,), (), None])
def test_gemm(attrs: dict[str, float], bias: tuple[int, ...] | None) -> None:
    constants = {"w": weights(*((5, 4) if "transB" in attrs else (4, 5)))} | statistics(5) | ({} if bias is None else {"c": weights(*bias)})
    inputs = ["x", "w"] if bias is None else ["x", "w", "c"]
    result = optimize(model([node("Gemm", inputs, "a", **attrs), norm("a")], {"x": [4, 3] if "transA" in attrs else [3, 4]}, ["y"], constants))
    assert result.ops == ["Gemm"]
    check(result)


def test_matmul_becomes_gemm() -> None:
    result = optimize(model([node("MatMul", ["x", "w"], "a"), norm("a")], {"x": ["n", 4]}, ["y"], {"w": weights(4, 5)} | statistics(5)))
    assert result.ops == ["Gemm"]
    check(result)


def test_matmul_of_rank_3_has_its_channels_elsewhere() -> None:
    result = optimize(model([node("MatMul", ["x", "w"], "a"), norm("a")], {"x": [2, 5, 4]}, ["y"], {"w": weights(4, 5)} | statistics(5)))
    assert result.ops == ["MatMul", "BatchNormalization"] and "not known to be matrices" in result.reason(REASON)


def test_t2_weight_that_two_convs_share_is_cloned() -> None:
    nodes = [node("Conv", ["x", "w"], "a"), norm("a", "p", "1"), node("Conv", ["x", "w"], "b"), norm("b", "q", "2"), node("Conv", ["x", "w"], "r")]
    nodes[2].name = "not a twin"
    constants = {"w": weights(3, 2, 1, 1)} | statistics(3, tag="1") | statistics(3, seed=1, tag="2")
    m = model([nodes[0], nodes[1], node("Neg", ["x"], "z"), node("Conv", ["z", "w"], "b"), nodes[3], nodes[4]], {"x": [1, 2, 4, 4]}, ["p", "q", "r"], constants)
    result = optimize(m)
    assert result.counts == {"Conv": 3, "Neg": 1} and {"w"} < {t.name for t in result.after.graph.initializer}
    check(result)


def test_t27_weights_in_constant_nodes_without_names() -> None:
    from onnx import numpy_helper

    constants = {"w": weights(3, 2, 1, 1), "bias": weights(3)} | statistics(3)
    nodes = [node("Constant", [], k, value=numpy_helper.from_array(v)) for k, v in constants.items()]
    result = optimize(model([*nodes, node("Conv", ["x", "w", "bias"], "c"), norm("c", "d"), node("Relu", ["d"], "y")], {"x": [1, 2, 4, 4]}, ["y"]))
    assert [n.op_type for n in result.after.graph.node] == ["Conv", "Relu"]
    check(result)


def test_weights_from_outside_a_branch() -> None:
    from onnx import helper

    def branch(i: int) -> object:
        nodes = [node("Conv", ["x", "w"], f"c{i}"), norm(f"c{i}", f"r{i}")]
        return helper.make_graph(nodes, f"b{i}", [], [helper.make_tensor_value_info(f"r{i}", 1, [1, 3, 4, 4])])

    m = model(
        [node("If", ["f"], "y", then_branch=branch(0), else_branch=branch(1))],
        {"x": [1, 2, 4, 4], "f": []},
        ["y"],
        {"w": weights(3, 2, 1, 1)} | statistics(3),
        dtypes={"f": TensorProto.BOOL},
    )
    result = optimize(m)
    body = result.after.graph.node[0].attribute[0].g
    assert [n.op_type for n in body.node] == ["Conv"] and len(body.initializer) == 2 and not result.after.graph.initializer
    for flag in (True, False):
        feeds = feeds_for(m) | {"f": np.array(flag)}
        np.testing.assert_allclose(run(m, feeds)[0], run(result.after, feeds)[0], rtol=1e-4, atol=1e-5)


def test_old_opset_with_statistics_for_each_position() -> None:
    shapes = {k: weights(3, 4, 4) ** 2 + 1 for k in "gbmv"}
    result = optimize(model([node("Conv", ["x", "w"], "c"), norm("c", spatial=0)], {"x": [1, 2, 4, 4]}, ["y"], {"w": weights(3, 2, 1, 1)} | shapes, opset=7))
    assert result.ops == ["Conv", "BatchNormalization"] and "spatial is 0" in result.reason(REASON)


REFUSED = {
    "used elsewhere": ([node("Conv", ["x", "w"], "c"), norm("c", "n"), node("Add", ["c", "n"], "y")], ["y"]),
    "is a graph output": ([node("Conv", ["x", "w"], "c"), norm("c")], ["y", "c"]),
    "it trains": ([node("Conv", ["x", "w"], "c"), norm("c", ["y", "m2", "v2"], training_mode=1)], ["y"]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason: str) -> None:
    nodes, outputs = REFUSED[reason]
    result = optimize(model(nodes, {"x": [1, 2, 4, 4]}, outputs, {"w": weights(3, 2, 1, 1)} | statistics(3)))
    assert result.counts["BatchNormalization"] == 1 and reason in result.reason(REASON)


@pytest.mark.parametrize(("opset", "folds"), [(9, False), (14, True)])
def test_outputs_of_training_that_nobody_reads(opset: int, folds: bool) -> None:
    m = model(
        [node("Conv", ["x", "w"], "c"), norm("c", ["y", "m2", "v2", *(["m3", "v3"] if opset == 9 else [])])],
        {"x": [1, 2, 4, 4]},
        ["y"],
        {"w": weights(3, 2, 1, 1)} | statistics(3),
        opset=opset,
    )
    from tilewright.optimizer.graph.canonicalize import canonicalize
    from tilewright.optimizer.graph.shapes import infer
    from tilewright.optimizer.graph.view import View

    view = View(m)
    report = canonicalize(view, infer(view))
    assert [n.op for n in view.graph.nodes] == (["Conv"] if folds else ["Conv", "BatchNormalization"])
    assert folds or "outputs of training" in report.refused[0].reason


def test_weight_that_the_caller_may_override() -> None:
    m = model([node("Conv", ["x", "w"], "c"), norm("c")], {"x": [1, 2, 4, 4], "w": [3, 2, 1, 1]}, ["y"], {"w": weights(3, 2, 1, 1)} | statistics(3))
    result = optimize(m)
    assert result.ops == ["Conv", "BatchNormalization"] and "may be overridden" in result.reason(REASON)
    assert optimize(m, freeze_initializers=True).ops == ["Conv"]


def test_statistics_that_are_computed() -> None:
    constants = {"w": weights(3, 2, 1, 1)} | statistics(3)
    del constants["v"]
    result = optimize(model([node("Conv", ["x", "w"], "c"), norm("c")], {"x": [1, 2, 4, 4], "v": [3]}, ["y"], constants))
    assert result.ops == ["Conv", "BatchNormalization"] and "the variance 'v' is not constant" in result.reason(REASON)


def test_batchnorm_of_something_else_stays_without_a_word() -> None:
    result = optimize(model([node("Relu", ["x"], "a"), norm("a")], {"x": [1, 3, 4, 4]}, ["y"], statistics(3)))
    assert result.ops == ["Relu", "BatchNormalization"] and not result.report.refused


def half(variance: float, scale: float = 1.0) -> dict[str, np.ndarray]:
    """A float32 BatchNormalization behind a float16 Conv, as opset 15 allows."""
    return {"g": np.full(3, scale, np.float32), "b": np.zeros(3, np.float32), "m": np.zeros(3, np.float32), "v": np.full(3, variance, np.float32)}


@pytest.mark.parametrize(
    ("statistics16", "reason"), [(half(1e-9, 60000.0), "beyond the range of float16"), (half(1e12), "too small for float16"), (half(-1.0), "is not finite")]
)
def test_half_precision_that_cannot_hold_the_result(statistics16: dict[str, np.ndarray], reason: str) -> None:
    m = model(
        [node("Conv", ["x", "w"], "c"), norm("c")],
        {"x": [1, 2, 4, 4]},
        ["y"],
        {"w": weights(3, 2, 1, 1, dtype=np.float16)} | statistics16,
        dtype=TensorProto.FLOAT16,
    )
    result = optimize(m)
    assert result.ops == ["Conv", "BatchNormalization"] and reason in result.reason(REASON)


def test_half_precision() -> None:
    constants = {"w": weights(3, 2, 1, 1, dtype=np.float16)} | statistics(3, np.float16)
    result = optimize(model([node("Conv", ["x", "w"], "c"), norm("c")], {"x": [1, 2, 4, 4]}, ["y"], constants, dtype=TensorProto.FLOAT16))
    assert result.ops == ["Conv"]
    check(result, bound=3e-3)


def test_the_fp16_trap() -> None:
    """Variances beyond the float16 range (a real detector has 9.8e7) fold in float64 into weights that float16 holds."""
    constants = (
        {"w": (weights(4, 3, 3, 3) * 5000).astype(np.float32)}
        | statistics(4)
        | {"v": np.array([1.0e7, 9.8e7, 5.0e7, 2.0e7], np.float32), "m": np.full(4, 1e4, np.float32)}
    )
    result = optimize(model([node("Conv", ["x", "w"], "c"), norm("c")], {"x": [1, 3, 8, 8]}, ["y"], constants))
    assert result.ops == ["Conv"]
    largest = max(float(np.abs(np.frombuffer(t.raw_data, np.float32)).max()) for t in result.after.graph.initializer)
    assert largest < 65504
    check(result)


def test_chain_of_two() -> None:
    constants = {"w": weights(3, 2, 3, 3)} | statistics(3, tag="1") | statistics(3, seed=5, tag="2")
    result = optimize(model([node("Conv", ["x", "w"], "c"), norm("c", "d", "1"), norm("d", "y", "2")], {"x": [0, 2, 5, 5]}, ["y"], constants))
    assert result.ops == ["Conv"]
    check(result)
