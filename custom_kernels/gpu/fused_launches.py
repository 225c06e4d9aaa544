"""How `strixhlo.fused_matmul` becomes launches of the GPU kernels: of few rows one, whatever the weights' formats (but
those that go in stripes and those that do not), of many rows one for each format.

Before those of many rows there is one for the norm. Where a weight has no tiles, many rows take one launch for
each tensor, and for what follows one for each weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ..ops.formats import FORMATS
from ..ops.fused_matmul import SUMS, Form, Rows
from ..ops.launch import Launch, Lowering, OperandTypes, Output, ceil_div, float_bits
from ..ops.moe_matmul import ACTIVATIONS
from .elements import with_elements
from .fused_kernels import MOST_BINDINGS, MOST_WEIGHTS, FusedKernel, FusedWeight
from .gemm_tiles import choose_matrix_tile, choose_tile, tiled
from .kernels import DENSE, GEMV_ROWS, GEMV_WEIGHT_ROWS, stripe_local, weight_name
from .kernels import threads as threads_of
from .launches import (
    EIGHT,
    WAVE,
    Chip,
    dense_matmul_launches,
    gemv_geometry,
    quantized_matmul_launches,
    shared_out,
    stripe_workgroups,
    striped,
    stripes_of,
)

NORM_THREADS = FINISH_THREADS = 256
BIASED, ADDED, GATED = 1, 2, 4


@dataclass(frozen=True)
class _Call:
    """A call of the op: its form and numbers, m rows of k columns of dtype `x`, the result's dtype `y`, and of each
    tensor its rows (0 where it is one buffer) and its parts' types. mixes: one kernel may have weights of several
    formats; stripes: those that go in stripes only beside each other. source: the buffer that is multiplied."""

    form: Form
    attributes: Mapping[str, Any]
    m: int
    k: int
    x: str
    y: str
    widths: tuple[int, ...]
    dtypes: tuple[tuple[str, ...], ...]
    mixes: bool
    stripes: bool
    source: str = "x"

    @property
    def sums_inside(self) -> bool:
        """Whether the first kernel forms the sum of its input: for few rows, where it has room for the buffers."""
        if self.m > GEMV_ROWS[-1] or self.form.layer:
            return False
        return not self.gated or self.gate_and_up() is not None

    @property
    def gated(self) -> bool:
        return bool(self.attributes["activation"]) and len(self.form.rows) == 2

    @property
    def activation(self) -> int:
        name = self.attributes["activation"]
        return ACTIVATIONS.index(name) if name else len(ACTIVATIONS)

    def bits(self, *names: str) -> tuple[int, ...]:
        return tuple(float_bits(self.attributes[name]) for name in names)

    def weight(self, tensor: int) -> FusedWeight:
        format, dtypes = self.form.formats[tensor], self.dtypes[tensor][1:]
        name = weight_name(FORMATS[format], dtypes) if format in FORMATS else format
        return FusedWeight(name, format, dtypes if name != format else (), self.form.parts(self.k)[tensor])

    def kernel(self, rows: Sequence[Rows], gated: bool = False, bare: bool = False) -> FusedKernel | None:
        """The kernel for these weights, if there is one; bare: without bias and residual."""
        f, weights = self.form, tuple(self.weight(r.tensor) for r in rows)
        most = next((r for r in GEMV_ROWS if self.m <= r), GEMV_ROWS[-1])  # of many rows: `_launch` chooses a tile
        around = (gated, f.normed, f.biased and not bare, f.added and not bare)
        of_sum_and_norm = (f.summed, f.layer)
        kernel = FusedKernel(weights, *around, most, *of_sum_and_norm, whole=any(f.whole), wide=self.y != self.x)
        alike = len(kernel.groups) == 1 or (self.mixes and self._go_together(kernel))
        return kernel if alike and kernel.bindings <= MOST_BINDINGS else None

    def _go_together(self, kernel: FusedKernel) -> bool:
        """Whether there is a loop for its weights' formats: where there are stripes, the same for all of them."""
        in_stripes = {striped(weight.name, self.k) for weight, _ in kernel.groups}
        return not self.stripes or (len(in_stripes) == 1 and not kernel.gated)

    def gate_and_up(self) -> FusedKernel | None:
        """The kernel of both, if there is one."""
        return self.kernel(self.form.rows, gated=True)


