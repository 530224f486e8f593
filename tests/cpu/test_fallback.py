"""Function bodies: what a custom node is where no kernel of ours runs. Standard ops of the model's own opset, the original's answers, weights once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from corpus.case import weights
from corpus.headers import conv_relu
from end_to_end import DOMAIN, all_nodes, answers, assert_right, assert_same, config, optimized, relative_error
from plan_harness import emit, plan
from region_cases import case
from rule_harness import feeds_for, model, node, run
from tilewright.optimizer.emit.export import export_model
from tilewright.optimizer.emit.nodes import BODIES, CONV_KIND, DOMAIN_VERSION
from tilewright.optimizer.graph.load import all_tensors
from tilewright.optimizer.lower.pack import unpack
from tilewright.optimizer.pipeline import optimize

OPSETS = range(7, 23)
BOUND = {np.float32: 1e-6, np.float16: 2e-3}
CHUNKS, SEEDS = 8, 12  # a chunk is one test of so many models


def rewritten(before: ModelProto) -> ModelProto:
    """``before`` with every region that can be made; its images hold no code."""
    planned = plan(before)
    emission = emit(planned)
    return export_model(planned.view, emission.functions, [(DOMAIN, DOMAIN_VERSION)])


def calls(after: ModelProto) -> list[NodeProto]:
    return [n for n in all_nodes(after.graph) if n.domain == DOMAIN]


def weight_bytes(proto: ModelProto) -> int:
    """Size of all tensors but the images."""
    return sum(t.ByteSize() for t in all_tensors(proto)) - image_bytes(proto)


def image_bytes(proto: ModelProto) -> int:
    return sum(a.t.ByteSize() for n in calls(proto) for a in n.attribute if a.name.startswith("image_"))


def assert_exact(before: ModelProto, after: ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Asserts the same bits, without ONNX Runtime's own rewrites."""
    for wanted, got in zip(run(before, feeds), run(after, feeds), strict=True):
        np.testing.assert_array_equal(got, wanted)


# ---- the same answers


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_regions(chunk: int, dtype: type) -> None:
    """Every kind of stage, epilogue and border, at two sizes; with and without ONNX Runtime's own rewrites around the bodies."""
    made = 0
    for seed in range(chunk * SEEDS, (chunk + 1) * SEEDS):
        it = case(seed)
        before = it.model(dtype)
        after = rewritten(before)
        made += len(calls(after))
        onnx.checker.check_model(after, full_check=True)
        for batch, sides in ((2, (16, 23)), (1, (7, 7))):
            feeds = {k: v.astype(dtype) for k, v in it.feeds(batch, sides).items()}
            expected = run(before, feeds)
            for results in (run(after, feeds), answers(after, feeds).values()):
                for wanted, got in zip(expected, results, strict=True):
                    assert (wanted.shape, wanted.dtype) == (got.shape, got.dtype)
                    assert relative_error(got, wanted) <= BOUND[dtype], f"seed {seed}"
    assert made > SEEDS


