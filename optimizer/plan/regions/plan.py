"""Planner 1: which nodes of a model become regions, and in which layout every tensor crosses between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

from ...config import PLANNERS
from ...graph.shapes import Shapes
from ...graph.view import Tensor, View, subgraphs
from ...records import Refusal
from ..matmul import sites
from .anchors import RULE
from .assemble import assemble
from .price import Pricing
from .region import Region
from .select import Borders, select

CONTROL_FLOW = ("If", "Loop", "Scan")
NOT_WORTH_IT = "ONNX Runtime's own kernels are expected to be faster here, layout changes at the border counted"


RULES = (RULE, sites.RULE)


def rule_of(region: Region) -> str:
    """The rule under which reports speak of ``region``."""
    return sites.RULE if region.axis == -1 else RULE


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


def plan_regions(
    view: View,
    shapes: Shapes,
    precision: str,
    pricing: Pricing,
    excluded: Mapping[str, str] = MappingProxyType({}),
    only: Set[str] | None = None,
    take_all: bool = False,
    planners: Sequence[str] = PLANNERS,
) -> RegionPlan:
    """Plans regions in every graph of ``view``.

    Args:
        precision: As in the configuration.
        excluded: Labels of regions that failed to compile or to verify before, with the reason.
        only: If given, labels of the only regions to make, whatever they are expected to gain.
        planners: Kinds of regions to look for, as in the configuration.
        take_all: Whether every region is made, whatever it is expected to gain.
    """
    candidates: list[Region] = []
    refusals: list[Refusal] = []
    expanded: dict[int, str] = {}  # graphs inside ops that ONNX Runtime expands: calls in them it cannot
    for graph in view.graphs():
        owner = expanded.get(id(graph), "")
        for node in graph.nodes:
            expanded.update((id(g), owner or node.op) for g in subgraphs(node) if owner or not node.standard(*CONTROL_FLOW))
        made, refused = assemble(graph, shapes, precision, planners)
        if owner:
            refusals += [Refusal(rule_of(r), f"it is inside {owner}, where ONNX Runtime calls no functions", (r.label,)) for r in made]
            continue
        candidates += [r for r in made if r.label not in excluded and (only is None or r.label in only)]
        refusals += refused
        refusals += [Refusal(rule_of(r), excluded[r.label], (r.label,)) for r in made if r.label in excluded]
    borders = Borders(candidates, shapes)
    chosen = select(borders, pricing) if only is None and not take_all else set(candidates)
    refusals += [Refusal(rule_of(r), f"{r.stages[0].kind}: {NOT_WORTH_IT}", (r.label,)) for r in candidates if r not in chosen]
    return RegionPlan(tuple(_planned(r, borders, chosen, pricing) for r in candidates if r in chosen), tuple(refusals), borders.flat)


def _planned(region: Region, borders: Borders, chosen: Set[Region], pricing: Pricing) -> PlannedRegion:
    return PlannedRegion(
        region,
        borders.nhwc_inputs(region, chosen),
        borders.nhwc_output(region, chosen),
        borders.nchw_output(region, chosen),
        pricing.ours_us(region, borders.conversions(region, chosen)),
        pricing.vendor_us(region),
        tuple(n.label for n in region.nodes),
    )
