"""Lowering of a whole region plan: one :class:`LoweredRegion` a planned region."""

from __future__ import annotations

from ..graph.view import Variable
from ..plan.regions.plan import PlannedRegion, RegionPlan
from ..plan.regions.price import Pricing
from .lowered import NCHW, NHWC, LoweredRegion, Port
from .regions import lower_region


def lower_plan(plan: RegionPlan, pricing: Pricing) -> list[LoweredRegion]:
    """Lowers every region of ``plan``, in order."""
    channels = {p.region.output: p.region.channels for p in plan.regions if p.nhwc_output}
    return [_lower(p, plan, channels, pricing) for p in plan.regions]


def _lower(planned: PlannedRegion, plan: RegionPlan, channels: dict[Variable, int], pricing: Pricing) -> LoweredRegion:
    region = planned.region
    known = {t: c for s in region.stages for t, c in s.reads} | {t: s.channels_out for s in region.stages for t in s.operands}
    inputs = [Port(t, NHWC if t in planned.nhwc_inputs else NCHW, known[t]) for t in region.inputs]
    outputs = [Port(region.output, layout, region.channels) for layout, wanted in ((NHWC, planned.nhwc_output), (NCHW, planned.nchw_output)) if wanted]
    assert all(channels.get(p.tensor, p.channels) == p.channels for p in inputs if p.layout == NHWC), f"{region.label}: channel counts at its border differ"
    return lower_region(region, inputs, outputs, plan.flat, lambda stage, compute: pricing.tiles(stage, compute, region.rank))
