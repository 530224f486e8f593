"""The planner of matrix products against its plain twin: makespans, times, how near to the best it comes, what it refuses."""

from __future__ import annotations

import random
import secrets
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from matmul_golden import SHAPES
from matmul_planner_twin import Twin, makespans, schedule
from matmul_pools import h200_pool, random_pool
from oplib import build, library
from tilewright.optimizer.errors import ModelError
from tilewright.optimizer.plan.matmul.online import Choice, Planner, Region, makespan
from tilewright.optimizer.plan.matmul.pool import MicroKernel, Pool, PoolDevice, Tile, Times

ONE_WAVE = PoolDevice(4, (4, 2, 1, 0), 1.0, 1e9, 1e9, 1e9)  # no roof matters


def planner(pool: Pool | str) -> Planner:
    return Planner(pool, library().path)


def seeded() -> random.Random:
    seed = secrets.randbits(32)
    print("seed", seed)
    return random.Random(seed)


def random_shape(rng: random.Random) -> tuple[int, int, int, int]:
    return rng.choice([1, 1, 1, 3, 12]), int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13))


def test_makespan_is_that_of_list_scheduling() -> None:
    rng = seeded()
    for _ in range(3000):
        slots = rng.choice([1, 2, 7, 132])
        short = rng.choice([1.0, 0.3, rng.uniform(0.1, 5)])
        long = short * rng.choice([1, 2, 3, 1.5, rng.uniform(1, 9)])
        counts = rng.randrange(5 * slots), rng.randrange(9 * slots)
        expected = schedule([(long, counts[0]), (short, counts[1])], slots)
        assert makespan(long, counts[0], short, counts[1], slots, library().path) == pytest.approx(expected, rel=1e-9), (long, short, counts, slots)
        assert makespans(long, np.array([counts[0]]), short, np.array([counts[1]]), slots)[0] == pytest.approx(expected, rel=1e-9)


def test_picks_are_nearly_the_best() -> None:
    """Its time is what the twin says of that choice; one shape in a few hundred loses more than 1 % to the search of everything."""
    rng = seeded()
    lost, kinds = [], set()
    for i in range(500):
        pool = h200_pool() if i % 2 else random_pool(rng)
        shape = random_shape(rng)
        choice, twin = planner(pool).plan(*shape), Twin(pool, *shape)
        assert choice.us == pytest.approx(twin.modelled(choice), rel=1e-9), (shape, choice, pool.to_text())
        lost.append(choice.us / twin.best() - 1)
        kinds |= {(len(choice.regions), choice.split, choice.stream_tail > 0)}
    assert min(lost) > -1e-9, "the twin's search lacks something"
    assert sum(x > 0.01 for x in lost) <= 8 and max(lost) < 0.1 and sum(lost) / len(lost) < 1e-3, sorted(lost)[-10:]
    assert kinds >= {(1, 1, False), (1, 2, False), (1, 8, False), (1, 1, True), (2, 1, False)}


def test_regions_cover_c_and_share_a_launch() -> None:
    rng = seeded()
    pairs = 0
    for _ in range(400):
        pool, (batch, m, n, k) = random_pool(rng), random_shape(rng)
        choice = planner(pool).plan(batch, m, n, k)
        kernels = [pool.kernels[region.kernel].tile for region in choice.regions]
        first, last = choice.regions[0], choice.regions[-1]
        assert sum(r.m * r.n for r in choice.regions) == m * n and (first.m0, first.n0) == (0, 0) and (last.m0 + last.m, last.n0 + last.n) == (m, n)
        assert len({tile.family for tile in kernels}) == 1 and choice.split <= kernels[0].max_split
        if len(kernels) > 1:
            pairs += 1
            assert all(tile.persistent for tile in kernels) and choice.split == 1 and choice.stream_tail == 0
            assert first.m % kernels[0].rows == 0 if first.m < m else first.n % kernels[0].cols == 0
        if choice.stream_tail:
            assert kernels[0].persistent and choice.split == 1
    assert pairs


def test_memory_roof_binds() -> None:
    """One row by large weights cannot be faster than reading them."""
    pool, (m, n, k) = h200_pool(), (1, 12288, 4096)
    choice = planner(pool).plan(1, m, n, k)
    assert choice.us >= pool.device.launch_us + 2 * n * k / pool.device.dram_rate


@pytest.mark.parametrize("dims", [(0, 8, 8, 8), (2, 0, 8, 8), (2, 8, 0, 8), (2, 8, 8, 0), (0, 0, 0, 0)])
def test_empty_products(dims: tuple[int, int, int, int]) -> None:
    choice = planner(h200_pool()).plan(*dims)
    assert choice == Choice((), 1, 0, 0, 0.0)
    assert choice.describe(h200_pool()) == "nothing to do"


