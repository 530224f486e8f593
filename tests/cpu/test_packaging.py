"""The package as users install it: a wheel, an editable install, and a wheel from the sdist. Each holds the library, the kernels' headers and the tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from oplib import REPOSITORY

pytestmark = pytest.mark.slow

FIND = """
import tilewright
from tilewright import custom_ops
from tilewright.optimizer.target import device
from importlib import resources
assert device("h200").sms == 132
kernels = resources.files("tilewright.kernels_ptx")
assert any(name.name.endswith((".cuh", ".h")) for folder in kernels.iterdir() if folder.is_dir() for name in folder.iterdir())
status = custom_ops.status()
assert status["version"] == tilewright.__version__, status
print(custom_ops.library_path())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the files that git knows or would add, so that nothing that was built here is found."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target, follow_symlinks=False)
    return folder


def pip(*arguments: object, python: object = sys.executable) -> None:
    done = subprocess.run([str(python), "-m", "pip", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def installed(where: Path, *what: object) -> Path:
    """A new environment with ``what`` and, from ours, whatever it needs; the library that it finds."""
    venv.create(where, with_pip=True)
    python = where / "bin" / "python"
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    pip("install", "--no-deps", "--no-build-isolation", *what, python=python)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TILEWRIGHT_LIBRARY")}
    code = f"import sys; sys.path.append({ours!r})\n{FIND}"
    done = subprocess.run([python, "-c", code], cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_wheel(checkout, tmp_path):
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, checkout)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.split("-")[2] == "py3"
    names = zipfile.ZipFile(wheel).namelist()
    assert "tilewright/custom_ops/libtilewright_ops.so" in names and "tilewright/optimizer/targets.toml" in names
    assert not [name for name in names if name.endswith((".cc", ".map", "CMakeLists.txt")) or "/custom_ops/src/" in name]
    assert not [name for name in names if not name.startswith("tilewright")]
    path = installed(tmp_path / "venv", wheel)
    assert path.is_relative_to((tmp_path / "venv").resolve()) and path.parent.name == "custom_ops"


def test_editable(checkout, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    pip("install", "scikit-build-core", "ninja", "cmake", python=python)
    path = installed(tmp_path / "venv", "-e", checkout)
    assert path.is_relative_to((tmp_path / "venv").resolve())
    (checkout / "optimizer" / "fresh.py").write_text("VALUE = 1\n")
    done = subprocess.run([python, "-c", "from tilewright.optimizer.fresh import VALUE"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (checkout / "optimizer" / "fresh.py").unlink()


def test_sdist(checkout, tmp_path):
    code = "from scikit_build_core.build import build_sdist; import sys; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=checkout, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "NOTICE", "pyproject.toml", "custom_ops/src/register.cc", "optimizer/targets.toml", "src/tilewright/__init__.py"} <= names
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, sdist)
    (wheel,) = tmp_path.glob("*.whl")
    path = installed(tmp_path / "venv", wheel)
    assert path.is_relative_to((tmp_path / "venv").resolve())


def test_without_a_compiler_the_package_installs_without_the_library(checkout, tmp_path):
    """What tools/demo does on a machine without g++."""
    pip("wheel", "--no-deps", "--no-build-isolation", "-C", "wheel.cmake=false", "-w", tmp_path, checkout)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tilewright/optimizer/targets.toml" in names and not [name for name in names if name.endswith(".so")]
