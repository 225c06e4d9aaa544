"""How each custom op becomes launches of the GPU kernels: symbols, operands, scalars, workgroups and their size.

The constants are chosen for gfx1151 (40 CUs of two SIMDs, about 212 GB/s) by reasoning, not by measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..choices import RULES_ONLY, Choices, Option, Question
from ..ops.formats import WeightFormat
from ..ops.launch import Launch, Output, ceil_div
from ..ops.moe_matmul import ACTIVATIONS
from .elements import with_elements
from .fused_kernels import BETWEEN
from .gemm_tiles import MATRIX_WIDTH, choose_matrix_tile, choose_tile, tiled
from .kernels import (
    DENSE,
    GEMM_ROWS,
    GEMV_ROWS,
    GEMV_WEIGHT_ROWS,
    SPAN,
    STRIPED,
    STRIPED_BITS,
    WIDE,
    stripe_local,
    threads,
    weight_name,
)

WAVE = 32
EIGHT = 8  # weight rows that a workgroup of stripes has at least: half of a stripe
GEMM_TILE_N = 64  # columns of y of a workgroup of gemm.h
ARGMAX_THREADS = 512
# Columns of one row of x that a workgroup of stripes has at once, 32 KB of it.
STRIPE_COLUMNS = {"f32": 8192, "f16": 16384, "bf16": 16384}
GEMV_SHARES = (20, 40, 80, 160, 320, 800, 2**30)  # most workgroups of a gemv that are tried


@dataclass(frozen=True)
class Chip:
    """What a GPU's launches are shaped by."""

    gemv_waves: int  # of a workgroup: GEMV_WAVES of gemv.h
    gemv_wanted: int  # workgroups of a gemv that keep it busy
    gemv_most: int  # workgroups of a gemv; each asks for x once, and does several blocks of rows if it must
    tiles: bool = False  # whether fragment_gemm.h is for it: NVIDIA's GPUs
    stripe_workgroups: int = 0  # most of a kernel on matrix units for few rows; 0: it has none
    deep_stripes: bool = False  # whether a workgroup has local memory for those of 16 waves
    gate_up_lanes: int = WAVE  # most lanes for a row of an expert's gate and up: more would ask for x too often
    attention_wanted: int = 80  # workgroups of attention that keep it busy
    attention_blocks: int = 1  # of 16 rows for a wave of attention with many
    attention_part: int = 128  # dimensions of values that a wave of it has, at most
    rings: bool = False  # whether attention's keys and values go through local memory (flash_ring.h): NVIDIA's GPUs
    expert_spans: bool = False  # whether a workgroup has local memory for moe_one_spans.h
    chosen_tokens: int = 8  # most of a mixture whose every workgroup chooses the experts for itself
    multiprocessors: int = 0  # where a mixture of experts of one token is one launch (NVIDIA): its workgroups
    origin: str = "predicted"  # or "measured": whether a device has shown these numbers to be good
    choices: Choices = field(default=RULES_ONLY, compare=False)  # what was measured, in place of the rules below


GFX1151 = Chip(
    gemv_waves=16, gemv_wanted=40, gemv_most=40, gate_up_lanes=16
)  # two workgroups for each of 20 pairs of CUs
# Two workgroups of stripes, or of attention, fit on each of 132 multiprocessors; measured by benchmarks/gpu_kernels.py
# and h200_attention.py.
H200 = Chip(
    gemv_waves=8,
    gemv_wanted=800,
    gemv_most=2**30,
    tiles=True,
    multiprocessors=132,
    chosen_tokens=2,
    stripe_workgroups=264,
    attention_wanted=264,
    attention_blocks=2,
    attention_part=256,
    rings=True,
    origin="measured",
)
# What an H100 or H200 alone can run: 227 KB of local memory a workgroup.
SM_90 = replace(H200, expert_spans=True, deep_stripes=True)


def run_of(name: str) -> int:
    """Columns of a weight row that a lane reads at a time: RUN of weights.h and streams.h."""
    return 8 if name in DENSE else 32


