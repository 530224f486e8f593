"""Constants for what is computed from constants and from known shapes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from rule_harness import check, model, node, optimize, weights


def test_chain_of_constants_becomes_one_of_the_same_name() -> None:
    nodes = [node("Add", ["a", "b"], "c"), node("Sqrt", ["c"], "d"), node("Mul", ["x", "d"], "y")]
    result = optimize(model(nodes, {"x": [3]}, ["y"], {"a": np.full(3, 2, np.float32), "b": np.float32(7)}))
    assert result.ops == ["Mul"] and [t.name for t in result.after.graph.initializer] == ["d"] and result.after.graph.node[0] == result.before.graph.node[2]
    check(result)


def test_constant_nodes_of_every_form() -> None:
    nodes = [
        node("Constant", [], "a", value_floats=[1.0, 2.0]),
        node("Constant", [], "b", value_float=3.0),
        node("Mul", ["a", "b"], "c"),
        node("Constant", [], "d", value=helper.make_tensor("", 1, [2], [5.0, 6.0])),
        node("Sub", ["c", "d"], "e"),
        node("Mul", ["x", "e"], "y"),
    ]
    result = optimize(model(nodes, {"x": [2]}, ["y"]))
    assert result.ops == ["Mul"] and len(result.after.graph.node) == 1
    check(result)


def test_several_outputs() -> None:
    nodes = [node("Split", ["w", "parts"], ["a", "b"]), node("Mul", ["x", "a"], "p"), node("Sub", ["p", "b"], "y")]
    result = optimize(model(nodes, {"x": [2]}, ["y"], {"w": weights(4), "parts": np.array([2, 2])}))
    assert result.ops == ["Mul", "Sub"]
    check(result)


def test_transposed_weight_of_one_reader() -> None:
    result = optimize(
        model([node("Transpose", ["w"], "v", perm=[1, 0]), node("MatMul", ["x", "v"], "y")], {"x": ["n", 3, 200]}, ["y"], {"w": weights(300, 200)})
    )
    assert result.ops == ["MatMul"]
    check(result)


def test_transposed_weight_that_others_read_is_not_copied() -> None:
    nodes = [node("Gather", ["w", "i"], "e"), node("Transpose", ["w"], "v"), node("MatMul", ["e", "v"], "y")]
    result = optimize(model(nodes, {"i": ["n"]}, ["y"], {"w": weights(300, 200)}, dtypes={"i": TensorProto.INT64}))
    assert result.counts["Transpose"] == 1 and "would be copied" in result.reason("fold-constants")


def test_weight_that_is_cut_into_pieces() -> None:
    """Gates of a recurrent layer are reordered by slicing: each slice is a reader, and all of them together are no more than the weight."""
    nodes = [node("Slice", ["w", f"b{i}", f"b{i + 1}"], f"w{i}") for i in range(4)] + [
        node("Concat", ["w3", "w2", "w1", "w0"], "v", axis=0),
        node("MatMul", ["x", "v"], "y"),
    ]
    constants = {"w": weights(200, 100)} | {f"b{i}": np.array([50 * i]) for i in range(5)}
    result = optimize(model(nodes, {"x": ["n", 200]}, ["y"], constants))
    assert result.ops == ["MatMul"] and len(result.after.graph.initializer) == 1
    check(result)


def test_weight_that_is_cut_into_pieces_in_two_branches_stays() -> None:
    def branch(i: int) -> object:
        nodes = [node("Slice", ["w", "low", "high"], f"s{i}"), node("MatMul", ["x", f"s{i}"], f"r{i}")]
        return helper.make_graph(nodes, f"b{i}", [], [helper.make_tensor_value_info(f"r{i}", 1, [1, 100])])

    constants = {"w": weights(200, 100), "low": np.array([50]), "high": np.array([250])}
    m = model(
        [node("If", ["c"], "y", then_branch=branch(0), else_branch=branch(1))], {"x": [1, 150], "c": []}, ["y"], constants, dtypes={"c": TensorProto.BOOL}
    )
    result = optimize(m)
    assert result.after.graph == m.graph and "would be copied" in result.reason("fold-constants")


@pytest.mark.parametrize(
    ("what", "constants"),
    [
        (node("ConstantOfShape", ["s"], "w"), {"s": np.array([200, 200])}),
        (node("Expand", ["v", "s"], "w"), {"v": np.ones((1, 200), np.float32), "s": np.array([200, 200])}),
        (node("Tile", ["v", "s"], "w"), {"v": np.ones((1, 200), np.float32), "s": np.array([200, 1])}),
        (node("Pad", ["v", "s"], "w"), {"v": np.ones((1, 200), np.float32), "s": np.array([0, 0, 199, 0])}),
        (node("Mul", ["v", "s"], "w"), {"v": np.ones((1, 200), np.float32), "s": np.ones((200, 1), np.float32)}),
        (node("MatMul", ["s", "v"], "w"), {"v": np.ones((1, 200), np.float32), "s": np.ones((200, 1), np.float32)}),
        (node("Gather", ["v", "s"], "w"), {"v": np.ones((3, 200), np.float32), "s": np.arange(200).astype(np.int32) % 3}),
        (node("Cast", ["v"], "w", to=1), {"v": np.ones((200, 200), np.float16)}),
    ],
)
def test_file_does_not_grow(what: object, constants: dict[str, np.ndarray]) -> None:
    result = optimize(model([what, node("MatMul", ["x", "w"], "y")], {"x": ["n", 200]}, ["y"], constants))
    assert result.counts["MatMul"] >= 1 and len(result.ops) == 2 and "more than its operands" in result.reason("fold-constants")
    check(result)


def test_gigantic_result_is_never_made() -> None:
    nodes = [node("ConstantOfShape", ["s"], "w"), node("ReduceSum", ["w"], "r", keepdims=0), node("Add", ["x", "r"], "y")]
    result = optimize(model(nodes, {"x": [1]}, ["y"], {"s": np.array([1 << 20, 1 << 20, 64])}))
    assert result.ops == ["ConstantOfShape", "ReduceSum", "Add"] and "more than its operands" in result.reason("fold-constants")


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_random_ops_are_not_frozen(op: str) -> None:
    result = optimize(model([node(op, [], "r", shape=[3]), node("Neg", ["r"], "s"), node("Add", ["x", "s"], "y")], {"x": [3]}, ["y"]))
    assert result.ops == [op, "Neg", "Add"]


def test_initializer_that_the_caller_may_override() -> None:
    m = model([node("Exp", ["w"], "v"), node("Mul", ["x", "v"], "y")], {"x": [3], "w": [3]}, ["y"], {"w": weights(3)})
    assert optimize(m).ops == ["Exp", "Mul"]
    assert optimize(m, freeze_initializers=True).ops == ["Mul"]
    m.ir_version = 3
    result = optimize(m)
    assert result.ops == ["Mul"] and [i.name for i in result.after.graph.input] == ["x"]


def test_result_that_is_an_output() -> None:
    result = optimize(model([node("Exp", ["w"], "v"), node("Mul", ["x", "v"], "y")], {"x": [3]}, ["y", "v"], {"w": weights(3)}))
    assert result.ops == ["Exp", "Mul"] and "graph output" in result.reason("fold-constants")


def test_t17_quantised_weights_stay() -> None:
    nodes = [
        node("DequantizeLinear", ["x8", "s", "z"], "x"),
        node("DequantizeLinear", ["w8", "s", "z"], "w"),
        node("Conv", ["x", "w"], "c"),
        node("QuantizeLinear", ["c", "s", "z"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], "y"),
    ]
    constants = {"w8": np.arange(-4, 4, dtype=np.int8).reshape(4, 2, 1, 1), "s": np.float32(0.1), "z": np.int8(0)}
    result = optimize(model(nodes, {"x8": [1, 2, 3, 3]}, ["y"], constants, dtypes={"x8": TensorProto.INT8}))
    assert result.after.graph == result.before.graph


def test_t17_batchnorm_behind_a_quantised_conv_stays() -> None:
    nodes = [
        node("DequantizeLinear", ["w8", "s", "z"], "w"),
        node("Conv", ["x", "w"], "c"),
        node("BatchNormalization", ["c", *"gbmv"], "n"),
        node("Mul", ["n", "two"], "y"),
    ]
    constants = {"w8": np.ones((4, 2, 1, 1), np.int8), "s": np.float32(0.1), "z": np.int8(0), "two": np.float32(2)} | {
        k: np.ones(4, np.float32) for k in "gbmv"
    }
    result = optimize(model(nodes, {"x": [1, 2, 3, 3]}, ["y"], constants))
    assert result.ops == ["DequantizeLinear", "Conv", "BatchNormalization", "Mul"] and "is not constant" in result.reason("fold-batchnorm")


def test_two_readings_of_one_quantised_weight_do_not_merge() -> None:
    nodes = [node("DequantizeLinear", ["w8", "s"], f"w{i}") for i in (0, 1)] + [node("MatMul", ["x", "w0"], "a"), node("MatMul", ["a", "w1"], "y")]
    assert optimize(model(nodes, {"x": [2, 2]}, ["y"], {"w8": np.ones((2, 2), np.int8), "s": np.float32(1)})).counts["DequantizeLinear"] == 2


def test_shape_of_known_dims() -> None:
    nodes = [
        node("Shape", ["x"], "s"),
        node("Gather", ["s", "one"], "c"),
        node("Mul", ["c", "two"], "d"),
        node("Concat", ["minus", "d"], "t", axis=0),
        node("Reshape", ["x", "t"], "y"),
    ]
    m = model(nodes, {"x": [6, 4]}, ["y"], {"one": np.array([1]), "two": np.array([2]), "minus": np.array([-1])})
    result = optimize(m)
    assert result.ops == ["Reshape"] and "fold-known-shape" in result.rules
    check(result)


def test_shape_of_open_dims_stays() -> None:
    result = optimize(model([node("Shape", ["x"], "s"), node("ConstantOfShape", ["s"], "y")], {"x": ["n", 4]}, ["y"]))
    assert result.ops == ["Shape", "ConstantOfShape"]


def test_strings_and_failing_nodes_stay() -> None:
    nodes = [
        node("Concat", ["a", "a"], "b", axis=0),
        node("Equal", ["b", "b"], "c"),
        node("Gather", ["w", "i"], "g"),
        node("Mul", ["x", "g"], "p"),
        node("Where", ["c", "p", "x"], "y"),
    ]
    constants = {"a": np.array(["u"], dtype=object), "w": np.ones(2, np.float32), "i": np.array([5])}
    result = optimize(model(nodes, {"x": [2]}, ["y"], constants, opset=19))
    assert len(result.ops) == 5 and "ONNX Runtime" in result.reason("fold-constants") and "data type" in result.reason("fold-constants")


def test_zero_elements() -> None:
    nodes = [node("Concat", ["e", "w"], "c", axis=0), node("Slice", ["c", "zero", "zero"], "z"), node("Concat", ["x", "z"], "y", axis=0)]
    result = optimize(model(nodes, {"x": [2, 3]}, ["y"], {"e": np.zeros((0, 3), np.float32), "w": weights(2, 3), "zero": np.array([0])}))
    assert result.ops == ["Concat"]
    check(result)


def test_inside_a_branch() -> None:
    branches = [
        helper.make_graph([node("Neg", ["w"], f"v{i}"), node("Add", ["x", f"v{i}"], f"r{i}")], f"b{i}", [], [helper.make_tensor_value_info(f"r{i}", 1, [3])])
        for i in (0, 1)
    ]
    nodes = [node("Exp", ["u"], "w"), node("If", ["c"], "y", then_branch=branches[0], else_branch=branches[1])]
    result = optimize(model(nodes, {"x": [3], "c": []}, ["y"], {"u": weights(3)}, dtypes={"c": TensorProto.BOOL}))
    assert result.ops == ["If"] and [n.op_type for n in result.after.graph.node[0].attribute[0].g.node] == ["Add"]
    check(result)
