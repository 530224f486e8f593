"""Choice of the tensor-core tile for a convolution: every candidate is priced for its waves over the SMs, the least wins.

The model scores only what differs between candidates: rounds of tiles over the multiprocessors, the slower of products and copies in a round,
the latency of filling a pipeline, and the second kernel of a split reduction. Constants were fitted on an H200 (docs/cost-model.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...target import DeviceSpec
from ..cost import ELEMENT_BYTES, GemmShape, memory_us
from .region import VECTOR_WIDTH, Stage

START_US = 1.6  # launch, first instructions, drain of a kernel that does nothing
FIRST_COPY_US = 1.15  # until the first tile has arrived, once a round of blocks
STEP_US = 0.244  # latency of one step along the reduction that nothing hides, a pipeline of 3 to 5 stages
ROUND_US = 0.5  # end of a block and start of the next
SM_COPY_BYTES_US = 88e3  # bytes a microsecond that one SM copies to shared memory when all do
SM_STORE_BYTES_US = 40e3  # bytes of results a microsecond that one SM puts through its epilogue
MMA_SHARE = 0.55  # of the mma.sync rate that the main loop reaches
REDUCE_US = 1.5  # the second kernel of a split reduction
SPLITS = (1, 2, 4, 8)
MAX_TAPS = 32  # kh + kw that conv_igemm tells inside from outside in one word
NARROW_ACCUMULATORS = 64  # a thread; tiles of more leave no registers for copies of less than 16 bytes


@dataclass(frozen=True)
class Tile:
    """One configuration of ``conv_igemm``: a block computes ``block_m`` pixels of ``block_n`` channels in steps of ``block_k``."""

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    stages: int
    split_k: int = 1

    def smem(self, element_bytes: int) -> int:
        """Shared memory of a block, bytes."""
        return self.stages * (self.block_m + self.block_n) * self.block_k * element_bytes

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k} {self.warps_m}x{self.warps_n} warps, {self.stages} stages" + (
            f", split {self.split_k}" if self.split_k > 1 else ""
        )


# For elements of two bytes; block_k is halved for elements of four. All fit the shared memory of the smallest portable GPU (99 KiB).
TILES = (
    Tile(256, 128, 32, 4, 2, 4),
    Tile(128, 256, 32, 2, 4, 4),
    Tile(128, 128, 64, 4, 2, 3),
    Tile(128, 64, 32, 2, 2, 4),
    Tile(64, 64, 32, 2, 2, 3),
    Tile(128, 64, 64, 4, 1, 3),
    Tile(64, 128, 64, 2, 2, 3),
    Tile(64, 64, 64, 2, 2, 4),
    Tile(128, 32, 64, 4, 1, 4),
    Tile(64, 32, 64, 2, 1, 4),
    Tile(32, 64, 64, 2, 2, 4),
    Tile(32, 32, 64, 2, 1, 5),
    Tile(16, 64, 64, 1, 2, 5),
    Tile(16, 32, 64, 1, 1, 5),
)


def copy_elements(stage: Stage, compute: str) -> int | None:
    """Elements that ``conv_igemm`` copies at a time for ``stage``, a convolution or matrix product; None where ``conv_direct`` must do."""
    width = VECTOR_WIDTH[compute]
    fitting = [v for v in (width, width // 2, width // 4) if v * ELEMENT_BYTES[compute] >= 4]
    if stage.kind == "matmul":
        return next((v for v in fitting if stage.channels_in % v == 0), None)
    assert stage.window is not None
    if sum(stage.window.kernel) > MAX_TAPS:
        return None
    if stage.groups == 1:
        return width
    inputs, outputs = stage.channels_in // stage.groups, stage.channels_out // stage.groups
    return next((v for v in fitting if inputs % v == 0), None) if outputs >= 8 else None


def is_narrow(stage: Stage, compute: str) -> bool:
    """Whether ``conv_igemm`` copies less than 16 bytes at a time for ``stage``."""
    return (copy_elements(stage, compute) or 0) < VECTOR_WIDTH[compute]


def candidates(compute: str, narrow: bool = False) -> Iterator[Tile]:
    """Every tile for ``f16`` or ``tf32``, with every split of the reduction; with ``narrow``, those for copies of less than 16 bytes."""
    for tile in TILES:
        if narrow and tile.block_m * tile.block_n > NARROW_ACCUMULATORS * 32 * tile.warps_m * tile.warps_n:
            continue
        block_k = tile.block_k if compute == "f16" else tile.block_k // 2
        for split in SPLITS:
            yield Tile(tile.block_m, tile.block_n, block_k, tile.warps_m, tile.warps_n, tile.stages, split)


def tile_us(device: DeviceSpec, compute: str, shape: GemmShape, tile: Tile) -> float:
    """Time of the convolution ``shape`` with ``tile``, microseconds, the launch itself apart."""
    element = ELEMENT_BYTES[compute]
    area, threads = tile.block_m * tile.block_n, 32 * tile.warps_m * tile.warps_n
    blocks = math.ceil(shape.m / tile.block_m) * math.ceil(shape.n / tile.block_n) * shape.groups * tile.split_k
    steps = math.ceil(math.ceil(shape.k / tile.block_k) / tile.split_k)
    registers = min(255.0, 56 + 1.3 * area / threads)
    resident = max(1, min((device.smem_block + 1024) // (tile.smem(element) + 1024), 2048 // threads, int(65536 / (registers * threads))))
    together = min(resident, math.ceil(blocks / device.sms))
    product = 2e-6 * area * tile.block_k * device.sms / (device.mma_tflops[compute] * MMA_SHARE)
    product *= max(1.0, 4 / (together * tile.warps_m * tile.warps_n))  # NOTE: fewer than four warps leave tensor cores of the SM idle
    copy = (tile.block_m + tile.block_n) * tile.block_k * element / SM_COPY_BYTES_US
    step = max(together * product, together * copy, STEP_US)
    rounds = math.ceil(blocks / (device.sms * together))
    time = START_US + rounds * (FIRST_COPY_US + steps * step + together * area * element / SM_STORE_BYTES_US + ROUND_US)
    if tile.split_k > 1:
        time += REDUCE_US + memory_us(device, 8.0 * tile.split_k * shape.m * shape.n * shape.groups)
    return time


def choose_tile(device: DeviceSpec, compute: str, shape: GemmShape, narrow: bool = False) -> Tile:
    """The cheapest tile for ``shape``; the first of equals. Only a reduction of one group can be split; ``narrow`` as for :func:`candidates`."""
    deepest = math.ceil(shape.k / (64 if compute == "f16" else 32)) if shape.groups == 1 else 0
    return min((t for t in candidates(compute, narrow) if t.split_k == 1 or deepest >= 4 * t.split_k), key=lambda t: tile_us(device, compute, shape, t))


def tile_ladder(device: DeviceSpec, compute: str, shape: GemmShape, low: int, high: int, narrow: bool = False, rungs: int = 3) -> list[tuple[int | None, Tile]]:
    """Tiles for a number of pixels that is only known at run time, each with the most pixels that it is for (None: no limit).

    Args:
        low, high: Range of ``shape.m`` to choose for; at most ``rungs`` different tiles are taken.
    """
    sizes = [low]
    while sizes[-1] < high:
        sizes.append(min(sizes[-1] * 2, high))
    shapes = [GemmShape(m, shape.n, shape.k, shape.groups) for m in sizes]
    best = [choose_tile(device, compute, s, narrow) for s in shapes]
    tiles = tuple(dict.fromkeys(best))
    if len(tiles) > rungs:
        # Each size goes to the cheapest of those that are kept; kept are those that lose the least that way, relative to the best at each size.
        costs = {t: [tile_us(device, compute, s, t) / tile_us(device, compute, s, b) for s, b in zip(shapes, best, strict=True)] for t in tiles}
        kept = min(itertools.combinations(tiles, rungs), key=lambda some: sum(map(min, zip(*(costs[t] for t in some), strict=True))))
        best = [min(kept, key=lambda t, i=i: costs[t][i]) for i in range(len(sizes))]  # type: ignore[misc]
    ladder: list[tuple[int | None, Tile]] = []
    for m, tile in zip(sizes, best, strict=True):
        if ladder and ladder[-1][1] == tile:
            ladder[-1] = (m, tile)
        else:
            ladder.append((m, tile))
    return [*ladder[:-1], (None, ladder[-1][1])]
