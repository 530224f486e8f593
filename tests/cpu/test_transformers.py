"""Attention becomes ONNX Runtime's own ops: in which spellings, with which masks, with the same answers; and where it must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from attention_harness import HALF, IN_FLOAT, IN_HALF, SPELLINGS, Fused, inputs, run
from attention_models import HEADS, WIDTH, Encoder, Spelling, attention, encoder
from rule_harness import model as made
from rule_harness import node, weights
from tilewright import model_zoo

# ---- spellings


@pytest.mark.parametrize(("name", "dtype"), [*((n, TensorProto.FLOAT) for n in IN_FLOAT), *((n, HALF) for n in IN_HALF)])
def test_spelling(name: str, dtype: int) -> None:
    spelling = SPELLINGS[name]
    fused = Fused(attention(spelling, dtype=dtype))
    assert fused.applied["fuse-attention"] == 1 and not fused.ops["Softmax"], fused.reasons
    found = fused.only("MultiHeadAttention")
    attrs = {a.name: helper.get_attribute_value(a) for a in found.attribute}
    assert attrs.pop("num_heads") == HEADS
    assert attrs.pop("unidirectional", 0) == ("causal" in name)
    assert attrs.pop("scale", None) == (1.0 if spelling.scale == "none" else None)
    assert not attrs
    assert fused.ops["Split"] == 1 and not fused.ops["Transpose"] + fused.ops["Slice"] + fused.ops["Softmax"]
    assert bool(spelling.mask != "none" and "causal" not in name) == (len(found.input) == 6)
    fused.assert_right(1e-2 if dtype == HALF else 2e-6, SIZES.get(name, ({"batch": 2, "length": 5}, {"batch": 3, "length": 8})))


SIZES = {"static": ({}, {}), "static added mask": ({}, {})}

REFUSED = {
    "more than one mask": (Spelling(mask="two"), "more than one mask"),
    "scaled late": (Spelling(mask="add", scale="late"), "scaled after they are masked"),
    "fill that may be seen": (Spelling(mask="where_soft"), "hides every key"),
    "where in float16": (Spelling(mask="where", dtype=HALF), "hides every key"),
    "float64": (Spelling(dtype=TensorProto.DOUBLE), "data type"),
    "heads mixed": (Spelling(packed="interleaved"), "do not come from [batch, sequence, heads * size]"),
    "queries scaled by a vector": (Spelling(scale="vector"), "do not come from [batch, sequence, heads * size]"),
    "a query that sees nothing": (Spelling(mask="strict", length=6, dtype=HALF), "hides every key"),
    "mask of another type": (Spelling(mask="where", cast=True, dtype=HALF), "hides every key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    spelling, reason = REFUSED[name]
    fused = Fused(attention(spelling))
    assert fused.ops["MultiHeadAttention"] == 0 and fused.ops["Softmax"] == 1
    assert reason in fused.reasons


def changed(change: str) -> ModelProto:
    """:func:`attention` with something about it that nobody may fuse over."""
    model = attention(batch=2, length=5, mask="add")
    by_op = {n.op_type: n for n in model.graph.node}
    output = {"scores are an output": by_op["Div"].output[0], "weights are an output": by_op["Softmax"].output[0]}.get(change)
    if output is not None:
        model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [2, HEADS, 5, 5]))
    if change == "softmax over the queries":
        next(a for a in by_op["Softmax"].attribute if a.name == "axis").i = 2
    if change == "negative factor":
        scale = next(t for t in model.graph.initializer if t.name == by_op["Div"].input[1])
        scale.CopyFrom(onnx.numpy_helper.from_array(np.float32(-2.0), scale.name))
    if change == "weights are read twice":
        model.graph.node.append(node("Identity", [by_op["Softmax"].output[0]], "again"))
        model.graph.node.append(node("ReduceSum", ["again"], "sum", keepdims=0))
        model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, []))
    if change == "factor that a caller may override":
        model.graph.input.append(helper.make_tensor_value_info(by_op["Div"].input[1], TensorProto.FLOAT, []))
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("scores are an output", "scores are used elsewhere"),
        ("weights are an output", "scores are used elsewhere"),
        ("weights are read twice", "scores are used elsewhere"),
        ("softmax over the queries", "not over the keys"),
        ("negative factor", "turned around"),
        ("factor that a caller may override", ""),
    ],
)
def test_left_alone(change: str, reason: str) -> None:
    fused = Fused(changed(change))
    assert fused.ops["MultiHeadAttention"] == 0 and fused.ops["Softmax"] == 1 and reason in fused.reasons
    fused.assert_right(1e-6, ({},))


def test_queries_of_another_tensor() -> None:
    """Cross attention: keys and values of another length; nothing is merged."""
    e = Encoder()
    query, key, value = e.heads(e.linear("x", WIDTH)), e.heads(e.linear("memory", WIDTH), (0, 2, 3, 1)), e.heads(e.linear("memory", WIDTH))
    scores = e.op("Add", e.op("MatMul", query, key), "mask")
    e.joined(e.op("MatMul", e.op("Softmax", scores, axis=-1), value))
    e.nodes[-1].output[0] = "y"
    fused = Fused(e.build({"x": ["batch", "length", WIDTH], "memory": ["batch", "keys", WIDTH], "mask": ["batch", 1, 1, "keys"]}, ["y"]))
    assert fused.applied == {"fuse-attention": 1}
    fused.assert_right(2e-6, ({"batch": 2, "length": 5, "keys": 3}, {"batch": 1, "length": 1, "keys": 9}))


def test_batch_that_broadcasts() -> None:
    """Keys of batch 1 serve queries of any batch, which the op does not do."""
    e = Encoder()
    query, key, value = e.heads(e.linear("x", WIDTH)), e.heads(e.linear("memory", WIDTH), (0, 2, 3, 1)), e.heads(e.linear("memory", WIDTH))
    e.joined(e.op("MatMul", e.op("Softmax", e.op("MatMul", query, key), axis=-1), value))
    e.nodes[-1].output[0] = "y"
    fused = Fused(e.build({"x": ["batch", "length", WIDTH], "memory": [1, "keys", WIDTH]}, ["y"]))
    assert not fused.applied and "of the same batch" in fused.reasons


def test_mask_is_widened_once() -> None:
    """All layers share one mask."""
    fused = Fused(encoder(3))
    assert fused.applied["fuse-attention"] == 3 and fused.ops["Expand"] == 1
    wide = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in fused.after.graph.initializer}
    shape = next(n for n in fused.after.graph.node if n.op_type == "Concat").input[0]
    assert wide[shape] == [1, HEADS]  # for every head: older runtimes misread a mask that differs by batch alone
    fused.assert_right(2e-6)


def test_queries_that_see_nothing() -> None:
    """A row of the mask that hides everything gives the same even weights as before."""
    before = attention(mask="where")
    feeds = inputs(before, {"batch": 2, "length": 5})
    feeds["mask"][0] = False
    fused = Fused(before)
    np.testing.assert_allclose(run(before, feeds)[0], run(fused.after, feeds)[0], rtol=1e-4, atol=1e-5)


# ---- products


def test_products_are_merged() -> None:
    fused = Fused(attention())
    assert fused.applied == {"fuse-attention": 1, "merge-products": 1}
    assert fused.ops == {"MatMul": 2, "Add": 2, "Split": 1, "MultiHeadAttention": 1}
    fused.assert_right(2e-6)


def test_products_stay_apart_where_that_is_faster() -> None:
    fused = Fused(attention(), pays=False)
    assert fused.applied == {"fuse-attention": 1} and fused.ops["MatMul"] == 4
    assert "not expected to be faster" in fused.reasons


def test_products_with_another_reader_stay() -> None:
    before = attention(batch=2, length=5)
    inner = next(n.output[0] for n in before.graph.node if n.op_type == "Add")
    before.graph.output.append(helper.make_tensor_value_info(inner, TensorProto.FLOAT, [2, 5, WIDTH]))
    fused = Fused(before)
    assert fused.applied == {"fuse-attention": 1}
    fused.assert_right(2e-6, ({},))


def test_products_without_bias() -> None:
    e = Encoder()
    parts = [e.linear("x", WIDTH, bias=False) for _ in range(3)]
    scores = e.op("MatMul", e.heads(parts[0]), e.heads(parts[1], (0, 2, 3, 1)))
    e.joined(e.op("MatMul", e.op("Softmax", scores, axis=-1), e.heads(parts[2])))
    e.nodes[-1].output[0] = "y"
    fused = Fused(e.build({"x": ["batch", "length", WIDTH]}, ["y"]))
    assert fused.ops == {"MatMul": 1, "Split": 1, "MultiHeadAttention": 1}
    fused.assert_right(2e-6)


def test_one_bias_missing() -> None:
    e = Encoder()
    parts = [e.linear("x", WIDTH, bias=i != 1) for i in range(3)]
    scores = e.op("MatMul", e.heads(parts[0]), e.heads(parts[1], (0, 2, 3, 1)))
    e.joined(e.op("MatMul", e.op("Softmax", scores, axis=-1), e.heads(parts[2])))
    e.nodes[-1].output[0] = "y"
    fused = Fused(e.build({"x": ["batch", "length", WIDTH]}, ["y"]))
    assert fused.applied == {"fuse-attention": 1} and "only some of the products have a bias" in fused.reasons
    fused.assert_right(2e-6)


def test_weights_that_layers_share() -> None:
    """They stay shared: one merged weight and one merged bias for all layers."""
    before = encoder(3)
    layers = [[t.name for t in before.graph.initializer if t.name.startswith(f"layer{i}/")] for i in range(3)]
    shared = {own: first for names in layers[1:] for own, first in zip(names, layers[0], strict=True)}
    for n in before.graph.node:
        n.input[:] = [shared.get(name, name) for name in n.input]
    used = {name for n in before.graph.node for name in n.input}
    kept = [t for t in before.graph.initializer if t.name in used]
    del before.graph.initializer[:]
    before.graph.initializer.extend(kept)
    fused = Fused(before)
    assert fused.applied["merge-products"] == 3
    assert len({n.input[1] for n in fused.after.graph.node if n.op_type == "MatMul"}) == 4 < fused.ops["MatMul"]
    assert fused.after.ByteSize() < before.ByteSize()
    fused.assert_right(2e-6)


# ---- residual sums, layer norms, GELUs


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, HALF], ids=["float32", "float16"])
@pytest.mark.parametrize("pre", [False, True], ids=["norm after", "norm before"])
def test_encoder(pre: bool, dtype: int) -> None:
    fused = Fused(encoder(2, dtype, pre=pre), rest=True)
    norms = 3 if pre else 4  # one more LayerNormalization has no sum before it
    assert fused.ops["SkipLayerNormalization"] == norms and fused.ops["LayerNormalization"] == (2 if pre else 1)
    assert fused.ops["BiasGelu"] == 2 and not fused.ops["Erf"]
    assert fused.ops["Add"] == (4 if pre else 2)  # of the merged products; the last bias and sum
    assert all(len(n.input) == 5 for n in fused.after.graph.node if n.op_type == "SkipLayerNormalization")
    fused.assert_right(1e-2 if dtype == HALF else 2e-6)


def norm_of(inputs: Mapping[str, Sequence[int | str]], outputs: Sequence[str] = ("y",), **attrs: object) -> Fused:
    """``LayerNormalization(a + b)`` with a residual branch that reads the sum too where that is an output."""
    nodes = [node("Add", ["a", "b"], "s"), node("LayerNormalization", ["s", "g", "h"], "y", **attrs)]
    return Fused(made(nodes, inputs, outputs, {"g": weights(8), "h": weights(8, seed=1)}), rest=True)


def test_sum_that_is_an_output() -> None:
    fused = norm_of({"a": ["n", "m", 8], "b": ["n", "m", 8]}, ["y", "s"])
    assert list(fused.only("SkipLayerNormalization").output) == ["y", "", "", "s"] and len(fused.after.graph.node) == 1
    fused.assert_right(1e-6, ({"n": 2, "m": 3},))


def test_epsilon_is_kept() -> None:
    fused = norm_of({"a": ["n", "m", 8], "b": ["n", "m", 8]}, epsilon=0.5)
    assert [a.f for a in fused.only("SkipLayerNormalization").attribute] == [0.5]
    fused.assert_right(1e-6, ({"n": 2, "m": 3},))


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"a": ["n", "m", 8], "b": [1, "m", 8]}, "not known to have one shape"),
        ({"a": ["n", "m"], "b": ["n", "m"]}, "last axis of [batch, sequence, width]"),
        ({"a": ["n", 2, "m", 8], "b": ["n", 2, "m", 8]}, "last axis of [batch, sequence, width]"),
    ],
)
def test_norm_refused(shapes: Mapping[str, Sequence[int | str]], reason: str) -> None:
    fused = norm_of(shapes)
    assert not fused.applied and reason in fused.reasons


def test_gelu_alone() -> None:
    e = Encoder()
    e.gelu("x")
    e.nodes[-1].output[0] = "y"
    fused = Fused(e.build({"x": ["n", "m", 8]}, ["y"]), rest=True)
    assert fused.ops == {"Gelu": 1} and fused.after.graph.node[0].domain == "com.microsoft"
    fused.assert_right(1e-6, ({"n": 2, "m": 3},))


def test_bias_of_a_gelu_that_others_read() -> None:
    e = Encoder()
    e.op("Add", "x", e.random(8), out="s")
    e.gelu("s")
    e.nodes[-1].output[0] = "y"
    fused = Fused(e.build({"x": ["n", "m", 8]}, ["y", "s"]), rest=True)
    assert fused.ops == {"Add": 1, "Gelu": 1}
    fused.assert_right(1e-6, ({"n": 2, "m": 3},))


# ---- the zoo

ZOO = {"bert_base": {"MatMul": 48, "Split": 12}, "vit_b_16": {"MatMul": 48, "Split": 12}, "gpt2_small": {"MatMul": 49, "Split": 12}}


@pytest.mark.parametrize("open_dims", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str, open_dims: bool) -> None:
    """Every layer's attention is fused and reads one product; the products stay MatMul for the planner."""
    open_sizes: dict[str, int | str] = {"batch": "batch"} | ({} if name == "vit_b_16" else {"sequence": "sequence"})
    fused = Fused(model_zoo.build(name, dtype="fp16", **(open_sizes if open_dims else {})), rest=True)
    assert fused.applied["fuse-attention"] == 12 and not fused.ops["Softmax"]
    assert {k: fused.ops[k] for k in ZOO[name]} == ZOO[name]
    assert fused.ops["SkipLayerNormalization"] >= 24 and fused.ops["BiasGelu"] + fused.ops["FastGelu"] == 12
    causal = [a.i for n in fused.after.graph.node for a in n.attribute if a.name == "unidirectional"]
    assert causal == ([1] * 12 if name == "gpt2_small" else [])
