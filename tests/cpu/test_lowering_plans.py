"""Launch plans of real networks in the op library's parser, and what random regions seldom meet: wide concats, and every epilogue behind a split reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytest
import sympy
from onnx import NodeProto, TensorProto

import golden_files
from lowering_harness import BOUND, DTYPE, dry_run, relative, to_nhwc
from oplib import library
from plan_harness import Planned, plan
from plans import resolve
from rule_harness import model, node, run, weights
from tilewright.optimizer.lower.lowered import NHWC, LoweredRegion
from tilewright.optimizer.lower.regions import TileLadder, lower_region
from tilewright.optimizer.plan.regions.region import MAX_CONCAT_SOURCES, padded
from tilewright.optimizer.plan.regions.tiles import Tile
from twins import run_plan

HALF = {"f16": TensorProto.FLOAT16, "tf32": TensorProto.FLOAT}
NETWORKS = (
    "resnet18_any_batch", "googlenet_fp16", "mobilenet_v3_large_fp16", "efficientnet_b0", "squeezenet1_1", "dense_block_fp16", "unet", "any_size", "any_length",
)  # fmt: skip


# ---- plans of networks


@cache
def network(name: str) -> tuple[Planned, list[LoweredRegion]]:
    build, take_all = golden_files.MODELS[name]
    result = golden_files.planned(build(), take_all)
    return result, result.lower()


def shapes_at(planned: Planned, lowered: LoweredRegion, batch: int, size: int) -> list[Sequence[int]]:
    """Shapes of the node's inputs at a batch and a size of every other symbol."""
    shapes: list[Sequence[int]] = []
    for port in lowered.inputs:
        dims = planned.shapes.shape(port.tensor)
        assert dims is not None, port.tensor.name
        n, *rest = (int(d.subs({s: batch if s.name == "N" else size for s in d.free_symbols})) if isinstance(d, sympy.Expr) else d for d in dims)
        shapes.append([n, *rest[1:], padded(port.channels, lowered.region.compute)] if port.layout == NHWC else [n, *rest])
    return [*shapes, *(p.values.shape for p in lowered.packed)]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_op_library_makes_the_same_of_every_plan(name: str) -> None:
    """It takes the text, and at several sizes its grids, arguments and workspace are Python's own; so on GPUs of other widths."""
    planned, lowered = network(name)
    assert lowered
    for region in lowered:
        digests = {image: f"{i:064x}" for i, image in enumerate(region.plan.images)}
        named, specs = region.plan.map_images(digests), {d: region.specs[image] for image, d in digests.items()}
        assert library().check_plan(named.to_text()) == "", region.region.label
        for batch, size, sms in ((1, 64, 132), (3, 101, 108), (64, 257, 58)):
            shapes = shapes_at(planned, region, batch, size)
            assert library().run_plan(named.to_text(), shapes, sms) == dry_run(named, shapes, specs, sms), f"{region.region.label} at {batch}, {size}"


@pytest.mark.parametrize("name", NETWORKS)
def test_one_rung_of_every_ladder_runs(name: str) -> None:
    """At every size each stage is computed by exactly one tile, its reduction summed where it is split."""
    planned, lowered = network(name)
    for region in lowered:
        products = sum(s.kind in ("conv", "matmul") for s in region.region.stages)
        for batch, size in ((1, 64), (2, 101), (3, 1000), (33, 64), (257, 257), (1000, 64)):
            calls = resolve(region.plan, region.specs, shapes_at(planned, region, batch, size)).calls
            convs = [c for c in calls if c.spec.template.startswith("conv_")]
            splits = [c for c in convs if c.spec.template == "conv_igemm" and c.spec["SPLIT_K"] != 1]
            assert len(convs) == products and len(splits) == sum(c.spec.template == "splitk_reduce" for c in calls), f"{region.region.label} at {batch}, {size}"


