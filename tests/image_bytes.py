"""Image containers for tests, as custom_ops/src/image.h lays them out."""

from __future__ import annotations

import struct

CUBIN, PTX = 1, 2


def container(*entries: tuple[int, int, int, bytes]) -> bytes:
    """A container of ``(kind, arch, flags, blob)`` entries."""
    offset = 16 + 32 * len(entries)
    table, blobs = b"", b""
    for kind, arch, flags, blob in entries:
        start = offset + len(blobs)
        padding = -start % 16
        blobs += bytes(padding) + blob
        table += struct.pack("<4I2Q", kind, arch, flags, 0, start + padding, len(blob))
    return b"TWIMG001" + struct.pack("<2I", len(entries), 0) + table + blobs


def elf(payload: bytes = b"") -> bytes:
    """A 64-bit ELF file with one section that holds ``payload``."""
    section = struct.pack("<2I4Q2I2Q", 0, 1, 0, 0, 64, len(payload), 0, 0, 1, 0)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<2HI3QI6H", 2, 190, 1, 0, 0, 64 + len(payload), 0, 64, 0, 0, 64, 1, 0)
    return header + payload + section
