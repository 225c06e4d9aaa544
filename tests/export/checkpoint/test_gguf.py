"""The GGUF container: what a good file says, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.gguf import TENSOR_TYPES, read_gguf
from strixhlo.export.checkpoint.gguf_checkpoint import open_gguf


def test_reads_what_the_reference_reader_reads(smollm2_gguf: Path) -> None:
    ours, reference = read_gguf(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    fields = {key: field for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for key, value in ours.metadata.items():
        if not isinstance(value, list | np.ndarray):
            assert value == fields[key].contents(), key
            continue
        assert len(value) == len(fields[key].data)
        some = slice(None, None, 1 if len(value) < 1000 else 331)  # the reference needs seconds for all of a vocabulary
        assert list(value[some]) == fields[key].contents(some), key
    assert list(ours.tensors) == [t.name for t in reference.tensors]
    for expected in reference.tensors:
        tensor = ours.tensors[expected.name]
        assert (tensor.type, tensor.nbytes) == (expected.tensor_type.name, expected.n_bytes)
        assert tensor.shape == tuple(reversed(expected.shape.tolist()))
        assert tensor.offset == expected.data_offset


def test_tensor_types_have_the_sizes_of_the_reference() -> None:
    """Q8_1 apart, which is never in a file, and whose size differs between gguf-py and ggml."""
    sizes = {t.value: (t.name, *gguf.GGML_QUANT_SIZES[t]) for t in gguf.GGMLQuantizationType if t.name != "Q8_1"}
    assert {k: v for k, v in TENSOR_TYPES.items() if k in sizes} == {
        k: v for k, v in sizes.items() if k in TENSOR_TYPES
    }


def refused(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(StrixhloError) as error:
        read_gguf(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    return str(error.value)


def test_every_truncation_is_refused(tmp_path: Path, gguf_builder: dict) -> None:
    data = np.arange(8, dtype="<f4").tobytes()
    content = gguf_builder["file"](
        [("a.string", "text"), ("a.list", ["x", "yz"]), ("numbers", np.arange(3)), ("flag", True), ("real", 1.5)],
        [("first", [8], 0, data), ("second", [4, 2], 0, data)],
    )
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(content)
    assert set(read_gguf(whole).tensors) == {"first", "second"}
    for length in range(len(content)):
        refused(tmp_path, content[:length])


def test_magic_version_and_byte_order(tmp_path: Path, gguf_builder: dict) -> None:
    make = gguf_builder["file"]
    assert "not a GGUF file" in refused(tmp_path, make([("k", 1)], magic=b"GGML"))
    assert "version 1" in refused(tmp_path, make([("k", 1)], version=1))
    assert "version 4" in refused(tmp_path, make([("k", 1)], version=4))
    assert "big-endian" in refused(tmp_path, make([("k", 1)], version=3 << 24))
    path = tmp_path / "v2.gguf"
    path.write_bytes(make([("k", 1)], version=2))
    assert read_gguf(path).metadata == {"k": 1}


@pytest.mark.parametrize("count", [2**20, 2**32, 2**63, 2**64 - 1])
def test_giant_counts_are_refused_before_anything_is_allocated(tmp_path: Path, gguf_builder: dict, count: int) -> None:
    good = gguf_builder["file"]([("key", "value")])
    assert "do not fit" in refused(tmp_path, good[:8] + struct.pack("<Q", count) + good[16:])
    assert "do not fit" in refused(tmp_path, good[:16] + struct.pack("<Q", count) + good[24:])
    for kind in (0, 6, 8, 12):
        array = struct.pack("<IIQ", 9, kind, count)
        assert "'key'" in refused(tmp_path, gguf_builder["file"]([("key", array + bytes(64))]))
    assert "key 0" in refused(tmp_path, good[:24] + struct.pack("<Q", count) + good[32:])
    assert "'key'" in refused(tmp_path, gguf_builder["file"]([("key", struct.pack("<IQ", 8, count))]))
    assert "'key'" in refused(tmp_path, gguf_builder["file"]([("key", struct.pack("<IIQQ", 9, 8, 1, count))]))


def test_wrong_metadata(tmp_path: Path, gguf_builder: dict) -> None:
    make = gguf_builder["file"]
    assert "'key' appears twice" in refused(tmp_path, make([("key", 1), ("key", 2)]))
    assert "unknown value type 13" in refused(tmp_path, make([("key", struct.pack("<II", 13, 0))]))
    assert "unknown value type 99" in refused(tmp_path, make([("key", struct.pack("<IIQ", 9, 99, 1) + bytes(8))]))
    assert "array of arrays" in refused(tmp_path, make([("key", struct.pack("<IIQ", 9, 9, 1) + bytes(16))]))
    assert "neither 0 nor 1" in refused(tmp_path, make([("key", struct.pack("<IB", 7, 2))]))
    latin1 = struct.pack("<IQ", 8, 1) + b"\xe9"
    assert "not UTF-8" in refused(tmp_path, make([("key", latin1)]))
    assert "string 0 is not UTF-8" in refused(tmp_path, make([("key", struct.pack("<IIQQ", 9, 8, 1, 1) + b"\xe9")]))


@pytest.mark.parametrize("alignment", [0, 1, 24, 33, "32", True])
def test_wrong_alignment(tmp_path: Path, gguf_builder: dict, alignment: object) -> None:
    assert "general.alignment" in refused(tmp_path, gguf_builder["file"]([("general.alignment", alignment)]))


def test_alignment_moves_the_data(tmp_path: Path, gguf_builder: dict) -> None:
    path = tmp_path / "aligned.gguf"
    data = np.arange(2, dtype="<f4").tobytes()
    tensors = [("a", [2], 0, data), ("b", [2], 0, data)]
    path.write_bytes(gguf_builder["file"]([("general.alignment", 128)], tensors, alignment=128))
    file = read_gguf(path)
    assert [t.offset % 128 for t in file.tensors.values()] == [0, 0]
    assert file.raw(file.tensors["b"]).view("<f4").tolist() == [0.0, 1.0]


def wrong_tensor(tmp_path: Path, gguf_builder: dict, dims: list[int], type_id: int = 0, offset: int = 0) -> str:
    """The error for a file with one tensor of 8 float32 whose table entry says something else."""
    entry = gguf_builder["entry"]("w", dims, type_id, offset)
    content = gguf_builder["file"]([("k", 1)], [("w", [8], 0, bytes(32))], change_entry=lambda *_: entry)
    message = refused(tmp_path, content)
    assert "'w'" in message
    return message


def test_wrong_tensors(tmp_path: Path, gguf_builder: dict) -> None:
    def wrong(*args: object) -> str:
        return wrong_tensor(tmp_path, gguf_builder, *args)

    assert "ends at byte" in wrong([9])
    assert "ends at byte" in wrong([8], 0, 32)
    assert "ends at byte" in wrong([8], 0, 2**63)
    assert "ends at byte" in wrong([2**62, 2**62, 2**62, 2**62])
    assert "impossible shape" in wrong([2**64 - 1])  # -1 as a signed number
    assert "impossible shape" in wrong([0])
    assert "impossible shape" in wrong([8], 2)  # Q4_0 has blocks of 32
    assert "0 dimensions" in wrong([])
    assert "5 dimensions" in wrong([1, 1, 1, 1, 8])
    assert "unknown type 4" in wrong([8], 4)
    assert "unknown type 4294967295" in wrong([8], 2**32 - 1)
    assert "not a multiple of 32" in wrong([4], 0, 16)


def test_tensors_that_share_a_name_or_bytes(tmp_path: Path, gguf_builder: dict) -> None:
    pair = [("w", [8], 0, bytes(32)), ("w", [8], 0, bytes(32))]
    assert "'w' appears twice" in refused(tmp_path, gguf_builder["file"]([("k", 1)], pair))
    entries = {"a": gguf_builder["entry"]("a", [16], 0, 0), "b": gguf_builder["entry"]("b", [8], 0, 32)}
    content = gguf_builder["file"](
        [("k", 1)],
        [("a", [8], 0, bytes(32)), ("b", [8], 0, bytes(32))],
        change_entry=lambda name, _: entries[name],
    )
    assert "'b' overlaps tensor 'a'" in refused(tmp_path, content)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StrixhloError, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")
    assert "too short" in refused(tmp_path, b"")


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_file_opens_or_is_refused(tmp_path: Path, gguf_builder: dict, data: st.DataObject) -> None:
    """Whatever byte before the weights is damaged: no exception but ours in opening, reading, writing."""
    content = bytearray(gguf_builder["tiny"]())
    header = content.index(b"blk.0.ffn_down.weight") + 80
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        checkpoint = open_gguf(path)
        for tensor in checkpoint.tensors.values():
            tensor.read()
        checkpoint.write_tokenizer(tmp_path)
    except StrixhloError:
        pass
