"""How the mixture-of-experts ops become launches of the GPU kernels; of few tokens moe_pairs_launches.py.

The constants are chosen for gfx1151 and the H200 by reasoning, as in launches.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..choices import Question
from ..ops.formats import FORMATS
from ..ops.launch import Launch, Lowering, OperandTypes, Output, ceil_div, float_bits, with_input
from ..ops.moe_matmul import ACTIVATIONS, part_names, scaled_together
from ..ops.moe_route import RESULTS, SCORINGS, most_tiles, result_shapes
from .elements import with_elements
from .expert_spans import fits_spans
from .gemm_tiles import EXPERT_MATRIX_TILE, EXPERT_TILE, Tile, tiled
from .kernels import DENSE, WIDE, weight_name
from .launches import WAVE, Chip, run_of
from .moe_kernels import (
    EXPERT_ROWS,
    MOST_BINDINGS,
    ROUTE_EXPERTS,
    gate_up,
    gate_up_bindings,
    in_spans,
)

MOST_CHOSEN, MOST_GROUPS, MOST_PAIRS = 16, 32, 8192
THREADS = 256
ROUTING = ("expert", "order", "offsets", "tiles")
FEW_TOKENS = 16  # at most, for moe_rows.h: each is summed as alone
FEW_COLUMNS = 32  # of which a row there has whole ones
FEW_WAVES = 8  # of a workgroup of moe_rows.h, each with 16 weight rows
MATRIX_ROWS = 16  # sorted rows of an expert from which AMD's matrix units are worth it
NEVER = -1  # as an unsigned number: more rows than there are


def moe_route(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """One workgroup; None for more experts, choices, groups or pairs than it takes."""
    (t, columns), k, biased = types[0][0], attributes["k"], attributes["biased"]
    a, experts = attributes, attributes.get("experts", columns)
    most = next((e for e in ROUTE_EXPERTS if experts <= e), None)
    if most is None or k > min(experts, MOST_CHOSEN) or t * k > MOST_PAIRS or a["groups"] > MOST_GROUPS:
        return None
    outputs = tuple(Output(name, shape, dtype) for name, (shape, dtype) in result_shapes(t, experts, k).items())
    how = (SCORINGS.index(a["scoring"]), int(a["normalize"]), float_bits(a["scale"]))
    groups = (a["groups"], a["group_k"], a["group_top"])
    scalars = (t, experts, k, *how, *groups, route_bias(a, biased), outputs[-1].shape[0], columns, *of_logits(a))
    inputs = ("logits", "positions", "bias" if biased else "logits")
    launch = Launch(with_elements(f"strixhlo_moe_route_e{most}", types[0][1]), inputs, outputs, scalars, 1, THREADS)
    return Lowering(inputs[: len(types)], (launch,), RESULTS)


def route_bias(attributes: Mapping[str, Any], biased: bool) -> int:
    """moe_route.h's RouteBias. biased: there is an operand of a number for each expert."""
    return int(biased) + int(biased and attributes.get("factored", False))


def of_logits(attributes: Mapping[str, Any]) -> tuple[int, int]:
    """jitter and logit_scale of `moe_route`, as kernels take them."""
    return float_bits(attributes.get("jitter", 0.0)), float_bits(attributes.get("logit_scale", 1.0))


@dataclass(frozen=True)
class Tiles:
    """least: rows of an expert that make a tile, others being left to a gemv; count: of tiles at most."""

    tile: Tile
    least: int
    count: int

    @property
    def gemv(self) -> bool:
        """Whether some rows are left to a gemv."""
        return self.least > 1


