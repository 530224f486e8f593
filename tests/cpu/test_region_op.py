"""Custom nodes in whole sessions without a GPU: runs the scenarios of tests/host_scenarios.py, each in its process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from host_scenarios import SCENARIOS
from oplib import REPOSITORY, build


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    environment = {**os.environ, "TILEWRIGHT_TEST_BUILD": str(build()), **SCENARIOS[name][1]}
    done = subprocess.run([sys.executable, REPOSITORY / "tests/host_scenarios.py", name], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