def every_spelling(opset: int, dtype: type) -> ModelProto:
    """Layout changes of five channels between nodes, grouped, depthwise and 1-D weights, and epilogues that this opset has."""
    values = {"w": (5, 3, 3, 3), "v": (5, 5, 3, 3), "dw": (5, 1, 3, 3), "gw": (4, 5, 1, 1), "s": (5, 5, 3), "slope": (5, 1, 1), "scale": (5, 1, 1), "b": (5,)}
    constants: dict[str, np.ndarray] = {k: weights(k, *shape).astype(dtype) for k, shape in values.items()}
    pads = {"pads": [1, 1, 1, 1]}
    clip = node("Clip", ["d", "low", "high"], "e") if opset >= 11 else node("Clip", ["d"], "e", min=-0.5, max=1.5)
    constants |= {"low": np.array(-0.5, dtype), "high": np.array(1.5, dtype)} if opset >= 11 else {}
    last = "Gelu" if opset >= 20 else "Mish" if opset >= 18 else "HardSwish" if opset >= 14 else "Sigmoid"
    nodes = [
        node("Conv", ["x", "w", "b"], "a", **pads),
        node("PRelu", ["a", "slope"], "c"),
        node("Conv", ["c", "dw"], "d", group=5, **pads),
        clip,
        node("Conv", ["e", "v"], "f", **pads),
        node("Mul", ["f", "scale"], "g"),
        node("Add", ["g", "c"], "h"),
        node("MaxPool", ["h"], "i", kernel_shape=[3, 3], strides=[2, 2]),
        node("AveragePool", ["h"], "j", kernel_shape=[3, 3], strides=[2, 2], count_include_pad=1),
        node("Concat", ["i", "j"], "k", axis=1),
        node("Conv", ["k", "gw"], "l", group=2),
        node(last, ["l"], "y"),
        node("GlobalAveragePool", ["h"], "p"),
        node("Conv", ["q", "s"], "r", pads=[1, 1]),
        node("Tanh", ["r"], "t"),
        node("Conv", ["t", "s"], "z"),
    ]
    inputs = {"x": ["n", 3, "h", "w"], "q": ["n", 5, "l"]}
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = model(nodes, inputs, ["y", "p", "z"], constants, opset=opset, dtype=elem, ir=8 if opset < 20 else 10)
    for output, rank in zip(made.graph.output, (4, 4, 3), strict=True):  # the oldest PRelu has no rule of shapes
        output.CopyFrom(helper.make_tensor_value_info(output.name, elem, [None] * rank))
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset: int, dtype: type) -> None:
    """Slice, Pad, Squeeze and Unsqueeze changed their spelling on the way; a body holds what its model's opset has, and nothing else."""
    before = every_spelling(opset, dtype)
    after = rewritten(before)
    used = {n.op_type for f in after.functions for n in f.node}
    assert {"Slice", "Pad", "Squeeze", "Unsqueeze", "Transpose"} <= used
    for function in after.functions:
        assert [(i.domain, i.version) for i in function.opset_import] == [("", opset)]
        for inner in function.node:
            assert inner.domain == "" and not onnx.defs.get_schema(inner.op_type, opset).deprecated
    onnx.checker.check_model(after, full_check=True)
    assert [i for i in after.opset_import if i.domain != DOMAIN] == list(before.opset_import)
    feeds = {k: v.astype(dtype) for k, v in feeds_for(before, dim=11, scale=1.0).items()}
    for wanted, got in zip(run(before, feeds), run(after, feeds), strict=True):
        assert wanted.dtype == got.dtype and relative_error(got, wanted) <= BOUND[dtype]


@pytest.mark.parametrize("opset", [12, 13, 19])
def test_another_runtime(opset: int) -> None:
    """The evaluator of the onnx package, which knows nothing of ONNX Runtime, runs the bodies too."""
    before = every_spelling(opset, np.float32)
    after = rewritten(before)
    feeds = feeds_for(before, dim=7, scale=1.0)
    for wanted, got in zip(run(before, feeds), ReferenceEvaluator(after).run(None, feeds), strict=True):
        assert relative_error(np.asarray(got), wanted) <= 1e-5


# ---- weights


FORMS = {
    "plain": ((8, 4, 3, 3), 1), "one channel": ((1, 1, 5, 3), 1), "odd": ((7, 3, 3, 2), 1), "grouped": ((6, 3, 3, 3), 2), "depthwise": ((6, 1, 3, 3), 6),
    "multiplier": ((10, 1, 3, 3), 5), "1x1": ((9, 5, 1, 1), 1), "1-D": ((5, 3, 4), 1), "1-D depthwise": ((6, 1, 3), 6),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("form", FORMS)
def test_packed_weights_mean_the_same(form: str, dtype: type) -> None:
    """By the inverse of the packing, and, bit for bit, by what the body computes of it."""
    shape, groups = FORMS[form]
    values = weights(form, *shape).astype(dtype)
    dims: list[int | str] = ["n", shape[1] * groups, *("h", "w")[: len(shape) - 2]]
    before = model([node("Conv", ["x", "w", "b"], "y", group=groups)], {"x": dims}, ["y"], {"w": values, "b": weights("b", shape[0]).astype(dtype)},
                   dtype=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))  # fmt: skip
    (packed,) = (p for p in plan(before).lower()[0].packed if p.role == "weights")
    np.testing.assert_array_equal(unpack(packed.values, packed.layout, packed.channels, len(shape)), values)
    assert not packed.values[..., packed.channels :].any(), "padding that is not zero"
    after = rewritten(before)
    stored = [numpy_helper.to_array(t) for t in after.graph.initializer if t.name == "w_packed"]
    np.testing.assert_array_equal(stored[0], packed.values)
    assert_exact(before, after, {k: v.astype(dtype) for k, v in feeds_for(before, dim=9).items()})


