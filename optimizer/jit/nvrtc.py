"""NVRTC: CUDA source to a cubin or PTX, for any architecture, without a GPU.

NOTE: no call here touches a device; libcuda is never opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import CompileError, TilewrightError
from .cubin import resources

# Dynamic shared memory that a block can have, bytes, by compute capability (CUDA programming guide, table of technical specifications).
SMEM_LIMITS = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 103: 232448, 110: 232448, 120: 101376, 121: 101376}
FLAGS = ("--std=c++17",)

_ARCH = re.compile(r"(sm|compute)_(\d+)([af]?)")


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel.

    Attributes:
        code: The cubin, or PTX with its closing zero byte.
        ptx: Whether ``code`` is PTX.
        registers: Registers a thread; 0 for PTX.
        log: What the compiler said.
    """

    code: bytes
    ptx: bool
    registers: int
    log: str


def parse_arch(arch: str) -> tuple[bool, int, bool]:
    """``sm_90a`` as (is PTX, number, exact): (False, 90, True).

    Raises:
        CompileError: not an architecture name.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise CompileError(f"{arch!r} is not an architecture; expected e.g. sm_90, sm_90a or compute_80")
    return match.group(1) == "compute", int(match.group(2)), bool(match.group(3))


@cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise TilewrightError("NVRTC is missing; install cuda-python and nvidia-cuda-nvrtc") from error
    return nvrtc


@cache
def version() -> tuple[int, int]:
    """Version of the NVRTC in use, e.g. (13, 0)."""
    error, major, minor = _nvrtc().nvrtcVersion()
    if int(error):
        raise TilewrightError(f"NVRTC does not start: {error!r}")
    return int(major), int(minor)


@cache
def cuda_include_dir() -> Path:
    """Folder of ``cuda_fp16.h``, from the package nvidia-cuda-runtime or a toolkit.

    Raises:
        TilewrightError: no such header on this machine.
    """
    folders = []
    try:
        from cuda import pathfinder

        folders.append(pathfinder.find_nvidia_header_directory("cudart"))
    except Exception:  # not there, or of a version that does not know: the usual places are left
        pass
    folders += [str(Path(str(_nvrtc().__file__)).parents[2] / "nvidia" / f"cu{version()[0]}" / "include"), "/usr/local/cuda/include"]
    for folder in filter(None, folders):
        if (Path(folder) / "cuda_fp16.h").is_file():
            return Path(folder)
    raise TilewrightError("cuda_fp16.h is missing; install nvidia-cuda-runtime")


def flags(arch: str) -> tuple[str, ...]:
    """The compiler's flags for ``arch``, apart from include folders."""
    return (f"--gpu-architecture={arch}", *FLAGS)


def compile_source(source: str, name: str, arch: str, include_dirs: Sequence[Path], dynamic_smem: int = 0) -> Compiled:
    """``source``, one kernel called ``name``, compiled for ``arch`` (``sm_*`` gives a cubin, ``compute_*`` PTX).

    Args:
        include_dirs: Folders of its own headers; CUDA's are added.
        dynamic_smem: Shared memory that the kernel is launched with, bytes.

    Raises:
        CompileError: the compiler refused it (with its log), registers spilled to memory, or shared memory above the limit of ``arch``.
    """
    is_ptx, number, _ = parse_arch(arch)
    limit = SMEM_LIMITS.get(number)
    if limit is not None and dynamic_smem > limit and not is_ptx:
        raise CompileError(f"{name} for {arch}: {dynamic_smem} bytes of shared memory a block; the architecture has {limit}")
    options = [*flags(arch), *(f"--include-path={folder}" for folder in (*include_dirs, cuda_include_dir()))]
    nvrtc = _nvrtc()
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    if int(error):
        raise CompileError(f"{name} for {arch}: NVRTC does not take the source: {error!r}")
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode(errors="replace").strip()
        if int(error):
            raise CompileError(f"{name} for {arch}: {getattr(error, 'name', error)}\n{log}")
        if is_ptx:
            return Compiled(_read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program), True, 0, log)
        code = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    try:
        used = resources(code)
    except ValueError as cause:
        raise CompileError(f"{name} for {arch}: {cause}") from cause
    if used.local_bytes:
        raise CompileError(f"{name} for {arch}: local memory is used ({used.local_bytes} bytes a thread at {used.registers} registers)")
    return Compiled(code, False, used.registers, log)


def _read(size_of: Any, read: Any, program: Any) -> bytes:
    error, size = size_of(program)
    buffer = bytearray(int(size))
    if not int(error) and size:
        (error,) = read(program, buffer)
    if int(error):
        raise CompileError(f"NVRTC does not hand out its result: {error!r}")
    return bytes(buffer)
