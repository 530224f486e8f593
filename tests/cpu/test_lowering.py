"""Launch plans of random regions, run on the CPU by the numpy twins of the kernels and compared with ONNX Runtime on the original nodes.

Each region is planned once, with symbolic sizes, and run at several; its tensors cross the border of its node in every layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from lowering_harness import BOUND, DTYPE, answers, dry_run, relative, to_nhwc
from oplib import library
from plan_harness import Planned, plan
from plans import resolve
from region_cases import SIDES, case, half
from rule_harness import model, node, run, weights
from tilewright import model_zoo
from tilewright.optimizer.emit.export import export_model
from tilewright.optimizer.graph.canonicalize import canonicalize
from tilewright.optimizer.graph.shapes import infer
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.lower.lowered import NCHW, NHWC, LoweredRegion, Port
from tilewright.optimizer.lower.regions import TileLadder, lower_region
from tilewright.optimizer.plan.regions.region import Region, Stage, padded
from tilewright.optimizer.plan.regions.tiles import candidates
from twins import run_plan

CHUNKS, CASES = 20, 10  # a chunk is one test of so many models


def part(model: ModelProto, inputs: Sequence[str], output: str) -> ModelProto:
    """The nodes of ``model`` between ``inputs`` and ``output``."""
    wanted, nodes = {output}, []
    for one in reversed(model.graph.node):
        if set(one.output) & wanted - set(inputs):
            nodes.insert(0, one)
            wanted |= set(one.input)
    graph = onnx.helper.make_graph(
        nodes,
        "part",
        [onnx.helper.make_tensor_value_info(i, onnx.TensorProto.FLOAT, None) for i in inputs],
        [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)],
        [t for t in model.graph.initializer if t.name in wanted],
    )
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def run_lowered(lowered: LoweredRegion, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """What a region's plan computes from its NCHW inputs, as NCHW; its outputs agree and its padding channels are zero."""
    compute = lowered.region.compute
    inputs = [np.ascontiguousarray(values[p.tensor.name].astype(DTYPE[compute])) for p in lowered.inputs]
    inputs = [to_nhwc(x, compute) if p.layout == NHWC else x for x, p in zip(inputs, lowered.inputs, strict=True)]
    results = []
    for port, got in zip(lowered.outputs, run_plan(lowered.plan, lowered.specs, [*inputs, *(p.values for p in lowered.packed)]), strict=True):
        if port.layout == NHWC:
            assert not got[..., port.channels :].any(), "padding channels are not zero"
            got = np.moveaxis(got[..., : port.channels], -1, 1)
        results.append(got)
    assert all(np.array_equal(results[0], r) for r in results[1:])
    return results[0]


def check_library(lowered: LoweredRegion, values: Mapping[str, np.ndarray], sms: int) -> None:
    """The op library takes the plan's text and makes the same of it as Python."""
    named = lowered.plan.map_images({name: f"{i:064x}" for i, name in enumerate(lowered.plan.images)})
    specs = {f"{i:064x}": lowered.specs[name] for i, name in enumerate(lowered.plan.images)}
    shapes = []
    for port in lowered.inputs:
        n, c, *sides = values[port.tensor.name].shape
        shapes.append([n, *sides, padded(c, lowered.region.compute)] if port.layout == NHWC else [n, c, *sides])
    shapes += [p.values.shape for p in lowered.packed]
    text = named.to_text()
    assert library().check_plan(text) == ""
    assert library().run_plan(text, shapes, sms) == dry_run(named, shapes, specs, sms)


def random_tiles(rng: np.random.Generator, stage: Stage, compute: str) -> TileLadder:
    """One tile, or a ladder whose rungs are met at the sizes of the tests; a split reduction where there is one group."""
    tiles = [t for t in candidates(compute) if t.split_k == 1 or stage.groups == 1]
    limits = sorted(rng.choice([1, 4, 30, 49, 200, 256, 500], size=rng.integers(0, 4), replace=False))
    return [(limit, tiles[rng.integers(len(tiles))]) for limit in [*map(int, limits), None]]


def lower_anyhow(planned: Planned, region: Region, rng: np.random.Generator) -> LoweredRegion:
    """``region`` with random layouts at its border and, half the time, random tiles."""
    channels = {t: c for s in region.stages for t, c in s.reads} | {t: s.channels_out for s in region.stages for t in s.operands}
    inputs = [Port(t, NHWC if rng.random() < 0.5 else NCHW, channels[t]) for t in region.inputs]
    layouts = [(NHWC,), (NCHW,), (NHWC, NCHW)][rng.integers(3)]
    wild = rng.random() < 0.5

    def choose(stage: Stage, compute: str) -> TileLadder:
        return random_tiles(rng, stage, compute) if wild else planned.pricing.tiles(stage, compute, region.rank)

    return lower_region(region, inputs, [Port(region.output, layout, region.channels) for layout in layouts], planned.plan.flat, choose)