@dataclass(frozen=True)
class Experts:
    """The weights of all experts, [experts * n, columns]. kernel: what its kernels are called; x: the dtype of
    activations."""

    kernel: str
    experts: int
    n: int
    columns: int
    k: int
    x: str

    @property
    def run(self) -> int:
        """Columns that a kernel reads together, of which a row has whole ones."""
        return run_of(self.kernel)

    @property
    def runs(self) -> int:
        """Of a row."""
        return self.columns // self.run

    def few(self, chip: Chip, tokens: int) -> bool:
        """Whether few rows go through NVIDIA's matrix units, each as it does alone: moe_rows.h."""
        fits = self.kernel not in WIDE and self.columns % FEW_COLUMNS == 0
        return bool(chip.multiprocessors) and fits and tokens <= FEW_TOKENS

    def spans(self, chip: Chip, types: OperandTypes, hidden: int, inner: int) -> bool:
        """Whether they go by spans. types: of the parts of gate, or of down, [experts * hidden, inner]."""
        if not chip.expert_spans or not in_spans(self.kernel):
            return False
        scales = [((shape[0], shape[1] * hidden // self.columns), dtype) for shape, dtype in types]  # as gate has them
        return fits_spans(chip, self.k, hidden, inner, scales)

    def tiles(self, chip: Chip, tokens: int, pairs: int) -> Tiles | None:
        """How the matrix units take the rows of `pairs` pairs; None where no expert can have enough of them, or where
        the units do not hold its codes."""
        if not tiled(self.kernel, self.x, chip.tiles) or self.few(chip, tokens):
            return None
        tile, least = (EXPERT_TILE, 1) if chip.tiles else (EXPERT_MATRIX_TILE, MATRIX_ROWS)
        if tokens < (EXPERT_ROWS + 1 if chip.tiles else MATRIX_ROWS):
            return None
        return Tiles(tile, least, min(pairs // least, pairs // tile.rows + self.experts))


def experts_of(format: str, experts: int, columns: int, k: int, types: OperandTypes, x: str) -> Experts | None:
    """The weights whose parts are the first of `types`; None where there is no kernel for them."""
    n = types[0][0][0] // experts
    names = part_names(format, n, columns)
    if format in FORMATS and not scaled_together(names, types, experts):
        kernel = weight_name(FORMATS[format], tuple(dtype for _, dtype in types[1 : len(names)]))
    elif format in DENSE:
        kernel = format
    else:
        return None
    found = Experts(kernel, experts, n, columns, k, x)
    return None if columns % found.run else found


def gate_up_geometry(weight: Experts, chip: Chip) -> tuple[int, int]:
    """`expert_geometry` of gate and up, or with the lanes that a table of measurements says."""
    most = min(chip.gate_up_lanes, weight.runs)
    rule, _ = expert_geometry(weight.n, weight.k, most, chip)
    shape = (weight.experts, weight.n, weight.columns, weight.k)
    question = Question("experts_gate_up", with_elements(weight.kernel, weight.x), 0, shape)
    options = [{"lanes": lanes} for lanes in (4, 8, 16, 32) if lanes == 4 or lanes <= most]
    lanes = int(chip.choices.pick(question, {"lanes": rule}, options)["lanes"])
    return lanes, _blocks(weight.n, lanes, chip)


def _blocks(pairs_of_rows: int, lanes: int, chip: Chip) -> int:
    return ceil_div(pairs_of_rows, chip.gemv_waves * (WAVE // lanes))


def expert_geometry(pairs_of_rows: int, experts: int, most_lanes: int, chip: Chip) -> tuple[int, int]:
    """(lanes that share two weight rows, workgroups of a tile): as few lanes as keep the chip busy with one token.

    It does not depend on the number of tokens, so that each is summed in the same order. experts: whose rows one token
    needs apart. most_lanes: more would ask for x too often, since each workgroup reads all of it.
    """
    lanes = 4
    while 2 * lanes <= most_lanes and _blocks(pairs_of_rows, lanes, chip) * experts < chip.gemv_wanted:
        lanes *= 2
    return lanes, _blocks(pairs_of_rows, lanes, chip)


def moe_gate_up(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """The norm, both matmuls and the activation over sorted rows: a launch for the norm, a GEMV, and the matrix units
    for experts with many rows, NVIDIA's for all of a prompt. Where the weights differ in format, or have too many parts
    for one dispatch, they are multiplied one after the other.
    """
    ((t, columns), x), (pairs,), experts = types[0], types[1][0], types[3][0][0] - 1
    format, biased, k, normed = attributes["format"], attributes["biased"], attributes["k"], attributes["normed"]
    names = part_names(format, types[5][0][0] // experts, columns)
    gate, up = (experts_of(format, experts, columns, k, types[5 + i * len(names) :], x) for i in range(2))
    if gate is None or up is None or columns % 4:
        return None
    operands = tuple(tuple(f"{which}.{name}" for name in names) for which in ("gate", "up"))
    biases = ("gate_bias", "up_bias") if biased else ()
    norm = ("norm",) if normed else ()
    how = (ACTIVATIONS.index(attributes["activation"]), float_bits(attributes["limit"]))
    rms = (float_bits(attributes["epsilon"]), float_bits(attributes["offset"]))
    parts = (*operands[0], *operands[1], *biases)
    weighed = ("weights",) * bool(attributes.get("weighed", False))
    if gate == up and not weighed and gate_up_bindings(len(names), biased) <= MOST_BINDINGS:
        launches = _together(chip, gate, parts, biased, how, t, pairs, types[5 : 5 + len(names)])
    else:
        launches = _apart(chip, (gate, up), operands, biases, how, t, pairs, weighed)
    if normed:
        h = (Output("normed", (t, columns), x),)
        first = Launch(with_elements("strixhlo_norm_rows", x), ("x", "norm"), h, (columns, *rms), t, THREADS)
        launches = [first, *with_input(launches, "x", "normed")]
    result = launches[-1].outputs[0].name
    return Lowering(("x", *ROUTING, *parts, *norm, *weighed), tuple(launches), (result,))


def _together(
    chip: Chip,
    weight: Experts,
    parts: tuple[str, ...],
    biased: bool,
    how: tuple[int, int],
    tokens: int,
    pairs: int,
    types: OperandTypes,
) -> list[Launch]:
    matrix, inputs = weight.tiles(chip, tokens, pairs), ("x", *ROUTING, *parts)
    h = Output("h", (pairs, weight.n), weight.x)
    if matrix and not matrix.gemv:
        return [_in_tiles(weight, matrix, gate_up(biased), inputs, h, how)]
    tiles = most_tiles(pairs, weight.experts)
    lanes, workgroups = gate_up_geometry(weight, chip)
    shape = (weight.k, weight.experts, weight.n, weight.columns, lanes, workgroups)
    symbol = f"strixhlo_moe_{gate_up(biased)}_gemv_{weight.kernel}_m{EXPERT_ROWS}"
    if weight.few(chip, tokens):
        few = "few_spans" if weight.spans(chip, types, weight.columns, weight.n) else "few"
        workgroups, symbol = ceil_div(weight.n, 8 * FEW_WAVES), f"strixhlo_moe_{gate_up(biased)}_{few}_{weight.kernel}"
        shape = (*shape[:-1], workgroups)
    scalars, threads = (*shape, *how, matrix.least if matrix else NEVER), chip.gemv_waves * WAVE
    launches = [Launch(with_elements(symbol, weight.x), inputs, (h,), scalars, tiles * workgroups, threads)]
    if matrix:
        launches.append(_in_tiles(weight, matrix, gate_up(biased), inputs, h, how))
    return launches


def _in_tiles(
    weight: Experts, tiles: Tiles, name: str, inputs: tuple[str, ...], result: Output, how: tuple[int, ...] = ()
) -> Launch:
    """The rows that the matrix units take, beside those of a gemv or alone. how: of the activation, of gate and up."""
    symbol = with_elements(f"strixhlo_moe_{name}_gemm_{weight.kernel}_m{tiles.tile.name}", weight.x)
    scalars = (weight.k, weight.experts, weight.n, weight.columns, *how, tiles.least)
    grid = tiles.count * tiles.tile.workgroups(1, (weight.n,), gated=bool(how))
    if tiles.gemv:
        inputs = (result.name, *inputs)
        result = Output(f"{result.name}_whole", result.shape, result.dtype, updates=result.name)
    return Launch(symbol, inputs, (result,), scalars, grid, tiles.tile.threads)


def _apart(
    chip: Chip,
    weights: tuple[Experts, Experts],
    parts: tuple[tuple[str, ...], ...],
    biases: tuple[str, ...],
    how: tuple[int, int],
    tokens: int,
    pairs: int,
    weighed: tuple[str, ...],
) -> list[Launch]:
    """The rows of x in order, gate, up, the activation."""
    gate, up = weights
    n, columns, experts = gate.n, gate.columns, gate.experts
    rows = Output("sorted", (pairs, columns), gate.x)
    grid = ceil_div(pairs * columns // 4, THREADS)
    scalars, inputs = (gate.k, experts, pairs, columns, len(weighed)), ("x", "expert", "order", *(weighed or ("x",)))
    launches = [Launch(with_elements("strixhlo_moe_gather", gate.x), inputs, (rows,), scalars, grid, THREADS)]
    launches += _rows(chip, gate, "sorted", parts[0], "gate", tokens, pairs)
    gate_result = launches[-1].outputs[0].name
    launches += _rows(chip, up, "sorted", parts[1], "up", tokens, pairs)
    inputs = (gate_result, launches[-1].outputs[0].name, "expert", *biases)
    symbol = with_elements("strixhlo_moe_activate" + ("_biased" if biases else ""), gate.x)
    h, grid = Output("h", (pairs, n), gate.x), ceil_div(pairs * n, THREADS)
    return [*launches, Launch(symbol, inputs, (h,), (experts, pairs, n, *how), grid, THREADS)]


def moe_down(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """The matmuls over sorted rows, then the sum and the residual."""
    ((pairs, columns), x), (t, k), experts = types[0], types[1][0], types[5][0][0] - 1
    format, biased, added = attributes["format"], attributes["biased"], attributes.get("added", False)
    weight = experts_of(format, experts, columns, k, types[7:], x)
    if weight is None:
        return None
    down = tuple(f"down.{name}" for name in part_names(format, weight.n, columns))
    bias, residual = ("bias",) * biased, ("residual",) * added
    operands = ("h", "weights", "places", *ROUTING, *down, *bias, *residual)
    after = (int(biased), int(added), float_bits(attributes.get("scale", 1.0)))
    further = (*(bias or ("weights",)), *(residual or ("h",)))
    y = (Output("y", (t, weight.n), x),)
    rows = _rows(chip, weight, "h", down, "down", t, pairs, types[7 : 7 + len(down)])
    inputs = (rows[-1].outputs[0].name, "weights", "places", "expert", *further)
    scalars, grid = (t, k, experts, weight.n, *after), ceil_div(t * weight.n, THREADS)
    combine = Launch(with_elements("strixhlo_moe_combine", x), inputs, y, scalars, grid, THREADS)
    return Lowering(operands, (*rows, combine), ("y",))


def down_geometry(weight: Experts, chip: Chip) -> tuple[int, int]:
    """`expert_geometry` of down, where a token goes through its experts in turn; all are summed alike."""
    return expert_geometry(ceil_div(weight.n, 2), 1, min(WAVE, weight.runs), chip)


def _rows(
    chip: Chip,
    weight: Experts,
    x: str,
    parts: tuple[str, ...],
    result: str,
    tokens: int,
    pairs: int,
    types: OperandTypes = (),
) -> list[Launch]:
    """A matmul over sorted rows: a GEMV, and the matrix units for experts with many rows. types: of the parts of
    down, to go by spans where it can."""
    tiles, matrix = most_tiles(pairs, weight.experts), weight.tiles(chip, tokens, pairs)
    out, inputs = Output(result, (pairs, weight.n), weight.x), (x, *ROUTING, *parts)
    if matrix and not matrix.gemv:
        return [_in_tiles(weight, matrix, "rows", inputs, out)]
    lanes, workgroups = down_geometry(weight, chip)
    least = matrix.least if matrix else NEVER
    shape = (weight.k, weight.experts, weight.n, weight.columns, lanes, workgroups, least)
    symbol = f"strixhlo_moe_rows_gemv_{weight.kernel}_m{EXPERT_ROWS}"
    if weight.few(chip, tokens):
        few = "few_spans" if types and weight.spans(chip, types, weight.n, weight.columns) else "few"
        workgroups, symbol = ceil_div(weight.n, 16 * FEW_WAVES), f"strixhlo_moe_rows_{few}_{weight.kernel}"
        shape = (*shape[:-2], workgroups, shape[-1])
    grid, threads = tiles * workgroups, chip.gemv_waves * WAVE
    launches = [Launch(with_elements(symbol, weight.x), inputs, (out,), shape, grid, threads)]
    if matrix:
        launches.append(_in_tiles(weight, matrix, "rows", inputs, out))
    return launches
