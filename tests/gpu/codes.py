"""Cubins for GPU tests and benchmarks: compiled ahead by many processes, kept on disk."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tilewright.optimizer.jit.build import compile_spec
from tilewright.optimizer.jit.store import Store
from tilewright.optimizer.records import KernelSpec

COMPILED = "TILEWRIGHT_TESTS_COMPILED"  # variable that says that every kernel is in the folder: no compiler processes, which compute-sanitizer would follow


def _compile(job: tuple[KernelSpec, str, Path]) -> bytes | str:
    spec, arch, folder = job
    try:
        return compile_spec(spec, arch, Store(folder))[0]
    except Exception as error:
        return f"{spec}: {type(error).__name__}: {error}"


class Codes(dict):
    """Cubins by spec, for one architecture; what is not there is compiled when it is asked for."""

    def __init__(self, arch: str, folder: Path) -> None:
        super().__init__()
        self.arch, self.folder = arch, folder

    def __missing__(self, spec: KernelSpec) -> bytes:
        code = _compile((spec, self.arch, self.folder))
        assert isinstance(code, bytes), code
        self[spec] = code
        return code

    def compile_ahead(self, specs: Iterable[KernelSpec]) -> list[str]:
        """Compiles ``specs``, as many at a time as there are processors; what failed, in words. Nothing where the folder holds them (``COMPILED``)."""
        todo = [spec for spec in dict.fromkeys(specs) if spec not in self]
        if not todo or COMPILED in os.environ:
            return []
        # NOTE: processes, because threads of one NVRTC wait for each other; spawned, because a process that talks to a GPU must not be forked.
        with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0))), multiprocessing.get_context("spawn")) as pool:
            done = list(pool.map(_compile, [(spec, self.arch, self.folder) for spec in todo], chunksize=2))
        self.update({spec: code for spec, code in zip(todo, done, strict=True) if isinstance(code, bytes)})
        return [code for code in done if isinstance(code, str)]
