"""What is planned, launched and compiled for a dozen models is what the golden files say; `tools/golden` writes them anew."""

from __future__ import annotations

import difflib
from functools import cache

import pytest

import golden_files
from golden_files import FOLDER, MATMUL_PLANS, SOURCES
from tilewright import kernels_ptx

HELP = "if that is meant, run tools/golden and look at its diff"
NAMES = [*(f"plans/{name}.txt" for name in golden_files.MODELS), *(f"plans/{name}_in_full.txt" for name in golden_files.IN_FULL), SOURCES, MATMUL_PLANS]

made = cache(golden_files.files)


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    path = FOLDER / name
    assert path.is_file(), f"tests/golden/{name} is missing; run tools/golden"
    before, after = path.read_text().splitlines(), made()[name].splitlines()
    difference = list(difflib.unified_diff(before, after, "golden", "now", lineterm="", n=1))
    assert before == after, "\n".join([f"tests/golden/{name} says something else; {HELP}", *difference[:40]])


def test_no_other_files() -> None:
    assert sorted(made()) == sorted(NAMES) == sorted(str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*.txt")), HELP


def test_the_same_again() -> None:
    """Nothing of a plan depends on the order of sets or on what was planned before."""
    names = ("any_length", "squeezenet1_1")
    for name in names:
        build, take_all = golden_files.MODELS[name]
        result = golden_files.planned(build(), take_all)
        assert golden_files.summary(name, result, result.lower()) == made()[f"plans/{name}.txt"]


def test_files_stay_small_enough_to_read() -> None:
    assert sum(p.stat().st_size for p in FOLDER.rglob("*.txt")) < 300_000


def test_every_template_is_among_the_sources() -> None:
    used = [line.split()[1] for line in (FOLDER / SOURCES).read_text().splitlines()]
    assert [t for t in kernels_ptx.template_names() if not any(name.startswith(f"{t}_") for name in used)] == []
