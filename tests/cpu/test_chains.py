"""Custom nodes joined into one: the merged plan against ONNX Runtime by the kernels' numpy twins, which nodes are joined, and the joined bodies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

from end_to_end import all_nodes, assert_right, optimized
from lowering_harness import BOUND, DTYPE, answers, dry_run, relative, to_nhwc
from oplib import library
from plan_harness import plan
from region_cases import SIDES, case
from rule_harness import model, node, run, weights
from tilewright.optimizer.config import PASSES
from tilewright.optimizer.emit import nodes as nodes_module
from tilewright.optimizer.launch import Launch, LaunchPlan, Output, arg_i32, arg_in, arg_out, arg_scratch, const, dim
from tilewright.optimizer.lower.lowered import NHWC
from tilewright.optimizer.lower.merge import Part, merge
from twins import run_plan

CONV = {"c1": weights(8, 8, 3, 3, seed=1), "c2": weights(8, 8, 1, 1, seed=2), "c3": weights(8, 8, 3, 3, seed=3)}


def conv(x: str, weight: str, y: str) -> list[NodeProto]:
    """A convolution that keeps height and width."""
    side = 1 if CONV[weight].shape[-1] == 3 else 0
    return [node("Conv", [x, weight], y, pads=[side] * 4)]


def net(nodes: list[NodeProto], outputs: list[str], n: int | str = "N", size: int | str = 10) -> ModelProto:
    return model(nodes, {"x": (n, 8, size, size)}, outputs, CONV)


def merged(made: ModelProto, known: bool) -> tuple[LaunchPlan, dict[str, object], list[object], list[object]]:
    """All regions of ``made`` as one plan, its kernels, and its inputs and outputs: tensors with their layout, or packed weights."""
    planned = plan(made)
    lowered = planned.lower()
    parts, weights_of = [], {}
    for number, one in enumerate(lowered):
        packed = [("w", number, i) for i in range(len(one.packed))]
        weights_of.update({key: p.values for key, p in zip(packed, one.packed, strict=True)})
        parts.append(Part(one.plan, (*((p.tensor, p.layout) for p in one.inputs), *packed), tuple((p.tensor, p.layout) for p in one.outputs)))
    internal = {t for part in parts for t in part.outputs}
    inputs = list(dict.fromkeys(t for part in parts for t in part.inputs if t not in internal))
    wanted = {o.name for o in made.graph.output}
    outputs = [t for part in parts for t in part.outputs if t[0].name in wanted and t[1] != NHWC]
    facts = {}
    if known:
        facts = {t: tuple(d if isinstance(d, int) else None for d in planned.shapes.shape(t[0]) or ()) for t in inputs if t not in weights_of}
    specs = {name: spec for one in lowered for name, spec in one.specs.items()}
    return merge(parts, inputs, outputs, facts), specs, [weights_of.get(t, t) for t in inputs], outputs


def check_merged(made: ModelProto, values: Mapping[str, np.ndarray], compute: str = "tf32", known: bool = False) -> LaunchPlan:
    """The merged plan gives ``values``, every tensor by name, and the op library makes the same of it as Python."""
    whole, specs, inputs, outputs = merged(made, known)
    arrays = [i if isinstance(i, np.ndarray) else np.ascontiguousarray(values[i[0].name].astype(DTYPE[compute])) for i in inputs]
    arrays = [to_nhwc(a, compute) if not isinstance(i, np.ndarray) and i[1] == NHWC else a for a, i in zip(arrays, inputs, strict=True)]
    for (tensor, _), got in zip(outputs, run_plan(whole, specs, arrays), strict=True):
        assert relative(got, values[tensor.name]) < 4 * BOUND[compute], tensor.name
    digests = {name: f"{i:064x}" for i, name in enumerate(whole.images)}
    named, shapes = whole.map_images(digests), [a.shape for a in arrays]
    assert library().check_plan(named.to_text()) == ""
    assert library().run_plan(named.to_text(), shapes, 132) == dry_run(named, shapes, {d: specs[n] for n, d in digests.items()}, 132)
    return whole


def residual(blocks: int, n: int | str = "N") -> ModelProto:
    nodes, x = [], "x"
    for i in range(blocks):
        nodes += [*conv(x, "c1", f"a{i}"), node("Relu", [f"a{i}"], f"r{i}"), *conv(f"r{i}", "c2", f"b{i}"), node("Add", [f"b{i}", x], f"s{i}")]
        nodes += [node("Relu", [f"s{i}"], f"y{i}")]
        x = f"y{i}"
    return net([*nodes, node("GlobalAveragePool", [x], "out")], ["out"], n)


@pytest.mark.parametrize("batch", [1, 3])
def test_residual_blocks(batch):
    """Tensors that are read long after they were made keep their place; the others share three."""
    x = np.random.default_rng(0).standard_normal((batch, 8, 10, 10)).astype(np.float32)
    whole = check_merged(residual(6), {"x": x, "out": run(residual(6), {"x": x})[0]})
    assert len(whole.scratch) == 3 and {str(s) for s in whole.scratch} == {"i0.0*i0.2*i0.3*32"}


def test_known_sizes_are_constants():
    x = np.random.default_rng(0).standard_normal((2, 8, 10, 10)).astype(np.float32)
    whole = check_merged(residual(3, 2), {"x": x, "out": run(residual(3, 2), {"x": x})[0]}, known=True)
    assert "i0" not in whole.to_text() and set(whole.scratch) == {const(2 * 100 * 32)}


@pytest.mark.parametrize("compute", ["f16", "tf32"])
@pytest.mark.parametrize("seed", range(16))
def test_random_regions(seed, compute):
    """Everything that regions can be, in chains of their own."""
    made = case(seed)
    for batch, sides in ((1, SIDES[:1]), (2, SIDES[1:])):
        check_merged(made.model(DTYPE[compute]), answers(made, batch, sides), compute)


def test_slots_of_different_sizes():
    """Two parts with scratch of their own: the second takes the slot that fits, and the slot holds the larger."""

    def part(number: int, size: object) -> Part:
        launch = Launch(0, "k", (const(1),) * 3, 32, const(0), (arg_in(0), arg_scratch(0, 16), arg_out(0), arg_i32(dim(0, 1))))
        return Part(LaunchPlan((Output("f32", (dim(0, 0), dim(0, 1) + 1)),), (size,), ("image",), (launch,)), (f"t{number}",), (f"t{number + 1}",))

    whole = merge([part(0, dim(0, 0) * 8), part(1, dim(0, 0) * 24), part(2, dim(0, 0) * 4)], ["t0"], ["t3"], {})
    assert [str(s) for s in whole.scratch] == ["i0.0*24", "i0.0*(i0.1+1)*4", "i0.0*(i0.1+2)*4"]
    assert [str(launch.args[1]) for launch in whole.launches] == ["ws 0 16"] * 3
    assert [str(launch.args[3]) for launch in whole.launches] == ["i32 i0.1", "i32 i0.1+1", "i32 i0.1+2"]
    assert [str(d) for d in whole.outputs[0].dims] == ["i0.0", "i0.1+3"]


# Which nodes are joined


def joined(made: ModelProto, folder, **options: object) -> tuple[list[str], object]:
    done = optimized(made, folder, passes=PASSES, **options)
    return [n.op_type.rsplit("_", 2)[0] for n in all_nodes(done.after.graph)], done


def feeds(size: int = 10) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((2, 8, size, size)).astype(np.float32)}


def test_a_chain_is_one_node(tmp_path):
    kinds, done = joined(residual(4), tmp_path)
    assert kinds == ["FusedConvRegion"] and len(done.after.functions) == 1
    assert len(done.result.regions) == 9 and {r.op for r in done.result.regions} == {done.after.graph.node[0].op_type}
    assert_right(done, feeds())


def test_what_leaves_a_chain_is_its_output(tmp_path):
    nodes = [*conv("x", "c1", "a"), node("Relu", ["a"], "r"), *conv("r", "c2", "b"), node("Sin", ["r"], "s"), *conv("b", "c3", "c")]
    kinds, done = joined(net(nodes, ["c", "s", "b"]), tmp_path)
    assert kinds == ["FusedConvRegion", "Sin"] and len(done.after.graph.node[0].output) == 3
    assert_right(done, feeds())


def test_a_path_through_other_nodes_keeps_them_apart(tmp_path):
    """b needs a by way of Sin: joined with it, the graph would have a cycle."""
    nodes = [*conv("x", "c1", "a"), node("Sin", ["a"], "s"), *conv("a", "c2", "p"), *conv("s", "c3", "q"), node("Add", ["q", "p"], "b")]
    kinds, done = joined(net(nodes, ["b"]), tmp_path)
    assert kinds.count("FusedConvRegion") == 2 and kinds.index("Sin") == 1
    assert_right(done, feeds())


def test_two_kinds_stay_two_nodes(tmp_path):
    nodes = [*conv("x", "c1", "a"), node("MatMul", ["a", "m"], "b"), node("MatMul", ["b", "m"], "out")]
    made = model(nodes, {"x": ("N", 8, 10, 10)}, ["out"], CONV | {"m": weights(10, 10)})
    kinds, done = joined(made, tmp_path)
    assert kinds == ["FusedConvRegion", "PolyMatMul"]
    assert_right(done, feeds())


def test_equal_chains_share_a_body(tmp_path):
    nodes = [*conv("x", "c1", "a"), *conv("a", "c1", "b"), node("Sin", ["b"], "s"), *conv("s", "c1", "c"), *conv("c", "c1", "out")]
    kinds, done = joined(net(nodes, ["out"]), tmp_path)
    assert kinds == ["FusedConvRegion", "Sin", "FusedConvRegion"] and len(done.after.functions) == 1
    assert_right(done, feeds())


def test_chains_beyond_the_op_names_stay_nodes(tmp_path, monkeypatch):
    """Four bodies and five names: the first chain gets the fifth, the other stays apart."""
    monkeypatch.setitem(nodes_module.BODIES, nodes_module.CONV_KIND, 5)
    nodes = [*conv("x", "c1", "a"), *conv("a", "c1", "b"), node("Sin", ["b"], "s"), *conv("s", "c2", "c"), *conv("c", "c2", "out")]
    kinds, done = joined(net(nodes, ["out"]), tmp_path)
    assert kinds == ["FusedConvRegion", "Sin", "FusedConvRegion", "FusedConvRegion"] and len(done.after.functions) == 3
    assert_right(done, feeds())


def test_inside_a_branch(tmp_path):
    """A chain in a sub-graph that reads outer tensors, and an outer one that a sub-graph reads."""
    inner = helper.make_graph([*conv("a", "c2", "p"), *conv("p", "c3", "q")], "then", [], [helper.make_tensor_value_info("q", 1, None)])
    other = helper.make_graph([node("Neg", ["r"], "z")], "else", [], [helper.make_tensor_value_info("z", 1, None)])
    nodes = [*conv("x", "c1", "a"), *conv("a", "c2", "r"), node("If", ["flag"], "out", then_branch=inner, else_branch=other)]
    made = model(nodes, {"x": ("N", 8, 10, 10), "flag": ()}, ["out"], CONV, dtypes={"flag": 9})
    kinds, done = joined(made, tmp_path)
    assert kinds.count("FusedConvRegion") == 2 and len(done.after.graph.node[0].output) == 2
    for flag in (True, False):
        assert_right(done, feeds() | {"flag": np.array(flag)})


def test_without_the_pass_every_region_is_a_node(tmp_path):
    done = optimized(residual(2), tmp_path)
    assert done.regions == len(done.result.regions) == 5
