"""Planner 1: which nodes of a model become regions, and in which layout every tensor crosses between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from ...graph.shapes import Shapes
from ...graph.view import Tensor, View, consumers, is_output, subgraphs
from ...records import Refusal
from .anchors import RULE
from .assemble import assemble
from .price import Pricing
from .region import Region


@dataclass(frozen=True, eq=False)
class PlannedRegion:
    """One region with its border.

    Attributes:
        nhwc_inputs: Inputs that another region makes, so that they come channels last.
        nhwc_output, nchw_output: Whether another region reads its result channels last, and whether anything else reads it as declared.
        ours_us, vendor_us: What the cost model expects of it and of ONNX Runtime's own kernels.
        replaced: Labels of the nodes that it replaces.
    """

    region: Region
    nhwc_inputs: frozenset[Tensor]
    nhwc_output: bool
    nchw_output: bool
    ours_us: float
    vendor_us: float
    replaced: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RegionPlan:
    """All regions of a model, and why what is not in one is not."""

    regions: tuple[PlannedRegion, ...]
    refusals: tuple[Refusal, ...]
    flat: frozenset[Tensor]


def plan_regions(view: View, shapes: Shapes, precision: str, pricing: Pricing, excluded: Set[str] = frozenset(), only: Set[str] | None = None) -> RegionPlan:
    """Plans regions in every graph of ``view``.

    Args:
        precision: As in the configuration.
        excluded: Labels of regions that failed to compile or to verify before.
        only: If given, labels of the only regions to make, whatever they are expected to gain.
    """
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for graph in view.graphs():
        made, refused = assemble(graph, shapes, precision)
        regions += [r for r in made if r.label not in excluded and (only is None or r.label in only)]
        refusals += refused
    while True:
        made = {r.output: r for r in regions}
        readers: dict[Tensor, list[Region]] = {}
        for region in regions:
            for tensor in region.inputs:
                if tensor in made and made[tensor].compute == region.compute and made[tensor].rank == region.rank:
                    readers.setdefault(tensor, []).append(region)
        planned = [_planned(r, readers, shapes, pricing) for r in regions]
        losers = [p for p in planned if p.ours_us > p.vendor_us]
        if not losers or only is not None:
            break
        # NOTE: a region's border depends on its neighbours, so the worst one leaves and the others are priced again.
        worst = max(losers, key=lambda p: p.ours_us / p.vendor_us)
        regions = [r for r in regions if r is not worst.region]
        reason = f"{worst.region.stages[0].kind}: ONNX Runtime's own kernels are expected to be faster here, layout changes at the border counted"
        refusals.append(Refusal(RULE, reason, (worst.region.label,)))
    flat = frozenset(t for r in regions for t in (*r.inputs, r.output) if _is_flat(t, shapes))
    return RegionPlan(tuple(planned), tuple(refusals), flat)


def _is_flat(tensor: Tensor, shapes: Shapes) -> bool:
    shape = shapes.shape(tensor)
    return shape is not None and all(d == 1 for d in shape[2:])


def _planned(region: Region, readers: Mapping[Tensor, Sequence[Region]], shapes: Shapes, pricing: Pricing) -> PlannedRegion:
    nhwc_inputs = frozenset(t for t in region.inputs if region in readers.get(t, ()))
    covered = {n for r in readers.get(region.output, ()) for n in r.nodes}
    nchw = is_output(region.graph, region.output) or any(n not in covered for n in consumers(region.output)) or _read_below(region)
    conversions = sum(t not in nhwc_inputs and not _is_flat(t, shapes) for t in region.inputs) + (nchw and not _is_flat(region.output, shapes))
    return PlannedRegion(region, nhwc_inputs, region.output in readers, nchw, pricing.ours_us(region, conversions), pricing.vendor_us(region), tuple(n.label for n in region.nodes))


def _read_below(region: Region) -> bool:
    """Whether a sub-graph hands the region's output out as its own result."""
    return any(t is region.output for node in region.graph.nodes for sub in subgraphs(node) for t in sub.outputs)
