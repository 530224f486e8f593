"""What one run of the pipeline knows while it goes on, and the :class:`Result` that is made of it."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from onnx import FunctionProto, ModelProto

from .config import OptimizeConfig
from .emit.nodes import DOMAIN, Emission, EmittedNode
from .graph.input_shapes import InputShapes
from .graph.load import LoadedModel
from .graph.shapes import Shapes
from .plan.regions.plan import PlannedRegion, RegionPlan
from .records import Applied, Refusal
from .result import Check, RegionReport, Result
from .target import DeviceSpec

Report = Callable[[str], None]


@dataclass
class Run:
    """What one run has found so far; becomes the :class:`Result`."""

    config: OptimizeConfig
    report: Report
    applied: list[Applied] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    large: bool = False

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage and names it to the user."""
        self.report(name)
        start = time.perf_counter()
        yield
        if self.large:
            gc.collect()  # NOTE: views are cyclic and hold weights; without this they outlive their stage
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Canonical:
    """The model just before regions are planned.

    Attributes:
        proto: Its protobuf: the truth itself where nothing changed.
        changed: Whether anything did.
        inlined: Local functions that were inlined, so that regions can be made of what they hold.
        half: Whether float32 compute was turned to float16.
        attention_us: What its nodes are expected to take before and after attention was fused; None where none was.
    """

    proto: ModelProto
    changed: bool
    half: bool
    inlined: tuple[str, ...] = ()
    attention_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class Rewritten:
    """The model with its custom nodes; ``rest_us`` is what its other nodes are expected to take."""

    proto: ModelProto
    emission: Emission
    plan: RegionPlan
    shapes: Shapes
    rest_us: float


@dataclass
class Attempt:
    """What every emission starts from; ``excluded`` grows by the regions that fail to compile or to verify, each with the reason."""

    run: Run
    loaded: LoadedModel
    inputs: InputShapes
    device: DeviceSpec
    canonical: Canonical
    excluded: dict[str, str] = field(default_factory=dict)


def result_of(attempt: Attempt, rewritten: Rewritten | None, files: Sequence[Path], checks: Sequence[Check], unverified: str, size: int) -> Result:
    """The result of a run that changed the model, or would have.

    Args:
        files: What was written, the model first.
        unverified: Why nothing could be compared, or ''.
        size: Bytes of ``files``.
    """
    run, loaded = attempt.run, attempt.loaded
    planned: tuple[PlannedRegion, ...] = rewritten.plan.regions if rewritten is not None else ()
    emission = rewritten.emission if rewritten is not None and rewritten.emission.nodes else None
    emitted = list(zip(emission.nodes, emission.ops, strict=True)) if emission is not None else [(None, "")] * len(planned)
    regions = tuple(_region_report(p, e, op) for p, (e, op) in zip(planned, emitted, strict=True))
    unfused, fused = attempt.canonical.attention_us or (1.0, 1.0)
    ours, theirs, rest = sum(p.ours_us for p in planned), sum(p.vendor_us for p in planned), rewritten.rest_us if rewritten is not None else fused
    after = rewritten.proto if rewritten is not None else attempt.canonical.proto
    if after.ir_version > loaded.proto.ir_version:
        run.notes.append(f"IR version raised from {loaded.proto.ir_version} to {after.ir_version}: local functions need it")
    return Result(
        source=loaded.label,
        files=tuple(files),
        ops_before=_count_ops(loaded.proto),
        ops_after=_count_ops(after),
        regions=regions,
        applied=tuple(run.applied),
        refusals=tuple(run.refusals),
        checks=tuple(checks),
        not_verified=unverified,
        notes=tuple(run.notes),
        expected_speedup=(rest + theirs + unfused - fused) / (rest + ours),
        device=attempt.device.name,
        bytes_before=total_bytes(loaded),
        bytes_after=size,
        seconds=run.seconds,
    )


def unchanged_result(run: Run, loaded: LoadedModel, files: Sequence[Path], size: int) -> Result:
    """The result of a run that wrote the input's own bytes."""
    ops = _count_ops(loaded.proto)
    return Result(
        loaded.label,
        tuple(files),
        ops,
        ops,
        refusals=tuple(run.refusals),
        notes=tuple(run.notes),
        bytes_before=total_bytes(loaded),
        bytes_after=size,
        seconds=run.seconds,
    )


def _region_report(planned: PlannedRegion, emitted: EmittedNode | None, op: str) -> RegionReport:
    region = planned.region
    kernels = tuple(launch.kernel for launch in emitted.lowered.plan.launches) if emitted is not None else ()
    return RegionReport(region.label, op, str(region), planned.replaced, kernels, planned.ours_us, planned.vendor_us)


def _count_ops(model: ModelProto) -> dict[str, int]:
    counts: Counter[str] = Counter()
    pending: list[ModelProto | FunctionProto | object] = [model.graph]
    while pending:
        graph = pending.pop()
        for node in graph.node:  # type: ignore[attr-defined]
            op = node.op_type.rsplit("_", 1)[0] if node.domain == DOMAIN else node.op_type
            counts[f"{node.domain}::{op}" if node.domain not in ("", "ai.onnx") else op] += 1
            for attribute in node.attribute:
                pending += [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
    return dict(sorted(counts.items()))


def total_bytes(loaded: LoadedModel) -> int:
    """Size of a model with its data files."""
    if loaded.path is None:
        return int(loaded.proto.ByteSize())
    assert loaded.base_dir is not None
    return loaded.path.stat().st_size + sum((loaded.base_dir / f).stat().st_size for f in loaded.external_files)