def fused_matmul(chip: Chip, attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
    """None for a weight without a kernel."""
    (m, k), form = types[0][0], Form.of(attributes)
    given = dict(zip(form.operands(k), types, strict=True))
    if any(f not in FORMATS and (f not in DENSE or k % 8) for f in form.formats):
        return None
    widths, dtypes = _tensors(form, k, given)
    few, y = m <= GEMV_ROWS[-1], attributes.get("result") or types[0][1]
    in_tiles = all(tiled(format, types[0][1], chip.tiles) for format in form.formats)
    wide = y != types[0][1]
    if (not few and (wide or (any(form.whole) and not in_tiles))) or (
        wide and (attributes["activation"] or form.added)
    ):
        return None
    call = _Call(form, attributes, m, k, types[0][1], y, widths, dtypes, few, bool(chip.stripe_workgroups))
    first = list[Launch]()
    if form.summed and not call.sums_inside:
        numbers = (attributes["sum_epsilon"], attributes["sum_offset"])
        first.append(add_normed_launch(form.summed == "scaled", m, k, call.x, *numbers))
        call = replace(call, source="sum", form=replace(form, summed=""))
    if not few:
        launches = _in_tiles(call, chip) if in_tiles else _many_rows(call, chip)
    elif not call.gated:
        launches = _few_rows(call, chip, form.rows)
    else:
        launches = _gated(call, chip) or _gated_apart(call, chip)
    return Lowering(form.operands(k), (*first, *launches), form.results) if launches else None


def _tensors(
    form: Form, k: int, given: Mapping[str, tuple[tuple[int, ...], str]]
) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
    """Of each tensor its rows (0 where it is one buffer), and the dtypes of its parts."""
    widths, dtypes = [], []
    for t, names in enumerate(form.parts(k)):
        places = form.whole[t] if form.whole else ()
        widths.append(0 if places else given[f"{t}.{names[0]}"][0][0])
        dtypes.append(tuple(p.dtype for p in places) or tuple(given[f"{t}.{name}"][1] for name in names))
    return tuple(widths), tuple(dtypes)


def add_normed_launch(
    scaled: bool, m: int, k: int, dtype: str, epsilon: float, offset: float, based: bool = False
) -> Launch:
    """Operands "base", "x", "sum norm" and, scaled, "factor", based, "base norm" -> "sum": `strixhlo.add_normed`, a
    workgroup a row."""
    inputs = ("base", "x", "sum norm", "factor" if scaled else "sum norm", "base norm" if based else "sum norm")
    scalars = (k, float_bits(epsilon), float_bits(offset), int(scaled), int(based))
    symbol = with_elements("strixhlo_add_normed", dtype)
    return Launch(symbol, inputs, (Output("sum", (m, k), dtype),), scalars, m, NORM_THREADS)


def _launch(
    call: _Call, chip: Chip, kernel: FusedKernel, weights: list[int], columns: tuple[int, int], result: str, more: bool
) -> Launch:
    """weights: numbers of `form.rows`; columns: of the result, how many and the first of these weights'."""
    rows = [call.form.rows[i] for i in weights]
    inputs, places = [call.source], list[int]()
    for r in rows:
        inputs += call.form.names(r.tensor, call.k)
        places += [place.offset for place in (call.form.whole[r.tensor][1:] if call.form.whole else ())]
    inputs += ["norm"] * kernel.normed + ["norm bias"] * (kernel.layer == "biased")
    inputs += [f"bias {i}" for i in weights if kernel.biased] + ["residual"] * kernel.added
    inputs += SUMS[kernel.summed]
    results = 1 if kernel.gated else GEMV_WEIGHT_ROWS
    columns_of = [r.count for r in (rows[:1] if kernel.gated else rows)]
    of_weights = [n for r in (*rows, *[Rows(0, 0, 0)] * (MOST_WEIGHTS - len(rows))) for n in (r.first, r.count)]
    activation = call.activation if kernel.gated or len(call.form.rows) == 1 else len(ACTIVATIONS)
    outputs = [Output(result, (call.m, columns[0]), call.y, updates=result if more else "")]
    outputs += [Output("sum", (call.m, call.k), call.x)] * bool(kernel.summed)
    numbers: tuple[int, ...]
    local = 0
    if call.m > GEMV_ROWS[-1]:
        choose = choose_tile if chip.tiles else choose_matrix_tile
        tile = choose(kernel.name, call.x, call.m, columns_of, call.k, chip.choices, kernel.gated)
        kernel = replace(kernel, rows=tile)
        workgroups, threads = tile.workgroups(call.m, columns_of, kernel.gated), tile.threads
        local = tile.local_memory
        numbers = (call.m, call.k, *columns, activation, *call.bits("limit", "scale"))
    else:
        threads = chip.gemv_waves * WAVE
        lanes, workgroups = 0, stripe_workgroups(kernel.name, columns_of, call.k, chip, call.x, kernel.gated)
        if workgroups:
            workgroups = max(workgroups, len(kernel.groups))
            kernel = replace(kernel, stripes=stripes_of(call.k, chip, call.x))
            lanes = _first_workgroups(kernel, columns_of, workgroups) if len(kernel.groups) > 1 else 0
            local, threads = stripe_local(kernel.symbol), threads_of(kernel.symbol)
        else:
            lanes, workgroups = gemv_geometry(kernel.name, columns_of, results, call.k, chip)
        of_sum = call.bits("sum_epsilon", "sum_offset") if kernel.summed else (0, 0)
        of_norm = (*call.bits("limit", "scale", "epsilon", "offset"), *of_sum)
        numbers = (call.m, call.k, lanes, workgroups, *columns, activation, *of_norm)
    return Launch(
        with_elements(kernel.symbol + ("_more" if more else ""), call.x),
        ((result, *inputs) if more else tuple(inputs)),
        tuple(outputs),
        (*numbers, *of_weights, *places),
        workgroups,
        threads,
        local_memory=local,
    )


def _first_workgroups(kernel: FusedKernel, columns: Sequence[int], workgroups: int) -> int:
    """Of weights of several formats in stripes the workgroups at which the second and the third format begin, 16 bits
    each; columns: of each weight."""
    eights = [sum(ceil_div(columns[t], EIGHT) for t in numbers) for _, numbers in kernel.groups]
    bytes_of = [_row_bytes(weight) for weight, _ in kernel.groups]
    ends = accumulate(shared_out(eights, bytes_of, workgroups)[:-1])
    return sum(end << 16 * i for i, end in enumerate(ends))


def _row_bytes(weight: FusedWeight) -> int:
    """Of 256 columns of a row."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in FORMATS[weight.format].parts(1, 256).values())


def _few_rows(call: _Call, chip: Chip, rows: tuple[Rows, ...], result: str = "y", bare: bool = False) -> list[Launch]:
    """The weights side by side, as many in one launch as a kernel takes. bare: without bias and residual."""
    launches, done, column = list[Launch](), 0, 0
    total = sum(r.count for r in rows)
    while done < len(rows):
        ends = range(len(rows), done, -1)
        end, kernel = next((end, k) for end in ends if (k := call.kernel(rows[done:end], bare=bare)))
        weights = list(range(done, end))
        launches.append(_launch(call, chip, kernel, weights, (total, column), result, bool(launches)))
        if kernel.summed:  # the others take the first one's sum
            call = replace(call, source="sum", form=replace(call.form, summed=""))
        column += sum(rows[i].count for i in weights)
        done = end
    return launches


def _gated(call: _Call, chip: Chip) -> list[Launch]:
    """Gate, up and the activation in one launch; none where the weights differ in format."""
    kernel = call.gate_and_up()
    return [_launch(call, chip, kernel, [0, 1], (call.form.rows[0].count, 0), "y", False)] if kernel else []


def _gated_apart(call: _Call, chip: Chip) -> list[Launch]:
    """Gate and up side by side, then the activation."""
    rows = call.form.rows
    launches = _few_rows(call, chip, rows, "products", bare=True)
    width = sum(r.count for r in rows)
    return [*launches, _finish(call, 0, (0, rows[0].count), width, (rows[0].count, 0), False)]


def layer_norm_launch(biased: bool, m: int, k: int, x: str, epsilon: float, offset: float) -> Launch:
    """Operands "x", "norm" and, biased, "norm bias", [m, k] of dtype x -> "h": `strixhlo.layer_norm`."""
    inputs = ("x", "norm", "norm bias" if biased else "norm")
    scalars = (k, float_bits(epsilon), float_bits(offset), int(biased))
    symbol = with_elements("strixhlo_layer_norm_rows", x)
    return Launch(symbol, inputs, (Output("h", (m, k), x),), scalars, m, NORM_THREADS)


def _norm(call: _Call) -> list[Launch]:
    """The norm of x, in `h`."""
    h, scalars = (Output("h", (call.m, call.k), call.x),), (call.k, *call.bits("epsilon", "offset"))
    launch = Launch("strixhlo_norm_rows", (call.source, "norm"), h, scalars, call.m, NORM_THREADS)
    if layer := call.form.layer:
        inputs = (call.source, "norm", "norm bias" if layer == "biased" else "norm")
        numbers = (*scalars, int(layer == "biased"))
        launch = replace(launch, symbol="strixhlo_layer_norm_rows", inputs=inputs, scalars=numbers)
    return [replace(launch, symbol=with_elements(launch.symbol, call.x))]


def _in_tiles(call: _Call, chip: Chip) -> list[Launch]:
    """The norm, then what few rows take."""
    launches = list[Launch]()
    if call.form.normed:
        launches = _norm(call)
        call = replace(call, form=replace(call.form, normed=False, layer=""), source="h")
    if not call.gated:
        return [*launches, *_few_rows(call, chip, call.form.rows)]
    return [*launches, *(_gated(call, chip) or _gated_apart(call, chip))]


def _many_rows(call: _Call, chip: Chip) -> list[Launch]:
    """The norm, each tensor's matmul into a buffer of its own, then what follows, side by side."""
    form = call.form
    launches, x = (_norm(call), "h") if form.normed else ([], call.source)
    for t, names in enumerate(form.parts(call.k)):
        shape, format = (call.m, call.widths[t], call.k), form.formats[t]
        if format in FORMATS:
            (launch,) = quantized_matmul_launches(FORMATS[format], *shape, call.dtypes[t][1:], chip, call.x)
        else:
            (launch,) = dense_matmul_launches(format, *shape, chip, call.x) or ()
        inputs = (x, *(f"{t}.{name}" for name in names))
        launches.append(replace(launch, inputs=inputs, outputs=(Output(f"products {t}", shape[:2], call.x),)))
    bare = not (form.biased or form.added or call.attributes["activation"])
    if bare and len(form.rows) == 1 and form.rows[0].count == call.widths[0]:
        launches[-1] = replace(launches[-1], outputs=(Output("y", (call.m, call.widths[0]), call.x),))
        return launches
    if call.gated:
        launches.append(_finish(call, 0, None, 0, (form.rows[0].count, 0), False))
        return launches
    column, total = 0, sum(r.count for r in form.rows)
    for i, rows in enumerate(form.rows):
        launches.append(_finish(call, i, None, 0, (total, column), i > 0))
        column += rows.count
    return launches


def _finish(
    call: _Call, i: int, firsts: tuple[int, int] | None, width: int, columns: tuple[int, int], more: bool
) -> Launch:
    """What follows the i-th weight's product (gated: the first two's). firsts: the products' first columns in a buffer
    of `width` columns; None where each tensor has one of its own."""
    form = call.form
    rows = (form.rows[i], form.rows[1 if call.gated else i])
    names = ["products"] * 2 if firsts else [f"products {r.tensor}" for r in rows]
    places = firsts or (rows[0].first, rows[1].first)
    widths = (width, width) if firsts else tuple(call.widths[r.tensor] for r in rows)
    biases = [f"bias {i}", f"bias {1 if call.gated else i}"] if form.biased else names
    flags = BIASED * form.biased | ADDED * form.added | GATED * call.gated
    inputs = (*names, *biases, "residual" if form.added else names[0])
    n = rows[0].count
    return Launch(
        with_elements("strixhlo_finish_more" if more else "strixhlo_finish", call.x),
        ("y", *inputs) if more else inputs,
        (Output("y", (call.m, columns[0]), call.x, updates="y" if more else ""),),
        (call.m, n, *places, *widths, columns[1], columns[0], flags, call.activation, *call.bits("limit", "scale")),
        ceil_div(call.m * n, FINISH_THREADS),
        FINISH_THREADS,
    )
