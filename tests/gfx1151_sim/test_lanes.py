"""Instructions that look across lanes, pairs in one instruction, carries, modes of denormals, and matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gfx1151_sim.instruction_runs import Inputs, Instructions, Results, edge_inputs

M32 = np.uint64(0xFFFFFFFF)
LANE = np.arange(32)


def low(x: np.ndarray) -> np.ndarray:
    return (x & M32).astype(np.uint32)


def f32(x: np.ndarray) -> np.ndarray:
    return low(x).view(np.float32)


def rows(x: np.ndarray) -> np.ndarray:
    return low(x).reshape(-1, 32)


# Lane that each lane reads; -1: none.
DPP = {
    "quad_perm:[1,0,3,2]": LANE ^ 1,
    "row_shl:1": np.where(LANE % 16 < 15, LANE + 1, -1),
    "row_shr:3": np.where(LANE % 16 >= 3, LANE - 3, -1),
    "row_ror:5": (LANE & 16) | ((LANE % 16 - 5) % 16),
    "row_mirror": (LANE & 16) | (15 - LANE % 16),
    "row_half_mirror": (LANE & 24) | (7 - LANE % 8),
    "row_share:3": (LANE & 16) | 3,
    "row_xmask:5": LANE ^ 5,
    "dpp8:[7,6,5,4,3,2,1,0]": LANE ^ 7,
}
PAIR = "v_dual_add_f32 v8, v2, v4 :: v_dual_mov_b32 v9, v7"
PAIR_SWAPS = "v_dual_mov_b32 v8, v9 :: v_dual_mov_b32 v9, v8"
PAIR_LITERAL = "v_dual_fmamk_f32 v8, v2, 0x40400000, v5 :: v_dual_and_b32 v9, 0x40400000, v4"
OTHERS = {
    "bpermute": "ds_bpermute_b32 v8, v4, v2\n  s_waitcnt lgkmcnt(0)",
    "permute": "ds_permute_b32 v8, v4, v2\n  s_waitcnt lgkmcnt(0)",
    "swizzle": 'ds_swizzle_b32 v8, v2 offset:swizzle(BITMASK_PERM, "01pip")\n  s_waitcnt lgkmcnt(0)',
    "permlane16": "v_permlane16_b32 v8, v2, s16, s17",
    "permlanex16": "v_permlanex16_b32 v8, v2, s16, s17",
    "readlane": "v_readlane_b32 s24, v2, 7",
    "readfirstlane": "v_readfirstlane_b32 s24, v2",
    "writelane": "v_writelane_b32 v8, s16, 9",
    "pair": PAIR,
    "pair_swaps": PAIR_SWAPS,
    "pair_literal": PAIR_LITERAL,
    "carry": "v_add_co_u32 v8, vcc_lo, v2, v4\n  v_add_co_ci_u32_e32 v9, vcc_lo, v3, v5, vcc_lo",
    "borrow": "v_sub_co_u32 v8, vcc_lo, v2, v4\n  v_sub_co_ci_u32_e32 v9, vcc_lo, v3, v5, vcc_lo",
    "select": "v_cndmask_b32_e32 v8, v2, v4, vcc_lo",
    "select_negated": "v_cndmask_b32_e64 v8, -v2, |v4|, vcc_lo",
    "saveexec": "s_and_saveexec_b32 s24, s16",
    "compare_exec": "v_cmpx_gt_u32_e32 v2, v4",
    "masked_dpp": "v_mov_b32_dpp v8, v2 row_shr:1 row_mask:0x2 bank_mask:0xd",
    "mbcnt": "v_mbcnt_lo_u32_b32 v8, -1, 0",
}


def text_of(control: str) -> str:
    bound = "" if control.startswith("dpp8") else " row_mask:0xf bank_mask:0xf bound_ctrl:1"
    return f"v_xor_b32_dpp v8, v2, v4 {control}{bound}"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Instructions:
    texts = {f"dpp{k}": text_of(c) for k, c in enumerate(DPP)} | OTHERS
    return Instructions(texts, tmp_path_factory.mktemp("lanes"))


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return edge_inputs(seed=3)


def active(inputs: Inputs) -> np.ndarray:
    return (inputs.exec[:, None] >> LANE.astype(np.uint32) & 1).astype(bool)


def bit(masks: np.ndarray) -> np.ndarray:
    return (masks[:, None] >> LANE.astype(np.uint32) & 1).astype(bool)


def mask_of(lanes: np.ndarray) -> np.ndarray:
    return (lanes.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=1).astype(np.uint32)


def check(results: Results, inputs: Inputs, expected: np.ndarray, written: np.ndarray | None = None) -> None:
    written = active(inputs) if written is None else written
    np.testing.assert_array_equal(rows(results.vector), np.where(written, expected, rows(inputs.old)))


@pytest.mark.parametrize("control", DPP)
def test_dpp(control: str, kernels: Instructions, inputs: Inputs) -> None:
    lane = DPP[control]
    valid = (lane >= 0) & active(inputs)[:, lane]
    moved = np.where(valid, rows(inputs.a)[:, lane], 0)
    check(kernels.run(f"dpp{list(DPP).index(control)}", inputs), inputs, moved ^ rows(inputs.b))


def test_dpp_masks_keep_lanes(kernels: Instructions, inputs: Inputs) -> None:
    lane = np.where(LANE % 16 >= 1, LANE - 1, -1)
    valid = (lane >= 0) & active(inputs)[:, lane]
    chosen = (LANE >= 16) & np.isin(LANE // 4 % 4, (0, 2, 3))
    check(kernels.run("masked_dpp", inputs), inputs, rows(inputs.a)[:, lane], active(inputs) & valid & chosen)


def test_bpermute(kernels: Instructions, inputs: Inputs) -> None:
    lane = rows(inputs.b) // 4 % 32
    take = np.take_along_axis(rows(inputs.a), lane.astype(np.int64), axis=1)
    there = np.take_along_axis(active(inputs), lane.astype(np.int64), axis=1)
    check(kernels.run("bpermute", inputs), inputs, np.where(there, take, 0))


def test_permute(kernels: Instructions, inputs: Inputs) -> None:
    expected = np.zeros_like(rows(inputs.a))
    for group, lane in zip(*np.nonzero(active(inputs)), strict=True):
        expected[group, rows(inputs.b)[group, lane] // 4 % 32] = rows(inputs.a)[group, lane]
    check(kernels.run("permute", inputs), inputs, expected)


def test_swizzle(kernels: Instructions, inputs: Inputs) -> None:
    # "01pip", from bit 4: 0, 1, the lane's bit, its inverse, its bit.
    lane = np.array([(lane & 0b00101) | 0b01000 | (~lane & 0b00010) for lane in LANE.tolist()])
    there = active(inputs)[:, lane]
    check(kernels.run("swizzle", inputs), inputs, np.where(there, rows(inputs.a)[:, lane], 0))


@pytest.mark.parametrize(("name", "other"), [("permlane16", 0), ("permlanex16", 16)])
def test_permlane(name: str, other: int, kernels: Instructions, inputs: Inputs) -> None:
    selectors = inputs.scalar_a
    nibble = (selectors[:, None] >> (4 * (LANE % 16)).astype(np.uint64)) & np.uint64(15)
    lane = ((LANE & 16) ^ other) | nibble.astype(np.int64)
    there = np.take_along_axis(active(inputs), lane, axis=1)
    moved = np.take_along_axis(rows(inputs.a), lane, axis=1)
    check(kernels.run(name, inputs), inputs, moved, active(inputs) & there)


def test_lane_to_scalar(kernels: Instructions, inputs: Inputs) -> None:
    first = active(inputs).argmax(axis=1)
    np.testing.assert_array_equal(low(kernels.run("readlane", inputs).scalar), rows(inputs.a)[:, 7])
    expected = np.take_along_axis(rows(inputs.a), first[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(low(kernels.run("readfirstlane", inputs).scalar), expected)
    written = np.broadcast_to(LANE == 9, rows(inputs.a).shape)  # whatever EXEC is
    check(kernels.run("writelane", inputs), inputs, low(inputs.scalar_a)[:, None] + 0 * rows(inputs.a), written)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pairs_read_before_they_write(kernels: Instructions, inputs: Inputs) -> None:
    swapped = kernels.run("pair_swaps", inputs).vector.reshape(-1, 32)
    old = inputs.old.reshape(-1, 32)
    crossed = old >> np.uint64(32) | (old & M32) << np.uint64(32)
    np.testing.assert_array_equal(swapped, np.where(active(inputs), crossed, old))
    both = kernels.run("pair", inputs).vector.reshape(-1, 32)
    total = (f32(inputs.a) + f32(inputs.b)).reshape(-1, 32)
    mine = active(inputs) & ~np.isnan(total)
    np.testing.assert_array_equal(low(both)[mine], total.view(np.uint32)[mine])
    np.testing.assert_array_equal(
        (both >> np.uint64(32))[active(inputs)], rows(inputs.c >> np.uint64(32))[active(inputs)]
    )
    literal = kernels.run("pair_literal", inputs).vector.reshape(-1, 32)
    np.testing.assert_array_equal(
        (literal >> np.uint64(32))[active(inputs)], (rows(inputs.b) & 0x40400000)[active(inputs)]
    )


@pytest.mark.parametrize(("name", "add"), [("carry", True), ("borrow", False)])
def test_64_bit_sums_by_carry(name: str, add: bool, kernels: Instructions, inputs: Inputs) -> None:
    results = kernels.run(name, inputs)
    exact = [int(a) + int(b) if add else int(a) - int(b) for a, b in zip(inputs.a, inputs.b, strict=True)]
    wide = np.array([x & (2**64 - 1) for x in exact], np.uint64).reshape(-1, 32)
    out = np.array([x >> 64 != 0 for x in exact]).reshape(-1, 32)
    np.testing.assert_array_equal(
        results.vector.reshape(-1, 32), np.where(active(inputs), wide, inputs.old.reshape(-1, 32))
    )
    np.testing.assert_array_equal(results.vcc, mask_of(out & active(inputs)))


def test_select_by_mask(kernels: Instructions, inputs: Inputs) -> None:
    chosen = bit(inputs.vcc)
    check(kernels.run("select", inputs), inputs, np.where(chosen, rows(inputs.b), rows(inputs.a)))
    negated = np.where(chosen, rows(inputs.b) & 0x7FFFFFFF, rows(inputs.a) ^ np.uint32(0x80000000))
    check(kernels.run("select_negated", inputs), inputs, negated)


def test_exec_changes(kernels: Instructions, inputs: Inputs) -> None:
    saved = kernels.run("saveexec", inputs)
    np.testing.assert_array_equal(low(saved.scalar), inputs.exec)
    np.testing.assert_array_equal(saved.exec, inputs.exec & low(inputs.scalar_a))
    np.testing.assert_array_equal(saved.scc, saved.exec != 0)
    compared = kernels.run("compare_exec", inputs)
    np.testing.assert_array_equal(compared.exec, mask_of(active(inputs) & (rows(inputs.a) > rows(inputs.b))))
    np.testing.assert_array_equal(compared.vcc, inputs.vcc)


def test_lane_number(kernels: Instructions, inputs: Inputs) -> None:
    check(kernels.run("mbcnt", inputs), inputs, np.broadcast_to(LANE, rows(inputs.a).shape))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_flushed_denormals(tmp_path: Path, inputs: Inputs) -> None:
    def flush(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)

    texts = {"add": "v_add_f32_e32 v8, v2, v4", "mul": "v_mul_f32_e32 v8, v2, v4", "mov": "v_mov_b32_e32 v8, v2"}
    texts["double"] = "v_add_f32_e64 v8, v2, v4 mul:2"
    flushing = Instructions(texts, tmp_path, denormals=0)
    a, b = flush(f32(inputs.a)), flush(f32(inputs.b))
    for name, expected in {"add": flush(a + b), "mul": flush(a * b), "double": flush((a + b) * np.float32(2))}.items():
        got = f32(flushing.run(name, inputs).vector)
        mine = active(inputs).reshape(-1) & ~np.isnan(expected)
        np.testing.assert_array_equal(got.view(np.uint32)[mine], expected.view(np.uint32)[mine], err_msg=name)
    check(flushing.run("mov", inputs), inputs, rows(inputs.a))
    assert (flush(f32(inputs.a)) != f32(inputs.a)).any(), "the inputs have no denormals"