def layers(count: int, channels: int = 16, **attrs: Any) -> ModelProto:
    """``count`` equal convolutions with weights of their own, something that no region takes between them."""
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [m for i in range(count) for m in (node("Conv", [f"t{i}", f"w{i}"], f"c{i}", **pads, **attrs), node("Sin", [f"c{i}"], f"t{i + 1}"))]
    return model(nodes, {"t0": ["n", channels, "h", "w"]}, [f"t{count}"], {f"w{i}": weights(str(i), channels, channels, 3, 3) for i in range(count)})


def test_weights_are_in_the_file_once(tmp_path: Path) -> None:
    """The file grows by the kernels, the plans (a few kB a node) and the bodies alone, and bodies hold no weights."""
    done = optimized(layers(6, channels=64), tmp_path)
    before, after = weight_bytes(done.before), weight_bytes(done.after)
    assert before > 800_000 and after <= before + 1024
    assert done.path.stat().st_size < before + image_bytes(done.after) + 6 * 8_000
    assert {t.name for t in done.after.graph.initializer} == {f"w{i}_packed" for i in range(6)}
    assert sum(t.ByteSize() for f in done.after.functions for n in f.node for a in n.attribute for t in [a.t]) < 500


def test_images_are_in_the_file_once(tmp_path: Path) -> None:
    """The first node of a kernel carries it, the others name it."""
    done = optimized(layers(4), tmp_path)
    names = [a.name for n in calls(done.after) for a in n.attribute if a.name.startswith("image_")]
    assert len(names) == len(set(names)) > 0
    assert len({a.s for n in calls(done.after) for a in n.attribute if a.name == "plan_sm90"}) == 1


def test_one_weight_of_two_regions_is_packed_once() -> None:
    """Equal layouts share an initializer; the original stays only where something else reads it."""
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [node("Conv", ["x", "w"], "a", **pads), node("Sin", ["a"], "s"), node("Conv", ["s", "w"], "b", **pads), node("Cos", ["b"], "y")]
    before = model(nodes, {"x": ["n", 8, "h", "w"]}, ["y"], {"w": weights("w", 8, 8, 3, 3)})
    after = rewritten(before)
    assert [t.name for t in after.graph.initializer] == ["w_packed"] and len(calls(after)) == 2
    assert_exact(before, after, feeds_for(before, dim=6))
    more = model([*nodes, node("Neg", ["w"], "z")], {"x": ["n", 8, "h", "w"]}, ["y", "z"], {"w": weights("w", 8, 8, 3, 3)})
    assert sorted(t.name for t in rewritten(more).graph.initializer) == ["w", "w_packed"]


def test_folded_weights_leave_no_originals(tmp_path: Path) -> None:
    """BatchNormalization goes into the weights: neither its statistics nor the weights of before are left."""
    nodes = [node("Conv", ["x", "w"], "c"), node("BatchNormalization", ["c", "g", "b", "m", "v"], "y")]
    statistics = {n: np.abs(weights(n, 32)) + 0.5 for n in "gbmv"}
    done = optimized(model(nodes, {"x": ["n", 32, "h", "w"]}, ["y"], {"w": weights("w", 32, 32, 3, 3), **statistics}), tmp_path)
    assert len(done.after.graph.initializer) == 2 and weight_bytes(done.after) < weight_bytes(done.before)
    assert_right(done, feeds_for(done.before, dim=6))


# ---- functions


def test_equal_regions_share_a_body() -> None:
    assert len(rewritten(layers(5)).functions) == 1
    assert len(rewritten(layers(5, dilations=[1, 1])).functions) == 1


