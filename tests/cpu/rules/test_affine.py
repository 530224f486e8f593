"""Scales and shifts beside a Conv, ConvTranspose or Gemm."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from rule_harness import check, model, node, optimize, weights

AFTER, BEFORE = "fold-scale-after", "fold-scale-before"


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_after_conv(op: str, shape: tuple[int, ...], bias: bool) -> None:
    nodes = [node("Conv", ["x", "w", "b"] if bias else ["x", "w"], "c", pads=[1, 1, 1, 1]), node(op, ["c", "s"], "y")]
    result = optimize(model(nodes, {"x": ["n", 4, "h", 5]}, ["y"], {"w": weights(6, 4, 3, 3), "b": weights(6), "s": weights(*shape) + 3}))
    assert result.ops == ["Conv"] and result.rules == {AFTER}
    check(result, dim=4)


@pytest.mark.parametrize(("op", "folds"), [("Add", True), ("Sub", True), ("Mul", True), ("Div", False)])
def test_constant_on_the_left(op: str, folds: bool) -> None:
    m = model([node("Conv", ["x", "w"], "c"), node(op, ["s", "c"], "y")], {"x": [1, 4, 5, 5]}, ["y"], {"w": weights(6, 4, 3, 3), "s": weights(6, 1, 1)})
    result = optimize(m)
    assert result.ops == (["Conv"] if folds else ["Conv", op])
    check(result)


@pytest.mark.parametrize(
    ("op", "shape", "dims", "attrs"),
    [
        ("ConvTranspose", (4, 3, 2, 2), [1, 4, 5, 5], {"group": 2}),
        ("Conv", (6, 1, 3), [1, 6, 9], {"group": 6}),
        ("Conv", (6, 4, 2, 2, 2), [1, 4, 3, 4, 5], {}),
    ],
)
def test_after_other_convs(op: str, shape: tuple[int, ...], dims: list[int], attrs: dict[str, int]) -> None:
    scale = {"s": weights(6, *[1] * (len(shape) - 2)) + 3, "t": weights(1, 6, *[1] * (len(shape) - 2))}
    nodes = [node(op, ["x", "w"], "c", **attrs), node("Mul", ["c", "s"], "d"), node("Add", ["d", "t"], "y")]
    result = optimize(model(nodes, {"x": dims}, ["y"], {"w": weights(*shape)} | scale))
    assert result.ops == [op]
    check(result)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1,), ()])
@pytest.mark.parametrize("attrs", [{}, {"transB": 1, "alpha": 0.5, "beta": 3.0}])
def test_after_gemm(shape: tuple[int, ...], attrs: dict[str, float]) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], "c", **attrs), node("Mul", ["c", "s"], "d"), node("Sub", ["d", "s"], "y")]
    result = optimize(model(nodes, {"x": ["n", 4]}, ["y"], {"w": weights(5, 4) if attrs else weights(4, 5), "b": weights(5), "s": weights(*shape) + 2}))
    assert result.ops == ["Gemm"]
    check(result)


SHAPES = {
    "T1: one value for each position": ((1, 136, 28, 28), "does not hold one value for each channel"),
    "along the width": ((28,), "does not hold one value for each channel"),
    "along the height": ((28, 1), "does not hold one value for each channel"),
    "for each image": ((2, 136, 1, 1), "does not hold one value for each channel"),
    "more dims": ((1, 1, 136, 1, 1), "the constant has 5 dims, the tensor 4"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_t1_constant_that_is_no_bias(case: str) -> None:
    shape, reason = SHAPES[case]
    m = model(
        [node("Conv", ["x", "w"], "c", group=4), node("Add", ["c", "s"], "y")],
        {"x": [1, 136, 28, 28]},
        ["y"],
        {"w": weights(136, 34, 1, 1), "s": weights(*shape)},
    )
    result = optimize(m)
    assert result.ops == ["Conv", "Add"] and reason in result.reason(AFTER)
    check(result)


def test_width_that_equals_the_channels() -> None:
    m = model([node("Conv", ["x", "w"], "c"), node("Mul", ["c", "s"], "y")], {"x": [1, 6, 6, 6]}, ["y"], {"w": weights(6, 6, 1, 1), "s": weights(6)})
    result = optimize(m)
    assert result.ops == ["Conv", "Mul"] and "one value for each channel" in result.reason(AFTER)


def test_constant_with_more_channels_than_the_conv() -> None:
    m = model([node("Conv", ["x", "w"], "c"), node("Mul", ["c", "s"], "y")], {"x": [1, 2, 3, 3]}, ["y"], {"w": weights(1, 2, 1, 1), "s": weights(6, 1, 1)})
    result = optimize(m)
    assert result.ops == ["Conv", "Mul"] and "the constant has 6 channels, the tensor 1" in result.reason(AFTER)
    check(result)


@pytest.mark.parametrize(("op", "value", "reason"), [("Div", 0.0, "not finite"), ("Mul", np.inf, "not finite"), ("Mul", 1e38, "beyond the range of float32")])
def test_result_that_is_no_number(op: str, value: float, reason: str) -> None:
    m = model([node("Conv", ["x", "w"], "c"), node(op, ["c", "s"], "y")], {"x": [1, 2, 3, 3]}, ["y"], {"w": weights(3, 2, 1, 1) * 100, "s": np.float32(value)})
    result = optimize(m)
    assert result.ops == ["Conv", op] and reason in result.reason(AFTER)


def test_half_precision_beyond_the_range() -> None:
    constants = {"w": np.full((3, 2, 1, 1), 300, np.float16), "s": np.float16(300)}
    result = optimize(model([node("Conv", ["x", "w"], "c"), node("Mul", ["c", "s"], "y")], {"x": [1, 2, 3, 3]}, ["y"], constants, dtype=TensorProto.FLOAT16))
    assert result.ops == ["Conv", "Mul"] and "beyond the range of float16" in result.reason(AFTER)


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason"),
    [
        ([node("Conv", ["x", "w"], "c"), node("Mul", ["c", "s"], "d"), node("Add", ["c", "d"], "y")], ["y"], "used elsewhere"),
        ([node("Conv", ["x", "w"], "c"), node("Mul", ["c", "s"], "y")], ["y", "c"], "is a graph output"),
        ([node("Conv", ["x", "v"], "c"), node("Mul", ["c", "s"], "y")], ["y"], "the weight 'v' is not constant"),
        ([node("Conv", ["x", "w", "u"], "c"), node("Mul", ["c", "s"], "y")], ["y"], "the bias 'u' is not constant"),
    ],
)
def test_refused(nodes: list[object], outputs: list[str], reason: str) -> None:
    m = model(nodes, {"x": [1, 2, 3, 3], "v": [2, 2, 1, 1], "u": [2]}, outputs, {"w": weights(2, 2, 1, 1), "s": np.float32(3)})
    result = optimize(m)
    assert len(result.ops) == len(nodes) and reason in result.reason(AFTER)


def test_gemm_whose_bias_varies_by_row() -> None:
    m = model(
        [node("Gemm", ["x", "w", "b"], "c"), node("Mul", ["c", "s"], "y")], {"x": [3, 4]}, ["y"], {"w": weights(4, 5), "b": weights(3, 1), "s": np.float32(2)}
    )
    result = optimize(m)
    assert result.ops == ["Gemm", "Mul"] and "bias is not one value for each channel" in result.reason(AFTER)


def test_residual_add_is_none_of_this() -> None:
    result = optimize(model([node("Conv", ["x", "w"], "c"), node("Add", ["c", "x"], "y")], {"x": [1, 2, 3, 3]}, ["y"], {"w": weights(2, 2, 1, 1)}))
    assert result.ops == ["Conv", "Add"] and not result.report.refused


def test_shift_leaves_the_weight_alone() -> None:
    m = model([node("Conv", ["x", "w"], "c"), node("Add", ["c", "s"], "y")], {"x": [1, 2, 3, 3]}, ["y"], {"w": weights(3, 2, 1, 1), "s": weights(3, 1, 1)})
    result = optimize(m)
    assert result.after.graph.node[0].input[1] == "w" and len(result.after.graph.initializer) == 2


@pytest.mark.parametrize(
    ("op", "pads", "shape"),
    [
        ("Mul", [1, 1, 1, 1], (4, 1, 1)),
        ("Div", [1, 0, 2, 1], (1, 4, 1, 1)),
        ("Mul", [1, 1, 1, 1], ()),
        ("Add", [0, 0, 0, 0], (4, 1, 1)),
        ("Sub", [0, 0, 0, 0], (1,)),
        ("Sub", [0, 0, 0, 0], ()),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_before_conv(op: str, pads: list[int], shape: tuple[int, ...], group: int) -> None:
    nodes = [node(op, ["x", "s"], "a"), node("Conv", ["a", "w", "b"], "y", pads=pads, group=group)]
    result = optimize(model(nodes, {"x": ["n", 4, 6, 5]}, ["y"], {"w": weights(6, 4 // group, 3, 3), "b": weights(6), "s": weights(*shape) + 2}))
    assert result.ops == ["Conv"] and result.rules == {BEFORE}
    check(result)


def test_difference_from_a_constant_before_conv() -> None:
    result = optimize(
        model([node("Sub", ["s", "x"], "a"), node("Conv", ["a", "w"], "y")], {"x": [1, 4, 6, 5]}, ["y"], {"w": weights(6, 4, 3, 3), "s": weights(4, 1, 1)})
    )
    assert result.ops == ["Conv"]
    check(result)


def test_normalised_image_before_conv() -> None:
    nodes = [node("Sub", ["x", "mean"], "a"), node("Div", ["a", "deviation"], "b"), node("Conv", ["b", "w"], "y", pads=[1, 1, 1, 1])]
    m = model(nodes, {"x": [1, 3, 6, 6]}, ["y"], {"w": weights(6, 3, 3, 3), "mean": weights(3, 1, 1), "deviation": weights(3, 1, 1) + 2})
    result = optimize(m)
    assert result.ops == ["Sub", "Conv"] and "comes before padding" in result.reason(BEFORE)
    check(result)


@pytest.mark.parametrize("attrs", [{"pads": [0, 1, 0, 0]}, {"auto_pad": "SAME_UPPER"}])
def test_addition_before_padding_stays(attrs: dict[str, object]) -> None:
    result = optimize(
        model(
            [node("Add", ["x", "s"], "a"), node("Conv", ["a", "w"], "y", **attrs)], {"x": [1, 4, 6, 5]}, ["y"], {"w": weights(6, 4, 3, 3), "s": np.float32(2)}
        )
    )
    assert result.ops == ["Add", "Conv"] and "comes before padding" in result.reason(BEFORE)
    check(result)


@pytest.mark.parametrize("dims", [[1, 1, 6, 5], [1, "c", 6, 5], [1, 6, 5]])
def test_scale_that_makes_the_input_larger(dims: list[int | str]) -> None:
    nodes = [node("Mul", ["x", "s"], "a"), node("Conv", ["a", "w"], "y")]
    result = optimize(model(nodes, {"x": dims}, ["y"], {"w": weights(6, 4, 3, 3), "s": weights(1, 4, 1, 1)}))
    assert result.ops == ["Mul", "Conv"] and "not known" in result.reason(BEFORE)


def test_scaled_tensor_that_others_read_too() -> None:
    nodes = [node("Mul", ["x", "s"], "a"), node("Conv", ["a", "w"], "c"), node("Add", ["a", "c"], "y")]
    result = optimize(model(nodes, {"x": [1, 4, 6, 5]}, ["y"], {"w": weights(4, 4, 1, 1), "s": np.float32(2)}))
    assert result.ops == ["Mul", "Conv", "Add"] and "used elsewhere" in result.reason(BEFORE)


def test_integers_stay() -> None:
    m = model(
        [node("Gemm", ["x", "w"], "c"), node("Mul", ["c", "s"], "y")],
        {"x": [2, 3]},
        ["y"],
        {"w": np.ones((3, 4), np.int32), "s": np.int32(2)},
        dtype=TensorProto.INT32,
    )
    result = optimize(m)
    assert result.ops == ["Gemm", "Mul"] and "is int32" in result.reason(AFTER)


@pytest.mark.parametrize("opset", [12, 17])
def test_activation_in_front_of_a_conv_keeps_its_last_factor(opset: int) -> None:
    nodes = [
        node("Add", ["x", "three"], "a"),
        node("Clip", ["a", "zero", "six"], "b"),
        node("Mul", ["x", "b"], "c"),
        node("Div", ["c", "six"], "d"),
        node("Conv", ["d", "w"], "y"),
    ]
    constants = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6), "w": weights(6, 4, 1, 1)}
    result = optimize(model(nodes, {"x": [1, 4, 6, 5]}, ["y"], constants, opset=opset))
    assert result.ops == (["Add", "Clip", "Mul", "Div", "Conv"] if opset < 14 else ["HardSwish", "Conv"])
    check(result)
