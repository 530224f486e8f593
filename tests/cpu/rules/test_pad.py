"""Pads in front of Conv and pooling; automatic padding of a Conv."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto

from rule_harness import check, model, node, optimize, weights

RULE = "fold-pad"


def pad(amounts: list[int], opset: int, **attrs: object) -> tuple[NodeProto, dict[str, np.ndarray]]:
    if opset < 11:
        return node("Pad", ["x"], "p", pads=amounts, **attrs), {}
    return node("Pad", ["x", "pads"], "p", **attrs), {"pads": np.array(amounts, np.int64)}


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 18, 21])
@pytest.mark.parametrize("attrs", [{}, {"pads": [1, 0, 0, 2]}, {"auto_pad": "VALID"}, {"strides": [2, 2], "dilations": [2, 1], "group": 2}])
def test_conv(opset: int, attrs: dict[str, object]) -> None:
    what, constants = pad([0, 0, 1, 2, 0, 0, 3, 0], opset)
    w = weights(6, 2 if "group" in attrs else 4, 3, 3)
    result = optimize(model([what, node("Conv", ["p", "w"], "y", **attrs)], {"x": ["n", 4, "h", 7]}, ["y"], {"w": w} | constants, opset=opset))
    assert result.ops == ["Conv"] and RULE in result.rules
    check(result, dim=6)


@pytest.mark.parametrize("axes", [[2, 3], [-1, -2], [3, 2]])
def test_pads_of_named_axes(axes: list[int]) -> None:
    nodes = [node("Pad", ["x", "pads", "", "axes"], "p"), node("Conv", ["p", "w"], "y")]
    result = optimize(model(nodes, {"x": [1, 4, 6, 7]}, ["y"], {"w": weights(6, 4, 3, 3), "pads": np.array([1, 2, 3, 4]), "axes": np.array(axes)}, opset=18))
    assert result.ops == ["Conv"]
    check(result)


def test_value_of_zero_that_is_given() -> None:
    nodes = [node("Pad", ["x", "pads", "zero"], "p"), node("Conv", ["p", "w"], "y")]
    result = optimize(model(nodes, {"x": [1, 4, 7]}, ["y"], {"w": weights(6, 4, 3), "pads": np.array([0, 0, 1, 0, 0, 2]), "zero": np.float32(0)}))
    assert result.ops == ["Conv"]
    check(result)


def test_pad_that_two_convs_and_another_node_read() -> None:
    what, constants = pad([0, 0, 1, 1, 0, 0, 1, 1], 17)
    nodes = [what, node("Conv", ["p", "w"], "a"), node("Conv", ["p", "v"], "b"), node("Add", ["a", "b"], "y"), node("Neg", ["p"], "z")]
    result = optimize(model(nodes, {"x": [1, 4, 6, 7]}, ["y", "z"], {"w": weights(6, 4, 3, 3), "v": weights(6, 4, 3, 3, seed=1)} | constants))
    assert result.counts == {"Pad": 1, "Conv": 2, "Add": 1, "Neg": 1} and result.after.graph.node[1].input[0] == "x"
    check(result)


REFUSED = {
    "T6 it cuts": ([0, 0, -1, -1, 0, 0, -1, -1], {}, {}, "it cuts (negative pads)"),
    "T8 reflect": ([0, 0, 1, 1, 0, 0, 1, 1], {"mode": "reflect"}, {}, "its mode is reflect"),
    "edge": ([0, 0, 1, 1, 0, 0, 1, 1], {"mode": "edge"}, {}, "its mode is edge"),
    "channels": ([0, 1, 0, 0, 0, 1, 0, 0], {}, {}, "pads batch or channels"),
    "batch": ([0, 0, 0, 0, 1, 0, 0, 0], {}, {}, "pads batch or channels"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("opset", [10, 17])
def test_refused(case: str, opset: int) -> None:
    amounts, attrs, conv, reason = REFUSED[case]
    what, constants = pad(amounts, opset, **attrs)
    channels = 4 + amounts[1] + amounts[5]
    result = optimize(
        model([what, node("Conv", ["p", "w"], "y", **conv)], {"x": [1, 4, 8, 8]}, ["y"], {"w": weights(6, channels, 3, 3)} | constants, opset=opset)
    )
    assert result.ops == ["Pad", "Conv"] and reason in result.reason(RULE)
    check(result)


@pytest.mark.parametrize("opset", [10, 17])
def test_t8_other_value(opset: int) -> None:
    amounts = [0, 0, 1, 1, 0, 0, 1, 1]
    what = node("Pad", ["x"], "p", pads=amounts, value=1.0) if opset < 11 else node("Pad", ["x", "pads", "one"], "p")
    m = model(
        [what, node("Conv", ["p", "w"], "y")],
        {"x": [1, 4, 8, 8]},
        ["y"],
        {"w": weights(6, 4, 3, 3), "pads": np.array(amounts), "one": np.float32(1)},
        opset=opset,
    )
    result = optimize(m)
    assert result.ops == ["Pad", "Conv"] and "it pads with 1" in result.reason(RULE)


@pytest.mark.parametrize(("inputs", "reason"), [({"pads": [8]}, "the pads are not constant"), ({"v": []}, "the value that it pads with is not constant")])
def test_what_is_not_constant(inputs: dict[str, list[int]], reason: str) -> None:
    constants = {"w": weights(6, 4, 3, 3), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(0)}
    constants = {k: v for k, v in constants.items() if k not in inputs}
    m = model(
        [node("Pad", ["x", "pads", "v"], "p"), node("Conv", ["p", "w"], "y")],
        {"x": [1, 4, 8, 8]} | inputs,
        ["y"],
        constants,
        dtypes={"pads": TensorProto.INT64},
    )
    result = optimize(m)
    assert result.ops == ["Pad", "Conv"] and reason in result.reason(RULE)


def test_pad_before_a_transposed_conv_is_none_of_this() -> None:
    what, constants = pad([0, 0, 1, 1, 0, 0, 1, 1], 17)
    result = optimize(model([what, node("ConvTranspose", ["p", "w"], "y")], {"x": [1, 4, 8, 8]}, ["y"], {"w": weights(4, 6, 3, 3)} | constants))
    assert result.ops == ["Pad", "ConvTranspose"] and not result.report.refused


@pytest.mark.parametrize("attrs", [{}, {"strides": [2, 2]}, {"pads": [1, 0, 0, 1], "count_include_pad": 1}])
def test_average_pool(attrs: dict[str, object]) -> None:
    what, constants = pad([0, 0, 1, 1, 0, 0, 1, 0], 17)
    result = optimize(model([what, node("AveragePool", ["p"], "y", kernel_shape=[3, 3], **attrs)], {"x": [1, 4, 8, 8]}, ["y"], constants))
    assert result.ops == ["AveragePool"]
    check(result)


@pytest.mark.parametrize(
    ("attrs", "amounts", "reason"),
    [
        ({"pads": [1, 1, 1, 1]}, 1, "does not count that"),
        ({"ceil_mode": 1}, 1, "ceil_mode"),
        ({}, 3, "past the window"),
        ({"auto_pad": "SAME_UPPER"}, 1, "auto_pad is SAME_UPPER"),
    ],
)
def test_average_pool_refused(attrs: dict[str, object], amounts: int, reason: str) -> None:
    what, constants = pad([0, 0, amounts, 1, 0, 0, 1, 1], 17)
    result = optimize(model([what, node("AveragePool", ["p"], "y", kernel_shape=[3, 3], **attrs)], {"x": [1, 4, 8, 8]}, ["y"], constants))
    assert result.ops == ["Pad", "AveragePool"] and reason in result.reason(RULE)


MAX = {
    "behind Relu": ([node("Relu", ["u"], "x")], None, True),
    "behind a concatenation of what is not negative": (
        [node("Relu", ["u"], "a"), node("Sigmoid", ["u"], "b"), node("Concat", ["a", "b"], "x", axis=1)],
        None,
        True,
    ),
    "lowest": ([node("Neg", ["u"], "x")], -np.inf, True),
    "zero behind what may be negative": ([node("Neg", ["u"], "x")], None, False),
    "one behind Relu": ([node("Relu", ["u"], "x")], 1.0, False),
}


@pytest.mark.parametrize("case", MAX)
def test_max_pool(case: str) -> None:
    head, value, folds = MAX[case]
    constants = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 0])} | ({} if value is None else {"v": np.float32(value)})
    nodes = [*head, node("Pad", ["x", "pads"] if value is None else ["x", "pads", "v"], "p"), node("MaxPool", ["p"], "y", kernel_shape=[3, 3], strides=[2, 2])]
    result = optimize(model(nodes, {"u": [1, 4, 8, 8]}, ["y"], constants))
    assert result.counts["Pad"] == (0 if folds else 1) and (folds or "largest value of a window" in result.reason(RULE))
    check(result)


def test_max_pool_whose_indices_are_used() -> None:
    nodes = [node("Relu", ["u"], "x"), node("Pad", ["x", "pads"], "p"), node("MaxPool", ["p"], ["y", "i"], kernel_shape=[3, 3])]
    m = model(nodes, {"u": [1, 4, 8, 8]}, ["y", "i"], {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 0])}, dtypes={"i": TensorProto.INT64})
    result = optimize(m)
    assert result.counts["Pad"] == 1 and "indices into the padded input" in result.reason(RULE)


@pytest.mark.parametrize("mode", ["VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("kernel", "strides", "dims"),
    [((3, 3), [1, 1], [1, 4, "h", "w"]), ((4, 2), [1, 1], [1, 4, "h", 6]), ((3, 5), [2, 3], [1, 4, 7, 8]), ((2, 2), [3, 1], [1, 4, 9, "w"])],
)
@pytest.mark.parametrize("named", [True, False])
def test_automatic_padding(mode: str, kernel: tuple[int, int], strides: list[int], dims: list[int | str], named: bool) -> None:
    attrs = {"kernel_shape": list(kernel)} if named else {}
    result = optimize(model([node("Conv", ["x", "w"], "y", auto_pad=mode, strides=strides, **attrs)], {"x": dims}, ["y"], {"w": weights(6, 4, *kernel)}))
    assert result.rules == {"explicit-pads"} and "auto_pad" not in {a.name for a in result.after.graph.node[0].attribute}
    check(result, dim=6)


def test_padding_that_depends_on_an_open_size() -> None:
    result = optimize(model([node("Conv", ["x", "w"], "y", auto_pad="SAME_UPPER", strides=[2, 2])], {"x": [1, 4, "h", 8]}, ["y"], {"w": weights(6, 4, 3, 3)}))
    assert result.after.graph == result.before.graph and "depends on the size of the input" in result.reason("explicit-pads")


def test_t10_automatic_padding_of_a_transposed_conv_stays() -> None:
    m = model(
        [node("ConvTranspose", ["x", "w"], "y", auto_pad="SAME_UPPER", strides=[2, 2], output_padding=[1, 1])],
        {"x": [1, 1, 3, 3]},
        ["y"],
        {"w": weights(1, 2, 3, 3)},
    )
    assert optimize(m).after.graph == m.graph


def test_dilated_same_padding() -> None:
    result = optimize(model([node("Conv", ["x", "w"], "y", auto_pad="SAME_UPPER", dilations=[2, 2])], {"x": [1, 4, 9, 9]}, ["y"], {"w": weights(6, 4, 3, 3)}))
    pads = next(a for a in result.after.graph.node[0].attribute if a.name == "pads")
    assert list(pads.ints) == [2, 2, 2, 2]
