"""What `optimize` may take on a small machine without a GPU: seconds and memory, for ResNet-50 from the zoo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from oplib import REPOSITORY

pytestmark = pytest.mark.slow

COLD_SECONDS = 60.0
WARM_SECONDS = 15.0
# NOTE: a process of its own does the measuring: the peak of a child begins with what its parent has in memory.
MEASURE = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
seconds = time.perf_counter() - start
print(json.dumps([done.returncode, seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]))
"""


@dataclass(frozen=True)
class Usage:
    seconds: float
    peak: int  # bytes resident
    report: dict[str, object]


def used(folder: Path) -> Usage:
    """One run of the command with the kernel cache in ``folder``."""
    command = ["-m", "tilewright.optimizer", "zoo:resnet50", "-o", str(folder / "fast.onnx"), "--cache-dir", str(folder / "kernels")]
    command += ["--json", str(folder / "report.json"), "--require-verify"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "CUDA_VISIBLE_DEVICES": ""}
    measured = subprocess.run([sys.executable, "-c", MEASURE, sys.executable, *command], env=environment, capture_output=True, text=True)
    assert measured.returncode == 0, measured.stderr
    code, seconds, peak = json.loads(measured.stdout)
    assert code == 0, measured.stderr
    return Usage(seconds, peak, json.loads((folder / "report.json").read_text()))


def test_resnet50_cold_then_warm(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    cold, warm = used(tmp_path), used(tmp_path)
    record_property("seconds", f"cold {cold.seconds:.1f}, warm {warm.seconds:.1f}")
    record_property("peak", f"cold {cold.peak / 1e6:.0f} MB, warm {warm.peak / 1e6:.0f} MB")
    for run in (cold, warm):
        size = run.report["bytes_before"]
        assert isinstance(size, int) and size > 100_000_000 and run.report["regions"]
        assert run.peak < 4 * size + 1_000_000_000, f"{run.peak / 1e6:.0f} MB for a model of {size / 1e6:.0f} MB"
    assert cold.seconds < COLD_SECONDS and warm.seconds < WARM_SECONDS, (cold.seconds, warm.seconds)
