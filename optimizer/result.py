"""What one run of the optimizer did, as one frozen record that the table, the JSON and the HTML report are drawn from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .records import Applied, Refusal


@dataclass(frozen=True)
class RegionReport:
    """One region: the op name of the custom node that runs it, what it replaced, what it launches and what the cost model expects of it (microseconds)."""

    name: str
    op: str
    description: str
    replaced: tuple[str, ...]
    kernels: tuple[str, ...]
    ours_us: float
    vendor_us: float


@dataclass(frozen=True)
class Check:
    """One comparison that verification made: what was compared, the figure, the bound that it had to keep; ``region`` if it was one alone."""

    what: str
    relative: float
    max_abs: float
    bound: float
    problem: str = ""
    region: str = ""

    @property
    def passed(self) -> bool:
        """Whether the bound was kept."""
        return not self.problem and self.relative <= self.bound


@dataclass(frozen=True)
class Result:
    """What was done.

    Attributes:
        source: What the model was called.
        files: Files written, the model first; empty on a dry run.
        ops_before, ops_after: Count of each op type, ``domain::`` in front where it is not the default one.
        regions: Custom nodes made.
        applied: Canonicalizations made.
        refusals: What was not rewritten and why.
        checks: What verification compared.
        not_verified: Why nothing could be compared, or ''.
        notes: What a user should know of the output (IR version raised, functions inlined, ...).
        expected_speedup: Of the whole model by the cost model, against ONNX Runtime's own kernels; 1.0 where nothing was rewritten.
        device: GPU that the plan was priced for.
        bytes_before, bytes_after: Size of the model with its data files.
        seconds: Wall time by stage.
    """

    source: str
    files: tuple[Path, ...]
    ops_before: dict[str, int]
    ops_after: dict[str, int]
    regions: tuple[RegionReport, ...] = ()
    applied: tuple[Applied, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    checks: tuple[Check, ...] = ()
    not_verified: str = ""
    notes: tuple[str, ...] = ()
    expected_speedup: float = 1.0
    device: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def verification_error(self) -> float | None:
        """Largest relative error that was found, or None where nothing was compared."""
        return max((c.relative for c in self.checks), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON takes it."""
        data = asdict(self)
        data["files"] = [str(f) for f in self.files]
        data["verification_error"] = self.verification_error
        return data
