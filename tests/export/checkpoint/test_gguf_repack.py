"""Repacked blocks hold the values that the file holds, bit for bit."""

from __future__ import annotations

import tracemalloc

import gguf
import ml_dtypes
import numpy as np
import pytest

from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.custom_kernels.ops.formats_gguf import GGUF_FORMATS, GgufFormat, pack_codes, unpack_codes
from strixhlo.export.checkpoint import gguf_repack
from strixhlo.export.checkpoint.gguf import TENSOR_TYPES, GgufFile, GgufTensor, read_gguf
from strixhlo.export.checkpoint.gguf_repack import REPACKERS, dense, repack

# Bytes of a block that hold float16 numbers; all other bytes may be anything.
HALVES = {
    "MXFP4": (),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def random_blocks(type_name: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Random blocks of an [n, k] weight with finite scales, some of them zero, negative or subnormal."""
    rng = np.random.default_rng(seed)
    _, block, nbytes = next(t for t in TENSOR_TYPES.values() if t[0] == type_name)
    blocks = rng.integers(0, 256, (n * k // block, nbytes), dtype=np.uint8)
    for at in HALVES[type_name]:
        scales = rng.standard_normal(len(blocks)).astype("<f2")
        scales[::7], scales[3::11], scales[5::13] = 0.0, np.float16(6e-8), np.float16(-65504.0)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def same_bits(ours: np.ndarray, reference: np.ndarray) -> bool:
    return np.array_equal(np.asarray(ours).view(np.uint32), np.asarray(reference).view(np.uint32))


def reference_dequantize(raw: np.ndarray, type_name: str, n: int) -> np.ndarray:
    return gguf.quants.dequantize(raw.reshape(n, -1), gguf.GGMLQuantizationType[type_name])


def test_every_quantized_format_has_a_repacker() -> None:
    assert {name.lower() for name in REPACKERS} == {*GGUF_FORMATS, "mxfp4"}


@pytest.mark.parametrize("type_name", REPACKERS)
def test_random_blocks_keep_their_values(type_name: str) -> None:
    n, k = 48, 1536  # random bytes: every code value meets every position
    raw = random_blocks(type_name, n, k)
    if type_name == "MXFP4":
        raw.reshape(-1, 17)[:, 0] = raw.reshape(-1, 17)[:, 0] % 240 + 5  # none infinite, none subnormal
    fmt = FORMATS[type_name.lower()]
    parts = repack(raw, type_name, n, k)
    assert {name: (part.shape, part.dtype) for name, part in parts.items()} == fmt.parts(n, k)
    if type_name == "MXFP4":  # ggml has no negative zero
        assert np.array_equal(dequantize(fmt, parts), reference_dequantize(raw, type_name, n))
        return
    assert isinstance(fmt, GgufFormat)
    codes = np.asarray(unpack_codes(parts, fmt.bits))
    first = -(1 << (fmt.bits - 1)) if fmt.bits == 8 else 0
    assert np.unique(codes).tolist() == list(range(first, first + (1 << fmt.bits)))
    assert same_bits(dequantize(fmt, parts), reference_dequantize(raw, type_name, n))


@pytest.mark.parametrize("type_name", REPACKERS)
def test_rows_in_another_order_and_in_chunks(type_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, k = 20, 512
    raw = random_blocks(type_name, n, k, seed=1)
    rows = np.random.default_rng(2).permutation(n)
    whole = repack(raw, type_name, n, k)
    monkeypatch.setattr(gguf_repack, "CHUNK_WEIGHTS", 3 * k)  # the last chunk is a short one
    chunked, moved = repack(raw, type_name, n, k), repack(raw, type_name, n, k, rows)
    for name, part in whole.items():
        assert np.array_equal(chunked[name], part, equal_nan=False)
        assert np.array_equal(moved[name], part[rows])


def test_the_largest_scales_and_minima_of_a_k_quant() -> None:
    """6-bit scales and minima of 63 in all eight places, and each place alone."""
    for place in range(9):
        values = np.full(8, 63, np.uint8) if place == 8 else np.where(np.arange(8) == place, 63, 1).astype(np.uint8)
        for other in (np.full(8, 63, np.uint8), np.arange(8, dtype=np.uint8)):
            packed = np.concatenate(
                [
                    values[:4] | ((values[4:] >> 4) << 6),
                    other[:4] | ((other[4:] >> 4) << 6),
                    (values[4:] & 15) | ((other[4:] & 15) << 4),
                ]
            )
            block = np.zeros((1, 1, 144), np.uint8)
            block[0, 0, 4:16] = packed
            parts = repack(block.reshape(-1), "Q4_K", 1, 256)
            assert parts["scale"].tolist() == [values.tolist()]
            assert parts["minimum"].tolist() == [other.tolist()]


@pytest.mark.parametrize("model", ["smollm2_gguf", "gemma3_gguf"])
def test_one_tensor_of_every_type_and_shape_in_the_real_files(model: str, request: pytest.FixtureRequest) -> None:
    file = read_gguf(request.getfixturevalue(model))
    chosen: dict[tuple, GgufTensor] = {(t.type, t.shape): t for t in file.tensors.values()}
    assert len({kind for kind, _ in chosen}) >= 3
    for tensor in chosen.values():
        check_real_tensor(file, tensor)


def check_real_tensor(file: GgufFile, tensor: GgufTensor) -> None:
    if tensor.type == "F32":
        reference = reference_dequantize(file.raw(tensor), "F32", 1).reshape(tensor.shape)
        assert same_bits(dense(file.raw(tensor), "F32", tensor.shape), reference)
        return
    n, k = tensor.shape
    few = min(n, 4096)  # of the 262144 rows of an embedding
    raw = file.raw(tensor).reshape(n, -1)[:few].reshape(-1)
    parts = repack(raw, tensor.type, few, k)
    assert same_bits(dequantize(GGUF_FORMATS[tensor.type.lower()], parts), reference_dequantize(raw, tensor.type, few))


def test_dense_types_are_views_of_the_file() -> None:
    values = np.array([[1.0, -2.5, 3.0], [0.0, 1e-3, 65504.0]], np.float32)
    for type_name, dtype in (("F32", "<f4"), ("F16", "<f2"), ("BF16", ml_dtypes.bfloat16)):
        raw = values.astype(dtype).view(np.uint8).reshape(-1)
        array = dense(raw, type_name, (2, 3))
        assert array.dtype == np.dtype(dtype) and np.shares_memory(array, raw)
        assert np.array_equal(array.astype(np.float32), values.astype(dtype).astype(np.float32))
        assert np.array_equal(dense(raw, type_name, (2, 3), np.array([1, 0])), array[::-1])


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_pack_and_unpack_are_inverse_over_all_bit_patterns(bits: int) -> None:
    """Every code in every place of a run, beside every other code."""
    count = 1 << bits
    codes = (np.arange(count)[:, None] + np.arange(64)[None, :] * (2 * np.arange(count)[:, None] + 1)) % count
    codes = (codes.astype(np.int16) - (128 if bits == 8 else 0)).astype(np.int8 if bits == 8 else np.uint8)
    for column in codes.T:
        assert len(np.unique(column)) == count
    parts = pack_codes(codes, bits)
    assert np.array_equal(np.asarray(unpack_codes(parts, bits)), codes)
    assert all(np.array_equal(pack_codes(np.asarray(unpack_codes(parts, bits)), bits)[p], parts[p]) for p in parts)


@pytest.mark.parametrize("bits", [4, 5, 6])
def test_unpack_and_pack_are_inverse_over_all_bytes(bits: int) -> None:
    """Every packed byte is a code: any bytes go through unpack and pack unchanged."""
    rng = np.random.default_rng(bits)
    parts = {"codes": np.concatenate([np.arange(256, dtype=np.uint8), rng.integers(0, 256, 768, np.uint8)])}
    parts["codes"] = parts["codes"].view(np.int8).reshape(4, 256)
    if bits > 4:
        words = rng.integers(-(2**31), 2**31, (4, 16 * (bits - 4)), np.int64).astype(np.int32)
        words[0, :4] = [0, -1, 1, -(2**31)]
        parts["high"] = words
    again = pack_codes(np.asarray(unpack_codes(parts, bits)), bits)
    assert again.keys() == parts.keys()
    assert all(np.array_equal(again[name], parts[name]) for name in parts)


def test_the_temporary_memory_is_bounded() -> None:
    """A weight of 64 chunks needs its parts and a few chunks' worth of temporaries, not several times its size."""
    n, k = 4096, 2048
    raw = random_blocks("Q6_K", 16, k).reshape(16, -1)
    raw = np.tile(raw, (n // 16, 1)).reshape(-1)
    step, gguf_repack.CHUNK_WEIGHTS = gguf_repack.CHUNK_WEIGHTS, 1 << 17
    try:
        tracemalloc.start()
        parts = repack(raw, "Q6_K", n, k)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gguf_repack.CHUNK_WEIGHTS = step
    assert peak - sum(part.nbytes for part in parts.values()) < 12 * (1 << 17)
