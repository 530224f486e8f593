"""What holds for every test: tests marked ``gpu`` or ``sm90`` are skipped with the reason where they cannot run, and CI does not skip downloads."""

from __future__ import annotations

import os
from functools import cache

import pytest


@cache
def _gpu() -> tuple[str, str]:
    """Compute capability of the first GPU, and why there is none."""
    from tilewright import custom_ops

    try:
        status = custom_ops.status()
    except custom_ops.OpLibraryError as error:
        return "", str(error)
    return (status["devices"][0]["capability"], "") if not status["driver_problem"] else ("", status["driver_problem"])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not list(item.iter_markers("gpu")) and not list(item.iter_markers("sm90")):
        return
    capability, problem = _gpu()
    if problem:
        pytest.skip(f"needs a GPU: {problem}")
    if list(item.iter_markers("sm90")) and capability != "9.0":
        pytest.skip(f"needs a Hopper GPU, not compute capability {capability}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    # A test that finds no package index skips with a reason that begins with 'offline'.
    if report.skipped and os.environ.get("CI") and isinstance(report.longrepr, tuple) and "offline" in report.longrepr[2]:
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr[2]} (CI does not skip downloads)"
    return report