@pytest.mark.parametrize("change", [{"strides": [2, 2]}, {"dilations": [2, 2]}, {"group": 2}])
def test_different_regions_do_not(change: dict[str, Any]) -> None:
    before = layers(3)
    second = before.graph.node[2]
    second.attribute.extend(helper.make_attribute(k, v) for k, v in change.items())
    if "group" in change:
        grouped = next(t for t in before.graph.initializer if t.name == "w1")
        grouped.CopyFrom(numpy_helper.from_array(weights("half", 16, 8, 3, 3), "w1"))
    after = rewritten(before)
    assert [n.op_type for n in calls(after)] == [f"FusedConvRegion_portable_{i}" for i in (0, 1, 0)]
    for wanted, got in zip(run(before, feeds_for(before, dim=9)), run(after, feeds_for(before, dim=9)), strict=True):
        assert np.linalg.norm(got - wanted) < 2e-5 * np.linalg.norm(wanted), "weights of deep products are moved to where TF32 rounds them best"


def test_bodies_are_of_no_model() -> None:
    """Names of the model do not get into the bodies: the same region of another model has the same bytes."""
    first = layers(1)
    second = layers(1)
    for item in (*second.graph.input, *second.graph.initializer, *second.graph.output):
        item.name = "other/" + item.name
    for n in second.graph.node:
        n.name = "name"
        n.input[:], n.output[:] = ["other/" + i for i in n.input], ["other/" + o for o in n.output]
    assert rewritten(first).functions == rewritten(second).functions


def test_the_pool_of_names_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bodies than names, one of which an earlier run took: what does not fit stays with ONNX Runtime, with the reason."""
    monkeypatch.setitem(BODIES, CONV_KIND, 2)
    before = optimized(conv_relu(), tmp_path).after
    body = [("Sin", ["y"], {}), ("Conv", ["t0", "v"], {}), ("Tanh", ["t1"], {}), ("Sin", ["t2"], {}), ("Conv", ["t3", "v"], {"strides": [2, 2]})]
    before.graph.node.extend(node(op, inputs, f"t{i}", **attrs) for i, (op, inputs, attrs) in enumerate(body))
    before.graph.initializer.append(numpy_helper.from_array(weights("v", 4, 4, 3, 3), "v"))
    before.graph.output.append(helper.make_tensor_value_info("t4", TensorProto.FLOAT, None))
    done = optimized(before, tmp_path)
    assert [n.op_type for n in calls(done.after)] == ["FusedConvRegion_sm90_0", "FusedConvRegion_sm90_1"]
    assert [r.nodes for r in done.result.refusals if "more than" in r.reason] == [("Conv(t4)",)]
    assert_right(done, {"x": weights("image", 2, 3, 8, 8)})


# ---- IR version


@pytest.mark.parametrize(("opset", "ir"), [(7, 3), (8, 3), (9, 4), (10, 5), (11, 6), (13, 7), (15, 8), (19, 9), (21, 10)])
def test_ir_version_is_raised_only_for_functions(tmp_path: Path, opset: int, ir: int) -> None:
    """To 8, the first with local functions, and that is said; a model without functions keeps its own."""
    before = conv_relu(opset=opset, ir=ir)
    if ir == 3:
        before.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in before.graph.initializer)
    done = optimized(before, tmp_path)
    assert done.after.ir_version == max(ir, 8) and done.regions == 1
    raised = [n for n in done.result.notes if "IR version" in n]
    assert raised == ([f"IR version raised from {ir} to 8: local functions need it"] if ir < 8 else [])
    plain = optimize(before, config(passes=("canonicalize",)), tmp_path / "plain.onnx")
    assert onnx.load(tmp_path / "plain.onnx").ir_version == ir and not any("IR version" in n for n in plain.notes)


def test_domain_is_imported_once(tmp_path: Path) -> None:
    done = optimized(conv_relu(), tmp_path)
    again = optimized(done.path, _folder(tmp_path, ["again"]))
    for proto in (done.after, again.after):
        assert [(i.domain, i.version) for i in proto.opset_import].count((DOMAIN, DOMAIN_VERSION)) == 1
    assert_same(answers(done.path, feeds_for(done.before, dim=8)), answers(again.path, feeds_for(done.before, dim=8)))


def _folder(base: Path, parts: Sequence[str]) -> Path:
    folder = base.joinpath(*parts)
    folder.mkdir()
    return folder
