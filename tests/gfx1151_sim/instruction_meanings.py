"""What single instructions mean, written with numpy and Python integers from the instructions' definitions alone."""

# The meanings of one kind all take the same operands.
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .expected_floats import flushed, fused, maximum, minimum, saturated

Array = np.ndarray
M32 = np.uint64(0xFFFFFFFF)


def low(x: Array) -> Array:
    return (x & M32).astype(np.uint32)


def f32(x: Array) -> Array:
    return low(x).view(np.float32)


def i32(x: Array) -> Array:
    return low(x).view(np.int32)


def f16(x: Array) -> Array:
    return (low(x) & 0xFFFF).astype(np.uint16).view(np.float16)


def f16_high(x: Array) -> Array:
    return (low(x) >> 16).astype(np.uint16).view(np.float16)


def f64(x: Array) -> Array:
    return x.view(np.float64)


def bits(x: Array) -> Array:
    """Floats or integers as uint64 bits of their width."""
    return x.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize]).astype(np.uint64)


def halves(lo: Array, hi: Array) -> Array:
    return bits(lo) | bits(hi) << np.uint64(16)


def low_half(old: Array, value: Array) -> Array:
    return (old & np.uint64(0xFFFF0000)) | bits(value)


def shift(x: Array, mask: int) -> Array:
    return low(x) & mask


def to_u32(x: Array) -> Array:
    return saturated(x, 0, 2**32 - 1).astype(np.uint32)


def to_i32(x: Array) -> Array:
    return saturated(x, -(2**31), 2**31 - 1).astype(np.int32)


def byte_permute(a: Array, b: Array, selectors: Array) -> Array:
    out = np.zeros(len(a), np.uint64)
    for k, (hi, lo, selector) in enumerate(zip(low(a).tolist(), low(b).tolist(), low(selectors).tolist(), strict=True)):
        source = [*lo.to_bytes(4, "little"), *hi.to_bytes(4, "little")]
        for byte, s in enumerate(selector.to_bytes(4, "little")):
            if s < 8:
                value = source[s]
            elif s < 12:
                value = 255 if source[2 * (s - 8) + 1] >= 128 else 0
            else:
                value = 0 if s == 12 else 255
            out[k] |= np.uint64(value << 8 * byte)
    return out


def field_signed(a: Array, offset: Array, width: Array) -> Array:
    out = []
    for x, o, n in zip(i32(a).tolist(), shift(offset, 31).tolist(), shift(width, 31).tolist(), strict=True):
        piece = (x >> o) & ((1 << n) - 1)
        out.append(piece - (1 << n) if n and piece >> (n - 1) and o + n <= 32 else x >> o if o + n > 32 else piece)
    return np.array(out, np.int64).astype(np.int32)


