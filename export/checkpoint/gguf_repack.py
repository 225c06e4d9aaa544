"""GGUF's interleaved blocks -> the planar parts of custom_kernels.ops.formats, without changing a value.

Block layouts: ggml-common.h (block_q4_0 ... block_q6_K). `b` below is a chunk of rows as bytes, [rows, blocks, bytes].
K-quant codes come out of their block order (64 or 128 weights share bytes) into natural order, then into runs of 32.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ...custom_kernels.ops.formats import FORMATS
from ...custom_kernels.ops.formats_gguf import pack_codes

CHUNK_WEIGHTS = 1 << 22  # rows are repacked in chunks of about so many weights, which bounds the temporary memory

DENSE = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
DENSE_FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def repack(raw: np.ndarray, type_name: str, n: int, k: int, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Raw blocks of an [n, k] weight -> its parts.

    raw: uint8 [bytes]; type_name: a key of REPACKERS; rows: the source row of each output row (default: in order).
    """
    fmt = FORMATS[type_name.lower()]
    block, repacker = REPACKERS[type_name]
    source = raw.reshape(n, -1)
    parts = {name: np.empty(shape, dtype) for name, (shape, dtype) in fmt.parts(n, k).items()}
    step = max(1, CHUNK_WEIGHTS // k)
    for start in range(0, n, step):
        stop = min(n, start + step)
        chunk = source[start:stop] if rows is None else source[rows[start:stop]]
        for name, value in repacker(chunk.reshape(stop - start, k // block, -1)).items():
            parts[name][start:stop] = value.reshape(stop - start, -1)
    return parts


def dense(raw: np.ndarray, type_name: str, shape: tuple[int, ...], rows: np.ndarray | None = None) -> np.ndarray:
    """The bytes of an F32, F16 or BF16 tensor as an array, rows reordered where asked for."""
    array = raw.view(DENSE[type_name]).reshape(shape)
    return array if rows is None else array[rows]


def _half(b: np.ndarray, at: int) -> np.ndarray:
    """The float16 at a byte of each block: [rows, blocks]."""
    return np.ascontiguousarray(b[:, :, at : at + 2]).view("<f2")[:, :, 0]


def _int8(b: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(b).view(np.int8)


def _word(b: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(b[:, :, at : at + 4]).view("<i4")


def _q4_0(b: np.ndarray) -> dict[str, np.ndarray]:
    return {"codes": _int8(b[:, :, 2:]), "scale": _half(b, 0)}


def _q4_1(b: np.ndarray) -> dict[str, np.ndarray]:
    return {"codes": _int8(b[:, :, 4:]), "scale": _half(b, 0), "minimum": _half(b, 2)}


def _q5_0(b: np.ndarray) -> dict[str, np.ndarray]:
    return {"codes": _int8(b[:, :, 6:]), "high": _word(b, 2), "scale": _half(b, 0)}


def _q5_1(b: np.ndarray) -> dict[str, np.ndarray]:
    return {"codes": _int8(b[:, :, 8:]), "high": _word(b, 4), "scale": _half(b, 0), "minimum": _half(b, 2)}


def _q8_0(b: np.ndarray) -> dict[str, np.ndarray]:
    return {"codes": _int8(b[:, :, 2:]), "scale": _half(b, 0)}


def _two_level(b: np.ndarray) -> dict[str, np.ndarray]:
    """d, dmin and the 12 bytes of eight 6-bit scales and eight 6-bit minima that begin a Q4_K or Q5_K block.

    Bytes 0-3: scales 0-3, above them the two high bits of scales 4-7. Bytes 4-7: the same of the minima.
    Bytes 8-11: the low nibbles of scales (low) and minima (high) 4-7.
    """
    packed = b[:, :, 4:16]
    low_scale, low_minimum, nibbles = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    scale = np.concatenate([low_scale & 63, (nibbles & 15) | ((low_scale >> 6) << 4)], axis=-1)
    minimum = np.concatenate([low_minimum & 63, (nibbles >> 4) | ((low_minimum >> 6) << 4)], axis=-1)
    return {
        "scale": scale.view(np.int8),
        "super_scale": _half(b, 0),
        "minimum": minimum.view(np.int8),
        "super_minimum": -_half(b, 2),  # the block's minimum is subtracted
    }


def _nibbles_of_64(qs: np.ndarray) -> np.ndarray:
    """128 bytes of a Q4_K or Q5_K block: 32 bytes hold 32 weights in the low, the next 32 in the high nibbles."""
    rows, blocks, _ = qs.shape
    pairs = qs.reshape(rows, blocks, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=3).reshape(rows, blocks, 8, 32)


def _q4_k(b: np.ndarray) -> dict[str, np.ndarray]:
    codes = _nibbles_of_64(b[:, :, 16:])
    return pack_codes(codes.reshape(b.shape[0], -1), 4) | _two_level(b)


def _q5_k(b: np.ndarray) -> dict[str, np.ndarray]:
    bit_of_run = np.arange(8, dtype=np.uint8).reshape(8, 1)  # bit r of byte l: the high bit of weight l of run r
    high = (b[:, :, None, 16:48] >> bit_of_run) & 1
    codes = _nibbles_of_64(b[:, :, 48:]) | (high << 4)
    return pack_codes(codes.reshape(b.shape[0], -1), 5) | _two_level(b)


def _q6_k(b: np.ndarray) -> dict[str, np.ndarray]:
    """Two halves of 128 weights: 64 bytes of nibbles (low: runs 0, 1; high: runs 2, 3), 32 bytes of 2-bit tops."""
    rows, blocks, _ = b.shape
    nibbles = b[:, :, :128].reshape(rows, blocks, 2, 1, 2, 32)
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).reshape(rows, blocks, 2, 4, 32)
    shift = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    top = (b[:, :, 128:192].reshape(rows, blocks, 2, 1, 32) >> shift) & 3
    codes = low | (top << 4)
    scales = {"scale": _int8(b[:, :, 192:208]), "super_scale": _half(b, 208)}
    return pack_codes(codes.reshape(rows, -1), 6) | scales


def _q2_k(b: np.ndarray) -> dict[str, np.ndarray]:
    """16 bytes of a 4-bit scale (low) and a 4-bit minimum (high) each; two halves of 32 bytes, 2 bits of 4 runs of 32.

    Half h, run r: weights 128 h + 32 r + i, in bits 2 r and 2 r + 1 of byte 32 h + i.
    """
    codes = _two_bits(b[:, :, 16:80])
    return pack_codes(codes, 2) | {
        "scale": _int8(b[:, :, :16] & 15),
        "super_scale": _half(b, 80),
        "minimum": _int8(b[:, :, :16] >> 4),
        "super_minimum": -_half(b, 82),
    }


def _two_bits(qs: np.ndarray) -> np.ndarray:
    """uint8 [rows, blocks, 64] -> codes [rows, weights] of Q2_K, the low bits of Q3_K."""
    rows, blocks, _ = qs.shape
    shift = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    return ((qs.reshape(rows, blocks, 2, 1, 32) >> shift) & 3).reshape(rows, blocks * 256)


def _q3_k(b: np.ndarray) -> dict[str, np.ndarray]:
    """32 bytes of high bits (bit j of byte i: weight 32 j + i), 64 bytes as Q2_K's, 12 bytes of 16 6-bit scales, d.

    A high bit that is not set means minus 4: zero 4. Scale j: its low 4 bits are nibble j / 8 of byte j % 8, its high
    2 bits are bits 2 (j / 4) of byte 8 + j % 4; 32 is its zero.
    """
    rows, blocks, _ = b.shape
    high = (b[:, :, None, :32] >> np.arange(8, dtype=np.uint8).reshape(8, 1)) & 1
    codes = _two_bits(b[:, :, 32:96]) | (high.reshape(rows, blocks * 256) << 2)
    low, top = b[:, :, 96:104], b[:, :, 104:108]
    shift = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    scale = np.concatenate([low & 15, low >> 4], axis=-1) | (((top[:, :, None] >> shift) & 3) << 4).reshape(
        rows, blocks, 16
    )
    return pack_codes(codes, 3) | {"scale": scale.view(np.int8) - np.int8(32), "super_scale": _half(b, 108)}


def _mxfp4(b: np.ndarray) -> dict[str, np.ndarray]:
    """An E8M0 byte and 16 bytes: weight i in the low, weight i + 16 in the high nibble -> neighbours in a byte."""
    weights = np.concatenate([b[:, :, 1:] & 15, b[:, :, 1:] >> 4], axis=-1)
    return {"codes": _int8(weights[:, :, 0::2] | (weights[:, :, 1::2] << 4)), "scale": _int8(b[:, :, :1])}


REPACKERS: dict[str, tuple[int, Callable[[np.ndarray], dict[str, np.ndarray]]]] = {
    "MXFP4": (32, _mxfp4),
    "Q2_K": (256, _q2_k),
    "Q3_K": (256, _q3_k),
    "Q4_0": (32, _q4_0),
    "Q4_1": (32, _q4_1),
    "Q5_0": (32, _q5_0),
    "Q5_1": (32, _q5_1),
    "Q8_0": (32, _q8_0),
    "Q4_K": (256, _q4_k),
    "Q5_K": (256, _q5_k),
    "Q6_K": (256, _q6_k),
}
