"""The kernel templates themselves, run on the CPU by an emulator of what they use of a GPU, against the numpy twins.

Every case runs twice: threads in ascending order with asynchronous copies that arrive at once, and in descending order with copies that arrive
when they are waited for; a missing barrier or wait shows as a wrong result, a wrong address as a report of the address sanitizer.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kernel_cases
import twins
from emulator import Emulator, available, run_program
from plans import relative_error

BATCH = 6  # cases whose kernels are one program
BOUND = 1e-3

pytestmark = pytest.mark.skipif(not available(), reason="the emulator needs g++")


def check(cases: list[kernel_cases.Case], folder) -> list[str]:
    made = [case.make() for case in cases]
    emulator = Emulator([spec for m in made for spec in m.specs.values()], folder)
    problems = []
    for case, m in zip(cases, made, strict=True):
        (want,) = twins.run_plan(m.plan, m.specs, m.inputs)
        for mode in (False, True):
            (got,) = emulator.run_plan(m.plan, m.specs, m.inputs, descending=mode, late=mode)
            error = relative_error(got, want)
            if not error < BOUND:
                problems.append(f"{case} {dict(case.options)}: error {error}")
            if not np.array_equal(got.view(np.uint8)[_untouched(want)], want.view(np.uint8)[_untouched(want)]):
                problems.append(f"{case} {dict(case.options)}: wrote elements that are not its own")
    return problems


def _untouched(array: np.ndarray) -> np.ndarray:
    """Bytes of the elements that are all 0xff."""
    size = array.dtype.itemsize
    return np.repeat((array.reshape(-1, 1).view(np.uint8) == 0xFF).all(axis=1), size).reshape(*array.shape[:-1], -1)


def check_all(cases: list[kernel_cases.Case], folder) -> None:
    batches = [cases[i : i + BATCH] for i in range(0, len(cases), BATCH)]
    with ThreadPoolExecutor(2) as pool:
        problems = [p for found in pool.map(lambda batch: check(batch, folder), batches) for p in found]
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("emulator")


@pytest.mark.parametrize("family", ["tile", "conv", "channels", "groups", "direct", "depthwise", "pool", "global", "op", "special", "concat", "layout"])
def test_sample(family, folder):
    every = {"tile": 12, "conv": 20, "op": 10, "special": 10, "depthwise": 8, "pool": 10}.get(family, 6)
    found = [c for c in kernel_cases.cases(small=True) if c.name.startswith(f"{family}-")]
    check_all(found[::every], folder)


@pytest.mark.slow
def test_all(folder):
    check_all(list(kernel_cases.cases(small=True)), folder)


def test_cases_are_worth_it():
    """Every case has elements that a kernel wrote; in nearly all, some are not zero (one window of a one-channel pool may lie in the padding)."""
    zero = []
    cases = list(kernel_cases.cases(small=True))[::17]
    for case in cases:
        made = case.make()
        (want,) = twins.run_plan(made.plan, made.specs, made.inputs)
        assert np.isfinite(want).any(), case
        if not np.abs(want[np.isfinite(want)]).max() > 0 and not case.name.startswith("special"):
            zero.append(case.name)
    assert len(zero) <= len(cases) // 20, zero


def test_fast_division(folder):
    assert run_program("fast_div.cc", folder).endswith(" 0 wrong\n")
