"""Kernel specs to image containers: every kernel for every architecture of a target class, from the cache or compiled, in parallel.

An image is one kernel for one target class, ``custom_ops/src/image.h`` reads it::

    TWIMG001 | u32 entries | u32 0 | entries of {u32 kind, u32 arch, u32 flags, u32 0, u64 offset, u64 size} | blobs, 16-aligned

all little endian; kind 1 is a cubin and 2 PTX, flag 1 says that only exactly that architecture runs it. Its name is its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tilewright import kernels_ptx

from ..errors import CompileError
from ..lower import kernels
from ..lower.render import kernel_name, render
from ..records import KernelSpec
from ..target import TargetClass
from . import nvrtc
from .store import Store, entry_key

MAGIC = b"TWIMG001"
CUBIN, PTX = 1, 2
EXACT = 1  # flag: only exactly this architecture runs it
ALIGNMENT = 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Image:
    """One kernel for one target class.

    Attributes:
        kernel: Name of its entry.
        digest: SHA-256 of ``data``, hexadecimal.
        data: The container.
        registers: Registers a thread by architecture.
    """

    kernel: str
    digest: str
    data: bytes = field(repr=False)
    registers: Mapping[str, int] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class BuildResult:
    """Images by the name that their spec was given, and what failed, by the same names."""

    images: dict[str, Image]
    failures: dict[str, CompileError]


def pack_image(entries: Sequence[tuple[int, int, int, bytes]]) -> bytes:
    """The container of ``(kind, arch, flags, blob)`` entries."""
    offset = len(MAGIC) + 8 + 32 * len(entries)
    table, blobs = [], []
    for kind, arch, flags, blob in entries:
        padding = -offset % ALIGNMENT
        table.append(struct.pack("<4I2Q", kind, arch, flags, 0, offset + padding, len(blob)))
        blobs.append(bytes(padding) + blob)
        offset += padding + len(blob)
    return b"".join([MAGIC, struct.pack("<2I", len(entries), 0), *table, *blobs])


def compile_spec(spec: KernelSpec, arch: str, store: Store) -> tuple[bytes, int]:
    """Code of ``spec`` for ``arch`` (a cubin, or PTX with its closing zero), and its registers (0 for PTX); from ``store`` if it is there.

    Raises:
        CompileError: see :func:`.nvrtc.compile_source`.
    """
    source, name = render(spec), kernel_name(spec)
    folders = kernels_ptx.include_dirs()
    compiler = "nvrtc {}.{}".format(*nvrtc.version())
    key = entry_key(name, compiler, nvrtc.flags(arch), source, (*folders, nvrtc.cuda_include_dir()))
    found = store.load(name, key)
    if found is not None and isinstance(found[1].get("registers"), int):
        return found[0], int(str(found[1]["registers"]))
    compiled = nvrtc.compile_source(source, name, arch, folders, kernels.smem_bytes(spec))
    store.save(name, key, compiled.code, {"name": name, "arch": arch, "compiler": compiler, "registers": compiled.registers, "spec": str(spec)})
    return compiled.code, compiled.registers


def build(
    specs: Mapping[str, KernelSpec], target: TargetClass, cache_dir: Path | None = None, progress: Progress | None = None, workers: int | None = None
) -> BuildResult:
    """Compiles every spec for every architecture of ``target``.

    Args:
        specs: By any name; the result uses the same names.
        cache_dir: Folder of the :class:`~.store.Store`, or None for none.
        progress: Called in this thread with kernels done and kernels in all.
        workers: Compilations at a time; by default one a processor. NVRTC releases the interpreter's lock.

    Returns:
        An image for each name, or a failure for each name that does not compile on one of the architectures; the first in their order counts.
    """
    store = Store(cache_dir)
    archs = (*target.cubins, *([target.ptx] if target.ptx else []))
    done: dict[str, dict[str, tuple[bytes, int] | CompileError]] = {name: {} for name in specs}
    finished = 0
    with ThreadPoolExecutor(workers or _processors(), thread_name_prefix="nvrtc") as pool:
        jobs: dict[Future[tuple[bytes, int]], tuple[str, str]] = {}
        for name, spec in specs.items():
            for arch in archs:
                jobs[pool.submit(compile_spec, spec, arch, store)] = (name, arch)
        try:
            for job in as_completed(jobs):
                name, arch = jobs[job]
                try:
                    done[name][arch] = job.result()
                except CompileError as error:
                    done[name][arch] = error
                if len(done[name]) == len(archs):
                    finished += 1
                    if progress is not None:
                        progress(finished, len(specs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    result = BuildResult({}, {})
    for name, spec in specs.items():
        codes: dict[str, tuple[bytes, int]] = {}
        for arch in archs:
            outcome = done[name][arch]
            if isinstance(outcome, CompileError):
                result.failures[name] = outcome
                break
            codes[arch] = outcome
        else:
            result.images[name] = _image(spec, codes)
    return result


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _image(spec: KernelSpec, codes: Mapping[str, tuple[bytes, int]]) -> Image:
    entries = []
    for arch, (code, _) in codes.items():
        is_ptx, number, exact = nvrtc.parse_arch(arch)
        entries.append((PTX if is_ptx else CUBIN, number, EXACT if exact else 0, code))
    data = pack_image(entries)
    return Image(kernel_name(spec), hashlib.sha256(data).hexdigest(), data, {arch: registers for arch, (_, registers) in codes.items()})