def test_networks_have_ladders_splits_and_wide_concats() -> None:
    """So that the tests above say something."""
    launches = [launch for name in NETWORKS for region in network(name)[1] for launch in region.plan.launches]
    specs = [spec for name in NETWORKS for region in network(name)[1] for spec in region.specs.values()]
    assert sum(str(launch.when) != "1" for launch in launches) > 50
    assert {s["SPLIT_K"] for s in specs if s.template == "splitk_reduce"} == {2, 4, 8}
    assert {s["SOURCES"] for s in specs if s.template == "concat"} >= {3, MAX_CONCAT_SOURCES}


# ---- what they compute


def outputs_of(lowered: LoweredRegion, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The region's result, channels first, from its plan by the kernels' twins; the op library makes the same of the plan."""
    compute = lowered.region.compute
    inputs = [np.ascontiguousarray(values[p.tensor.name].astype(DTYPE[compute])) for p in lowered.inputs]
    inputs = [to_nhwc(x, compute) if p.layout == NHWC else x for x, p in zip(inputs, lowered.inputs, strict=True)]
    arrays = [*inputs, *(p.values for p in lowered.packed)]
    digests = {image: f"{i:064x}" for i, image in enumerate(lowered.plan.images)}
    named = lowered.plan.map_images(digests)
    shapes = [a.shape for a in arrays]
    assert library().check_plan(named.to_text()) == ""
    assert library().run_plan(named.to_text(), shapes, 132) == dry_run(named, shapes, {d: lowered.specs[image] for image, d in digests.items()}, 132)
    got = run_plan(lowered.plan, lowered.specs, arrays)[0]
    port = lowered.outputs[0]
    return np.moveaxis(got[..., : port.channels], -1, 1) if port.layout == NHWC else got


@pytest.mark.parametrize("compute", ["f16", "tf32"])
@pytest.mark.parametrize("sources", [3, 8, 9, 12, 17])
def test_concats_of_many_sources(sources: int, compute: str) -> None:
    """Others read each source, so that all are copied; one in the middle is a convolution that writes its slice itself. What follows has a slice for each."""
    rng = np.random.default_rng(sources)
    channels = [int(c) for c in rng.choice([1, 3, 8, 12], sources)]
    names, middle = [f"t{i}" for i in range(sources)], sources // 2
    nodes = [node("Conv", ["x", f"w{i}"], name) for i, name in enumerate(names)] + [node("Neg", [name], f"n{name}") for name in names]
    nodes += [node("Conv", ["x", "own"], "a"), node("Concat", [*names[:middle], "a", *names[middle:]], "c", axis=1)]
    nodes += [node("Mul", ["c", "scale"], "d"), node("Add", ["d", "shift"], "e"), node("Relu", ["e"], "y")]
    total = sum(channels) + 5
    constants = {f"w{i}": weights(c, 4, 1, 1, seed=i, dtype=DTYPE[compute]) for i, c in enumerate(channels)} | {
        "own": weights(5, 4, 1, 1, dtype=DTYPE[compute])
    }
    constants |= {name: weights(total, 1, 1, seed=seed, dtype=DTYPE[compute]) for seed, name in enumerate(("scale", "shift"))}
    outputs = ["y", *(f"n{name}" for name in names), *names]
    planned = plan(model(nodes, {"x": ("n", 4, "h", "w")}, outputs, constants, dtype=HALF[compute]))
    (lowered,) = [region for region in planned.lower() if region.region.joints]
    assert lowered.region.channels == total
    launched = [lowered.specs[lowered.plan.images[launch.image]] for launch in lowered.plan.launches]
    copies = [int(s["SOURCES"]) if s.template == "concat" else 1 for s in launched if s.template in ("concat", "pointwise")]
    assert sum(copies) == sources and max(copies) <= MAX_CONCAT_SOURCES
    assert len(copies) == sum(-(-part // MAX_CONCAT_SOURCES) for part in (middle, sources - middle)), "no more launches than it takes"
    for shape in ((1, 4, 1, 1), (2, 4, 5, 7)):
        x = rng.standard_normal(shape).astype(DTYPE[compute])
        values = dict(zip(outputs, run(planned.view.model, {"x": x}), strict=True)) | {"x": x}
        assert relative(outputs_of(lowered, values), values["y"].astype(np.float32)) < BOUND[compute]


EPILOGUES: dict[str, list[NodeProto]] = {
    "nothing": [],
    "relu": [node("Relu", ["c"], "y")],
    "slopes": [node("PRelu", ["c", "slope"], "y")],
    "residual": [node("Add", ["c", "r"], "y")],
    "residual, relu": [node("Add", ["r", "c"], "s"), node("Relu", ["s"], "y")],
    "gate": [node("Mul", ["c", "g"], "y")],
    "clip, scale, shift": [node("Clip", ["c", "low", "high"], "s"), node("Mul", ["s", "scale"], "t"), node("Add", ["t", "shift"], "y")],
    "all slots": [node("Sigmoid", ["c"], "s"), node("Mul", ["s", "scale"], "t"), node("Mul", ["t", "g"], "u"), node("Sub", ["r", "u"], "y")],
}


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("compute", ["f16", "tf32"])
def test_epilogues_behind_a_split_reduction(name: str, compute: str) -> None:
    """Each epilogue runs once, on the sum: in the second kernel where the reduction is split, else in the first; between the two at a size."""
    tail = EPILOGUES[name]
    nodes = [node("Conv", ["x", "w", "b"], "c" if tail else "y", pads=[1, 1, 1, 1]), *tail]
    dtype = DTYPE[compute]
    constants = {
        "w": weights(10, 24, 3, 3, dtype=dtype) / dtype(8),
        "b": weights(10, seed=1, dtype=dtype),
        "low": np.array(-0.5, dtype),
        "high": np.array(0.5, dtype),
    }
    constants |= {key: weights(10, 1, 1, seed=2 + i, dtype=dtype) for i, key in enumerate(("slope", "scale", "shift"))}
    read = {i for n in tail for i in n.input}
    inputs = {"x": ("n", 24, "h", "w")} | {k: v for k, v in {"r": ("n", 10, "h", "w"), "g": ("n", 10, 1, 1)}.items() if k in read}
    planned = plan(model(nodes, inputs, ["y"], constants, dtype=HALF[compute]))
    (region,), (plain,) = planned.regions, planned.lower()
    assert len(region.stages) == 1 and len(region.stages[0].epilogue) == len(tail)
    block_k = 64 if compute == "f16" else 32
    whole, split = (Tile(16, 32, block_k, 1, 1, 5, k) for k in (1, 4))
    ladder: TileLadder = [(20, split), (100, whole), (None, Tile(32, 32, block_k, 2, 1, 5, 2))]
    lowered = lower_region(region, plain.inputs, plain.outputs, planned.plan.flat, lambda stage, compute: ladder)
    rng = np.random.default_rng(0)
    for (n, h, w), parts in (((1, 4, 5), 4), ((1, 3, 7), 1), ((2, 5, 10), 1), ((1, 101, 1), 2), ((3, 9, 9), 2)):
        dims = {"n": n, "h": h, "w": w}
        feeds = {k: rng.standard_normal([dims.get(d, d) for d in shape]).astype(dtype) for k, shape in inputs.items()}
        want = run(planned.view.model, feeds)[0].astype(np.float32)
        calls = resolve(lowered.plan, lowered.specs, [feeds[p.tensor.name].shape for p in lowered.inputs] + [p.values.shape for p in lowered.packed]).calls
        assert [c.spec["SPLIT_K"] for c in calls if c.spec.template == "conv_igemm"] == [parts], f"{n * h * w} pixels"
        assert relative(outputs_of(lowered, feeds), want) < 2 * BOUND[compute], f"{n * h * w} pixels"
