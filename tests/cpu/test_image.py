"""Image containers: the choice of code for a GPU, and the refusal of damaged ones. SHA-256, their name."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest

from image_bytes import CUBIN, PTX, container, elf
from oplib import library

PORTABLE = container((CUBIN, 80, 0, elf(b"a")), (CUBIN, 90, 0, elf(b"b")), (CUBIN, 100, 0, elf(b"c")), (CUBIN, 120, 0, elf(b"d")), (PTX, 80, 0, b"ptx\0"))
MIXED = container((CUBIN, 90, 0, elf()), (CUBIN, 90, 1, elf()), (CUBIN, 86, 0, elf()), (CUBIN, 80, 0, elf()), (PTX, 75, 0, b"a"), (PTX, 90, 1, b"b"))


@pytest.mark.parametrize(
    ("image", "capability", "choice"),
    [
        (PORTABLE, (8, 0), "cubin 80"),
        (PORTABLE, (8, 6), "cubin 80"),
        (PORTABLE, (8, 9), "cubin 80"),
        (PORTABLE, (9, 0), "cubin 90"),
        (PORTABLE, (10, 3), "cubin 100"),
        (PORTABLE, (11, 0), "ptx 80"),
        (PORTABLE, (12, 1), "cubin 120"),
        (PORTABLE, (13, 0), "ptx 80"),
        (PORTABLE, (7, 5), "none"),
        (MIXED, (9, 0), "cubin 90a"),
        (MIXED, (9, 1), "cubin 90"),
        (MIXED, (8, 9), "cubin 86"),
        (MIXED, (8, 5), "cubin 80"),
        (MIXED, (7, 5), "ptx 75"),
        (MIXED, (7, 0), "none"),
        (MIXED, (10, 0), "ptx 75"),
    ],
)
def test_choice(image, capability, choice):
    assert " ".join(library().check_image(image, *capability).split()[:2]) == choice


def test_offsets():
    _, _, offset, size = library().check_image(PORTABLE, 9, 0).split()
    assert PORTABLE[int(offset) : int(offset) + int(size)] == elf(b"b") and int(offset) % 16 == 0


def patched(at: int, layout: str, value: int, image: bytes = PORTABLE) -> bytes:
    out = bytearray(image)
    struct.pack_into(layout, out, at, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "magic"),
        (b"TWIMG002" + PORTABLE[8:], "magic"),
        (PORTABLE[:15], "magic"),
        (patched(8, "<I", 0), "bad header (0 entries)"),
        (patched(8, "<I", 65), "bad header (65 entries)"),
        (patched(8, "<I", 2**32 - 1), "bad header"),
        (patched(12, "<I", 1), "bad header"),
        (PORTABLE[: 16 + 5 * 32 - 1], "cut off in its table"),
        (PORTABLE[:-1], "entry 4 lies outside"),
        (patched(16, "<I", 3), "entry 0 is of an unknown kind"),
        (patched(24, "<I", 2), "entry 0 is of an unknown kind"),
        (patched(32, "<Q", 2**64 - 16), "entry 0 lies outside"),
        (patched(32, "<Q", 16), "entry 0 lies outside"),
        (patched(32, "<Q", 16 + 5 * 32 + 1), "entry 0 lies outside"),
        (patched(40, "<Q", 2**64 - 1), "entry 0 lies outside"),
        (patched(40, "<Q", 0), "entry 0 lies outside"),
        (patched(40, "<Q", 63), "entry 0 is no 64-bit ELF file"),
        (container((CUBIN, 90, 0, b"PTX, not a cubin" * 9)), "entry 0 is no 64-bit ELF file"),
        (container((PTX, 80, 0, b"p"), (CUBIN, 90, 0, elf(b"x" * 100)[:-1])), "entry 1 is cut off"),
        (container((CUBIN, 90, 0, patched(40, "<Q", 2**63, elf()))), "entry 0 is cut off"),
        (container((CUBIN, 90, 0, patched(60, "<H", 9, elf()))), "entry 0 is cut off"),
        (container((CUBIN, 90, 0, patched(64 + 32, "<Q", 2**40, elf()))), "entry 0 is cut off"),
    ],
)
def test_damaged(image, reason):
    assert reason in library().check_image(image, 9, 0)


def test_sha256():
    rng = random.Random(3)
    for size in [*range(130), 1000, 4096, 100_003]:
        data = rng.randbytes(size)
        assert library().sha256(data) == hashlib.sha256(data).hexdigest()
