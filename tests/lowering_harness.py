"""What tests of lowered plans share: layouts, errors, and what the op library's dry run must print."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from plans import resolve
from region_cases import Case
from rule_harness import run
from tilewright.optimizer.launch import LaunchPlan
from tilewright.optimizer.plan.regions.region import padded

DTYPE = {"f16": np.float16, "tf32": np.float32}
BOUND = {"f16": 2e-3, "tf32": 1e-5}


def answers(made: Case, batch: int, sides: Sequence[int]) -> dict[str, np.ndarray]:
    """Every tensor of ``made`` in float32."""
    everything = made.model(extra_outputs=[o for n in made.nodes for o in n.output if any(o in m.input for m in made.nodes)])
    feeds = made.feeds(batch, sides)
    return feeds | dict(zip([o.name for o in everything.graph.output], run(everything, feeds), strict=True))


def to_nhwc(x: np.ndarray, compute: str) -> np.ndarray:
    last = np.moveaxis(x, 1, -1)
    missing = padded(last.shape[-1], compute) - last.shape[-1]
    return np.ascontiguousarray(np.pad(last, [(0, 0)] * (x.ndim - 1) + [(0, missing)]))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    difference = np.linalg.norm(got.astype(np.float64) - want)
    return float(difference / max(np.linalg.norm(want.astype(np.float64)), 1e-30)) if np.isfinite(got).all() else np.inf


def dry_run(plan: LaunchPlan, shapes: Sequence[Sequence[int]], specs: Mapping[str, object], sms: int) -> list[str]:
    """What the op library's dry run must print: Python's own evaluation of the plan."""
    numbers = resolve(plan, specs, shapes, sms)
    lines = [" ".join(["output", o.dtype, *(str(d) for d in dims)]) for o, (_, dims) in zip(plan.outputs, numbers.outputs, strict=True)]
    slots = list(itertools.accumulate((-(-size // 256) * 256 for size in numbers.scratch), initial=0))
    lines.append(f"scratch {slots[-1]}")
    bases = {"in": lambda i: (1 << 60) + (i << 40), "out": lambda i: (2 << 60) + (i << 40), "ws": lambda i: (3 << 60) + slots[i]}
    calls = iter(numbers.calls)
    for launch in plan.launches:
        grid = [g.evaluate(shapes, sms) for g in launch.grid]
        if not launch.when.evaluate(shapes, sms) or 0 in grid:
            lines.append(f"launch {launch.image} {launch.kernel} skipped")
            continue
        call = next(calls)
        packed = b""
        for value in call.args.values():
            integer = isinstance(value, int)
            packed += b"" if integer else bytes(-len(packed) % 8)
            packed += struct.pack("<i", value) if integer else struct.pack("<Q", 0 if value is None else bases[value[0][0]](value[0][1]) + value[1])
        shape = " ".join(map(str, grid))
        lines.append(f"launch {launch.image} {launch.kernel} grid {shape} block {call.block} smem {call.smem} pdl {int(call.pdl)} args {packed.hex()}")
    return lines