# What each instruction leaves in v8 (or v[8:9]) of an active lane, from a, b, c and the old result.
Vector = Callable[[Array, Array, Array, Array], Array]
EXACT: dict[str, Vector] = {
    "v_mov_b32_e32 v8, v2": lambda a, b, c, d: low(a),
    "v_mov_b32_e32 v8, 0x12345678": lambda a, b, c, d: np.full(len(a), 0x12345678, np.uint32),
    "v_mov_b32_e32 v8, -16": lambda a, b, c, d: np.full(len(a), 0xFFFFFFF0, np.uint32),
    "v_mov_b32_e32 v8, 0.5": lambda a, b, c, d: np.full(len(a), 0x3F000000, np.uint32),
    "v_add_f32_e32 v8, v2, v4": lambda a, b, c, d: f32(a) + f32(b),
    "v_sub_f32_e32 v8, v2, v4": lambda a, b, c, d: f32(a) - f32(b),
    "v_subrev_f32_e32 v8, v2, v4": lambda a, b, c, d: f32(b) - f32(a),
    "v_mul_f32_e32 v8, v2, v4": lambda a, b, c, d: f32(a) * f32(b),
    "v_mul_f32_e64 v8, -v2, |v4|": lambda a, b, c, d: -f32(a) * np.abs(f32(b)),
    "v_add_f32_e64 v8, |v2|, -v4 mul:2": lambda a, b, c, d: np.abs(f32(a)) - f32(b),
    "v_add_f32_e64 v8, v2, v4 clamp": lambda a, b, c, d: np.clip(np.nan_to_num(f32(a) + f32(b), nan=0), 0, 1),
    "v_min_f32_e32 v8, v2, v4": lambda a, b, c, d: minimum(f32(a), f32(b)),
    "v_max_f32_e32 v8, v2, v4": lambda a, b, c, d: maximum(f32(a), f32(b)),
    "v_fma_f32 v8, v2, v4, v6": lambda a, b, c, d: fused("f32", f32(a), f32(b), f32(c)),
    "v_fma_f32 v8, v2, -v4, |v6|": lambda a, b, c, d: fused("f32", f32(a), -f32(b), np.abs(f32(c))),
    "v_fmac_f32_e32 v8, v2, v4": lambda a, b, c, d: fused("f32", f32(a), f32(b), f32(d)),
    "v_fmamk_f32 v8, v2, 0x40490fdb, v4": lambda a, b, c, d: fused(
        "f32", f32(a), np.full(len(a), 0x40490FDB, np.uint32).view(np.float32), f32(b)
    ),
    "v_fmaak_f32 v8, v2, v4, 0x40490fdb": lambda a, b, c, d: fused(
        "f32", f32(a), f32(b), np.full(len(a), 0x40490FDB, np.uint32).view(np.float32)
    ),
    "v_min3_f32 v8, v2, v4, v6": lambda a, b, c, d: minimum(minimum(f32(a), f32(b)), f32(c)),
    "v_max3_f32 v8, v2, v4, v6": lambda a, b, c, d: maximum(maximum(f32(a), f32(b)), f32(c)),
    "v_floor_f32_e32 v8, v2": lambda a, b, c, d: np.floor(f32(a)),
    "v_ceil_f32_e32 v8, v2": lambda a, b, c, d: np.ceil(f32(a)),
    "v_trunc_f32_e32 v8, v2": lambda a, b, c, d: np.trunc(f32(a)),
    "v_rndne_f32_e32 v8, v2": lambda a, b, c, d: np.rint(f32(a)),
    "v_cvt_f32_i32_e32 v8, v2": lambda a, b, c, d: i32(a).astype(np.float32),
    "v_cvt_f32_u32_e32 v8, v2": lambda a, b, c, d: low(a).astype(np.float32),
    "v_cvt_u32_f32_e32 v8, v2": lambda a, b, c, d: to_u32(f32(a)),
    "v_cvt_i32_f32_e32 v8, v2": lambda a, b, c, d: to_i32(f32(a)),
    "v_cvt_f32_ubyte0_e32 v8, v2": lambda a, b, c, d: (low(a) & 255).astype(np.float32),
    "v_cvt_f32_ubyte3_e32 v8, v2": lambda a, b, c, d: (low(a) >> 24).astype(np.float32),
    "v_cvt_f64_f32_e32 v[8:9], v2": lambda a, b, c, d: f32(a).astype(np.float64),
    "v_cvt_f32_f64_e32 v8, v[2:3]": lambda a, b, c, d: f64(a).astype(np.float32),
    "v_cvt_f64_i32_e32 v[8:9], v2": lambda a, b, c, d: i32(a).astype(np.float64),
    "v_add_f64 v[8:9], v[2:3], -v[4:5]": lambda a, b, c, d: f64(a) - f64(b),
    "v_mul_f64 v[8:9], v[2:3], v[4:5]": lambda a, b, c, d: f64(a) * f64(b),
    "v_fma_f64 v[8:9], v[2:3], v[4:5], v[6:7]": lambda a, b, c, d: fused("f64", f64(a), f64(b), f64(c)),
    "v_cvt_f16_f32_e32 v8, v2": lambda a, b, c, d: low_half(d, f32(a).astype(np.float16)),
    "v_cvt_f32_f16_e32 v8, v2": lambda a, b, c, d: f16(a).astype(np.float32),
    "v_add_f16_e32 v8, v2, v4": lambda a, b, c, d: low_half(d, f16(a) + f16(b)),
    "v_mul_f16_e32 v8, v2, v4": lambda a, b, c, d: low_half(d, f16(a) * f16(b)),
    "v_fma_f16 v8, v2, v4, v6": lambda a, b, c, d: low_half(d, fused("f16", f16(a), f16(b), f16(c))),
    "v_pk_add_f16 v8, v2, v4": lambda a, b, c, d: halves(f16(a) + f16(b), f16_high(a) + f16_high(b)),
    "v_pk_mul_f16 v8, v2, v4 op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[0,1]": lambda a, b, c, d: halves(
        f16_high(a) * -f16(b), f16(a) * f16_high(b)
    ),
    "v_pk_fma_f16 v8, v2, v4, v6": lambda a, b, c, d: halves(
        fused("f16", f16(a), f16(b), f16(c)), fused("f16", f16_high(a), f16_high(b), f16_high(c))
    ),
    "v_fma_mix_f32 v8, v2, v4, v6 op_sel:[0,1,0] op_sel_hi:[1,1,0]": lambda a, b, c, d: fused(
        "f32", f16(a).astype(np.float32), f16_high(b).astype(np.float32), f32(c)
    ),
    "v_fma_mixlo_f16 v8, v2, v4, v6 op_sel_hi:[0,0,0]": lambda a, b, c, d: low_half(
        d, fused("f32", f32(a), f32(b), f32(c)).astype(np.float16)
    ),
    "v_not_b32_e32 v8, v2": lambda a, b, c, d: ~low(a),
    "v_and_b32_e32 v8, v2, v4": lambda a, b, c, d: low(a) & low(b),
    "v_or_b32_e32 v8, v2, v4": lambda a, b, c, d: low(a) | low(b),
    "v_xor_b32_e32 v8, v2, v4": lambda a, b, c, d: low(a) ^ low(b),
    "v_lshlrev_b32_e32 v8, v2, v4": lambda a, b, c, d: low(b) << shift(a, 31),
    "v_lshrrev_b32_e32 v8, v2, v4": lambda a, b, c, d: low(b) >> shift(a, 31),
    "v_ashrrev_i32_e32 v8, v2, v4": lambda a, b, c, d: i32(b) >> shift(a, 31).astype(np.int32),
    "v_lshlrev_b64 v[8:9], v2, v[4:5]": lambda a, b, c, d: b << shift(a, 63).astype(np.uint64),
    "v_lshrrev_b64 v[8:9], v2, v[4:5]": lambda a, b, c, d: b >> shift(a, 63).astype(np.uint64),
    "v_ashrrev_i64 v[8:9], v2, v[4:5]": lambda a, b, c, d: b.view(np.int64) >> shift(a, 63).astype(np.int64),
    "v_add_nc_u32_e32 v8, v2, v4": lambda a, b, c, d: low(a) + low(b),
    "v_sub_nc_u32_e32 v8, v2, v4": lambda a, b, c, d: low(a) - low(b),
    "v_mul_lo_u32 v8, v2, v4": lambda a, b, c, d: low(a) * low(b),
    "v_mul_hi_u32 v8, v2, v4": lambda a, b, c, d: ((a & M32) * (b & M32)) >> np.uint64(32),
    "v_mul_hi_i32 v8, v2, v4": lambda a, b, c, d: ((i32(a).astype(np.int64) * i32(b).astype(np.int64)) >> 32).astype(
        np.int32
    ),
    "v_mul_u32_u24_e32 v8, v2, v4": lambda a, b, c, d: (low(a) & 0xFFFFFF) * (low(b) & 0xFFFFFF),
    "v_mad_u32_u24 v8, v2, v4, v6": lambda a, b, c, d: (low(a) & 0xFFFFFF) * (low(b) & 0xFFFFFF) + low(c),
    "v_min_i32_e32 v8, v2, v4": lambda a, b, c, d: np.minimum(i32(a), i32(b)),
    "v_max_u32_e32 v8, v2, v4": lambda a, b, c, d: np.maximum(low(a), low(b)),
    "v_med3_i32 v8, v2, v4, v6": lambda a, b, c, d: np.sort(np.stack([i32(a), i32(b), i32(c)]), axis=0)[1],
    "v_bfe_u32 v8, v2, v4, v6": lambda a, b, c, d: (
        (low(a) >> shift(b, 31)) & ((np.uint32(1) << shift(c, 31)) - np.uint32(1))
    ),
    "v_bfe_i32 v8, v2, v4, v6": lambda a, b, c, d: field_signed(a, b, c),
    "v_bfi_b32 v8, v2, v4, v6": lambda a, b, c, d: (low(a) & low(b)) | (~low(a) & low(c)),
    "v_alignbit_b32 v8, v2, v4, v6": lambda a, b, c, d: (
        ((a & M32) << np.uint64(32) | (b & M32)) >> shift(c, 31).astype(np.uint64)
    ).astype(np.uint32),
    "v_perm_b32 v8, v2, v4, v6": lambda a, b, c, d: byte_permute(a, b, c),
    "v_lshl_add_u32 v8, v2, v4, v6": lambda a, b, c, d: (low(a) << shift(b, 31)) + low(c),
    "v_add_lshl_u32 v8, v2, v4, v6": lambda a, b, c, d: (low(a) + low(b)) << shift(c, 31),
    "v_lshl_or_b32 v8, v2, v4, v6": lambda a, b, c, d: (low(a) << shift(b, 31)) | low(c),
    "v_and_or_b32 v8, v2, v4, v6": lambda a, b, c, d: (low(a) & low(b)) | low(c),
    "v_or3_b32 v8, v2, v4, v6": lambda a, b, c, d: low(a) | low(b) | low(c),
    "v_xor3_b32 v8, v2, v4, v6": lambda a, b, c, d: low(a) ^ low(b) ^ low(c),
    "v_add3_u32 v8, v2, v4, v6": lambda a, b, c, d: low(a) + low(b) + low(c),
    "v_mad_u64_u32 v[8:9], vcc_lo, v2, v4, v[6:7]": lambda a, b, c, d: (a & M32) * (b & M32) + c,
    "v_bcnt_u32_b32 v8, v2, v4": lambda a, b, c, d: np.bitwise_count(low(a)) + low(b),
    "v_bfrev_b32_e32 v8, v2": lambda a, b, c, d: np.array(
        [int(f"{x:032b}"[::-1], 2) for x in low(a).tolist()], np.uint32
    ),
    "v_clz_i32_u32_e32 v8, v2": lambda a, b, c, d: np.array(
        [32 - x.bit_length() if x else -1 for x in low(a).tolist()], np.int32
    ),
    "v_mul_lo_u16 v8, v2, v4": lambda a, b, c, d: low_half(d, (low(a) * low(b)).astype(np.uint16)),
    "v_ashrrev_i16 v8, v2, v4": lambda a, b, c, d: low_half(
        d, (low(b).astype(np.uint16).view(np.int16) >> shift(a, 15).astype(np.int16))
    ),
    "v_pk_add_u16 v8, v2, v4": lambda a, b, c, d: halves(
        (low(a) + low(b)).astype(np.uint16), ((low(a) >> 16) + (low(b) >> 16)).astype(np.uint16)
    ),
    "v_ldexp_f32 v8, v2, v4": lambda a, b, c, d: np.ldexp(f32(a), np.clip(i32(b), -1000, 1000)),
    "v_frexp_mant_f32_e32 v8, v2": lambda a, b, c, d: np.where(np.isfinite(f32(a)), np.frexp(f32(a))[0], f32(a)),
    "v_pack_b32_f16 v8, v2, v4": lambda a, b, c, d: (low(a) & 0xFFFF) | low(b) << 16,
    "v_dot4_u32_u8 v8, v2, v4, v6": lambda a, b, c, d: (
        low(c) + sum(((low(a) >> 8 * k) & 255) * ((low(b) >> 8 * k) & 255) for k in range(4))
    ).astype(np.uint32),
    "v_dot4_i32_iu8 v8, v2, v4, v6 neg_lo:[1,0,0]": lambda a, b, c, d: (
        i32(c)
        + sum(
            ((low(a) >> 8 * k) & 255).astype(np.uint8).view(np.int8).astype(np.int32)
            * ((low(b) >> 8 * k) & 255).astype(np.int32)
            for k in range(4)
        )
    ).astype(np.int32),
}
# The same with a bound on the relative error: units whose rounding is not specified.
CLOSE: dict[str, Vector] = {
    "v_exp_f32_e32 v8, v2": lambda a, b, c, d: flushed(np.exp2(flushed(f32(a)).astype(np.float64)).astype(np.float32)),
    "v_log_f32_e32 v8, v2": lambda a, b, c, d: np.log2(flushed(f32(a)).astype(np.float64)).astype(np.float32),
    "v_rcp_f32_e32 v8, v2": lambda a, b, c, d: flushed((1 / flushed(f32(a)).astype(np.float64)).astype(np.float32)),
    "v_rsq_f32_e32 v8, v2": lambda a, b, c, d: (1 / np.sqrt(flushed(f32(a)).astype(np.float64))).astype(np.float32),
    "v_sqrt_f32_e32 v8, v2": lambda a, b, c, d: np.sqrt(flushed(f32(a)).astype(np.float64)).astype(np.float32),
}
COMPARES: dict[str, Callable[[Array, Array], Array]] = {
    "v_cmp_lt_f32_e32 vcc_lo, v2, v4": lambda a, b: f32(a) < f32(b),
    "v_cmp_nlt_f32_e32 vcc_lo, v2, v4": lambda a, b: ~(f32(a) < f32(b)),
    "v_cmp_lg_f32_e32 vcc_lo, v2, v4": lambda a, b: (f32(a) < f32(b)) | (f32(a) > f32(b)),
    "v_cmp_u_f32_e32 vcc_lo, v2, v4": lambda a, b: np.isnan(f32(a)) | np.isnan(f32(b)),
    "v_cmp_ge_f32_e64 vcc_lo, |v2|, -v4": lambda a, b: np.abs(f32(a)) >= -f32(b),
    "v_cmp_eq_u32_e32 vcc_lo, v2, v4": lambda a, b: low(a) == low(b),
    "v_cmp_gt_i32_e32 vcc_lo, v2, v4": lambda a, b: i32(a) > i32(b),
    "v_cmp_le_u64_e32 vcc_lo, v[2:3], v[4:5]": lambda a, b: a <= b,
    "v_cmp_gt_f16_e32 vcc_lo, v2, v4": lambda a, b: f16(a) > f16(b),
    "v_cmp_lt_f64_e32 vcc_lo, v[2:3], v[4:5]": lambda a, b: f64(a) < f64(b),
    "v_cmp_class_f32_e64 vcc_lo, v2, 0x1f8": lambda a, b: np.isfinite(f32(a)),
}
# (scalar a, scalar b, old, SCC) -> (result or None, SCC), as Python integers of one group.
Scalar = Callable[[int, int, int, int], tuple[int | None, int]]


