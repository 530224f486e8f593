"""tools/check_layers.py refuses what it says, and the checkout is clean."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from oplib import REPOSITORY

SPEC = importlib.util.spec_from_file_location("check_layers", REPOSITORY / "tools/check_layers.py")
check_layers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_layers)


def found(tmp_path, path: str, text: str) -> list[str]:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return list(check_layers.violations(tmp_path, [path]))


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        ("optimizer/graph/view.py", "from ..emit.nodes import emit", "graph imports emit, which comes after it"),
        ("optimizer/graph/rules/pad.py", "from ...plan import cost", "graph imports plan"),
        ("optimizer/plan/__init__.py", "from ..lower import x", "plan imports lower"),
        ("optimizer/errors.py", "from . import records", "errors imports records"),
        ("optimizer/records.py", "import tilewright.optimizer.graph", "records imports graph"),
        ("optimizer/jit/nvrtc.py", "from tilewright.optimizer.pipeline import optimize", "jit imports pipeline"),
        ("optimizer/graph/view.py", "from ..nowhere import x", "nowhere has no place"),
        ("optimizer/graph/view.py", "from tests.oplib import x", "nothing imports tests"),
        ("optimizer/cli.py", "from tilewright import model_zoo", "optimizer does not import model_zoo (the command alone may, inside a function)"),
        ("optimizer/pipeline.py", "def f():\n  from tilewright import model_zoo", "optimizer does not import model_zoo"),
        ("custom_ops/loader.py", "from ..optimizer.errors import X", "custom_ops does not import optimizer"),
        ("kernels_ptx/__init__.py", "from tilewright.optimizer import target", "kernels_ptx does not import optimizer"),
        ("optimizer/graph/load.py", "import os\nx = os.environ['A']", "load.py:2: reads an environment variable"),
        ("custom_ops/other.py", "from os import getenv", "reads an environment variable"),
        ("custom_ops/src/a.cc", "// A file.\n" * 401, "401 lines"),
    ],
)
def test_refused(tmp_path, path, text, what):
    (violation,) = found(tmp_path, path, text)
    assert what in violation and violation.startswith(path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("optimizer/emit/nodes.py", "from ..graph.view import View\nfrom ..errors import X\nfrom .save import y"),
        ("optimizer/cli.py", "def f():\n  from tilewright import model_zoo"),
        ("optimizer/verify/session.py", "from tilewright import custom_ops"),
        ("optimizer/config.py", "import os\nx = os.environ['A']"),
        ("optimizer/graph/__init__.py", "from .view import x"),
        ("tests/cpu/test_x.py", "from tilewright.optimizer import cli\nimport os\nos.environ"),
        ("custom_ops/src/a.cc", "// A table, long because it lists everything.\n" * 401),
        ("custom_ops/src/b.cc", "// A file.\n" * 400),
    ],
)
def test_accepted(tmp_path, path, text):
    assert found(tmp_path, path, text) == []


def test_the_checkout():
    done = subprocess.run([sys.executable, REPOSITORY / "tools/check_layers.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
