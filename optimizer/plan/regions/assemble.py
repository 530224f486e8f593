"""Stages become regions: anchors first, then Concats whose inputs they write, then the pointwise work that lies between regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from ...graph.shapes import Shapes
from ...graph.view import Node, Tensor, Variable, consumers, single_use
from ...records import Refusal
from ..matmul.sites import matmul_stage
from .anchors import COMPUTE, RULE, anchor_stage
from .grow import MAX_OPERANDS, Activations, find_activations, grow, pointwise_ops
from .region import MAX_CONCAT_SOURCES, EpilogueOp, Region, Stage

MAX_CONCAT_INPUTS = 32


class Assembly:
    """The regions of one graph while they are put together; ``made`` maps every tensor that a region computes to the region."""

    def __init__(self, graph: gs.Graph, shapes: Shapes, precision: str, planners: Sequence[str]) -> None:
        self.graph, self.shapes, self.precision = graph, shapes, precision
        self.convs, self.matmuls = "regions" in planners, "matmul" in planners
        self.activations: Activations = find_activations(graph)
        self.made: dict[Tensor, Region] = {}
        self.taken: set[Node] = set()
        self.refusals: list[Refusal] = []

    def add(self, region: Region) -> None:
        """Takes ``region`` in."""
        self.made[region.output] = region
        self.taken.update(region.nodes)

    def remove(self, region: Region) -> None:
        """Gives its nodes back."""
        del self.made[region.output]
        self.taken.difference_update(region.nodes)

    @property
    def regions(self) -> list[Region]:
        """All regions in the order of the graph's nodes."""
        order = {n: i for i, n in enumerate(self.graph.nodes)}
        return sorted(self.made.values(), key=lambda r: max(order[n] for n in r.nodes))


def assemble(graph: gs.Graph, shapes: Shapes, precision: str, planners: Sequence[str]) -> tuple[list[Region], list[Refusal]]:
    """The candidate regions of one graph, and why what looks like an anchor is none; ``planners`` as in the configuration."""
    work = Assembly(graph, shapes, precision, planners)
    for node in graph.nodes:
        if node not in work.taken:
            _add_anchor(work, node)
    # NOTE: one pass in graph order suffices to reach what follows a Concat or a pointwise region; what proves useless is dropped below.
    for node in graph.nodes:
        if node not in work.taken:
            _add_concat(work, node) or _add_pointwise(work, node)
    while useless := [r for r in work.regions if _only_moves(r) and not any(n in work.taken for n in consumers(r.output))]:
        for region in useless:
            work.remove(region)
    return work.regions, work.refusals


def _add_anchor(work: Assembly, node: Node) -> None:
    stage = matmul_stage(node, work.shapes, work.precision) if work.matmuls else None
    if stage is None and work.convs:
        stage = anchor_stage(node, work.shapes, work.precision)
    if isinstance(stage, Refusal):
        work.refusals.append(stage)
    elif stage is not None:
        work.add(_region(work, grow(stage, work.graph, work.shapes, work.activations, work.taken)))


def _region(work: Assembly, stage: Stage) -> Region:
    dtype = work.shapes.dtype(stage.weights if stage.weights is not None else stage.source)
    rank = len(stage.weights.shape) if stage.kind == "conv" and stage.weights is not None else work.shapes.rank(stage.source)
    assert dtype in COMPUTE and rank is not None
    return Region(work.graph, COMPUTE[dtype], rank, (stage,), stage.result, stage.channels_out, dtype)


def _only_moves(region: Region) -> bool:
    return all(s.kind in ("pointwise", "concat") for s in region.stages)


