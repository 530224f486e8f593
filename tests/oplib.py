"""The op library without ONNX Runtime: its C functions through ctypes, and where the tests build it."""

from __future__ import annotations

import ctypes
import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ERROR_KINDS = {1: "syntax", 2: "division by zero", 3: "overflow", 4: "dim"}


@cache
def build() -> Path:
    """Folder with the libraries and programs that the tests use, built from the sources as they are; skips where there is no compiler."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if not (cmake and ninja and (shutil.which("c++") or shutil.which("g++"))):
        pytest.skip("building the op library needs a C++ compiler, cmake and ninja")
    folder = REPOSITORY / "build" / "tests"
    configure = [cmake, "-S", str(REPOSITORY / "custom_ops"), "-B", str(folder), "-G", "Ninja", "-DTILEWRIGHT_TESTS=ON", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, [cmake, "--build", str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _flat(shapes: Sequence[Sequence[int]]) -> tuple[object, object, int]:
    values = [d for shape in shapes for d in shape]
    return (ctypes.c_int64 * len(values))(*values), (ctypes.c_int32 * len(shapes))(*map(len, shapes)), len(shapes)


class OpLibrary:
    """The exported C functions of ``libtilewright_ops.so``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.c = ctypes.CDLL(str(path))
        self.c.tilewright_status.restype = ctypes.c_char_p

    def evaluate(self, text: str, dims: Sequence[Sequence[int]], sms: int = 1) -> int | str:
        """The value of a launch expression, or the kind of its error."""
        data, result, error = text.encode(), ctypes.c_int64(), ctypes.create_string_buffer(512)
        code = self.c.tilewright_eval(
            data, ctypes.c_size_t(len(data)), *_flat(dims), ctypes.c_int64(sms), ctypes.byref(result), error, ctypes.c_size_t(len(error))
        )
        assert code == 0 or error.value, "an error without a text"
        return result.value if code == 0 else ERROR_KINDS[code]

    def check_plan(self, text: str | bytes) -> str:
        """Why ``text`` is no launch plan, or ''."""
        data, error = text.encode() if isinstance(text, str) else text, ctypes.create_string_buffer(1024)
        code = self.c.tilewright_check_plan(data, ctypes.c_size_t(len(data)), error, ctypes.c_size_t(len(error)))
        assert (code == 0) == (not error.value)
        return error.value.decode(errors="replace")

    def run_plan(self, text: str, dims: Sequence[Sequence[int]], sms: int = 132) -> list[str]:
        """The lines of a dry run, or its error as the only line."""
        data, out = text.encode(), ctypes.create_string_buffer(1 << 20)
        self.c.tilewright_run_plan(data, ctypes.c_size_t(len(data)), *_flat(dims), ctypes.c_int64(sms), out, ctypes.c_size_t(len(out)))
        return out.value.decode().splitlines()

    def check_image(self, data: bytes, major: int, minor: int) -> str:
        """The entry that a GPU of this capability would load (``cubin 90a 48 100``), ``none``, or the error."""
        out = ctypes.create_string_buffer(1024)
        self.c.tilewright_check_image(data, ctypes.c_size_t(len(data)), major, minor, out, ctypes.c_size_t(len(out)))
        return out.value.decode()

    def sha256(self, data: bytes) -> str:
        """SHA-256 of ``data`` in hexadecimal."""
        out = ctypes.create_string_buffer(65)
        self.c.tilewright_sha256(data, ctypes.c_size_t(len(data)), out)
        return out.value.decode()


@cache
def library() -> OpLibrary:
    """The op library, freshly built."""
    return OpLibrary(build() / "libtilewright_ops.so")
