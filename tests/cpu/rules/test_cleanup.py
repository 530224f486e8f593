"""Dead nodes, nodes that change nothing, twins."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rule_harness import check, feeds_for, model, node, optimize, run, weights


def test_dead_chain_goes_and_unused_weights_with_it() -> None:
    m = model([node("Mul", ["x", "w"], "a"), node("Exp", ["a"], "b"), node("Relu", ["x"], "y")], {"x": [2]}, ["y"], {"w": weights(2)})
    result = optimize(m)
    assert result.ops == ["Relu"] and not result.after.graph.initializer and "remove-dead" in result.rules
    check(result)


def test_sum_of_two_is_an_add_and_of_one_is_nothing() -> None:
    result = optimize(
        model([node("Sum", ["x", "w"], "a"), node("Sum", ["a"], "b"), node("Sum", ["b", "x", "x"], "y")], {"x": [2, 3]}, ["y"], {"w": weights(3)})
    )
    assert result.ops == ["Add", "Sum"] and {"sum-to-add", "remove-no-op"} <= result.rules
    check(result)


@pytest.mark.parametrize("op", ["Max", "Mean", "Min"])
def test_variadic_op_of_one(op: str) -> None:
    result = optimize(model([node(op, ["x"], "a"), node(op, ["a", "w"], "y")], {"x": [2, 3]}, ["y"], {"w": weights(3)}))
    assert result.ops == [op] and result.rules == {"remove-no-op"}
    check(result)


def test_unused_initializer_goes_and_is_told() -> None:
    result = optimize(model([node("Relu", ["x"], "y")], {"x": [2]}, ["y"], {"w": weights(2), "v": weights(3)}, keep_unused=True))
    assert not result.after.graph.initializer and [(a.rule, a.nodes) for a in result.report.applied] == [("remove-unused-initializers", ("w", "v"))]


def test_replaced_weights_go_from_the_inputs_of_ir_3_too() -> None:
    """There they cannot be overridden: the file would keep every weight twice."""
    constants = {name: np.abs(weights(64, 64, 3, 3)) if name == "w" else np.abs(weights(64)) for name in ("w", "scale", "b", "mean", "var")}
    m = model(
        [node("Conv", ["x", "w"], "a"), node("BatchNormalization", ["a", "scale", "b", "mean", "var"], "y")], {"x": [1, 64, 5, 5]}, ["y"], constants, opset=9
    )
    m.ir_version = 3
    m.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in m.graph.initializer)
    result = optimize(m)
    assert result.ops == ["Conv"] and len(result.after.graph.initializer) == 2
    assert [i.name for i in result.after.graph.input] == ["x"]
    check(result)


def test_unused_initializer_of_a_quantization_annotation_stays() -> None:
    m = model([node("Relu", ["x"], "y")], {"x": [2]}, ["y"], {"scale": np.float32(0.1)}, keep_unused=True)
    m.graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    result = optimize(m)
    assert result.after.graph == m.graph and not result.report.applied


def test_what_only_a_list_of_bodies_reads_stays() -> None:
    body = helper.make_graph([node("Add", ["a", "w"], "r")], "body", [], [helper.make_tensor_value_info("r", 1, None)])
    m = model([node("Exp", ["x"], "a"), node("Switch", ["x"], "y", domain="my", bodies=[body])], {"x": [2]}, ["y"], {"w": weights(2)})
    result = optimize(m)
    assert result.after.graph == m.graph and not result.report.applied


def test_dead_node_that_only_a_subgraph_reads_stays() -> None:
    body = [helper.make_graph([node("Add", ["a", "a"], f"r{i}")], f"b{i}", [], [helper.make_tensor_value_info(f"r{i}", 1, None)]) for i in (0, 1)]
    m = model(
        [node("Exp", ["x"], "a"), node("If", ["c"], "y", then_branch=body[0], else_branch=body[1])], {"x": [2], "c": []}, ["y"], dtypes={"c": TensorProto.BOOL}
    )
    result = optimize(m)
    assert result.ops == ["Exp", "If"] and not result.report.applied
    check(result)


def test_dead_node_with_a_body_goes_with_what_the_body_read() -> None:
    body = [helper.make_graph([node("Add", ["a", "a"], f"r{i}")], f"b{i}", [], [helper.make_tensor_value_info(f"r{i}", 1, None)]) for i in (0, 1)]
    nodes = [node("Exp", ["x"], "a"), node("If", ["c"], "z", then_branch=body[0], else_branch=body[1]), node("Relu", ["x"], "y")]
    result = optimize(model(nodes, {"x": [2], "c": []}, ["y"], dtypes={"c": TensorProto.BOOL}))
    assert result.ops == ["Relu"] and [i.name for i in result.after.graph.input] == ["x", "c"]


def test_node_of_an_unknown_domain_stays_if_used_or_without_outputs() -> None:
    nodes = [
        helper.make_node("Log", ["x"], [], domain="my"),
        helper.make_node("F", ["x"], ["y"], domain="my"),
        helper.make_node("G", ["x"], ["z"], domain="my"),
    ]
    m = model(nodes, {"x": [2]}, ["y"])
    m.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 2
    assert optimize(m).ops == ["Log", "F"]


def test_identity_of_a_weight_goes_without_copying_it() -> None:
    nodes = [node("Identity", ["w"], "v"), node("MatMul", ["x", "w"], "a"), node("MatMul", ["a", "v"], "y")]
    result = optimize(model(nodes, {"x": [1, "n", 4]}, ["y"], {"w": weights(4, 4)}))
    assert result.ops == ["MatMul", "MatMul"] and len(result.after.graph.initializer) == 1
    check(result)


def test_t4_output_behind_an_identity_keeps_its_name() -> None:
    nodes = [node("Conv", ["x", "w"], "a"), node("Relu", ["a"], "b"), node("Identity", ["b"], "y")]
    result = optimize(model(nodes, {"x": [1, 2, 4, 4]}, ["y"], {"w": weights(3, 2, 1, 1)}))
    assert result.ops == ["Conv", "Relu"]
    check(result)


def test_t4_relu_that_is_an_output_too() -> None:
    nodes = [node("Relu", ["x"], "b"), node("Identity", ["b"], "y")]
    result = optimize(model(nodes, {"x": [3]}, ["b", "y"]))
    assert result.ops == ["Relu", "Identity"] and "gives a graph output its name" in result.reason("remove-identity")
    check(result)


def test_identity_from_input_to_output_stays() -> None:
    result = optimize(model([node("Identity", ["x"], "y")], {"x": [3]}, ["y"]))
    assert result.ops == ["Identity"] and "gives a graph output its name" in result.reason("remove-identity")


def test_t15_identity_of_an_outer_tensor_that_is_a_branch_result_stays() -> None:
    then = helper.make_graph([node("Identity", ["outer"], "t")], "then", [], [helper.make_tensor_value_info("t", 1, None)])
    other = helper.make_graph([node("Squeeze", ["outer", "axes"], "e")], "else", [], [helper.make_tensor_value_info("e", 1, None)])
    nodes = [node("Relu", ["x"], "outer"), node("If", ["c"], "y", then_branch=then, else_branch=other)]
    m = model(nodes, {"x": [1, 3], "c": []}, ["y"], {"axes": np.array([0])}, dtypes={"c": TensorProto.BOOL})
    result = optimize(m)
    branches = {a.name: a.g for n in result.after.graph.node if n.op_type == "If" for a in n.attribute}
    assert [n.input[0] for b in branches.values() for n in b.node] == ["outer", "outer"]
    assert "gives a graph output its name" in result.reason("remove-identity")
    for flag in (True, False):
        feeds = {"x": np.array([[1, -2, 3]], np.float32), "c": np.array(flag)}
        assert np.array_equal(run(m, feeds)[0], run(result.after, feeds)[0])


def test_identity_inside_a_branch_goes_where_a_node_of_the_branch_can_take_the_name() -> None:
    then = helper.make_graph([node("Neg", ["x"], "n"), node("Identity", ["n"], "t")], "then", [], [helper.make_tensor_value_info("t", 1, None)])
    other = helper.make_graph([node("Abs", ["x"], "e")], "else", [], [helper.make_tensor_value_info("e", 1, None)])
    result = optimize(model([node("If", ["c"], "y", then_branch=then, else_branch=other)], {"x": [3], "c": []}, ["y"], dtypes={"c": TensorProto.BOOL}))
    branches = {a.name: a.g for a in result.after.graph.node[0].attribute}
    assert [n.op_type for n in branches["then_branch"].node] == ["Neg"] and branches["then_branch"].output[0].name == "t"
    check(result)


@pytest.mark.parametrize("opset", [7, 11])
def test_dropout_goes(opset: int) -> None:
    result = optimize(model([node("Relu", ["x"], "a"), node("Dropout", ["a"], ["y", "mask"])], {"x": [5]}, ["y"], opset=opset))
    assert result.ops == ["Relu"]
    check(result)


def test_dropout_with_constant_training_mode_goes_and_at_an_input_becomes_identity() -> None:
    nodes = [node("Dropout", ["x", "ratio", "train"], ["y", "mask"])]
    result = optimize(model(nodes, {"x": [5]}, ["y"], {"ratio": np.float32(0.7), "train": np.array(False)}))
    assert result.ops == ["Identity"]
    check(result)


@pytest.mark.parametrize(("train", "outputs", "reason"), [(True, ["y"], "it trains"), (None, ["y"], "not constant"), (False, ["y", "mask"], "mask is used")])
def test_dropout_refusals(train: bool | None, outputs: list[str], reason: str) -> None:
    constants = {"ratio": np.float32(0.5)} | ({} if train is None else {"train": np.array(train)})
    inputs = {"x": [5]} | ({"train": []} if train is None else {})
    m = model(
        [node("Dropout", ["x", "ratio", "train"], ["y", "mask"])], inputs, outputs, constants, dtypes={"mask": TensorProto.BOOL, "train": TensorProto.BOOL}
    )
    result = optimize(m)
    assert result.ops == ["Dropout"] and reason in result.reason("remove-dropout")


NO_OPS = {
    "cast": (node("Cast", ["a"], "b", to=1), {}),
    "concat": (node("Concat", ["a"], "b", axis=1), {}),
    "pad": (node("Pad", ["a", "p"], "b"), {"p": np.zeros(4, np.int64)}),
    "slice": (node("Slice", ["a", "s", "e", "ax"], "b"), {"s": np.array([0]), "e": np.array([np.iinfo(np.int64).max]), "ax": np.array([1])}),
    "slice of known size": (node("Slice", ["a", "s", "e", "ax"], "b"), {"s": np.array([0]), "e": np.array([4]), "ax": np.array([1])}),
    "transpose": (node("Transpose", ["a"], "b", perm=[0, 1]), {}),
    "reshape": (node("Reshape", ["a", "s"], "b"), {"s": np.array([3, 4])}),
    "expand": (node("Expand", ["a", "s"], "b"), {"s": np.array([1, 4])}),
}


@pytest.mark.parametrize("case", NO_OPS)
def test_no_op_goes(case: str) -> None:
    what, constants = NO_OPS[case]
    result = optimize(model([node("Exp", ["x"], "a"), what, node("Relu", ["b"], "y")], {"x": [3, 4]}, ["y"], constants))
    assert result.ops == ["Exp", "Relu"] and "remove-no-op" in result.rules
    check(result)


WORKING = {
    "cast": (node("Cast", ["a"], "b", to=10), {}),
    "pad": (node("Pad", ["a", "p"], "b"), {"p": np.array([0, 0, 0, 1])}),
    "slice": (node("Slice", ["a", "s", "e", "ax", "st"], "b"), {"s": np.array([-1]), "e": np.array([-9]), "ax": np.array([1]), "st": np.array([-1])}),
    "transpose": (node("Transpose", ["a"], "b"), {}),
    "reshape": (node("Reshape", ["a", "s"], "b"), {"s": np.array([2, -1])}),
    "expand": (node("Expand", ["a", "s"], "b"), {"s": np.array([2, 1, 1])}),
}


@pytest.mark.parametrize("case", WORKING)
@pytest.mark.parametrize("dims", [[4, 4], ["n", 4]])
def test_what_does_something_stays(case: str, dims: list[int | str]) -> None:
    what, constants = WORKING[case]
    result = optimize(
        model([node("Exp", ["x"], "a"), what, node("Relu", ["b"], "y")], {"x": dims}, ["y"], constants, dtypes={"y": 10 if case == "cast" else 1})
    )
    assert result.counts[what.op_type] == 1
    check(result, dim=4)


def test_declared_output_shape_is_no_fact() -> None:
    m = model([node("Exp", ["x"], "a"), node("Reshape", ["a", "s"], "y")], {"x": ["n", "k"]}, ["y"], {"s": np.array([-1, 1])})
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, ["n", "k"]))
    m.graph.value_info.append(helper.make_tensor_value_info("a", 1, ["n", "k"]))
    assert optimize(m).ops == ["Exp", "Reshape"]


def test_twins_merge_with_equal_constants_of_any_name() -> None:
    nodes = [
        node("Add", ["x", "a"], "p"),
        node("Add", ["x", "b"], "q"),
        node("Exp", ["p"], "r"),
        node("Exp", ["q"], "s"),
        node("Sub", ["r", "s"], "t"),
        node("Add", ["t", "r"], "y"),
    ]
    result = optimize(model(nodes, {"x": [3]}, ["y"], {"a": np.float32(2), "b": np.float32(2)}))
    assert result.counts == {"Add": 2, "Exp": 1, "Sub": 1} and "merge-twins" in result.rules
    check(result)


@pytest.mark.parametrize("case", ["attribute", "random", "constant", "type"])
def test_what_only_looks_alike_does_not_merge(case: str) -> None:
    pair = {
        "attribute": [node("Softmax", ["x"], "p", axis=0), node("Softmax", ["x"], "q", axis=1)],
        "random": [node("RandomNormalLike", ["x"], "p"), node("RandomNormalLike", ["x"], "q")],
        "constant": [node("Add", ["x", "a"], "p"), node("Add", ["x", "b"], "q")],
        "type": [node("LeakyRelu", ["x"], "p", alpha=0.1), node("LeakyRelu", ["x"], "q", alpha=0.2)],
    }[case]
    result = optimize(model([*pair, node("Mul", ["p", "q"], "y")], {"x": [3, 3]}, ["y"], {"a": np.float32(2), "b": np.array([2], np.float32)}))
    assert len(result.ops) == 3


def test_twin_that_is_an_output_stays() -> None:
    result = optimize(model([node("Exp", ["x"], "y"), node("Exp", ["x"], "z")], {"x": [3]}, ["y", "z"]))
    assert result.ops == ["Exp", "Exp"] and "graph output" in result.reason("merge-twins")


def test_scales_of_dynamic_quantisation_stay_apart() -> None:
    """Each integer convolution multiplies by the product of its two scales; merging two such products breaks what a runtime looks for."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        *(
            n
            for i in (0, 1)
            for n in (
                node("Mul", ["s", "ws"], f"m{i}"),
                node("ConvInteger", ["q", f"w{i}", "z"], f"c{i}"),
                node("Cast", [f"c{i}"], f"f{i}", to=1),
                node("Mul", [f"f{i}", f"m{i}"], f"y{i}"),
            )
        ),
    ]
    constants = {"ws": np.float32(0.1), "w0": np.ones((2, 2, 1, 1), np.uint8), "w1": np.full((2, 2, 1, 1), 2, np.uint8)}
    result = optimize(model(nodes, {"x": [1, 2, 3, 3]}, ["y0", "y1"], constants))
    assert result.after.graph == result.before.graph


