"""Small models through the region planner, and on through lowering and emit; nothing is compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto

from tilewright.optimizer.emit.nodes import Emission, emit_nodes
from tilewright.optimizer.graph.shapes import Shapes, infer
from tilewright.optimizer.graph.view import View
from tilewright.optimizer.jit.build import Image
from tilewright.optimizer.lower.lowered import LoweredRegion
from tilewright.optimizer.lower.plan import lower_plan
from tilewright.optimizer.lower.render import kernel_name
from tilewright.optimizer.plan.regions.plan import RegionPlan, plan_regions
from tilewright.optimizer.plan.regions.price import Pricing
from tilewright.optimizer.plan.regions.region import Region
from tilewright.optimizer.plan.sizes import Sizes
from tilewright.optimizer.target import device


@dataclass(frozen=True)
class Planned:
    """A model and the regions that were planned in it."""

    view: View
    shapes: Shapes
    pricing: Pricing
    plan: RegionPlan

    @property
    def regions(self) -> list[Region]:
        return [p.region for p in self.plan.regions]

    @property
    def stages(self) -> list[str]:
        """Every stage of every region as text, in order."""
        return [str(stage) for region in self.regions for stage in region.stages]

    @property
    def epilogues(self) -> list[str]:
        """What is fused into each stage, as text."""
        return [" + ".join(map(str, stage.epilogue)) for region in self.regions for stage in region.stages]

    @property
    def reasons(self) -> str:
        """Every reason of a refusal, joined."""
        return "; ".join(r.reason for r in self.plan.refusals)

    def lower(self) -> list[LoweredRegion]:
        return lower_plan(self.plan, self.pricing)


def plan(
    model: ModelProto,
    precision: str = "match",
    *,
    take_all: bool = True,
    gpu: str = "h200",
    sizes: Mapping[str, int] | None = None,
    freeze_initializers: bool = False,
) -> Planned:
    """Plans ``model`` as it stands. By default every region that can be made is, whatever the cost model says."""
    view = View(model, freeze_initializers=freeze_initializers)
    shapes = infer(view)
    pricing = Pricing(device(gpu), Sizes(shapes, sizes or {}))
    return Planned(view, shapes, pricing, plan_regions(view, shapes, precision, pricing, take_all=take_all))


def stub_images(lowered: Iterable[LoweredRegion]) -> dict[str, dict[str, Image]]:
    """Images without code in them, for emit."""
    images = {}
    for region in lowered:
        for text, spec in region.specs.items():
            data = b"no code: " + text.encode()
            images[text] = Image(kernel_name(spec), hashlib.sha256(data).hexdigest(), data)
    return {"portable": images}


def emit(planned: Planned, lowered: Sequence[LoweredRegion] | None = None) -> Emission:
    """Puts the custom nodes into the view of ``planned``."""
    lowered = planned.lower() if lowered is None else lowered
    return emit_nodes(planned.view, lowered, stub_images(lowered), "portable")
