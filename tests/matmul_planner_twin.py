"""The matmul planner again, slow and plain: the same model over the whole search space, and an event-driven list scheduler."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import numpy as np

from tilewright.optimizer.plan.matmul.online import Choice
from tilewright.optimizer.plan.matmul.pool import MicroKernel, Pool


def schedule(units: list[tuple[float, int]], slots: int) -> float:
    """Time until all units are done: (time, count) in the order given, each unit to the slot that is free first."""
    free = [0.0] * slots
    for us, count in units:
        for _ in range(count):
            heapq.heapreplace(free, free[0] + us)
    return max(free)


class Twin:
    """The model of docs/matmul.md for one pool and one problem."""

    def __init__(self, pool: Pool, batch: int, m: int, n: int, k: int) -> None:
        self.pool, self.device = pool, pool.device
        self.batch, self.m, self.n, self.k = batch, m, n, k
        e = pool.element_bytes
        small, large = sorted((m * k, k * n))
        self.dram_us = batch * e * (small + large * math.ceil(small * e / self.device.l2_keep) + m * n) / self.device.dram_rate

    def slots(self, kernel: MicroKernel, split: int) -> int:
        cluster = kernel.tile.cluster_m * kernel.tile.cluster_n * split
        return self.device.clusters[cluster.bit_length() - 1] * kernel.tile.resident

    def unit_us(self, kernel: MicroKernel, split: int = 1) -> float:
        steps = math.ceil(math.ceil(self.k / kernel.tile.bk) / split)
        times = kernel.times
        reduce = times.reduce_us[split.bit_length() - 2] if split > 1 else 0.0
        return steps * times.step_us + times.tile_us + reduce + (0.0 if kernel.tile.persistent else times.start_us)

    def start_us(self, *kernels: MicroKernel) -> float:
        return max((kernel.times.start_us for kernel in kernels if kernel.tile.persistent), default=0.0)

    def grid(self, kernel: MicroKernel, m: int, n: int) -> tuple[int, int]:
        return math.ceil(m / kernel.tile.rows), math.ceil(n / kernel.tile.cols)

    def l2_us(self, kernel: MicroKernel, m: int, n: int) -> float:
        rows, cols = self.grid(kernel, m, n)
        return self.batch * self.pool.element_bytes * (self.k * (m * cols + n * rows) + m * n) / self.device.l2_rate

    def total(self, span_us: float, l2_us: float) -> float:
        return self.device.launch_us + max(span_us, l2_us, self.dram_us)

    def stream_us(self, kernel: MicroKernel, tail: int, each: int) -> float:
        """A stream-K tail of ``tail`` units in segments of ``each`` steps, behind whole waves."""
        slots, steps = self.slots(kernel, 1), math.ceil(self.k / kernel.tile.bk)
        rows, cols = self.grid(kernel, self.m, self.n)
        before = (self.batch * rows * cols - tail) // slots
        # The most segments that touch one unit, wherever it begins.
        shared = steps // each if steps % each == 0 else (steps - 2) // each + 2
        times = kernel.times
        span = self.start_us(kernel) + before * self.unit_us(kernel)
        span += each * times.step_us + math.ceil(each / steps) * times.tile_us + (shared - 1) * times.fixup_us
        return self.total(span, self.l2_us(kernel, self.m, self.n))

    def modelled(self, choice: Choice) -> float:
        """The time of ``choice``, its makespan by the list scheduler."""
        kernels = [self.pool.kernels[region.kernel] for region in choice.regions]
        if choice.stream_tail:
            return self.stream_us(kernels[0], choice.stream_tail, choice.stream_steps)
        parts = [(kernel, *self.grid(kernel, region.m, region.n)) for kernel, region in zip(kernels, choice.regions, strict=True)]
        units = sorted(((self.unit_us(kernel, choice.split), self.batch * rows * cols) for kernel, rows, cols in parts), reverse=True)
        l2 = sum(self.l2_us(kernel, region.m, region.n) for kernel, region in zip(kernels, choice.regions, strict=True))
        return self.total(self.start_us(*kernels) + schedule(units, self.slots(kernels[0], choice.split)), l2)

    def best(self) -> float:
        """The least time over all kernels, splits, segment lengths of a stream-K tail, pairs and cuts at whole waves or whole tiles."""
        return min(min(self.singles()), float(np.min(np.concatenate([np.array([math.inf]), *self.pairs()]))))

    def singles(self) -> Iterator[float]:
        for kernel in self.pool.kernels:
            rows, cols = self.grid(kernel, self.m, self.n)
            units, steps = self.batch * rows * cols, math.ceil(self.k / kernel.tile.bk)
            for split in (s for s in (1, 2, 4, 8) if s <= min(kernel.tile.max_split, steps)):
                span = self.start_us(kernel) + math.ceil(units / self.slots(kernel, split)) * self.unit_us(kernel, split)
                yield self.total(span, self.l2_us(kernel, self.m, self.n))
            slots = self.slots(kernel, 1)
            if kernel.tile.persistent and steps > 1 and units % slots:
                tail = units - max(0, units // slots - 1) * slots
                least = math.ceil(tail * steps / slots)
                for each in {least, *(e for p in (2, 4, 8, 16) if units < slots and least < (e := math.ceil(steps / p)) < steps)}:
                    yield self.stream_us(kernel, tail, each)

    def pairs(self) -> Iterator[np.ndarray]:
        """Times of every cut for each ordered pair of kernels and each axis."""
        for first in self.pool.kernels:
            rows, cols = self.grid(first, self.m, self.n)
            slots = self.slots(first, 1)
            waves = np.arange(1, self.batch * rows * cols // slots + 1)
            for along_m in (True, False):
                tile, extent, across = (first.tile.rows, self.m, cols) if along_m else (first.tile.cols, self.n, rows)
                cuts = np.unique(np.append(waves * slots // (across * self.batch) * tile, extent // tile * tile))
                cuts = cuts[(cuts > 0) & (cuts < extent)]
                for second in self.pool.kernels:
                    if len(cuts) and second is not first and second.tile.family == first.tile.family and first.tile.persistent and second.tile.persistent:
                        yield self.pair(first, second, along_m, cuts, slots)

    def pair(self, first: MicroKernel, second: MicroKernel, along_m: bool, cuts: np.ndarray, slots: int) -> np.ndarray:
        counts, l2 = [], np.zeros(len(cuts))
        for kernel, m, n in (
            (first, cuts if along_m else self.m, self.n if along_m else cuts),
            (second, self.m - cuts if along_m else self.m, self.n if along_m else self.n - cuts),
        ):
            rows, cols = -(-m // kernel.tile.rows), -(-n // kernel.tile.cols)
            counts.append(self.batch * rows * cols * np.ones(len(cuts)))
            l2 += self.batch * self.pool.element_bytes * (self.k * (m * cols + n * rows) + m * n) / self.device.l2_rate
        (long_us, long_count), (short_us, short_count) = sorted(zip(map(self.unit_us, (first, second)), counts, strict=True), key=lambda x: -x[0])
        span = self.start_us(first, second) + makespans(long_us, long_count, short_us, short_count, slots)
        return self.device.launch_us + np.maximum(np.maximum(span, l2), self.dram_us)


def makespans(long_us: float, long_count: np.ndarray, short_us: float, short_count: np.ndarray, slots: int) -> np.ndarray:
    """Longest-first makespans: bisection for the number of short units behind the early slots, then behind the late ones."""
    full, late = long_count // slots, long_count % slots

    def done(tau: np.ndarray) -> np.ndarray:
        """Short units that are done by ``tau``; a hair is added because ``tau`` is meant to be the end of one."""
        ends = [np.maximum(0, np.floor((tau - f * long_us) / short_us + 1e-9)) for f in (full, full + 1)]
        return np.asarray((slots - late) * ends[0] + late * ends[1])

    best = np.full(len(long_count), np.inf)
    for begin in (full * long_us, (full + 1) * long_us):
        low, high = np.zeros(len(best)), short_count.astype(float)
        while np.any(low < high):
            middle = np.floor((low + high) / 2)
            enough = done(begin + middle * short_us) >= short_count
            low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
        reached = done(begin + low * short_us) >= short_count
        best = np.minimum(best, np.where(reached, begin + low * short_us, np.inf))
    return np.maximum(best, (full + (late > 0)) * long_us)
