"""Which candidate regions pay: a region is judged with its neighbours, because without it they must change layouts at their borders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from ...graph.shapes import Shapes
from ...graph.view import Node, Tensor, consumers, is_output, subgraphs
from .price import Pricing
from .region import Region


class Borders:
    """How tensors cross between regions, for any choice of them.

    Attributes:
        regions: The candidates.
        flat: Tensors of one pixel a sample, whose layout change costs nothing.
    """

    def __init__(self, regions: Sequence[Region], shapes: Shapes) -> None:
        self.regions = tuple(regions)
        self.makers = {r.output: r for r in regions}
        self.readers: dict[Region, list[Region]] = {r: [] for r in regions}
        for region in regions:
            for tensor in region.inputs:
                maker = self.makers.get(tensor)
                if maker is not None and (maker.compute, maker.rank) == (region.compute, region.rank) and maker.axis == region.axis == 1:
                    self.readers[maker].append(region)
        self.flat = frozenset(t for r in regions for t in (*r.inputs, r.output) if _is_flat(t, shapes))
        self._nodes: dict[Region, frozenset[Node]] = {r: frozenset(r.nodes) for r in regions}
        self._always_nchw = {r for r in regions if is_output(r.graph, r.output) or _handed_out_below(r)}

    def neighbours(self, region: Region) -> set[Region]:
        """Regions that share a tensor with ``region``."""
        makers = {m for t in region.inputs if (m := self.makers.get(t)) is not None and region in self.readers[m]}
        return makers | set(self.readers[region])

    def nhwc_inputs(self, region: Region, chosen: Set[Region]) -> frozenset[Tensor]:
        """Inputs that come channels last."""
        return frozenset(t for t in region.inputs if (m := self.makers.get(t)) is not None and m in chosen and region in self.readers[m])

    def nhwc_output(self, region: Region, chosen: Set[Region]) -> bool:
        """Whether a chosen region reads the result."""
        return any(r in chosen for r in self.readers[region])

    def nchw_output(self, region: Region, chosen: Set[Region]) -> bool:
        """Whether anything but chosen regions reads the result."""
        if region in self._always_nchw:
            return True
        covered = [self._nodes[r] for r in self.readers[region] if r in chosen]
        return any(not any(n in nodes for nodes in covered) for n in consumers(region.output))

    def conversions(self, region: Region, chosen: Set[Region]) -> int:
        """Whole tensors whose layout the region's node must change."""
        if region.axis != 1:
            return 0
        nhwc = self.nhwc_inputs(region, chosen)
        before = sum(t not in nhwc and t not in self.flat for t in region.inputs)
        return before + (self.nchw_output(region, chosen) and region.output not in self.flat)


def select(borders: Borders, pricing: Pricing) -> set[Region]:
    """The regions that are worth making: no single one, and no connected group, would be cheaper left to ONNX Runtime."""
    vendor = {r: pricing.vendor_us(r) for r in borders.regions}
    chosen = set(borders.regions)
    ours: dict[tuple[Region, int], float] = {}

    def cost(region: Region, among: Set[Region]) -> float:
        key = region, borders.conversions(region, among)
        if key not in ours:
            ours[key] = pricing.ours_us(*key)
        return ours[key]

    def gain_of_leaving(region: Region) -> float:
        without = chosen - {region}
        near = borders.neighbours(region) & without
        return cost(region, chosen) - vendor[region] - sum(cost(n, without) - cost(n, chosen) for n in near)

    changed = True
    while changed:
        changed = False
        for group in _groups(borders, chosen):
            if sum(cost(r, chosen) - vendor[r] for r in group) >= 0:
                chosen -= group
                changed = True
        for region in borders.regions:
            if region in chosen and gain_of_leaving(region) > 0:
                chosen.discard(region)
                changed = True
    return chosen


def _groups(borders: Borders, chosen: Set[Region]) -> Iterator[set[Region]]:
    left = dict.fromkeys(r for r in borders.regions if r in chosen)
    while left:
        start = next(iter(left))
        group, pending = {start}, [start]
        while pending:
            for neighbour in borders.neighbours(pending.pop()):
                if neighbour in left and neighbour not in group:
                    group.add(neighbour)
                    pending.append(neighbour)
        for region in group:
            left.pop(region)
        yield group


def _is_flat(tensor: Tensor, shapes: Shapes) -> bool:
    shape = shapes.shape(tensor)
    return shape is not None and all(d == 1 for d in shape[2:])


def _handed_out_below(region: Region) -> bool:
    """Whether a sub-graph hands the region's output out as its own result."""
    return any(t is region.output for node in region.graph.nodes for sub in subgraphs(node) for t in sub.outputs)