SIZES = [(1, SIDES[:1]), (2, SIDES[1:]), (3, SIDES[:2])]


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("compute", ["f16", "tf32"])
def test_plans_compute_what_the_nodes_do(chunk: int, compute: str) -> None:
    for seed in range(chunk * CASES, (chunk + 1) * CASES):
        made = case(seed)
        original = made.model()
        planned = plan(made.model(DTYPE[compute]))
        rng = np.random.default_rng((seed, 1))
        lowered = [lower_anyhow(planned, region, rng) for region in planned.regions]
        assert lowered, f"seed {seed}: {planned.reasons}"
        for batch, sides in SIZES:
            truth = answers(made, batch, sides)
            for region in lowered:
                check_region(region, original, truth, f"seed {seed}, batch {batch}, sides {sides}")


def check_region(lowered: LoweredRegion, original: ModelProto, truth: Mapping[str, np.ndarray], where: str) -> None:
    names, output, compute = [p.tensor.name for p in lowered.inputs], lowered.region.output.name, lowered.region.compute
    where = f"{where}, {compute}\n{lowered.region}\n{[p.layout for p in (*lowered.inputs, *lowered.outputs)]}"
    if compute == "f16":
        truth = {n: half(truth[n]) for n in names}
        truth[output] = run(part(original, names, output), {n: truth[n] for n in names})[0]
    check_library(lowered, truth, sms=132)
    error = relative(run_lowered(lowered, truth), truth[output])
    assert error <= BOUND[compute], f"relative error {error:.1e}: {where}"


# By hand


def conv_model(window: Mapping[str, object], w: Sequence[int], x: Sequence[int | str] = ("n", 8, "h", "w"), tail: Sequence[onnx.NodeProto] = ()) -> ModelProto:
    nodes = [node("Conv", ["x", "w"], "c", **window), *tail]
    groups = int(str(window.get("group", 1)))
    inputs = {"x": x} | {name: ("n", w[0], "h", "w") if name == "r" else ("n", w[0], 1, 1) for n in tail for name in n.input if name in "rg"}
    return model(nodes, inputs, [nodes[-1].output[0]], {"w": weights(*w) / np.float32(np.sqrt(np.prod(w[1:])) * groups)})


def lower_with(planned: Planned, choose: Callable[[Stage, str], TileLadder], layouts: Sequence[str] = (NCHW,)) -> LoweredRegion:
    (region,) = planned.regions
    (plain,) = planned.lower()
    outputs = [Port(region.output, layout, region.channels) for layout in layouts]
    return lower_region(region, plain.inputs, outputs, planned.plan.flat, choose)


@pytest.mark.parametrize("layouts", list(itertools.product((NHWC, NCHW), repeat=3)))
@pytest.mark.parametrize("outputs", [(NHWC,), (NCHW,), (NHWC, NCHW)])
def test_every_border(layouts: Sequence[str], outputs: Sequence[str]) -> None:
    """A residual and a gate, odd channels, in every combination of layouts."""
    tail = [node("Add", ["c", "r"], "s"), node("Mul", ["g", "s"], "y")]
    original = conv_model({"pads": [1, 1, 1, 1]}, (5, 8, 3, 3), tail=tail)
    planned = plan(original)
    (region,) = planned.regions
    ports = [Port(t, layout, 8 if t.name == "x" else 5) for t, layout in zip(region.inputs, layouts, strict=True)]
    lowered = lower_region(
        region, ports, [Port(region.output, o, 5) for o in outputs], planned.plan.flat, lambda stage, compute: [(None, next(candidates(compute)))]
    )
    rng = np.random.default_rng(0)
    feeds = {"x": (2, 8, 6, 7), "r": (2, 5, 6, 7), "g": (2, 5, 1, 1)}
    values = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in feeds.items()}
    want = run(original, values)[0]
    check_library(lowered, values, 132)
    assert relative(run_lowered(lowered, values), want) <= BOUND["tf32"]
    to, back = [launch.kernel for launch in lowered.plan.launches if "to_nhwc" in launch.kernel], sum(o == NCHW for o in outputs)
    assert len(to) == layouts.count(NCHW) and len(lowered.plan.launches) == 1 + len(to) + back


