"""The pool of a matmul node: its micro-kernels with their times, as records and as the text that the op library parses.

The text is carried in the model; ``custom_ops/src/matmul_pool.cc`` is its other side and holds the limits::

    tilewright-matmul 1
    element BYTES
    device SMS CLUSTERS1 CLUSTERS2 CLUSTERS4 CLUSTERS8 LAUNCH_US L2_BYTES_PER_US DRAM_BYTES_PER_US L2_KEEP_BYTES
    kernel NAME FAMILY BM BN BK SWAPPED CLUSTER_M CLUSTER_N MAX_SPLIT PERSISTENT RESIDENT START_US STEP_US TILE_US REDUCE2_US REDUCE4_US REDUCE8_US FIXUP_US

with one ``kernel`` line or more; flags are 0 or 1. ``docs/matmul.md`` says how the times enter the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

from ...errors import ModelError

HEADER = "tilewright-matmul 1"


@dataclass(frozen=True)
class Tile:
    """What a micro-kernel does; its times apart. A cluster of ``cluster_m`` x ``cluster_n`` tiles is one unit of work.

    Attributes:
        name: Of the kernel in the node's image.
        family: Kernels of one family can share a launch: same threads, registers, shared memory and cluster.
        bm, bn, bk: Tile; where ``swapped``, ``bm`` counts columns of C.
        swapped: The weights are on the 64-row side of the matrix instruction.
        cluster_m, cluster_n: Tiles along rows and columns of C that share operands by multicast.
        max_split: Blocks of a cluster that may divide K: 1, 2, 4 or 8.
        persistent: Blocks stay for all their tiles, so that regions and a stream-K tail are possible.
        resident: Blocks that one SM holds.
    """

    name: str
    family: int
    bm: int
    bn: int
    bk: int
    swapped: bool = False
    cluster_m: int = 1
    cluster_n: int = 1
    max_split: int = 1
    persistent: bool = True
    resident: int = 1

    @property
    def rows(self) -> int:
        """Rows of C that one unit covers."""
        return (self.bn if self.swapped else self.bm) * self.cluster_m

    @property
    def cols(self) -> int:
        """Columns of C that one unit covers."""
        return (self.bm if self.swapped else self.bn) * self.cluster_n


@dataclass(frozen=True)
class Times:
    """Times of a micro-kernel, microseconds.

    Attributes:
        start_us: From the first instruction of a block to its first full stage.
        step_us: One step of ``bk`` along K, all resident blocks of all SMs at work.
        tile_us: Epilogue of one tile.
        reduce_us: What dividing K over 2, 4 and 8 blocks of a cluster adds to a tile.
        fixup_us: What each further block that shares a tile of the stream-K tail adds.
    """

    start_us: float
    step_us: float
    tile_us: float
    reduce_us: tuple[float, float, float] = (0.0, 0.0, 0.0)
    fixup_us: float = 0.0


@dataclass(frozen=True)
class MicroKernel:
    """One entry of a pool."""

    tile: Tile
    times: Times


@dataclass(frozen=True)
class PoolDevice:
    """What the model needs to know of a GPU; rates in bytes a microsecond.

    Attributes:
        sms: Multiprocessors.
        clusters: Clusters of 1, 2, 4 and 8 blocks that fit at one block an SM; 0 where the GPU has none.
        launch_us: One launch that does nothing.
        l2_rate, dram_rate: Bandwidth.
        l2_keep: An operand of up to so many bytes is read from DRAM once.
    """

    sms: int
    clusters: tuple[int, int, int, int]
    launch_us: float
    l2_rate: float
    dram_rate: float
    l2_keep: float


@dataclass(frozen=True)
class Pool:
    """The micro-kernels of one node in the order of the node's image, and the GPU that their times are for."""

    element_bytes: int
    device: PoolDevice
    kernels: tuple[MicroKernel, ...]

    def to_text(self) -> str:
        """The text form, without a final line feed."""
        kernels = ("kernel " + " ".join(map(_word, _flat((*astuple(k.tile), *astuple(k.times))))) for k in self.kernels)
        return "\n".join([HEADER, f"element {self.element_bytes}", "device " + " ".join(map(_word, _flat(astuple(self.device)))), *kernels])

    @staticmethod
    def parse(text: str) -> Pool:
        """The pool that :meth:`to_text` wrote. Limits are the op library's to check.

        Raises:
            ModelError: it is none; the text names the line.
        """
        lines = text.split("\n")
        if lines[0] != HEADER:
            raise ModelError(f"matmul pool, line 1: {HEADER!r} expected: a pool of another version, or none")
        element = _fields(lines, 1, "element", (int,))
        device = _fields(lines, 2, "device", (int, int, int, int, int, float, float, float, float))
        kernels = []
        for number in range(3, len(lines)):
            v = _fields(lines, number, "kernel", (str, int, int, int, int, _flag, int, int, int, _flag, int, *[float] * 7))
            kernels.append(MicroKernel(Tile(*v[:11]), Times(v[11], v[12], v[13], (v[14], v[15], v[16]), v[17])))
        return Pool(element[0], PoolDevice(device[0], tuple(device[1:5]), *device[5:]), tuple(kernels))


def _flat(values: tuple[object, ...]) -> list[object]:
    """``values`` with the members of inner tuples in place of these."""
    return [inner for value in values for inner in (value if isinstance(value, tuple) else (value,))]


def _word(value: object) -> str:
    """Booleans as 0 and 1, floats such that they come back as they were."""
    return str(int(value)) if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def _flag(word: str) -> bool:
    if word not in ("0", "1"):
        raise ValueError(f"{word!r} is no flag")
    return word == "1"


def _fields(lines: list[str], index: int, name: str, types: tuple[Callable[[str], Any], ...]) -> list[Any]:
    """The words of a line behind its name, converted."""
    try:
        words = lines[index].split(" ") if index < len(lines) else [""]
        if words[0] != name:
            raise ValueError(f"{name!r} expected, not {words[0][:40]!r}")
        if len(words) - 1 != len(types):
            raise ValueError(f"{name!r} takes {len(types)} values, not {len(words) - 1}")
        return [convert(word) for convert, word in zip(types, words[1:], strict=True)]
    except ValueError as error:
        raise ModelError(f"matmul pool, line {index + 1}: {error}") from None
