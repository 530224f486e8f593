"""The tile model and the choice of tiles: values by hand, more work never cheaper, splits of the reduction, ladders over sizes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from plan_harness import plan
from rule_harness import model, node, weights
from tilewright.optimizer.plan.cost import ELEMENT_BYTES, GemmShape
from tilewright.optimizer.plan.regions.tiles import TILES, Tile, candidates, choose_tile, copy_elements, is_narrow, tile_ladder, tile_us
from tilewright.optimizer.target import DeviceSpec, device

H200 = device("h200")
COMPUTE = ("f16", "tf32")
# Round numbers, to reckon with: 100 SMs, 98 KiB of shared memory a block, 2000 GB/s from the L2, 100 TFLOP/s.
ROUND = replace(H200, sms=100, smem_block=98 * 1024, l2_bytes=10**8, l2_gbs=2000.0, mma_tflops={"f16": 100.0, "tf32": 50.0})
TILE = Tile(64, 64, 32, 2, 2, 3)
# of one block of TILE along 10 steps: 2 * 64 * 64 * 32 products at 55 % of 1 TFLOP/s an SM; the copies of a step take less
PRODUCT = 2 * 64 * 64 * 32 / 0.55e6
STORE = 64 * 64 * 2 / 40e3


@pytest.mark.parametrize(("m", "split", "expected"), [
    (640, 1, 1.6 + (1.15 + 10 * PRODUCT + STORE + 0.5)),  # 100 blocks, one an SM
    (704, 1, 1.6 + (1.15 + 10 * 2 * PRODUCT + 2 * STORE + 0.5)),  # 110 blocks: two share an SM
    (1984, 1, 1.6 + 2 * (1.15 + 10 * 3 * PRODUCT + 3 * STORE + 0.5)),  # 310 blocks, three fit an SM: two rounds
    (640, 2, 1.6 + (1.15 + 5 * 2 * PRODUCT + 2 * STORE + 0.5) + 1.5 + 8 * 2 * 640 * 640 / 2000e3),  # twice the blocks, half the steps, a second kernel
])  # fmt: skip
def test_values_by_hand(m: int, split: int, expected: float) -> None:
    assert tile_us(ROUND, "f16", GemmShape(m, 640, 320), replace(TILE, split_k=split)) == pytest.approx(expected)


def test_a_step_takes_the_longest_of_products_copies_and_latency() -> None:
    def step(spec: DeviceSpec, tile: Tile = TILE) -> float:
        return tile_us(spec, "f16", GemmShape(64, 64, 64), tile) - tile_us(spec, "f16", GemmShape(64, 64, 32), tile)

    assert step(ROUND) == pytest.approx(PRODUCT)
    fast = replace(ROUND, mma_tflops={"f16": 1e6})
    assert step(fast) == pytest.approx(0.244), "latency"
    wide = Tile(256, 256, 64, 2, 2, 3)
    assert tile_us(fast, "f16", GemmShape(1, 1, 128), wide) - tile_us(fast, "f16", GemmShape(1, 1, 64), wide) == pytest.approx(512 * 64 * 2 / 88e3), "copies"
    assert step(ROUND, replace(TILE, warps_m=1, warps_n=1)) == pytest.approx(4 * PRODUCT), "one warp leaves three of four tensor cores idle"


def test_single_precision_costs_twice_the_bytes_and_half_the_rate() -> None:
    shape, tile = GemmShape(640, 640, 320), TILE
    half, single = (tile_us(ROUND, compute, shape, tile) for compute in COMPUTE)
    assert single - half == pytest.approx(10 * PRODUCT + STORE)


def test_what_does_not_fill_a_tile_costs_as_if_it_did() -> None:
    assert tile_us(ROUND, "f16", GemmShape(1, 1, 1), TILE) == tile_us(ROUND, "f16", GemmShape(64, 64, 32), TILE)


@pytest.mark.parametrize("compute", COMPUTE)
def test_more_work_is_never_cheaper_with_the_same_tile(compute: str) -> None:
    rng = np.random.default_rng(0)
    tiles = list(candidates(compute))
    for _ in range(3000):
        m, n, k = (int(2 ** rng.uniform(0, top)) for top in (17, 11, 13))
        tile, axis, more = tiles[rng.integers(len(tiles))], rng.integers(4), int(2 ** rng.uniform(0, 8))
        small = GemmShape(m, n, k)
        large = [GemmShape(m + more, n, k), GemmShape(m, n + more, k), GemmShape(m, n, k + more), GemmShape(m, n, k, 1 + more)][axis]
        assert tile_us(H200, compute, large, tile) >= tile_us(H200, compute, small, tile), f"{small} -> {large}, {tile}"


@pytest.mark.parametrize("compute", COMPUTE)
def test_a_faster_gpu_is_never_slower(compute: str) -> None:
    rng = np.random.default_rng(1)
    faster = [replace(H200, mma_tflops={c: 2 * r for c, r in H200.mma_tflops.items()}), replace(H200, l2_gbs=2 * H200.l2_gbs, dram_gbs=2 * H200.dram_gbs)]
    for tile, spec in itertools.product(candidates(compute), faster):
        shape = GemmShape(*(int(2 ** rng.uniform(0, top)) for top in (17, 11, 13)))
        assert tile_us(spec, compute, shape, tile) <= tile_us(H200, compute, shape, tile)


# ---- candidates


@pytest.mark.parametrize("compute", COMPUTE)
def test_every_candidate_fits_the_smallest_portable_gpu(compute: str) -> None:
    made = list(candidates(compute))
    assert len(made) == len(set(made)) == 4 * len(TILES) and {t.split_k for t in made} == {1, 2, 4, 8}
    for tile in made:
        assert tile.smem(ELEMENT_BYTES[compute]) <= 99 * 1024
        assert tile.block_k * ELEMENT_BYTES[compute] in (64, 128), "rows of 64 or 128 bytes"
        assert tile.block_m % (16 * tile.warps_m) == 0 and tile.block_n % (8 * tile.warps_n) == 0


def test_tiles_for_narrow_copies_leave_registers() -> None:
    narrow = set(candidates("f16", narrow=True))
    assert narrow < set(candidates("f16")) and all(t.block_m * t.block_n <= 64 * 32 * t.warps_m * t.warps_n for t in narrow)
    assert Tile(128, 64, 64, 4, 1, 3) in narrow and Tile(128, 256, 32, 2, 4, 4) not in narrow


def test_text() -> None:
    assert str(TILE) == "64x64x32 2x2 warps, 3 stages" and str(replace(TILE, split_k=4)).endswith(", split 4")


STAGES = {  # channels in, out, groups, kernel -> elements a copy in float16 and float32
    "plain": ((16, 16, 1, (3, 3)), 8, 4),
    "odd channels, padded": ((5, 7, 1, (3, 3)), 8, 4),
    "groups of eight": ((32, 32, 4, (3, 3)), 8, 4),
    "groups of four": ((16, 32, 4, (3, 3)), 4, 4),
    "groups of two": ((8, 32, 4, (3, 3)), 2, 2),
    "groups of three": ((12, 32, 4, (3, 3)), None, 1),
    "too few outputs a group": ((32, 16, 4, (3, 3)), None, None),
    "the largest window": ((8, 8, 1, (31, 1)), 8, 4),
    "a window beyond the mask": ((8, 8, 1, (32, 1)), None, None),
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("compute", COMPUTE)
def test_width_of_copies(name: str, compute: str) -> None:
    (inputs, outputs, groups, kernel), half, single = STAGES[name]
    dtype, expected = (np.float16, half) if compute == "f16" else (np.float32, single)
    constants = {"w": weights(outputs, inputs // groups, *kernel, dtype=dtype)}
    conv = node("Conv", ["x", "w"], "y", group=groups)
    (region,) = plan(model([conv], {"x": ("n", inputs, 40, 8)}, ["y"], constants, dtype=10 if compute == "f16" else 1)).regions
    assert copy_elements(region.stages[0], compute) == expected
    assert is_narrow(region.stages[0], compute) is (expected != (8 if compute == "f16" else 4))


# ---- choice

LAYERS = [
    GemmShape(*shape) for shape in ((12544, 64, 576), (3136, 64, 64), (784, 512, 128), (196, 256, 2304), (49, 512, 4608), (49, 2048, 512), (401408, 64, 147))
]


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("shape", [*LAYERS, GemmShape(3136, 8, 72, 16), GemmShape(1, 1000, 2048)], ids=str)
def test_the_cheapest_is_chosen(compute: str, shape: GemmShape) -> None:
    chosen = choose_tile(H200, compute, shape)
    assert chosen in set(candidates(compute))
    assert all(tile_us(H200, compute, shape, chosen) <= tile_us(H200, compute, shape, t) for t in candidates(compute) if t.split_k == 1)


@pytest.mark.parametrize("compute", COMPUTE)
def test_reductions_are_split_where_blocks_are_few_and_steps_many(compute: str) -> None:
    assert choose_tile(H200, compute, GemmShape(49, 512, 4608)).split_k > 1, "a late 3x3 layer at batch 1"
    assert choose_tile(H200, compute, GemmShape(1, 1000, 2048)).split_k > 1, "a classifier"
    assert choose_tile(H200, compute, GemmShape(100352, 64, 576)).split_k == 1, "an early layer at batch 32"
    assert choose_tile(H200, compute, GemmShape(49, 512, 64)).split_k == 1, "a reduction of one step"
    assert choose_tile(H200, compute, GemmShape(49, 128, 4608, 4)).split_k == 1, "groups"


@pytest.mark.parametrize("compute", COMPUTE)
def test_each_part_of_a_split_has_four_steps(compute: str) -> None:
    """Even where splitting further would look cheaper."""
    depth = 64 if compute == "f16" else 32
    for steps in range(1, 65):
        assert choose_tile(H200, compute, GemmShape(1, 8, depth * steps)).split_k <= max(1, steps // 4)


def test_small_layers_take_small_tiles_and_large_ones_large() -> None:
    small, large = (choose_tile(H200, "f16", GemmShape(m, 256, 1152)) for m in (49, 401408))
    assert small.block_m * small.block_n <= 32 * 64 and large.block_m * large.block_n >= 128 * 128


def test_a_narrow_layer_takes_a_narrow_tile() -> None:
    shape = GemmShape(401408, 256, 1152)
    assert choose_tile(H200, "f16", shape) not in set(candidates("f16", narrow=True))
    assert choose_tile(H200, "f16", shape, narrow=True) in set(candidates("f16", narrow=True))


# ---- ladders


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("shape", LAYERS, ids=str)
@pytest.mark.parametrize("rungs", [1, 2, 3, 99])
def test_ladders(compute: str, shape: GemmShape, rungs: int) -> None:
    ladder = tile_ladder(H200, compute, shape, 1, 1 << 17, rungs=rungs)
    limits, tiles = [limit for limit, _ in ladder], [tile for _, tile in ladder]
    assert limits[-1] is None and limits[:-1] == sorted(set(limits[:-1])), "limits rise, and the last has none"
    assert all(a != b for a, b in itertools.pairwise(tiles)) and len(set(tiles)) <= rungs
    for m in (1 << i for i in range(18)):
        tile = next(t for limit, t in ladder if limit is None or m <= limit)
        at = replace(shape, m=m)
        best = tile_us(H200, compute, at, choose_tile(H200, compute, at))
        if rungs == 99:
            assert tile_us(H200, compute, at, tile) == best
        assert tile_us(H200, compute, at, tile) == min(tile_us(H200, compute, at, t) for t in set(tiles)), "the cheapest of those that were kept"


@pytest.mark.parametrize("compute", COMPUTE)
def test_three_rungs_lose_little(compute: str) -> None:
    lost = []
    for shape in LAYERS:
        ladder = tile_ladder(H200, compute, shape, 1, 1 << 17)
        for m in (1 << i for i in range(18)):
            at = replace(shape, m=m)
            tile = next(t for limit, t in ladder if limit is None or m <= limit)
            lost.append(tile_us(H200, compute, at, tile) / tile_us(H200, compute, at, choose_tile(H200, compute, at)) - 1)
    assert float(np.mean(lost)) < 0.04 and max(lost) < 0.6, f"{np.mean(lost):.3f}, {max(lost):.3f}"


def test_a_ladder_of_one_size_is_one_tile() -> None:
    assert tile_ladder(H200, "f16", GemmShape(49, 512, 4608), 49, 49) == [(None, choose_tile(H200, "f16", GemmShape(49, 512, 4608)))]


def test_a_ladder_for_narrow_copies() -> None:
    narrow = set(candidates("f16", narrow=True))
    assert all(tile in narrow for _, tile in tile_ladder(H200, "f16", GemmShape(1, 256, 1152), 1, 1 << 17, narrow=True))
