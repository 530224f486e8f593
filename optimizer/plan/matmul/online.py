"""The planner of matrix products, driven from Python: the op library's own code (``custom_ops/src/matmul_planner.cc``), there is no other."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ....custom_ops import library_path
from ...errors import ModelError
from .pool import Pool

MAX_REGIONS = 4


@dataclass(frozen=True)
class Region:
    """Rows ``m0`` to ``m0 + m`` and columns ``n0`` to ``n0 + n`` of C, made by kernel ``kernel`` of the pool."""

    kernel: int
    m0: int
    m: int
    n0: int
    n: int


@dataclass(frozen=True)
class Choice:
    """One launch.

    Attributes:
        regions: Rectangles that cover C; none where C or the reduction is empty.
        split: Blocks of a cluster that divide K.
        stream_tail: Units at the end of the only region whose K steps are dealt out evenly (stream-K).
        stream_steps: K steps that each block of that tail takes.
        us: Modelled time, launch included, microseconds.
    """

    regions: tuple[Region, ...]
    split: int
    stream_tail: int
    stream_steps: int
    us: float

    def describe(self, pool: Pool) -> str:
        """One line without the time."""
        if not self.regions:
            return "nothing to do"
        parts = [f"{pool.kernels[r.kernel].tile.name} [{r.m0}:{r.m0 + r.m}, {r.n0}:{r.n0 + r.n}]" for r in self.regions]
        split = f", split {self.split}" if self.split > 1 else ""
        tail = f", stream-K tail of {self.stream_tail} in steps of {self.stream_steps}" if self.stream_tail else ""
        return " + ".join(parts) + split + tail


class Planner:
    """Plans matrix products for one pool; may be used by several threads.

    Args:
        pool: The micro-kernels, or their text form.
        library: The op library. Default: where :func:`tilewright.custom_ops.library_path` finds it.

    Raises:
        OpLibraryError: the library is not built.
        ModelError: the pool is malformed or beyond a limit; the text names the line.
    """

    def __init__(self, pool: Pool | str, library: Path | None = None) -> None:
        text = (pool if isinstance(pool, str) else pool.to_text()).encode()
        self._library = _load(library or library_path())
        error = ctypes.create_string_buffer(1024)
        self._handle = self._library.tilewright_planner_new(text, len(text), error, len(error))
        if not self._handle:
            raise ModelError(error.value.decode(errors="replace"))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.tilewright_planner_free(self._handle)

    def plan(self, batch: int, m: int, n: int, k: int) -> Choice:
        """How C of ``batch`` x ``m`` x ``n`` with a reduction of ``k`` is made.

        Raises:
            ModelError: a dim is negative, or a matrix has more than 2**48 elements.
        """
        dims = (batch, m, n, k)
        raw = _Choice()
        if any(abs(d) >= 2**63 for d in dims) or self._library.tilewright_planner_plan(self._handle, *dims, ctypes.byref(raw)):
            raise ModelError(f"no matrix product has batch {batch}, M {m}, N {n}, K {k}")
        regions = tuple(Region(r.kernel, r.m0, r.m, r.n0, r.n) for r in raw.regions[: raw.count])
        return Choice(regions, raw.split, raw.stream_tail, raw.stream_steps, raw.us)


def makespan(long_us: float, long_count: int, short_us: float, short_count: int, slots: int, library: Path | None = None) -> float:
    """Time until units of two lengths are done, the long ones first, each given to the slot that is free first."""
    result: float = _load(library or library_path()).tilewright_makespan(long_us, long_count, short_us, short_count, slots)
    return result


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("kernel", "m0", "m", "n0", "n")]


class _Choice(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("count", "split", "stream_tail", "stream_steps")),
        ("us", ctypes.c_double),
        ("regions", _Region * MAX_REGIONS),
    ]


@cache
def _load(path: Path) -> ctypes.CDLL:
    """The library with the signatures of the functions used here."""
    c = ctypes.CDLL(str(path))
    c.tilewright_planner_new.restype = ctypes.c_void_p
    c.tilewright_planner_new.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    c.tilewright_planner_free.restype = None
    c.tilewright_planner_free.argtypes = [ctypes.c_void_p]
    c.tilewright_planner_plan.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4, ctypes.POINTER(_Choice)]
    c.tilewright_makespan.restype = ctypes.c_double
    c.tilewright_makespan.argtypes = [ctypes.c_double, ctypes.c_int64, ctypes.c_double, ctypes.c_int64, ctypes.c_int64]
    return c
