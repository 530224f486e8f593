"""What the user asked for, as one frozen record. The only reader of environment variables in ``optimizer``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import UsageError
from .target import TargetClass, parse_targets

PRECISIONS = ("match", "fp32", "tf32", "fp16")
PLANNERS = ("regions", "matmul")
PASSES = ("canonicalize", "transformers", *PLANNERS, "chain")
DEFAULT_TARGETS = "sm_90a,portable"

Bounds = tuple[int, int | None]


@dataclass(frozen=True)
class OptimizeConfig:
    """Options of one run; the command line's flags have the same names.

    Attributes:
        targets: Image classes to compile for.
        precision: ``match`` (what ONNX Runtime's CUDA provider would use: TF32 for float32 models, float16 for float16 ones), ``tf32``,
            ``fp16`` (float compute turned to float16 where its range allows) or ``fp32`` (no TF32: convolutions and matrix products stay with ONNX Runtime).
        passes: Stages that may change the model, of :data:`PASSES`; empty writes the input's bytes.
        keep_io_types: Whether inputs and outputs keep float32 at ``precision="fp16"``.
        min_shapes, opt_shapes, max_shapes: Shapes by input name that guide choices and never freeze a dim.
        dims: Ranges of named dims, ``(low, high or None)``.
        overwrite_input_shapes: Shapes by input name that do freeze the model.
        freeze_initializers: Take initializers that are also inputs for constants.
        verify: Compare the result with the original before it is written.
        require_verify: Fail with exit code 3 where nothing could be compared.
        max_error: Bound on the relative Frobenius error of each output, or None for the documented bounds.
        inputs: ``.npz`` file with inputs to verify on, or None for seeded random ones.
        save_as_external_data: Put the weights in a file beside the output.
        cache_dir: Folder of compiled kernels, or None for no cache.
        dry_run: Plan only; nothing is compiled or written.
        take_all: Make every region that can be made, whatever the cost model says of it (for tests and measurements; no flag).
    """

    targets: tuple[TargetClass, ...] = field(default_factory=lambda: parse_targets(DEFAULT_TARGETS))
    precision: str = "match"
    passes: tuple[str, ...] = PASSES
    keep_io_types: bool = True
    min_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    opt_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    max_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, Bounds] = field(default_factory=dict)
    overwrite_input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    freeze_initializers: bool = False
    verify: bool = True
    require_verify: bool = False
    max_error: float | None = None
    inputs: Path | None = None
    save_as_external_data: bool = False
    cache_dir: Path | None = field(default_factory=lambda: default_cache_dir())
    dry_run: bool = False
    take_all: bool = False

    @property
    def planners(self) -> tuple[str, ...]:
        """The passes that put custom nodes in."""
        return tuple(p for p in self.passes if p in PLANNERS)

    def __post_init__(self) -> None:
        if self.precision == "bf16":
            raise UsageError("--precision bf16 is not supported yet: it has no kernels; use fp16, tf32, fp32 or match")
        if self.precision not in PRECISIONS:
            raise UsageError(f"unknown precision {self.precision!r}; one of {', '.join(PRECISIONS)}")
        unknown = [p for p in self.passes if p not in PASSES]
        if unknown:
            raise UsageError(f"unknown pass {unknown[0]!r}; any of {', '.join(PASSES)}, or none")
        if not self.targets:
            raise UsageError("no target given; e.g. sm_90a,portable")


def default_cache_dir() -> Path | None:
    """Folder for compiled kernels: ``$TILEWRIGHT_CACHE_DIR``, else ``$XDG_CACHE_HOME/tilewright``, else ``~/.cache/tilewright``.

    ``TILEWRIGHT_CACHE_DIR=`` (empty) turns the cache off.
    """
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilewright"