@pytest.mark.parametrize(
    "dims", [(1, -1, 8, 8), (-1, 1, 8, 8), (1, 8, 8, -(2**62)), (1, 2**40, 2**9, 1), (2**48, 2, 1, 1), (1, 1, 2**48 + 1, 1), (1, 2**63, 1, 1)]
)
def test_impossible_products(dims: tuple[int, int, int, int]) -> None:
    with pytest.raises(ModelError, match=f"no matrix product has batch {dims[0]}, M {dims[1]}, N {dims[2]}, K {dims[3]}"):
        planner(h200_pool()).plan(*dims)


@pytest.mark.parametrize("dims", [(1, 1, 1, 1), (2**48, 1, 1, 1), (1, 1, 2**48, 1), (1, 1, 1, 2**48), (1, 2**24, 2**24, 2**24)])
def test_extreme_products(dims: tuple[int, int, int, int]) -> None:
    pool = h200_pool()
    choice = planner(pool).plan(*dims)
    assert sum(r.m * r.n for r in choice.regions) == dims[1] * dims[2]
    assert choice.us > pool.device.launch_us


def test_ties_go_to_the_earlier_kernel_and_the_lower_split() -> None:
    times = Times(0.0, 1.0, 0.0)
    tiles = [Tile("a", 0, 64, 64, 64, max_split=2, persistent=False), Tile("b", 0, 64, 64, 64, persistent=False)]
    pool = Pool(2, ONE_WAVE, tuple(MicroKernel(tile, times) for tile in tiles))
    # Eight units of two steps: two waves of two steps, or four waves of pairs with one step each.
    assert planner(pool).plan(1, 512, 64, 128) == Choice((Region(0, 0, 512, 0, 64),), 1, 0, 0, 5.0)


def test_where_a_roof_binds_the_least_work_wins() -> None:
    slow = PoolDevice(4, (4, 2, 1, 0), 1.0, 1e9, 1.0, 1e9)
    kernels = tuple(MicroKernel(Tile(str(us), 0, 64, 64, 64), Times(0.0, us, 0.0)) for us in (3.0, 2.0, 4.0))
    assert planner(Pool(2, slow, kernels)).plan(1, 64, 64, 64).regions[0].kernel == 1


def test_swapped_tiles_count_columns_along_bm() -> None:
    """Eight rows by 512 columns: eight tiles of 64 columns each where swapped, one row of tiles of 8 columns where not."""
    for swapped, units in ((True, 8), (False, 64)):
        pool = Pool(2, ONE_WAVE, (MicroKernel(Tile("k", 0, 64, 8, 64, swapped, persistent=False), Times(0.0, 1.0, 0.0)),))
        assert planner(pool).plan(1, 8, 512, 64).us == 1.0 + units / 4


def test_stream_k_tail_evens_out_the_last_wave() -> None:
    """Five units on four slots: one wave of 16 steps and a quarter, dealt out as 20 steps a block."""
    pool = Pool(2, ONE_WAVE, (MicroKernel(Tile("k", 0, 64, 64, 64), Times(0.0, 1.0, 0.5, fixup_us=0.25)),))
    assert planner(pool).plan(1, 320, 64, 1024) == Choice((Region(0, 0, 320, 0, 64),), 1, 5, 20, 1 + 20 + 2 * 0.5 + 0.25)


def test_one_planner_for_many_threads() -> None:
    """More shapes than it remembers, each thread in another order: the answers of a planner that saw none before."""
    pool, rng = h200_pool(), random.Random(7)
    shapes = [(1, *(rng.randint(1, 4000) for _ in range(3))) for _ in range(5000)]
    shared, alone = planner(pool), planner(pool)
    expected = [alone.plan(*shape) for shape in shapes]
    wrong = []

    def hammer(seed: int) -> None:
        order = list(range(len(shapes)))
        random.Random(seed).shuffle(order)
        wrong.extend(i for i in order if shared.plan(*shapes[i]) != expected[i])

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and shared.plan(*shapes[0]) == expected[0]


def test_planning_time(tmp_path: Path) -> None:
    """Under 5 us for a new shape and 100 ns for a seen one; fourfold here, because other tests run beside this one. Native threads agree too."""
    (tmp_path / "pool").write_text(h200_pool().to_text())
    (tmp_path / "shapes").write_text("\n".join(f"1 {m + d} {n} {k}" for m, n, k in SHAPES for d in range(20)))
    done = subprocess.run([build() / "plan_matmuls", tmp_path / "pool", tmp_path / "shapes", "4"], capture_output=True, text=True)
    print(done.stdout)
    new_ns, slowest_ns, seen_ns, different = map(float, done.stdout.split())
    assert done.returncode == 0 and different == 0
    assert new_ns < 4 * 5000 and slowest_ns < 8 * 5000 and seen_ns < 4 * 100