def signed(x: int, width: int = 32) -> int:
    x &= (1 << width) - 1
    return x - (1 << width) if x >> (width - 1) else x


def add_signed(a: int, b: int, d: int, scc: int) -> tuple[int, int]:
    total = signed(a) + signed(b)
    return total & 0xFFFFFFFF, int(not -(2**31) <= total < 2**31)


def as_float(x: int) -> np.float32:
    return np.array([x], np.uint32).view(np.float32)[0]


def float_bits(x: np.floating) -> int:
    return int(np.array([x], np.float32).view(np.uint32)[0])


def nonzero(x: int) -> tuple[int, int]:
    return x, int(x != 0)


SCALARS: dict[str, Scalar] = {
    "s_add_u32 s24, s16, s18": lambda a, b, d, scc: ((a + b) & 0xFFFFFFFF, (a + b) >> 32),
    "s_addc_u32 s24, s16, s18": lambda a, b, d, scc: ((a + b + scc) & 0xFFFFFFFF, (a + b + scc) >> 32),
    "s_sub_u32 s24, s16, s18": lambda a, b, d, scc: ((a - b) & 0xFFFFFFFF, int(b > a)),
    "s_subb_u32 s24, s16, s18": lambda a, b, d, scc: ((a - b - scc) & 0xFFFFFFFF, int(b + scc > a)),
    "s_add_i32 s24, s16, s18": add_signed,
    "s_mul_i32 s24, s16, s18": lambda a, b, d, scc: ((a * b) & 0xFFFFFFFF, scc),
    "s_mul_hi_u32 s24, s16, s18": lambda a, b, d, scc: ((a * b) >> 32, scc),
    "s_mul_hi_i32 s24, s16, s18": lambda a, b, d, scc: (((signed(a) * signed(b)) >> 32) & 0xFFFFFFFF, scc),
    "s_and_b32 s24, s16, s18": lambda a, b, d, scc: nonzero(a & b),
    "s_or_b32 s24, s16, 0x100": lambda a, b, d, scc: nonzero(a | 0x100),
    "s_xor_b32 s24, s16, s18": lambda a, b, d, scc: nonzero(a ^ b),
    "s_and_not1_b32 s24, s16, s18": lambda a, b, d, scc: nonzero(a & ~b),
    "s_lshl_b32 s24, s16, s18": lambda a, b, d, scc: nonzero((a << (b & 31)) & 0xFFFFFFFF),
    "s_lshr_b32 s24, s16, s18": lambda a, b, d, scc: nonzero(a >> (b & 31)),
    "s_ashr_i32 s24, s16, s18": lambda a, b, d, scc: nonzero((signed(a) >> (b & 31)) & 0xFFFFFFFF),
    "s_lshl2_add_u32 s24, s16, s18": lambda a, b, d, scc: (((a << 2) + b) & 0xFFFFFFFF, int((a << 2) + b >= 1 << 32)),
    "s_min_i32 s24, s16, s18": lambda a, b, d, scc: (a if signed(a) < signed(b) else b, int(signed(a) < signed(b))),
    "s_max_u32 s24, s16, s18": lambda a, b, d, scc: (max(a, b), int(a >= b)),
    "s_cselect_b32 s24, s16, s18": lambda a, b, d, scc: (a if scc else b, scc),
    "s_bfe_u32 s24, s16, 0x80004": lambda a, b, d, scc: nonzero((a >> 4) & 255),
    "s_movk_i32 s24, 0x8000": lambda a, b, d, scc: (0xFFFF8000, scc),
    "s_addk_i32 s24, 0x7fff": lambda a, b, d, scc: add_signed(d, 0x7FFF, d, scc),
    "s_sext_i32_i8 s24, s16": lambda a, b, d, scc: (signed(a, 8) & 0xFFFFFFFF, scc),
    "s_ctz_i32_b32 s24, s16": lambda a, b, d, scc: ((a & -a).bit_length() - 1 if a else 0xFFFFFFFF, scc),
    "s_bcnt1_i32_b32 s24, s16": lambda a, b, d, scc: nonzero(a.bit_count()),
    "s_cmp_gt_i32 s16, s18": lambda a, b, d, scc: (None, int(signed(a) > signed(b))),
    "s_cmp_lt_u32 s16, s18": lambda a, b, d, scc: (None, int(a < b)),
    "s_bitcmp1_b32 s16, s18": lambda a, b, d, scc: (None, a >> (b & 31) & 1),
    "s_cmp_neq_f32 s16, s18": lambda a, b, d, scc: (None, int(as_float(a) != as_float(b))),
    "s_add_f32 s24, s16, s18": lambda a, b, d, scc: (float_bits(as_float(a) + as_float(b)), scc),
    "s_mul_f32 s24, s16, s18": lambda a, b, d, scc: (float_bits(as_float(a) * as_float(b)), scc),
    "s_cvt_f32_u32 s24, s16": lambda a, b, d, scc: (float_bits(np.float32(a)), scc),
}
