"""The shell tools: what they say on a machine that lacks something, before anything is installed."""

from __future__ import annotations

import os
import subprocess

import pytest

from oplib import REPOSITORY


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.parametrize("tool", ["tools/demo", "tools/test"])
def test_no_python(tool):
    done = run(tool, PYTHON="false")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: no Python 3.11 to 3.14 with venv was found; install it, e.g.: apt-get install python3 python3-venv\n"


def test_tests_need_a_compiler():
    done = run("tools/test", CXX="false")
    assert done.returncode == 1 and done.stderr == "error: no C++17 compiler was found; install one, e.g.: apt-get install g++\n"


def test_compiler_and_python_are_found():
    done = run("bash", "-euc", ". tools/venv.sh; find_python; find_compiler; echo $PYTHON")
    assert done.returncode == 0 and "python3" in done.stdout
    assert run("bash", "-c", ". tools/venv.sh; find_compiler", CXX="false").returncode != 0


@pytest.mark.parametrize("script", ["tools/demo", "tools/test", "tools/venv.sh", ".ci/run"])
def test_scripts_parse(script):
    assert run("bash", "-n", script).returncode == 0
    assert script == "tools/venv.sh" or os.access(REPOSITORY / script, os.X_OK)
