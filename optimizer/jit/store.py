"""Compiled kernels on disk, by content: a folder an entry, safe under any number of writers.

An entry is ``<folder>/<name>.<key>/`` with the ``code`` and ``meta.json``, which is written last and holds the code's own digest. It is made
aside, synced and renamed into place, so that a reader finds all of it or nothing. Losing that race is fine: both made the same thing. What
cannot be read is a miss, and what cannot be written is not an error; a cache may only ever save time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
_FORMAT = 1


@lru_cache(maxsize=1024)
def _file(path: Path, stamp: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    data = path.read_bytes()
    return hashlib.sha256(data).hexdigest(), tuple(sorted({name.decode() for name in _INCLUDE.findall(data)}))


def include_digest(source: str, include_dirs: Sequence[Path]) -> str:
    """Digest of the content of every header that ``source`` includes, directly or not. Headers outside ``include_dirs`` are the compiler's own."""
    waiting = [name.decode() for name in _INCLUDE.findall(source.encode())]
    seen: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen[name] = ""
        for folder in include_dirs:
            path = folder / name
            if path.is_file():
                stat = path.stat()
                seen[name], inner = _file(path, (stat.st_mtime_ns, stat.st_size))
                waiting += inner
                break
    return hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest()


def entry_key(name: str, compiler: str, flags: Sequence[str], source: str, include_dirs: Sequence[Path]) -> str:
    """What an entry is found by: everything that its content depends on, and no path."""
    parts = [_FORMAT, name, compiler, list(flags), source, include_digest(source, include_dirs)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Store:
    """The cache in ``folder``; with None it holds nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def _path(self, name: str, key: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name[:120]}.{key}"

    def load(self, name: str, key: str) -> tuple[bytes, dict[str, object]] | None:
        """Code and metadata of an entry, or None where it is missing, incomplete or damaged."""
        path = self._path(name, key)
        if path is None:
            return None
        try:
            meta = json.loads((path / "meta.json").read_bytes())
            code = (path / "code").read_bytes()
            whole = meta["key"] == key and meta["sha256"] == hashlib.sha256(code).hexdigest()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return (code, meta) if whole else None

    def save(self, name: str, key: str, code: bytes, meta: Mapping[str, object]) -> None:
        """Makes the entry, in place of a damaged one if there is one. Failing to is no failure."""
        path = self._path(name, key)
        if path is None:
            return
        aside = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
            _write(aside / "code", code)
            _write(aside / "meta.json", json.dumps({**meta, "key": key, "sha256": hashlib.sha256(code).hexdigest()}, sort_keys=True).encode())
            _sync(aside)
            self._put(aside, path, name, key)
            _sync(path.parent)
        except OSError:
            pass
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)

    def _put(self, aside: Path, path: Path, name: str, key: str) -> None:
        """Renames ``aside`` to ``path``; a whole entry that is there already stays, a damaged one is moved away first."""
        for _ in range(3):
            try:
                aside.rename(path)
                return
            except OSError:
                if self.load(name, key) is not None:
                    return
            trash = Path(tempfile.mkdtemp(prefix=".old-", dir=path.parent))
            try:
                path.rename(trash / "entry")
            except FileNotFoundError:
                pass
            finally:
                shutil.rmtree(trash, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