def striped(name: str, k: int) -> bool:
    """Whether weights of a format, or of several (as in symbols), and k columns have kernels in stripes."""
    if BETWEEN in name:
        return all(striped(one, k) for one in name.split(BETWEEN))
    if name in DENSE:
        return False
    return k % SPAN == 0 or name in STRIPED or name.startswith(tuple(f"affine{bits}_" for bits in STRIPED_BITS))


def gemv_geometry(name: str, columns: Sequence[int], results: int, k: int, chip: Chip) -> tuple[int, int]:
    """(lanes that share a weight row, workgroups): as few lanes as keep the chip busy, and an even share of the rows.

    name: of the weights' kernels; columns: of the result, from each weight of k columns; results: from a lane's rows.
    It depends on the weights alone, so that any number of rows of x is summed in the same order. More lanes than a row
    has runs (see `run_of`) would have nothing to do.
    """

    def blocks(lanes: int) -> int:
        return sum(ceil_div(n, chip.gemv_waves * (WAVE // lanes) * results) for n in columns)

    def shared(lanes: int, most: int) -> Option:
        return {"lanes": lanes, "workgroups": ceil_div(blocks(lanes), ceil_div(blocks(lanes), most))}

    possible = [lanes for lanes in (4, 8, 16, 32) if lanes == 4 or lanes <= k // run_of(name)]
    lanes = next((one for one in possible if blocks(one) >= chip.gemv_wanted), possible[-1])
    options = [shared(one, most) for one in possible for most in GEMV_SHARES]
    question = Question("gemv" if results == GEMV_WEIGHT_ROWS else "gated_gemv", name, 0, (*columns, k))
    chosen = chip.choices.pick(question, shared(lanes, chip.gemv_most), options)
    return int(chosen["lanes"]), int(chosen["workgroups"])


def _tile_rows(name: str, m: int, n: int, k: int, chip: Chip) -> int:
    """Rows of x in a gemm kernel's tile."""
    rule = next((r for r in GEMM_ROWS if m <= r), GEMM_ROWS[-1])
    options = [{"tile": r} for r in GEMM_ROWS]
    return int(chip.choices.pick(Question("gemm", name, m, (n, k)), {"tile": rule}, options)["tile"])


def stripes_of(k: int, chip: Chip, x: str) -> str:
    """Which kernels in stripes a matmul of k columns of x (its dtype) has: a key of STRIPES of kernels.py. Deep ones
    where a row of x is longer than others have it at once: else they are slower."""
    return "deep_stripes" if chip.deep_stripes and k > STRIPE_COLUMNS[x] else "stripes"


def stripe_workgroups(name: str, columns: Sequence[int], k: int, chip: Chip, x: str, gated: bool = False) -> int:
    """Workgroups of a matmul of few rows in stripes; 0 where another kernel is better. The answer is the same for any
    number of rows.

    name: of the weights' kernels; columns: of the result, from each weight of k columns; x: its dtype; gated: gate and
    up, whose rows are as many.
    """
    if not (chip.stripe_workgroups and striped(name, k)):
        return 0
    eights = sum(ceil_div(n, EIGHT) for n in columns)
    deep = stripes_of(k, chip, x) == "deep_stripes"
    most = min(eights, chip.multiprocessors if deep else chip.stripe_workgroups)
    options = [{"stripe_workgroups": min(eights, count)} for count in ((0, most) if deep else (0, 132, 264, 528))]
    question = Question("gated_stripes" if gated else "stripes", name, 0, (*columns, k))
    chosen = int(chip.choices.pick(question, {"stripe_workgroups": most}, options)["stripe_workgroups"])
    return min(chosen, most) if deep else chosen


def shared_out(stripes: Sequence[int], cost: Sequence[int], workgroups: int) -> list[int]:
    """How many workgroups each of several formats gets of those that its matmul has (one at least), so that the one
    that takes longest takes as short as it can.

    stripes: of each format; cost: of one of its stripes, in any unit.
    """
    given = [1] * len(stripes)
    for _ in range(workgroups - len(stripes)):
        longest = max(range(len(stripes)), key=lambda i: (ceil_div(stripes[i], given[i]) * cost[i], stripes[i]))
        given[longest] += 1
    return given


def _in_stripes(
    name: str,
    inputs: tuple[str, ...],
    outputs: tuple[Output, ...],
    shape: tuple[int, int, int],
    workgroups: int,
    x: str,
    stripes: str,
) -> Launch:
    rows = next(r for r in GEMV_ROWS if shape[0] <= r)
    symbol = with_elements(f"strixhlo_{stripes}_{name}_m{rows}", x)
    scalars, local = (*shape, workgroups), stripe_local(symbol)
    return Launch(symbol, inputs, outputs, scalars, workgroups, threads(symbol), local_memory=local)


def _matmul(name: str, inputs: tuple[str, ...], m: int, n: int, k: int, chip: Chip, x: str) -> tuple[Launch, ...]:
    outputs = (Output("y", (m, n), x),)
    if m <= GEMV_ROWS[-1] and (workgroups := stripe_workgroups(name, (n,), k, chip, x)):
        return (_in_stripes(name, inputs, outputs, (m, n, k), workgroups, x, stripes_of(k, chip, x)),)
    if m <= GEMV_ROWS[-1]:
        rows = next(r for r in GEMV_ROWS if m <= r)
        lanes, workgroups = gemv_geometry(name, (n,), GEMV_WEIGHT_ROWS, k, chip)
        symbol = with_elements(f"strixhlo_gemv_{name}_m{rows}", x)
        return (Launch(symbol, inputs, outputs, (m, n, k, lanes, workgroups), workgroups, chip.gemv_waves * WAVE),)
    if tiled(name, x, chip.tiles) and (chip.tiles or name == "f16"):
        tile = (choose_tile if chip.tiles else choose_matrix_tile)(name, x, m, (n,), k, chip.choices)
        symbol = with_elements(f"strixhlo_fused_gemm_{name}_1_m{tile.name}", x)
        scalars = (m, k, n, 0, len(ACTIVATIONS), 0, 0, 0, n, 0, 0, 0, 0)
        size = (tile.workgroups(m, (n,)), tile.threads)
        return (Launch(symbol, inputs, outputs, scalars, *size, local_memory=tile.local_memory),)
    rows = _tile_rows(name, m, n, k, chip)
    symbol = with_elements(f"strixhlo_gemm_{name}_m{rows}", x)
    workgroups = ceil_div(m, rows) * ceil_div(n, GEMM_TILE_N if name in WIDE else MATRIX_WIDTH[rows])
    return (Launch(symbol, inputs, outputs, (m, n, k), workgroups, threads(symbol)),)


def quantized_matmul_launches(
    fmt: WeightFormat,
    m: int,
    n: int,
    k: int,
    dtypes: tuple[str, ...] = ("f32", "f32"),
    chip: Chip = GFX1151,
    x: str = "f32",
) -> tuple[Launch, ...]:
    """x [m, k] times a quantized weight [n, k] -> y [m, n], both of dtype `x` (f32, f16, bf16).

    dtypes: of an affine format's scale and bias (f32, f16, bf16).
    """
    return _matmul(weight_name(fmt, dtypes), ("x", *fmt.parts(n, k)), m, n, k, chip, x)


def dense_matmul_launches(
    dtype: str, m: int, n: int, k: int, chip: Chip = GFX1151, x: str = "f32"
) -> tuple[Launch, ...] | None:
    """x [m, k] times a weight w [n, k] -> y [m, n], k a multiple of 8 (else None). dtype: of w; x: of x and y; each
    "f32", "f16" or "bf16"."""
    return None if k % 8 else _matmul(dtype, ("x", "w"), m, n, k, chip, x)


def argmax_launches(rows: int, n: int) -> tuple[Launch, ...]:
    """x float32 [rows, n] -> y int32 [rows], one workgroup a row."""
    return (Launch("strixhlo_argmax", ("x",), (Output("y", (rows,), "i32"),), (n,), rows, ARGMAX_THREADS),)