def _add_concat(work: Assembly, node: Node) -> bool:
    """``node`` as a region in which every input is written at its channel offset: by the stage that makes it where nothing else reads it."""
    if not node.standard("Concat"):
        return False
    parts = [work.made.get(t) for t in node.inputs]
    regions = [p for p in parts if p is not None]
    if not regions or any(r.axis != 1 for r in regions) or node.attrs.get("axis") not in (1, 1 - regions[0].rank):
        return False
    first = regions[0]
    if len(regions) != len(parts) or len(parts) > MAX_CONCAT_INPUTS or any(r.compute != first.compute or r.rank != first.rank for r in regions):
        work.refusals.append(Refusal(RULE, "Concat: not every input comes from a region of the same type", (node.label,)))
        return False
    if not all(_same_pixels(work.shapes, t, node.inputs[0]) for t in node.inputs):
        work.refusals.append(Refusal(RULE, "Concat: its inputs are not known to have the same height and width", (node.label,)))
        return False
    stages: list[Stage] = []
    joints: list[Node] = [node]
    offset = 0
    for tensor, region in zip(node.inputs, regions, strict=True):
        if single_use(work.graph, tensor) and not region.joints:
            work.remove(region)
            stages.append(replace(region.stages[0], offset=offset))
            joints += region.joints
        else:
            _append_copy(stages, tensor, region.channels, node.outputs[0], offset)
        offset += region.channels
    region = Region(work.graph, first.compute, first.rank, tuple(stages), node.outputs[0], offset, first.dtype, tuple(joints))
    work.add(_with_epilogue(work, region))
    return True


def _append_copy(stages: list[Stage], tensor: Variable, channels: int, result: Variable, offset: int) -> None:
    """A copy of ``tensor`` into the Concat; copies that follow one another share a stage."""
    last = stages[-1] if stages else None
    if last is not None and last.kind in ("pointwise", "concat") and not last.nodes and len(last.reads) < MAX_CONCAT_SOURCES:
        total = last.channels_in + channels
        stages[-1] = replace(last, kind="concat", channels_in=total, channels_out=total, more=(*last.more, (tensor, channels)))
    else:
        stages.append(Stage("pointwise", tensor, result, channels, channels, (), offset=offset))


def _same_pixels(shapes: Shapes, a: Tensor, b: Tensor) -> bool:
    one, two = shapes.shape(a), shapes.shape(b)
    return a is b or (one is not None and two is not None and all(shapes.equal(x, y) for i, (x, y) in enumerate(zip(one, two, strict=True)) if i != 1))


def _with_epilogue(work: Assembly, region: Region) -> Region:
    """The Concat region with the per-channel work that follows it, each stage with its own slice of the vectors."""
    probe = Stage("pointwise", region.output, region.output, region.channels, region.channels, ())
    grown = grow(probe, work.graph, work.shapes, work.activations, work.taken)
    ops, nodes = [], list(grown.nodes)
    for op in grown.epilogue:
        if op.tensor is not None:
            return region
        ops.append(op)
    if not ops:
        return region
    stages = []
    for stage in region.stages:
        part = slice(stage.offset, stage.offset + stage.channels_out)
        own = tuple(replace(op, vector=op.vector[part]) if op.vector is not None else op for op in ops)
        if sum(o.tensor is not None or o.vector is not None for o in (*stage.epilogue, *own)) > MAX_OPERANDS:
            return region
        stages.append(replace(stage, epilogue=(*stage.epilogue, *own)))
    return replace(region, stages=tuple(stages), output=grown.result, joints=(*region.joints, *nodes))


def _add_pointwise(work: Assembly, node: Node) -> bool:
    """``node`` as pointwise work between regions, taken only where every tensor that it reads comes from a region."""
    stage = _pointwise_stage(work, node)
    if stage is None:
        return False
    stage = grow(stage, work.graph, work.shapes, work.activations, work.taken)
    work.add(_region(work, stage))
    return True


def _pointwise_stage(work: Assembly, node: Node) -> Stage | None:
    for source in dict.fromkeys(t for t in node.inputs if t in work.made and work.made[t].axis == 1):
        channels = work.made[source].channels
        stage = Stage("pointwise", source, source, channels, channels, ())
        for match in work.activations.get(source, ()):
            if match.nodes[0] is node and match.slope is None and match.rank <= (work.shapes.rank(source) or 0):
                return stage.extended(EpilogueOp("act", match.activation, nodes=match.nodes), match.nodes, match.nodes[-1].outputs[0])
        ops = pointwise_ops(stage, node, work.shapes)
        if ops and all(op.tensor is None or op.tensor in work.made for op in ops):
            return replace(stage, epilogue=tuple(ops), nodes=(node,), result=node.outputs[0])
    return None
