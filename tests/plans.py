"""Launch plans with numbers in them: what the twins, the CPU emulator and the GPU driver run, and how their results are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import kernels_ptx
from tilewright.optimizer.launch import Arg, LaunchPlan
from tilewright.optimizer.records import KernelSpec

DTYPES = {"f16": np.float16, "f32": np.float32}


@dataclass(frozen=True)
class Call:
    """One launch. ``args`` by name: an int, or ``(buffer, byte offset)`` with a buffer as ``("in", 0)``, or None for null."""

    spec: KernelSpec
    kernel: str
    grid: tuple[int, int, int]
    block: int
    smem: int
    args: Mapping[str, int | tuple[tuple[str, int], int] | None]
    pdl: bool


@dataclass(frozen=True)
class Numbers:
    """A plan for given input shapes."""

    outputs: tuple[tuple[np.dtype, tuple[int, ...]], ...]
    scratch: tuple[int, ...]
    calls: tuple[Call, ...]


def resolve(plan: LaunchPlan, specs: Mapping[str, KernelSpec], shapes: Sequence[Sequence[int]], sms: int = 132) -> Numbers:
    """``plan`` for inputs of ``shapes``; ``specs`` by the names of its images. Launches that do not happen are left out."""
    outputs = tuple((np.dtype(DTYPES[o.dtype]), tuple(d.evaluate(shapes, sms) for d in o.dims)) for o in plan.outputs)
    calls = []
    for launch in plan.launches:
        grid = tuple(e.evaluate(shapes, sms) for e in launch.grid)
        if not launch.when.evaluate(shapes, sms) or 0 in grid:
            continue
        spec = specs[plan.images[launch.image]]
        names = [name for name, _ in kernels_ptx.template_args(spec.template)]
        args = {n: _value(a, shapes, sms) for n, a in zip(names, launch.args, strict=True)}
        calls.append(Call(spec, launch.kernel, grid, launch.block, launch.smem.evaluate(shapes, sms), args, launch.pdl))
    return Numbers(outputs, tuple(s.evaluate(shapes, sms) for s in plan.scratch), tuple(calls))


def _value(arg: Arg, shapes: Sequence[Sequence[int]], sms: int) -> int | tuple[tuple[str, int], int] | None:
    if arg.kind == "null":
        return None
    offset = arg.offset.evaluate(shapes, sms)
    if arg.kind == "i32":
        assert -(2**31) <= offset < 2**31, f"{arg} does not fit"
        return offset
    assert arg.kind in ("in", "out", "ws"), arg
    return (arg.kind, arg.index), offset


def poisoned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of NaNs whose bytes are all 0xff."""
    count = int(np.prod(shape)) * dtype.itemsize
    return np.full(count, 0xFF, np.uint8).view(dtype).reshape(shape)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Relative Frobenius error over the finite elements of ``want``; NaNs, infinities and untouched elements must be the same in both."""
    assert got.shape == want.shape and got.dtype == want.dtype
    finite = np.isfinite(want)
    same = np.array_equal(np.isnan(want), np.isnan(got)) and np.array_equal(want[np.isinf(want)], got[np.isinf(want)])
    if not same or not np.isfinite(got[finite]).all():
        return float("inf")
    difference = got[finite].astype(np.float64) - want[finite].astype(np.float64)
    scale = float(np.linalg.norm(want[finite].astype(np.float64)))
    return float(np.linalg.norm(difference)) / scale if scale else float(np.abs(difference).max(initial=0.0))
