"""Reads AMD GPU code objects: the ELF note in which the compiler says what each kernel needs.

Source: LLVM's "User Guide for AMDGPU Backend" (code object V3 and later), MessagePack specification, ELF-64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

EM_AMDGPU = 224
SHT_NOTE = 7
NT_AMDGPU_METADATA = 32


def code_objects(data: bytes) -> Iterator[bytes]:
    """Every AMDGPU ELF file inside of `data` (an .hsaco file, or a .vmfb that embeds some)."""
    at = data.find(b"\x7fELF")
    while at >= 0:
        header = data[at : at + 64]
        if len(header) == 64 and struct.unpack_from("<H", header, 18)[0] == EM_AMDGPU:
            section_headers = struct.unpack_from("<Q", header, 40)[0]
            entry_size, entries = struct.unpack_from("<HH", header, 58)
            yield data[at : at + section_headers + entry_size * entries]  # linkers put the section headers last
        at = data.find(b"\x7fELF", at + 4)


def kernels(code_object: bytes) -> list[dict[str, Any]]:
    """The metadata of every kernel in one code object, as a dict with the note's keys (".name", ".vgpr_count", ...)."""
    section_headers = struct.unpack_from("<Q", code_object, 40)[0]
    entry_size, entries = struct.unpack_from("<HH", code_object, 58)
    found: list[dict[str, Any]] = []
    for i in range(entries):
        header = section_headers + i * entry_size
        kind = struct.unpack_from("<I", code_object, header + 4)[0]
        offset, size = struct.unpack_from("<QQ", code_object, header + 24)
        if kind == SHT_NOTE:
            found += _kernels_of_notes(code_object[offset : offset + size])
    return found


def _kernels_of_notes(notes: bytes) -> list[dict[str, Any]]:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        start = at + 12 + (name_size + 3) // 4 * 4
        if kind == NT_AMDGPU_METADATA:
            metadata, _ = _message(notes, start)
            return list(metadata.get("amdhsa.kernels", []))
        at = start + (size + 3) // 4 * 4
    return []


# First byte of a MessagePack value -> struct format of the number that follows.
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
# First byte -> what it is, and the struct format of its length.
_SIZED = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip


def _message(data: bytes, at: int) -> tuple[Any, int]:
    """One MessagePack value at `at`, and where the next one starts."""
    first, at = data[at], at + 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 256, at
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    if first in _NUMBERS:
        return struct.unpack_from(_NUMBERS[first], data, at)[0], at + struct.calcsize(_NUMBERS[first])
    if first < 0xC0:
        kind = "map" if first < 0x90 else "list" if first < 0xA0 else "text"
        count = first & (31 if kind == "text" else 15)
    elif first in _SIZED:
        kind, form = _SIZED[first]
        count = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
    else:
        raise ValueError(f"MessagePack: unexpected byte {first:#x} at {at - 1}")
    if kind in ("text", "bytes"):
        raw = data[at : at + count]
        return (raw.decode() if kind == "text" else raw), at + count
    values = []
    for _ in range(count * (2 if kind == "map" else 1)):
        value, at = _message(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if kind == "map" else values), at
