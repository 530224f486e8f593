"""Pools of micro-kernels: their text on both sides, analytic times, measured tables."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from matmul_pools import TILES, h200_pool, random_pool
from oplib import library
from tilewright.custom_ops import OpLibraryError
from tilewright.optimizer.errors import ModelError
from tilewright.optimizer.plan.matmul import online
from tilewright.optimizer.plan.matmul.analytic import analytic_pool, analytic_times, matrix_tflops
from tilewright.optimizer.plan.matmul.online import Planner
from tilewright.optimizer.plan.matmul.pool import Pool, Tile
from tilewright.optimizer.plan.matmul.tables import TableKey, pool_for
from tilewright.optimizer.target import device

GOOD = h200_pool().to_text()
KEY = TableKey("h200", "580", "0.1.0", "f16")


def test_text_round_trips() -> None:
    rng = random.Random(11)
    for pool in (h200_pool(), *(random_pool(rng) for _ in range(30))):
        assert Pool.parse(pool.to_text()) == pool
        Planner(pool, library().path)


def line(number: int, *changes: tuple[int, str]) -> str:
    """The good pool with words of one line changed; lines and words count from 1 and 0."""
    lines = [text.split(" ") for text in GOOD.split("\n")]
    for word, value in changes:
        lines[number - 1][word] = value
    return "\n".join(" ".join(words) for words in lines)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: 'tilewright-matmul' expected, not ''"),
        ("tilewright-matmul 2", "line 1: 'tilewright-matmul 1' expected: a pool of another version"),
        ("tilewright-matmul 1", "line 2: 'element' expected, not ''"),
        ("\n".join(GOOD.split("\n")[:3]), "line 3: a pool has at least one kernel"),
        (GOOD + "\n\n", "line 20: 'kernel' expected, not ''"),
        (GOOD + " 1", "line 19: 'kernel' takes 18 values, not 19"),
        (line(2, (1, "0")), "line 2: '0' is no element size (1 to 8)"),
        (line(2, (1, "2x")), "line 2: '2x' is no element size"),
        (line(3, (2, "131")), "line 3: clusters of one block are as many as SMs"),
        (line(3, (6, "nan")), "line 3: 'nan' is no launch time"),
        (line(3, (7, "0")), "line 3: '0' is no rate"),
        (line(3, (8, "inf")), "line 3: 'inf' is no rate"),
        (line(4, (1, "")), "line 4: a kernel name is 1 to 256 printable characters"),
        (line(5, (1, "t256x128")), "line 5: a second kernel 't256x128'"),
        (line(4, (3, "-64")), "line 4: '-64' is no tile size"),
        (line(4, (4, "99999999999999999999")), "is no tile size"),
        (line(4, (6, "2")), "line 4: '2' is no flag"),
        (line(4, (9, "3")), "line 4: a split is a power of two, not 3"),
        (line(4, (8, "2"), (9, "8")), "line 4: a cluster of 16 blocks; at most 8 are portable"),
        (line(3, (5, "0")), "the device has no clusters of 8"),
        (line(4, (13, "0")), "line 4: '0' is no step time"),
        (line(5, (11, "2")), "line 5: family 0 has one cluster and one number of resident blocks"),
        (GOOD + "\n" + "\n".join(GOOD.split("\n")[3].replace("t256x128", f"k{i}") for i in range(49)), "line 68: more than 64 kernels"),
        (GOOD + " " * 70000, "at most 65536 are allowed"),
        (GOOD.replace("t256x128 ", "t\0 ", 1), "a kernel name is 1 to 256 printable characters"),
    ],
)
def test_malformed_pools(text: str, error: str) -> None:
    with pytest.raises(ModelError) as raised:
        Planner(text, library().path)
    assert str(raised.value).startswith("matmul pool") and error in str(raised.value)


def test_random_damage_is_refused_or_planned() -> None:
    """Whatever the bytes, an error with a text or a planner that answers."""
    rng = random.Random(3)
    refused = 0
    for _ in range(3000):
        damaged = list(GOOD)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.choice("0123456789.- \nexnk\x7f")
        try:
            assert Planner("".join(damaged), library().path).plan(1, 300, 300, 300).us >= 0
        except ModelError as error:
            assert "matmul pool" in str(error)
            refused += 1
    assert 500 < refused < 3000


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tilewright-matmul 2", "line 1"),
        (line(2, (1, "x")), "line 2"),
        (line(4, (6, "2")), "line 4: '2' is no flag"),
        (GOOD + " 1", "line 19: 'kernel' takes 18"),
    ],
)
def test_malformed_pools_in_python(text: str, error: str) -> None:
    with pytest.raises(ModelError, match=error):
        Pool.parse(text)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise OpLibraryError("the op library is not built")

    monkeypatch.setattr(online, "library_path", missing)
    with pytest.raises(OpLibraryError, match="not built"):
        Planner(h200_pool())


def test_analytic_times() -> None:
    """128 x 256 x 64 on the H200: the matrix unit needs 0.65 us, the share of the L2 48 KiB at 66.7 KB/us; two tiles that share B need less."""
    h200 = device("h200")
    alone, pair = (analytic_times(h200, Tile("k", 0, 128, 256, 64, cluster_m=c)) for c in (1, 2))
    compute = 2 * 128 * 256 * 64 / (855e6 / 132)
    assert alone.step_us == pytest.approx(49152 / (8.8e6 / 132), abs=1e-4) and pair.step_us == pytest.approx(compute, abs=1e-4)
    assert alone.tile_us == pytest.approx(65536 / (8.8e6 / 132), abs=1e-4)
    small = analytic_times(h200, Tile("k", 0, 64, 64, 64, max_split=8))
    assert small.reduce_us[0] == pytest.approx(0.4 + 8192 / 30e3, abs=1e-4) and small.reduce_us[2] == pytest.approx(0.4 + 14336 / 22e3, abs=1e-4)
    assert small.fixup_us == pytest.approx(0.73 + 2 * 16384 / (8.8e6 / 132), abs=1e-4)


def test_resident_blocks_share_an_sm() -> None:
    one, two = (analytic_times(device("h200"), Tile("k", 0, 64, 64, 64, resident=r)) for r in (1, 2))
    assert two.step_us == pytest.approx(2 * one.step_us, abs=2e-4)


def test_matrix_rates() -> None:
    h200 = device("h200")
    assert [matrix_tflops(h200, n, "f16") for n in (4, 8, 24, 64, 192, 256, 512)] == [200, 200, 378, 790, 830, 855, 855]
    assert matrix_tflops(h200, 128, "tf32") == 415
    assert matrix_tflops(device("a100"), 128, "tf32") == device("a100").mma_tflops["tf32"]


def test_gpus_without_clusters() -> None:
    """What needs a cluster is left out, splits become none, and every shape has a plan."""
    pool = analytic_pool(device("a100"), TILES)
    assert len(pool.kernels) == len(TILES) - 2 and all(kernel.tile.max_split == 1 for kernel in pool.kernels)
    choice = Planner(pool, library().path).plan(1, 64, 4096, 4096)
    assert choice.split == 1 and choice.us > device("a100").dependent_launch_us


def test_tf32_costs_more() -> None:
    f16, tf32 = (Planner(analytic_pool(device("h200"), TILES, compute), library().path).plan(1, 4096, 4096, 4096).us for compute in ("f16", "tf32"))
    assert 1.7 < tf32 / f16 < 2.3


# Measured tables.


def table(**changes: Any) -> dict[str, Any]:
    """A file with one table that names every tile; its figures are those of the tests alone."""
    times = {"start_us": 0.5, "step_us": 0.25, "tile_us": 1, "reduce_us": [1.0, 2.0, 3.0], "fixup_us": 2.0}
    one = {"driver": "580", "version": "0.1.0", "compute": "f16", "launch_us": 1.5, "kernels": {tile.name: times for tile in TILES}}
    return {"device": "NVIDIA H200", "tables": [one | changes]}


def written(folder: Path, content: object) -> Path:
    (folder / "h200.json").write_text(json.dumps(content))
    return folder


def test_measured_table(tmp_path: Path) -> None:
    found = pool_for(device("h200"), TILES, KEY, written(tmp_path, table()))
    assert found.note == "matmul times: measured on NVIDIA H200, driver 580"
    assert {kernel.times.step_us for kernel in found.pool.kernels} == {0.25} and found.pool.device.launch_us == 1.5
    assert [kernel.tile for kernel in found.pool.kernels] == list(TILES)
    assert Pool.parse(found.pool.to_text()) == found.pool


def test_without_a_table(tmp_path: Path) -> None:
    found = pool_for(device("h200"), TILES, KEY, tmp_path)
    assert found.note == "matmul times: analytic model of NVIDIA H200 (nothing was measured for it)"
    assert found.pool == h200_pool()


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        (table(driver="590"), KEY, "h200.json has no table for driver 580, version 0.1.0, f16"),
        (table(), dataclasses.replace(KEY, version="0.2.0"), "h200.json has no table for driver 580, version 0.2.0, f16"),
        (table(), dataclasses.replace(KEY, compute="tf32"), "h200.json has no table for driver 580, version 0.1.0, tf32"),
        (table() | {"device": "NVIDIA H20"}, KEY, "h200.json is of NVIDIA H20"),
        (table(kernels={}), KEY, "its table lacks t256x128 and 15 more"),
    ],
)
def test_tables_of_something_else(tmp_path: Path, content: object, key: TableKey, reason: str) -> None:
    found = pool_for(device("h200"), TILES, key, written(tmp_path, content))
    assert found.note == f"matmul times: analytic model of NVIDIA H200 ({reason})"
    assert found.pool == analytic_pool(device("h200"), TILES, key.compute)


ONE = table()["tables"][0]["kernels"]["t64x64"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ([], "not a table of measured times"),
        ({"device": "NVIDIA H200"}, "not a table of measured times: KeyError 'tables'"),
        (table(kernels=[]), "not a table of measured times"),
        (table(launch_us=-1), "launch_us is -1, not a time in microseconds"),
        (
            table(kernels={tile.name: {"step_us": 1} for tile in TILES}),
            "kernel t256x128 has step_us; start_us, step_us, tile_us, .* are expected",
        ),
        (table(kernels={tile.name: ONE | {"reduce_us": [1, 2]} for tile in TILES}), "reduce_us of kernel t256x128 is not a list of three times"),
        (table(kernels={tile.name: ONE | {"tile_us": "1"} for tile in TILES}), "tile_us is '1', not a time"),
    ],
)
def test_malformed_tables(tmp_path: Path, content: object, error: str) -> None:
    with pytest.raises(ModelError, match=r"h200\.json: .*" + error):
        pool_for(device("h200"), TILES, KEY, written(tmp_path, content))
