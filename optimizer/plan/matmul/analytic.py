"""Times of micro-kernels from the data of a GPU alone, for use where nothing was measured; docs/matmul.md names the source of each constant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...target import DeviceSpec
from ..cost import ELEMENT_BYTES
from .pool import MicroKernel, Pool, PoolDevice, Tile, Times

L2_KEEP = 0.5  # share of the L2 that one operand may fill and still be read from DRAM once
ACCUMULATOR_BYTES = 4
MATRIX_ROWS = 64  # of one wgmma instruction


def analytic_pool(device: DeviceSpec, tiles: Iterable[Tile], compute: str = "f16") -> Pool:
    """``tiles`` with times for ``device``; splits and multicast that it has no clusters for are left out."""
    possible = [tile for tile in (_possible(device, t) for t in tiles) if tile is not None]
    kernels = [MicroKernel(tile, analytic_times(device, tile, compute)) for tile in possible]
    return Pool(ELEMENT_BYTES[compute], pool_device(device), tuple(kernels))


def pool_device(device: DeviceSpec) -> PoolDevice:
    """``device`` as a pool describes it."""
    ones, twos, fours, eights = device.clusters or (device.sms, 0, 0, 0)
    clusters = (ones, twos, fours, eights)
    return PoolDevice(device.sms, clusters, device.dependent_launch_us, device.l2_gbs * 1e3, device.dram_gbs * 1e3, L2_KEEP * device.l2_bytes)


def analytic_times(device: DeviceSpec, tile: Tile, compute: str = "f16") -> Times:
    """Times of one tile.

    A step takes what the matrix unit or the SM's share of the L2 bandwidth needs, whichever is more, for all blocks that the SM holds. The first
    step must arrive before work begins; the result leaves at the SM's share of the L2 bandwidth. A split moves partial sums through the
    cluster, (s - 1) / s of a tile a block, between two barriers.
    """
    sm_rate = device.l2_gbs * 1e3 / device.sms  # bytes a microsecond
    step_bytes = (tile.rows + tile.cols) / (tile.cluster_m * tile.cluster_n) * tile.bk * ELEMENT_BYTES[compute]  # rows and cols are a cluster's
    flops = 2.0 * max(tile.bm, MATRIX_ROWS if device.wgmma_tflops else 1) * tile.bn * tile.bk
    step = tile.resident * max(flops / (matrix_tflops(device, tile.bn, compute) * 1e6 / device.sms), step_bytes / sm_rate)
    partial = tile.bm * tile.bn * ACCUMULATOR_BYTES
    reduce = [2 * device.cluster_barrier_us + partial * (s - 1) / s / (rate * 1e3) for s, rate in zip((2, 4, 8), device.dsmem_gbs, strict=False)]
    two, four, eight = reduce or (0.0, 0.0, 0.0)
    return Times(
        start_us=_rounded(step_bytes / sm_rate),
        step_us=_rounded(step),
        tile_us=_rounded(tile.resident * tile.bm * tile.bn * ELEMENT_BYTES[compute] / sm_rate),
        reduce_us=(_rounded(two), _rounded(four), _rounded(eight)),
        fixup_us=_rounded(device.handover_us + 2 * partial / sm_rate),
    )


def matrix_tflops(device: DeviceSpec, n: int, compute: str) -> float:
    """Rate of the matrix unit for tiles of ``n`` columns: that of the largest instruction which is not wider; TF32 at half of float16's."""
    if not device.wgmma_tflops:
        return device.mma_tflops[compute]
    rates = {int(name[1:]): rate for name, rate in device.wgmma_tflops.items()}
    rate = rates[max((width for width in rates if width <= n), default=min(rates))]
    return rate * (0.5 if compute == "tf32" else 1.0)


def _possible(device: DeviceSpec, tile: Tile) -> Tile | None:
    """``tile`` with the splits that the device's clusters allow, or None where it needs a cluster that the device lacks."""
    sizes = {1 << i for i, count in enumerate(pool_device(device).clusters) if count}
    multicast = tile.cluster_m * tile.cluster_n
    splits = [s for s in (1, 2, 4, 8) if s <= tile.max_split and multicast * s in sizes]
    return replace(tile, max_split=max(splits)) if splits else None


def _rounded(us: float) -> float:
    """To a tenth of a nanosecond, so that texts stay short."""
    return round(us, 4)
