"""What a stage takes into its epilogue, and where it must stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

from activation_spellings import spellings
from plan_harness import Planned, plan
from rule_harness import Dims, model, node, weights

CONV = node("Conv", ["u", "w"], "x", pads=[1, 1, 1, 1])
WEIGHTS = {"w": weights(6, 4, 3, 3)}
BN = {"gamma": weights(6, seed=1), "beta": weights(6, seed=2), "mean": weights(6, seed=3), "var": np.abs(weights(6, seed=4)) + 1}


def after_conv(
    tail: Sequence[NodeProto],
    constants: Mapping[str, np.ndarray] | None = None,
    inputs: Mapping[str, Dims] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    conv: NodeProto = CONV,
    u: Dims = ("n", 4, 8, 8),
) -> Planned:
    """Plans a convolution ``u -> x`` of 6 channels and what follows it."""
    return plan(model([conv, *tail], {"u": u} | dict(inputs or {}), outputs, WEIGHTS | dict(constants or {}), opset=opset))


# Activations

SPELLINGS = [(opset, kind, name) for opset in (9, 17, 20) for kind, ways in spellings(opset).items() for name, _ in ways]


@pytest.mark.parametrize(("opset", "kind", "name"), SPELLINGS)
def test_activation_in_every_spelling(opset: int, kind: str, name: str) -> None:
    nodes = dict(spellings(opset)[kind])[name]
    literals = {i: np.float32(i[1:]) for n in nodes for i in n.input if i[:1] == "c"}
    constants = literals | {"i2": np.array(2), "slope": weights(6, 1, 1)}
    planned = after_conv(nodes, constants, opset=opset)
    assert planned.epilogues == [kind]
    (region,) = planned.regions
    (step,) = region.stages[0].epilogue
    assert region.output.name == "y" and [n.op for n in step.nodes] == [n.op_type for n in nodes]
    if kind == "prelu":
        assert np.array_equal(step.vector, constants["slope"].reshape(-1))


NOT_FUSED = {
    "slopes of every pixel": [node("PRelu", ["x", "pixels"], "y")],
    "slopes along W": [node("PRelu", ["x", "columns"], "y")],
    "an op that is no activation": [node("Erf", ["x"], "y")],
    "Softmax": [node("Softmax", ["x"], "y", axis=1)],
    "bounds that the caller gives": [node("Clip", ["x", "", "top"], "y")],
}


@pytest.mark.parametrize("case", NOT_FUSED)
def test_what_is_no_activation(case: str) -> None:
    constants = {"pixels": weights(6, 8, 8), "columns": weights(8)}
    assert after_conv(NOT_FUSED[case], constants, {"top": []} if "top" in NOT_FUSED[case][0].input else None).epilogues == [""]


# Tensors

BINARY = {
    "residual": ("Add", ["x", "r"], "add(r)"),
    "residual first": ("Add", ["r", "x"], "add(r)"),
    "difference": ("Sub", ["x", "r"], "sub(r)"),
    "difference, the other way": ("Sub", ["r", "x"], "rsub(r)"),
    "product": ("Mul", ["r", "x"], "mul(r)"),
    "gate": ("Mul", ["x", "g"], "mul(g, gate)"),
    "gate first": ("Mul", ["g", "x"], "mul(g, gate)"),
    "channel offset": ("Add", ["x", "g"], "add(g, gate)"),
    "difference with a gate": ("Sub", ["x", "g"], ""),
    "quotient": ("Div", ["x", "r"], ""),
    "one value a sample": ("Mul", ["x", "one"], ""),
    "a map without channels": ("Mul", ["x", "map"], ""),
    "lower rank": ("Add", ["x", "flat"], ""),
    "other batch": ("Add", ["x", "m"], ""),
    "unknown height": ("Add", ["x", "h"], ""),
}
OPERANDS: Mapping[str, Dims] = {
    "r": ("n", 6, 8, 8), "g": ("n", 6, 1, 1), "one": ("n", 1, 1, 1), "map": ("n", 1, 8, 8), "flat": (6, 8, 8), "m": ("m", 6, 8, 8), "h": ("n", 6, "h", 8),
}  # fmt: skip


@pytest.mark.parametrize("case", BINARY)
def test_operand(case: str) -> None:
    op, inputs, wanted = BINARY[case]
    other = next(i for i in inputs if i != "x")
    assert after_conv([node(op, inputs, "y")], inputs={other: OPERANDS[other]}).epilogues == [wanted]


def test_operand_of_another_type() -> None:
    m = model([CONV, node("Add", ["x", "r"], "y")], {"u": [1, 4, 8, 8], "r": [1, 6, 8, 8]}, ["y"], WEIGHTS)
    m.graph.input[1].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert plan(m).epilogues == [""]


def test_sum_of_a_tensor_with_itself() -> None:
    assert after_conv([node("Add", ["x", "x"], "y")]).epilogues == [""]


def test_sum_of_two_convolutions_goes_to_one_of_them() -> None:
    planned = after_conv([node("Conv", ["u", "w"], "z", pads=[1, 1, 1, 1]), node("Add", ["x", "z"], "s"), node("Relu", ["s"], "y")])
    assert [r.output.name for r in planned.regions] == ["z", "y"] and planned.epilogues == ["", "add(z) + relu"]
    assert [t.name for t in planned.regions[1].inputs] == ["u", "z"]


# Constants

CONSTANTS = {
    "scalar factor": ("Mul", ["x", "c"], np.float32(0.5), "affine(0.5,0)"),
    "scalar term, first": ("Add", ["c", "x"], np.float32(-2), "affine(1,-2)"),
    "scalar of rank 4": ("Sub", ["x", "c"], np.full((1, 1, 1, 1), 3, np.float32), "affine(1,-3)"),
    "scalar minus x": ("Sub", ["c", "x"], np.float32(1), "affine(-1,1)"),
    "quotient": ("Div", ["x", "c"], np.float32(4), "affine(0.25,0)"),
    "one value for all channels": ("Mul", ["x", "c"], np.full((6, 1, 1), 2, np.float32), "affine(2,0)"),
    "factors": ("Mul", ["c", "x"], weights(6, 1, 1), "scale"),
    "terms": ("Add", ["x", "c"], weights(1, 6, 1, 1), "shift"),
    "differences": ("Sub", ["x", "c"], weights(6, 1, 1), "shift"),
    "differences, the other way": ("Sub", ["c", "x"], weights(6, 1, 1), "scale + shift"),
    "quotients": ("Div", ["x", "c"], weights(6, 1, 1), "scale"),
    "quotient of a constant": ("Div", ["c", "x"], np.float32(1), ""),
    "division by zero": ("Div", ["x", "c"], np.array([1, 2, 0, 4, 5, 6], np.float32).reshape(6, 1, 1), ""),
    "division by what has no reciprocal": ("Div", ["x", "c"], np.float32(1e-40), ""),
    "infinite": ("Mul", ["x", "c"], np.float32(np.inf), ""),
    "along W": ("Add", ["x", "c"], weights(8), ""),
    "along H": ("Add", ["x", "c"], weights(8, 1), ""),
    "of every pixel": ("Mul", ["x", "c"], weights(1, 6, 8, 8), ""),
    "of every sample": ("Mul", ["x", "c"], weights(2, 6, 1, 1), ""),
    "wider": ("Add", ["x", "c"], weights(1, 1, 1, 1, 1), ""),
    "a power": ("Pow", ["x", "c"], np.float32(2), ""),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_constant(case: str) -> None:
    op, inputs, value, wanted = CONSTANTS[case]
    planned = after_conv([node(op, inputs, "y")], {"c": np.asarray(value)}, u=(2, 4, 8, 8))
    assert planned.epilogues == [wanted]
    x = weights(2, 6, 8, 8)
    c = np.asarray(value, np.float32)
    got = x
    for step in planned.regions[0].stages[0].epilogue:
        vector = None if step.vector is None else step.vector.reshape(6, 1, 1)
        got = step.a * got + step.b if step.kind == "affine" else got * vector if step.kind == "scale" else got + vector
    function = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "Div": np.divide}.get(op)
    if wanted and function is not None:
        np.testing.assert_allclose(got, function(x, c) if inputs[0] == "x" else function(c, x), rtol=1e-6)


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 1, 8)])
def test_constant_that_would_widen_a_single_channel(shape: tuple[int, ...]) -> None:
    m = model([node("Conv", ["u", "w"], "x"), node("Add", ["x", "c"], "y")], {"u": [1, 4, 1, 1]}, ["y"], {"w": weights(1, 4, 1, 1), "c": weights(*shape)})
    assert plan(m).epilogues == [""]


def test_batchnorm() -> None:
    planned = after_conv([node("BatchNormalization", ["x", *BN], "z", epsilon=0.1), node("Relu", ["z"], "y")], BN)
    assert planned.epilogues == ["scale + shift + relu"]
    scale, shift = (step.vector for step in planned.regions[0].stages[0].epilogue[:2])
    wanted = BN["gamma"] / np.sqrt(BN["var"] + 0.1)
    np.testing.assert_allclose(scale, wanted, rtol=1e-6)
    np.testing.assert_allclose(shift, BN["beta"] - BN["mean"] * wanted, rtol=1e-5, atol=1e-6)


def test_batchnorm_in_training_stays() -> None:
    outputs = ["z", "running_mean", "running_var"]
    bn = node("BatchNormalization", ["x", *BN], outputs, training_mode=1)
    assert after_conv([bn, node("Relu", ["z"], "y")], BN).epilogues == [""]


def test_batchnorm_whose_statistics_the_caller_gives_stays() -> None:
    constants = {k: v for k, v in BN.items() if k != "mean"}
    assert after_conv([node("BatchNormalization", ["x", *BN], "y")], constants, {"mean": (6,)}).epilogues == [""]


# Chains and limits


def test_chain_of_everything() -> None:
    tail = [
        node("Mul", ["x", "half"], "a"), node("Relu", ["a"], "b"), node("Add", ["b", "r"], "c"), node("Mul", ["c", "g"], "d"),
        node("Add", ["d", "t"], "e"), node("Sigmoid", ["e"], "s"), node("Mul", ["s", "e"], "y"),
    ]  # fmt: skip
    planned = after_conv(tail, {"half": np.float32(0.5), "t": weights(6, 1, 1)}, {k: OPERANDS[k] for k in "rg"})
    assert planned.epilogues == ["affine(0.5,0) + relu + add(r) + mul(g, gate) + shift + silu"]
    assert [n.op for n in planned.regions[0].nodes] == ["Conv", *(n.op_type for n in tail)]


def test_an_epilogue_reads_three_operands_and_no_more() -> None:
    tail = [node("Add", [f"t{i}", f"r{i}"], f"t{i + 1}") for i in range(5)]
    planned = after_conv([node("Relu", ["x"], "t0"), *tail], inputs={f"r{i}": OPERANDS["r"] for i in range(5)}, outputs=["t5"])
    assert planned.epilogues[0] == "relu + add(r0) + add(r1) + add(r2)" and len(planned.regions) == 1


def test_vectors_count_as_operands_and_the_bias_does_not() -> None:
    tail = [node("Mul", ["x", "s"], "a"), node("Add", ["a", "r"], "b"), node("BatchNormalization", ["b", *BN], "y")]
    conv = node("Conv", ["u", "w", "bias"], "x", pads=[1, 1, 1, 1])
    planned = after_conv(tail, BN | {"s": weights(6, 1, 1), "bias": weights(6)}, {"r": OPERANDS["r"]}, conv=conv)
    assert planned.epilogues[0] == "scale + add(r)"


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalAveragePool"])
def test_poolings_grow_too(op: str) -> None:
    pool = node(op, ["u"], "x", **({} if "Global" in op else {"kernel_shape": [3, 3]}))
    planned = plan(model([pool, node("Relu", ["x"], "a"), node("Mul", ["a", "s"], "y")], {"u": [1, 4, 8, 8]}, ["y"], {"s": weights(4, 1, 1)}))
    assert planned.epilogues == ["relu + scale"]


def test_sequences_grow_too() -> None:
    nodes = [node("Conv", ["u", "w"], "x"), node("Relu", ["x"], "a"), node("Add", ["a", "s"], "b"), node("Mul", ["b", "g"], "y")]
    m = model(nodes, {"u": ["n", 4, "l"], "g": ["n", 6, 1]}, ["y"], {"w": weights(6, 4, 1), "s": weights(6, 1)})
    assert plan(m).epilogues == ["relu + shift + mul(g, gate)"]
    along = model([*nodes[:2], node("Add", ["a", "s"], "y")], {"u": ["n", 4, 6]}, ["y"], {"w": weights(6, 4, 1), "s": weights(6)})
    assert plan(along).epilogues == ["relu"]


# Where growth stops


def test_result_that_two_nodes_read() -> None:
    planned = after_conv([node("Relu", ["x"], "y"), node("Neg", ["x"], "z")], outputs=["y", "z"])
    assert planned.stages == ["conv u[4] -> x[6] 3x3/1x1 pads 1,1,1,1"]


def test_result_that_is_an_output() -> None:
    planned = after_conv([node("Relu", ["x"], "y")], outputs=["x", "y"])
    assert planned.regions[0].output.name == "x"


def test_activation_whose_inner_result_is_used() -> None:
    planned = after_conv([node("Sigmoid", ["x"], "s"), node("Mul", ["x", "s"], "y"), node("Neg", ["s"], "z")], outputs=["y", "z"])
    assert planned.regions[0].output.name == "x"


def branch(name: str, op: str) -> GraphProto:
    return helper.make_graph([node(op, ["x"], name)], name, [], [helper.make_tensor_value_info(name, 1, None)])


def test_result_that_a_branch_reads() -> None:
    either = node("If", ["flag"], "z", then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs"))
    m = model([CONV, node("Relu", ["x"], "y"), either], {"u": [1, 4, 8, 8], "flag": []}, ["y", "z"], WEIGHTS, dtypes={"flag": TensorProto.BOOL})
    planned = plan(m)
    assert planned.regions[0].output.name == "x" and planned.epilogues[0] == ""
    assert planned.plan.regions[0].nchw_output


def test_activation_inside_a_branch_stays_there() -> None:
    either = node("If", ["flag"], "z", then_branch=branch("t", "Relu"), else_branch=branch("e", "Relu"))
    planned = plan(model([CONV, either], {"u": [1, 4, 8, 8], "flag": []}, ["z"], WEIGHTS, dtypes={"flag": TensorProto.BOOL}))
    assert planned.regions[0].output.name == "x" and planned.epilogues == [""]


def test_node_of_another_domain() -> None:
    assert after_conv([node("Relu", ["x"], "y", domain="com.example")]).epilogues == [""]


def test_operand_that_depends_on_the_result() -> None:
    """x feeds a pooling and a product with that pooling's result, which cannot be part of the convolution."""
    nodes = [node("GlobalAveragePool", ["x"], "p"), node("Mul", ["x", "p"], "m"), node("MaxPool", ["m"], "y", kernel_shape=[2, 2])]
    planned = after_conv(nodes)
    assert [r.output.name for r in planned.regions] == ["x", "p", "m", "y"] and planned.epilogues == ["", "", "mul(p, gate)", ""]
