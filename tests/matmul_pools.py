"""The pools that the tests of the matmul planner use, and random ones."""

from __future__ import annotations

import random

from tilewright.optimizer.plan.matmul.analytic import analytic_pool
from tilewright.optimizer.plan.matmul.pool import MicroKernel, Pool, PoolDevice, Tile, Times
from tilewright.optimizer.target import device

# The tiles that the study of the H200 proposes; kernels of one family could share a launch.
TILES = (
    Tile("t256x128", 0, 256, 128, 64),
    Tile("t128x256", 0, 128, 256, 64),
    Tile("t128x192", 0, 128, 192, 64),
    Tile("t128x160", 0, 128, 160, 64),
    Tile("t128x128", 0, 128, 128, 64),
    Tile("t128x96", 0, 128, 96, 64),
    Tile("t64x256", 0, 64, 256, 64, max_split=4),
    Tile("t64x192", 0, 64, 192, 64, max_split=4),
    Tile("t128x256_pair", 1, 128, 256, 64, cluster_m=2),
    Tile("t256x128_pair", 5, 256, 128, 64, cluster_n=2),
    Tile("t128x64", 2, 128, 64, 64, max_split=8, resident=2),
    Tile("t64x64", 2, 64, 64, 64, max_split=8, resident=2),
    Tile("t64x64_swap", 3, 64, 64, 64, swapped=True, max_split=8, resident=2),
    Tile("t64x32_swap", 3, 64, 32, 64, swapped=True, max_split=8, resident=2),
    Tile("t64x16_swap", 3, 64, 16, 64, swapped=True, max_split=8, resident=2),
    Tile("t64x8_swap", 4, 64, 8, 64, swapped=True, max_split=8, persistent=False, resident=4),
)


def h200_pool() -> Pool:
    """Sixteen micro-kernels with analytic times for the H200."""
    return analytic_pool(device("h200"), TILES)


def random_pool(rng: random.Random) -> Pool:
    """Up to sixteen kernels of every kind with times that have little to do with one another."""
    sms = rng.choice([13, 58, 108, 132])
    clusters = (sms, sms // 2, sms // 4 - 1, sms // 8 - 1)
    machine = PoolDevice(sms, clusters, rng.uniform(0, 3), rng.uniform(1e6, 1e7), rng.uniform(2e5, 5e6), rng.uniform(1e5, 3e7))
    sizes = [s for s, count in zip((1, 2, 4, 8), machine.clusters, strict=True) if count]
    families = [(rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)]), rng.randint(1, 3)) for _ in range(3)]
    kernels = []
    for i in range(rng.randint(2, 16)):
        family = rng.randrange(3)
        (cluster_m, cluster_n), resident = families[family]
        split = rng.choice([s for s in (1, 2, 4, 8) if cluster_m * cluster_n * s in sizes])
        bm, bn, bk = rng.choice([64, 128, 256]), rng.choice([8, 16, 64, 96, 128, 256]), rng.choice([32, 64])
        tile = Tile(f"k{i}", family, bm, bn, bk, rng.random() < 0.3, cluster_m, cluster_n, split, rng.random() < 0.8, resident)
        step = bm * bn * bk * rng.uniform(2e-7, 6e-7) * resident
        two, four, eight = sorted(rng.uniform(0, 3) for _ in range(3))
        times = Times(rng.uniform(0, 2), step, rng.uniform(0, 4 * step), (two, four, eight), rng.uniform(0, 3))
        kernels.append(MicroKernel(tile, times))
    return Pool(rng.choice([2, 4]), machine, tuple(kernels))
