"""What a kernel uses, read from its cubin: registers a thread and bytes of local memory (its stack frame, spilled registers included).

A cubin is an ELF file. The section ``.nv.info`` is a list of attributes {u8 format, u8 attribute, u16 length or value, data}; those of a function
name its symbol first. NOTE: the compiler's ``-v`` log says the same, but NVRTC loses it when several programs compile at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SIZED = 4  # format of an attribute that has a length and data
FRAME_SIZE, REGISTER_COUNT = 0x11, 0x2F


@dataclass(frozen=True)
class Resources:
    """Registers a thread, and bytes of local memory a thread."""

    registers: int
    local_bytes: int


def resources(cubin: bytes) -> Resources:
    """The largest figures of any function in ``cubin``.

    Raises:
        ValueError: not a 64-bit little-endian ELF file with an ``.nv.info`` section.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a cubin")
    try:
        attributes = _attributes(_section(cubin, b".nv.info"))
    except struct.error as cause:
        raise ValueError("the cubin is cut short") from cause
    found: dict[int, list[int]] = {FRAME_SIZE: [], REGISTER_COUNT: []}
    for attribute, data in attributes:
        if attribute in found and len(data) == 8:
            found[attribute].append(struct.unpack("<2I", data)[1])
    if not found[REGISTER_COUNT]:
        raise ValueError("the cubin does not say how many registers its kernel uses")
    return Resources(max(found[REGISTER_COUNT]), max(found[FRAME_SIZE], default=0))


def _section(elf: bytes, wanted: bytes) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry, count, names = struct.unpack_from("<3H", elf, 58)
    headers = [struct.unpack_from("<2I4Q", elf, table + i * entry) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, size in headers:
        if elf[strings + name : strings + name + len(wanted) + 1] == wanted + b"\0":
            return elf[offset : offset + size]
    raise ValueError(f"the cubin has no section {wanted.decode()}")


def _attributes(section: bytes) -> list[tuple[int, bytes]]:
    result, at = [], 0
    while at + 4 <= len(section):
        kind, attribute, length = struct.unpack_from("<2BH", section, at)
        size = length if kind == SIZED else 0
        result.append((attribute, section[at + 4 : at + 4 + size]))
        at += 4 + size
    return result
