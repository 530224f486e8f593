"""Attention becomes ONNX Runtime's own ops: in which spellings, with which masks, with the same answers; and where it must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from attention_models import HEADS, WIDTH, Encoder, Spelling, attention, encoder
from rule_harness import model as made
from rule_harness import node, weights
from tilewright import model_zoo
from tilewright.optimizer.emit.export import export_model
from tilewright.optimizer.graph.canonicalize import CanonicalizeReport, canonicalize
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.transformers import fuse_attention, fuse_pointwise
from tilewright.optimizer.graph.view import View

HALF = TensorProto.FLOAT16


class Fused:
    """``before`` canonicalized, with its attention fused (and then the rest, with ``rest``)."""

    def __init__(self, before: ModelProto, pays: bool = True, rest: bool = False) -> None:
        self.before = before
        view = View(before)
        canonicalize(view, infer(view), lambda: infer(view))
        reports: list[CanonicalizeReport] = [fuse_attention(view, infer(view), lambda: infer(view), lambda *_: pays)]
        if rest:
            reports.append(fuse_pointwise(view, lambda: infer(view)))
        self.after = export_model(view)
        self.applied = Counter(a.rule for r in reports for a in r.applied)
        self.reasons = "; ".join(str(x) for r in reports for x in r.refused)
        onnx.checker.check_model(self.after)

    @property
    def ops(self) -> Counter[str]:
        return Counter(n.op_type for n in self.after.graph.node)

    def only(self, op: str) -> NodeProto:
        """The one node of that op."""
        (found,) = (n for n in self.after.graph.node if n.op_type == op)
        return found

    def assert_right(self, bound: float, sizes: Sequence[Mapping[str, int]] = ({"batch": 2, "length": 5}, {"batch": 3, "length": 8})) -> None:
        """The answers of before, for several sizes; a mask hides some keys, never all."""
        for seed, size in enumerate(sizes):
            feeds = inputs(self.before, size, seed)
            for wanted, got in zip(run(self.before, feeds), run(self.after, feeds), strict=True):
                assert (wanted.shape, wanted.dtype) == (got.shape, got.dtype) and np.isfinite(wanted).all()
                error = np.linalg.norm(wanted.astype(float) - got.astype(float)) / np.linalg.norm(wanted.astype(float))
                assert error <= bound, f"{error:.2e}"


def inputs(model: ModelProto, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of these sizes; float masks are 0 or far below, boolean ones true or false, with one key open to all."""
    rng, feeds = np.random.default_rng(seed), {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value or sizes[d.dim_param] for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        values = rng.standard_normal(shape)
        if "mask" in info.name:
            hidden = values < 0
            hidden[..., seed % shape[-1]] = False
            values = ~hidden if kind.elem_type == TensorProto.BOOL else np.where(hidden, -1e4 if dtype == np.float16 else -3e38, 0.0)
        feeds[info.name] = np.asarray(values).astype(dtype)
    return feeds


def run(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's answers on the CPU, with the fusions that it makes of itself as users have them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, dict(feeds)))


# ---- spellings

SPELLINGS = {
    "separate": Spelling(),
    "split": Spelling(packed="split"),
    "slices": Spelling(packed="slices"),
    "gather": Spelling(packed="gather"),
    "mul": Spelling(scale="mul"),
    "query scaled": Spelling(scale="query", packed="gather"),
    "key scaled": Spelling(scale="key"),
    "both scaled": Spelling(scale="both"),
    "not scaled": Spelling(scale="none"),
    "keys in one step": Spelling(key_once=True),
    "static": Spelling(batch=2, length=5, packed="gather"),
    "batch 1": Spelling(batch=1),
    "one token": Spelling(length=1, packed="gather"),
    "added mask": Spelling(mask="add"),
    "static added mask": Spelling(mask="add", batch=2, length=5),
    "bias of each head": Spelling(mask="wide", packed="split"),
    "bias of rank 3": Spelling(mask="rank3"),
    "where": Spelling(mask="where"),
    "where, the other way": Spelling(mask="where_inverted", packed="slices"),
    "causal": Spelling(mask="tril", length=6),
    "causal, the other way": Spelling(mask="triu", length=6),
    "causal, added": Spelling(mask="add_tril", length=6),
    "causal over a Range": Spelling(mask="range", packed="split"),
    "softmax in float32": Spelling(cast=True, dtype=HALF),
    "causal softmax in float32": Spelling(cast=True, dtype=HALF, mask="tril", length=6),
    "opset 11": Spelling(opset=11, packed="split", mask="add"),
    "opset 12, gather": Spelling(opset=12, packed="gather"),
    "opset 21": Spelling(opset=21, packed="gather", mask="add"),
}


IN_HALF = [n for n in SPELLINGS if not n.startswith("where")]  # those are refused in float16
IN_FLOAT = [n for n, s in SPELLINGS.items() if not s.cast]  # a float32 model has no such Casts


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
