"""The op library describes foreign ABIs by hand; here they are compared with official headers where those are to be had."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from oplib import REPOSITORY


def test_cuda_driver_abi():
    pathfinder = pytest.importorskip("cuda.pathfinder")
    folder = pathfinder.find_nvidia_header_directory("cudart")
    compiler = shutil.which("c++") or shutil.which("g++")
    if folder is None or not (Path(folder) / "cuda.h").is_file() or compiler is None:
        pytest.skip("needs cuda.h of the package nvidia-cuda-runtime, and a compiler")
    source = REPOSITORY / "tests/native/cuda_abi.cc"
    done = subprocess.run([compiler, "-std=c++17", "-fsyntax-only", "-I", REPOSITORY / "custom_ops/src", "-I", folder, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
