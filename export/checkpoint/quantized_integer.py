"""Integer weights with a scale per group of columns -> the affine formats: MLX, AWQ, GPTQ, compressed-tensors.

The affine formats' codes are a little-endian stream of bits along each row, as MLX, compressed-tensors and (transposed)
GPTQ pack them; w = code * scale + bias, bias = -zero * scale in float32, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...custom_kernels.ops.formats_affine import BITS, GROUPS
from .contents import Tensor
from .quantized_module import Module, Part, bits_of, floats_of, require_shape, weight
from .safetensors_file import StoredTensor

# Nibble in which AWQ's GEMM packing keeps column j of eight (AutoAWQ: order_map 0 2 4 6 1 3 5 7).
AWQ_NIBBLE = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.int32)
CHUNK_ROWS = 512  # of qweight at a time, when codes are taken apart


def mlx_affine_weight(module: Module, bits: int, group: int) -> Tensor:
    """MLX's mode "affine": as it is. weight uint32 [..., N, K*bits/32], scales and biases [..., N, K/group]."""
    codes = module.part("weight", ("U32",), (2, 3))
    scale = module.part("scales", ("F16", "BF16", "F32"), (2, 3))
    bias = module.part("biases", ("F16", "BF16", "F32"), (2, 3))
    *lead, n, words = codes.shape
    k = words * 32 // bits
    for part in (scale, bias):
        require_shape(module, part, (*lead, n, k // group))
    parts = {"codes": bits_of(codes, "i32", codes.shape), "scale": floats_of(scale), "bias": floats_of(bias)}
    return weight(module, f"{module.name}.weight", f"affine{bits}_g{group}", (*lead, n, k), parts)


def packed_integer_weight(module: Module, bits: int) -> Tensor:
    """compressed-tensors pack-quantized: weight_packed int32 [N, K*bits/32], codes above -2^(bits-1); scales
    [N, groups]; symmetric, or with weight_zero_point packed along the rows."""
    if "weight_g_idx" in module.parts:
        raise module.fail("columns in another order (weight_g_idx, act-order) are not supported; use a model without")
    codes = module.part("weight_packed", ("I32",))
    scale = module.part("weight_scale", ("F32", "BF16", "F16"))
    n, words = codes.shape
    k = words * 32 // bits
    groups = scale.shape[1]
    zero: StoredTensor | None = None
    if "weight_zero_point" in module.parts:
        zero = module.part("weight_zero_point", ("I32", "I8"))
        require_shape(module, zero, (n if zero.dtype == "I8" else -(-n * bits // 32), groups))

    def zeros() -> np.ndarray:
        if zero is None:
            return np.array(1 << (bits - 1), np.float32)
        if zero.dtype == "I8":
            return zero.array().astype(np.float32) + (1 << (bits - 1))
        return _unpacked(zero.array().T, bits)[:, :n].T.astype(np.float32)

    require_shape(module, scale, (n, groups))
    name, parts = _grouped(module, k, bits, groups, scale.float32, zeros)
    parts["codes"] = bits_of(codes, "i32", codes.shape)
    return weight(module, f"{module.name}.weight", name, (n, k), parts)


def int8_weight(module: Module) -> Tensor:
    """compressed-tensors int-quantized: weight int8 [N, K], weight_scale [N, 1] or [1]; -> unsigned 8-bit codes."""
    codes = module.part("weight", ("I8",))
    scale = module.part("weight_scale", ("F32", "BF16", "F16"), (1, 2))
    n, k = codes.shape
    if "weight_zero_point" in module.parts:
        raise module.fail("8-bit integers with a zero point are not supported; use a symmetric quantization")
    if scale.shape not in ((1,), (1, 1), (n,), (n, 1)):
        raise module.fail(f"{scale.name} has shape {list(scale.shape)}, which is no scale of {[n, k]} weights")

    def scales() -> np.ndarray:
        return np.broadcast_to(scale.float32().reshape(-1, 1), (n, 1))

    name, parts = _grouped(module, k, 8, 1, scales, lambda: np.array(128, np.float32))
    parts["codes"] = Part("i32", lambda: (codes.array().view(np.uint8) ^ 0x80).view("<i4"))
    return weight(module, f"{module.name}.weight", name, (n, k), parts)


def gptq_weight(module: Module, bits: int, zero_offset: int) -> Tensor:
    """GPTQ: qweight int32 [K*bits/32, N] packed along K, qzeros [K/group, N*bits/32], scales [K/group, N], g_idx [K].

    zero_offset: 1 for the first version of the format, which stores zeros less one; 0 for "gptq_v2".
    """
    qweight = module.part("qweight", ("I32",))
    qzeros = module.part("qzeros", ("I32",))
    scale = module.part("scales", ("F16", "BF16", "F32"))
    k, n = qweight.shape[0] * 32 // bits, qweight.shape[1]
    groups = scale.shape[0]
    require_shape(module, scale, (groups, n))
    require_shape(module, qzeros, (groups, n * bits // 32))
    if groups == 0 or k % groups:
        raise module.fail(f"{groups} groups do not divide {k} columns")
    if "g_idx" in module.parts:
        index = module.part("g_idx", ("I32", "I64"), (1,))
        if index.shape != (k,) or (index.array() != np.arange(k) // (k // groups)).any():
            raise module.fail(
                "GPTQ with columns in another order (g_idx, desc_act = true) is not supported;"
                " use a model quantized with desc_act = false"
            )
    name, parts = _grouped(
        module,
        k,
        bits,
        groups,
        lambda: scale.float32().T,
        lambda: (_unpacked(qzeros.array(), bits) + zero_offset).T.astype(np.float32),
    )
    parts["codes"] = Part("i32", lambda: np.ascontiguousarray(qweight.array().T))
    return weight(module, f"{module.name}.weight", name, (n, k), parts)


def awq_weight(module: Module) -> Tensor:
    """AWQ, version "gemm", 4 bit: qweight int32 [K, N/8], qzeros [K/group, N/8], scales [K/group, N]."""
    qweight = module.part("qweight", ("I32",))
    qzeros = module.part("qzeros", ("I32",))
    scale = module.part("scales", ("F16", "BF16", "F32"))
    k, n = qweight.shape[0], qweight.shape[1] * 8
    groups = scale.shape[0]
    require_shape(module, scale, (groups, n))
    require_shape(module, qzeros, (groups, n // 8))
    if groups == 0 or k % groups or k % 8:
        raise module.fail(f"{groups} groups do not divide {k} columns")

    def codes() -> np.ndarray:
        packed, out = qweight.array(), np.empty((n, k // 2), np.uint8)
        for start in range(0, k, CHUNK_ROWS):
            rows = _awq_unpacked(packed[start : start + CHUNK_ROWS]).T
            out[:, start // 2 : (start + rows.shape[1]) // 2] = rows[:, 0::2] | (rows[:, 1::2] << 4)
        return out.view("<i4")

    name, parts = _grouped(
        module,
        k,
        4,
        groups,
        lambda: scale.float32().T,
        lambda: _awq_unpacked(qzeros.array()).T.astype(np.float32),
    )
    parts["codes"] = Part("i32", codes)
    return weight(module, f"{module.name}.weight", name, (n, k), parts)


def _awq_unpacked(packed: np.ndarray) -> np.ndarray:
    """int32 [rows, N/8] -> uint8 [rows, N]."""
    nibbles = (packed.view(np.uint32)[:, :, None] >> (4 * AWQ_NIBBLE).astype(np.uint32)) & 15
    return nibbles.astype(np.uint8).reshape(packed.shape[0], -1)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """int32 [rows, words], `bits` (2, 4 or 8) from the lowest on -> int32 [rows, words * 32 / bits]."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = np.ascontiguousarray(packed).view(np.uint32)
    return ((words[:, :, None] >> shifts) & ((1 << bits) - 1)).astype(np.int32).reshape(packed.shape[0], -1)


def _grouped(
    module: Module, k: int, bits: int, groups: int, scales: Callable[[], np.ndarray], zeros: Callable[[], np.ndarray]
) -> tuple[str, dict[str, Part]]:
    """The affine format and its scale and bias (float32) for `groups` groups a row of k columns.

    scales: float32 [N, groups]; zeros: the same, or one number for all. A group longer than a format has is written as
    several with the same scale.
    """
    if bits not in BITS or groups < 1 or k % groups:
        raise module.fail(f"{bits} bits and {groups} groups of {k} columns are not supported")
    group = next((g for g in reversed(GROUPS) if (k // groups) % g == 0), None)
    if group is None:
        raise module.fail(f"groups of {k // groups} columns are not supported; multiples of 32 are")
    repeats = k // groups // group

    def scale() -> np.ndarray:
        return np.repeat(scales(), repeats, axis=1)

    def bias() -> np.ndarray:
        return np.repeat(-scales() * zeros(), repeats, axis=1).astype(np.float32)

    return f"affine{bits}_g{group}", {
        "codes": Part("i32", scale),
        "scale": Part("f32", scale),
        "bias": Part("f32", bias),
    }