def test_each_rung_of_a_ladder_runs_alone_where_it_should() -> None:
    planned = plan(conv_model({}, (8, 8, 1, 1)))
    tiles = list(candidates("tf32"))
    lowered = lower_with(planned, lambda stage, compute: [(10, tiles[0]), (20, tiles[3]), (21, tiles[5]), (None, tiles[4])])
    assert [tiles[i].split_k for i in (0, 3, 5, 4)] == [1, 8, 2, 1]
    for pixels, kernels in ((1, 1), (10, 1), (11, 2), (20, 2), (21, 2), (22, 1), (5000, 1)):
        values = {"x": np.random.default_rng(pixels).standard_normal((1, 8, 1, pixels)).astype(np.float32)}
        calls = resolve(lowered.plan, lowered.specs, [values["x"].shape, *(p.values.shape for p in lowered.packed)]).calls
        convs = [c for c in calls if c.spec.template == "conv_igemm"]
        rung = next(i for i, limit in enumerate((10, 20, 21, pixels)) if pixels <= limit)
        assert len(convs) == 1 and len(calls) == kernels + 2
        assert [convs[0].spec[k] for k in ("BLOCK_M", "SPLIT_K")] == [(t := tiles[(0, 3, 5, 4)[rung]]).block_m, t.split_k]
        assert relative(run_lowered(lowered, values), run(planned.view.model, values)[0]) <= BOUND["tf32"]


def test_workspace_of_a_rung_that_does_not_run_is_empty() -> None:
    planned = plan(conv_model({}, (8, 8, 1, 1)))
    split = next(t for t in candidates("tf32") if t.split_k == 8)
    lowered = lower_with(planned, lambda stage, compute: [(10, split), (None, replace(split, split_k=1))])
    weights_shape = [p.values.shape for p in lowered.packed]
    assert [resolve(lowered.plan, lowered.specs, [(1, 8, 1, w), *weights_shape]).scratch[-1] for w in (10, 11)] == [10 * 8 * 4 * 8, 0]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("compute", ["f16", "tf32"])
@pytest.mark.parametrize("dims", [(1, 512, 7, 7), ("n", 512, "h", "w")])
def test_reductions_are_split_only_where_there_is_one_group(groups: int, compute: str, dims: Sequence[int | str]) -> None:
    constants = {"w": weights(512, 512 // groups, 3, 3, dtype=DTYPE[compute])}
    dtype = onnx.TensorProto.FLOAT16 if compute == "f16" else onnx.TensorProto.FLOAT
    (lowered,) = plan(model([node("Conv", ["x", "w"], "y", pads=[1] * 4, group=groups)], {"x": dims}, ["y"], constants, dtype=dtype)).lower()
    splits = {s["SPLIT_K"] for s in lowered.specs.values() if s.template == "conv_igemm"}
    assert splits == {1} if groups > 1 else max(splits) > 1


def test_empty_batch_launches_nothing() -> None:
    (lowered,) = plan(conv_model({}, (8, 8, 3, 3))).lower()
    values = {"x": np.zeros((0, 8, 9, 9), np.float32)}
    check_library(lowered, values, 132)
    numbers = resolve(lowered.plan, lowered.specs, [values["x"].shape, (8, 3, 3, 8)])
    assert numbers.outputs[0][1] == (0, 8, 7, 7) and not numbers.calls and set(numbers.scratch) == {0}


def test_one_pixel_crosses_the_border_without_a_change_of_layout() -> None:
    (lowered,) = plan(conv_model({}, (16, 8, 1, 1), ("n", 8, 1, 1))).lower()
    assert not [s for s in lowered.specs.values() if s.template == "layout"]
    (odd,) = plan(conv_model({}, (13, 8, 1, 1), ("n", 8, 1, 1))).lower()
    assert [s["TO_NHWC"] for s in odd.specs.values() if s.template == "layout"] == [False]


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_large"])
def test_a_network_from_end_to_end(name: str) -> None:
    """Every region on what the regions before it left, in the layouts that were planned."""
    network = model_zoo.build(name, batch="n", size=33)
    view = View(network)
    canonicalize(view, infer(view), lambda: infer(view))
    planned = plan(export_model(view))
    tensors = dict.fromkeys(t.name for r in planned.regions for t in (*r.inputs, r.output))
    exposed = ModelProto()
    exposed.CopyFrom(planned.view.model)
    exposed.graph.output.extend(onnx.helper.make_tensor_value_info(t, onnx.TensorProto.FLOAT, None) for t in tensors if t not in ("input", "output"))
    x = np.random.default_rng(1).standard_normal((2, 3, 33, 33)).astype(np.float32)
    truth = dict(zip([o.name for o in exposed.graph.output], run(exposed, {"input": x}), strict=True)) | {"input": x}
    made: dict[tuple[str, str], np.ndarray] = {}
    for lowered in planned.lower():
        inputs = [made[p.tensor.name, p.layout] if (p.tensor.name, p.layout) in made else truth[p.tensor.name] for p in lowered.inputs]
        assert all((p.tensor.name, NHWC) in made for p in lowered.inputs if p.layout == NHWC)
        results = run_plan(lowered.plan, lowered.specs, [*inputs, *(p.values for p in lowered.packed)])
        made |= {(p.tensor.name, p.layout): r for p, r in zip(lowered.outputs, results, strict=True)}
    finals = [(t, v) for (t, layout), v in made.items() if layout == NCHW]
    assert finals and all(relative(v, truth[t]) < 1e-4 for t, v in finals)
