"""Runs kernels on the CPU: the real template headers, compiled by g++ against ``tests/emulator``, which plays the GPU's part."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from plans import poisoned, resolve
from tilewright import kernels_ptx
from tilewright.optimizer.launch import LaunchPlan
from tilewright.optimizer.lower.render import cpp_value
from tilewright.optimizer.records import KernelSpec

HERE = Path(__file__).parent / "emulator"
FLAGS = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-sanitize=shift,pointer-overflow"]
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0", "PATH": "/usr/bin:/bin"}


def available() -> bool:
    """Whether there is a compiler."""
    return shutil.which("g++") is not None


@cache
def _headers(folder: Path) -> str:
    """Copies the headers into ``folder``, the emulator's in place of those it stands in for; a digest of all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {path.name: path for directory in (*kernels_ptx.include_dirs(), HERE) for path in sorted(directory.iterdir()) if path.is_file()}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        (folder / name).write_bytes(path.read_bytes())
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def run_program(source: str, folder: Path) -> str:
    """What the program ``tests/emulator/<source>`` prints, compiled like the kernels.

    Raises:
        AssertionError: it does not compile, or it ends with an error.
    """
    _headers(folder / "headers")
    program = folder / source.replace(".", "_")
    built = subprocess.run(
        ["g++", "-std=c++17", "-O2", "-w", f"-I{folder / 'headers'}", str(HERE / source), "-o", str(program)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr[:4000]
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Emulator:
    """Kernels compiled into one program.

    Args:
        specs: The kernels.
        folder: Where the program is built; it is not built again where it is there.
    """

    def __init__(self, specs: Sequence[KernelSpec], folder: Path) -> None:
        self.specs = list(dict.fromkeys(specs))
        headers = _headers(folder / "headers")
        self.program = folder / hashlib.sha256("\n".join([headers, *FLAGS, *map(str, self.specs)]).encode()).hexdigest()[:16]
        if not self.program.exists():
            self._build(folder / "headers")

    def _build(self, headers: Path) -> None:
        lines = [f'#include "{t}.cuh"' for t in sorted({s.template for s in self.specs})]
        lines += ["template <class K> void run(const void* args) { K::run(*static_cast<const typename K::Args*>(args)); }"]
        for i, spec in enumerate(self.specs):
            params = ", ".join(cpp_value(value) for _, value in spec.params)
            lines += [f"using K{i} = tilewright::{kernels_ptx.template_struct(spec.template)}<{params}>;"]
        lines += ["struct Kernel { int args_bytes; void (*run)(const void*); };"]
        lines += ["extern const Kernel KERNELS[]; extern const int KERNEL_COUNT;"]
        lines += [f"const Kernel KERNELS[] = {{{', '.join(f'{{sizeof(K{i}::Args), run<K{i}>}}' for i in range(len(self.specs)))}}};"]
        lines += [f"const int KERNEL_COUNT = {len(self.specs)};"]
        source = self.program.with_suffix(".cc")
        source.write_text("\n".join(lines) + "\n")
        aside = self.program.with_suffix(".new")
        command = ["g++", *FLAGS, f"-I{headers}", str(source), str(HERE / "main.cc"), "-o", str(aside)]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, f"{' '.join(command)}\n{built.stderr[:4000]}"
        aside.rename(self.program)

    def run_plan(
        self, plan: LaunchPlan, specs: Mapping[str, KernelSpec], inputs: Sequence[np.ndarray], *, descending: bool = False, late: bool = False
    ) -> list[np.ndarray]:
        """The outputs of ``plan``; with ``descending`` threads run in that order, with ``late`` asynchronous copies arrive when they are waited for."""
        numbers = resolve(plan, specs, [a.shape for a in inputs])
        outputs = [poisoned(shape, dtype) for dtype, shape in numbers.outputs]
        scratch = [poisoned([size], np.dtype(np.uint8)) for size in numbers.scratch]
        buffers = {("in", i): a for i, a in enumerate(inputs)} | {("out", i): a for i, a in enumerate(outputs)} | {("ws", i): a for i, a in enumerate(scratch)}
        order = {name: i for i, name in enumerate(buffers)}
        request = [struct.pack("<3i", descending, late, len(buffers))]
        for array in buffers.values():
            request += [struct.pack("<q", array.nbytes), array.tobytes()]
        request.append(struct.pack("<i", len(numbers.calls)))
        for call in numbers.calls:
            request.append(struct.pack("<7i", self.specs.index(call.spec), *call.grid, call.block, call.smem, len(call.args)))
            for value in call.args.values():
                kind = (0, 0, 0) if value is None else (2, order[value[0]], value[1]) if isinstance(value, tuple) else (1, value, 0)
                request.append(struct.pack("<2iq", *kind))
        done = subprocess.run([str(self.program)], input=b"".join(request), capture_output=True, env=ENVIRONMENT)
        assert done.returncode == 0, f"{[str(c.spec) for c in numbers.calls]}\n{done.stderr.decode(errors='replace')[:4000]}"
        at, results = 0, []
        for name, array in buffers.items():
            data = done.stdout[at : at + array.nbytes]
            at += array.nbytes
            if name[0] == "out":
                results.append(np.frombuffer(data, array.dtype).reshape(array.shape))
            elif name[0] == "in":
                assert data == array.tobytes(), f"input {name[1]} was written"
        return results