def test_unknown_op_of_the_default_domain_is_passed_through() -> None:
    nodes = [node("DCNv2_TRT", ["x"], "a"), node("DCNv2_TRT", ["x"], "b"), node("Add", ["a", "b"], "c"), node("Identity", ["c"], "y")]
    m = model(nodes, {"x": [3]}, ["y"])
    from export_view import export_view
    from tilewright.optimizer.graph.canonicalize import canonicalize
    from tilewright.optimizer.graph.shapes import infer
    from tilewright.optimizer.graph.view import View

    view = View(m)
    canonicalize(view, infer(view), lambda: infer(view))
    after = export_view(view)
    assert [n.op_type for n in after.graph.node] == ["DCNv2_TRT", "DCNv2_TRT", "Add"] and after.graph.node[0] == m.graph.node[0]


def test_local_function_with_the_name_of_an_op_is_not_taken_for_it() -> None:
    function = helper.make_function("my", "Identity", ["i"], ["o"], [node("Neg", ["i"], "o")], [helper.make_opsetid("", 17)])
    result = optimize(model([node("Identity", ["x"], "a", domain="my"), node("Relu", ["a"], "y")], {"x": [3]}, ["y"], functions=[function]))
    assert result.ops == ["Identity", "Relu"]
    check(result)


def test_zero_elements_and_scalars() -> None:
    nodes = [node("Cast", ["x"], "a", to=1), node("Reshape", ["a", "s"], "b"), node("Add", ["b", "c"], "y")]
    result = optimize(model(nodes, {"x": [0, 4]}, ["y"], {"s": np.array([0, 4]), "c": np.float32(1)}))
    assert result.ops == ["Add"]
    assert run(result.after, feeds_for(result.before))[0].shape == (0, 4)
    assert onnx.checker.check_model(result.after) is None
