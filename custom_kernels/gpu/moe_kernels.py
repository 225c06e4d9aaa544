"""The kernels of a mixture of experts by symbol: the lines of moe_kernels.h's macros that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from ..ops.formats import FORMATS
from ..ops.formats_affine import AffineFormat
from .elements import OF
from .gemm_tiles import Tile

EXPERT_ROWS = 8  # most sorted rows of an expert that a gemv takes at once
ROUTE_EXPERTS = (128, 512)  # most experts of a routing kernel
MOST_BINDINGS = 16  # buffers of a dispatch in IREE's HIP driver
# Members of weights.h's Parts, in their order: type and, where it differs, the name of the format's part.
MEMBERS = {
    "codes": "u32",
    "high": "u32",
    "scale": "void",
    "super_scale": "f16",
    "minimum": "void",
    "super_minimum": "f16",
    "global_scale": "f32",
}


def member_of(part: str) -> str:
    """The member of Parts that holds a format's part."""
    return {"bias": "minimum", "dense": "codes"}.get(part, part)


def weight_type(format: str, dtypes: tuple[str, ...]) -> str:
    """The format's C++ type; dtypes: of an affine format's scale and bias."""
    fmt = FORMATS.get(format)
    if fmt is None:
        return f"Dense<{format.replace('bf16', 'BF16')}>"
    if isinstance(fmt, AffineFormat):
        of = ", ".join((str(fmt.bits), str(fmt.group), *dtypes)).replace("bf16", "BF16")
        return f"Affine<{of}>"
    return format.upper() if format.startswith("q") else "".join(map(str.capitalize, format.split("_")))


def weight_parameters(members: Sequence[str], prefix: str, *more: str) -> str:
    """Parameters of a weight's parts, and of more float32 arrays; the parts as members of Parts."""
    given = ", ".join([*(f"IN({MEMBERS[m]}, {prefix}_{m})" for m in members), *(f"IN(f32, {m})" for m in more)])
    held = ", ".join(f".{m} = {prefix}_{m}" for m in MEMBERS if m in members)
    return f"({given}), ({{{held}}})"


def expert_kernels(name: str, format: str, parts: Iterable[str], dtypes: tuple[str, ...]) -> dict[str, str]:
    """Symbol -> line, with OF in it (elements.py), of one format. name: in symbols; parts: of a weight, in operand
    order."""
    kind = f"({weight_type(format, dtypes)})"
    members = [member_of(p) for p in parts]
    weight = partial(weight_parameters, members)
    lines, most, down = {}, EXPERT_ROWS, weight("down")
    for biased in (False, True):
        if gate_up_bindings(len(members), biased) > MOST_BINDINGS:
            continue
        biases = ("gate_bias", "up_bias") if biased else ()
        pair = ", ".join([weight("gate"), weight("up", *biases), *(biases or ("nullptr", "nullptr"))])
        start = f"strixhlo_moe_{gate_up(biased)}"
        lines[f"{start}_gemv_{name}_m{most}"] = f"MOE_GATE_UP_GEMV({OF}, {most}, {kind}, {pair})"
    lines[f"strixhlo_moe_rows_gemv_{name}_m{most}"] = f"MOE_ROWS_GEMV({OF}, {most}, {kind}, {down})"
    return lines


def expert_tile_kernels(
    name: str, format: str, parts: Iterable[str], dtypes: tuple[str, ...], tile: Tile
) -> dict[str, str]:
    """The same of those that multiply an expert's rows in tiles. On NVIDIA GPUs they do all rows, on AMD's those of
    experts that have many, beside a gemv."""
    nvidia, kind = tile.waves_n > 0, f"({weight_type(format, dtypes)})"
    y = "(), (, OUT({x}, y))" if nvidia else "(OUT({x}, y),), ()"
    start, members = f"{OF}, {tile.threads}, ({tile.kernel}), {y}, {kind}", [member_of(p) for p in parts]
    weight = partial(weight_parameters, members)
    lines = {f"strixhlo_moe_rows_gemm_{name}_m{tile.name}": f"MOE_ROWS_TILES({start}, {weight('down')})"}
    for biased in (False, True):
        if gate_up_bindings(len(members), biased) > MOST_BINDINGS:
            continue
        biases = ("gate_bias", "up_bias") if biased else ()
        pair = ", ".join([weight("gate"), weight("up", *biases), *(biases or ("nullptr", "nullptr"))])
        lines[f"strixhlo_moe_{gate_up(biased)}_gemm_{name}_m{tile.name}"] = f"MOE_GATE_UP_TILES({start}, {pair})"
    return lines


@dataclass(frozen=True)
class OneForm:
    """What a kernel of one token, from the choice of experts to their sum, has beside three weights."""

    corrected: bool  # the router's scores
    biased: bool
    normed: bool
    added: bool  # to a residual

    def symbol(self, name: str, way: str = "gemv") -> str:
        """name: of the format, in symbols. way: "gemv" or "spans"."""
        flags = "_corrected" * self.corrected + "_biased" * self.biased + "_normed" * self.normed
        return f"strixhlo_moe_one{flags}{'_added' * self.added}_{way}_{name}"

    def bindings(self, parts: int) -> int:
        """Its buffers: logits, positions, x, three weights, ..., counters (with h), y."""
        return 3 + 3 * parts + self.corrected + 3 * self.biased + self.normed + self.added + 2

    def line(self, kind: str, weight: Callable[..., str], way: str = "gemv") -> str:
        """kind: the format's C++ type; weight(prefix, ...): `weight_parameters` of its members; way: as of `symbol`."""
        biases, bias = ("gate_bias", "up_bias") * self.biased, ("bias",) * self.biased
        first = "(IN(f32, correction), " if self.corrected else "("
        last = weight("down", *bias, *("norm",) * self.normed)
        if self.added:
            last = last.replace("), (", ", IN({x}, residual)), (", 1)
        flags = f"{str(self.biased).lower()}, {str(self.normed).lower()}"
        others = [
            "correction" if self.corrected else "nullptr",
            *(biases or ("nullptr", "nullptr")),
            *(bias or ("nullptr",)),
            "norm" if self.normed else "nullptr",
            "residual" if self.added else "nullptr",
        ]
        weights = f"{first}{weight('gate')[1:]}, {weight('up', *biases)}, {last}"
        macro = "MOE_ONE_SPANS" if way == "spans" else "MOE_ONE"
        return f"{macro}({OF}, {flags}, {kind}, {weights}, {', '.join(others)})"


def in_spans(name: str) -> bool:
    """Whether expert_spans.h has a format. name: its own, or what its kernels are called."""
    return name == "mxfp4" or name.startswith("affine4_")


def nvidia_expert_kernels(name: str, format: str, parts: Iterable[str], dtypes: tuple[str, ...]) -> dict[str, str]:
    """The same of those that only NVIDIA GPUs have: of one token in one launch, and of few."""
    kind = "(Bf16Runs)" if format == "bf16" else f"({weight_type(format, dtypes)})"
    members = [member_of(p) for p in parts]
    weight = partial(weight_parameters, members)
    ways = (("few", "false"), ("few_spans", "true")) if in_spans(format) else (("few", "false"),)
    lines = {}
    for flags in product((False, True), repeat=4):
        form = OneForm(*flags)
        if form.bindings(len(members)) <= MOST_BINDINGS:
            lines[form.symbol(name)] = form.line(kind, weight)
            if in_spans(format):
                lines[form.symbol(name, "spans")] = form.line(kind, weight, "spans")
    for biased in (False, True):
        if gate_up_bindings(len(members), biased) > MOST_BINDINGS:
            continue
        biases = ("gate_bias", "up_bias") if biased else ()
        pair = ", ".join([weight("gate"), weight("up", *biases), *(biases or ("nullptr", "nullptr"))])
        for few, spans in ways:
            lines[f"strixhlo_moe_{gate_up(biased)}_{few}_{name}"] = f"MOE_GATE_UP_ROWS({OF}, {spans}, {kind}, {pair})"
    for few, spans in ways:
        lines[f"strixhlo_moe_rows_{few}_{name}"] = f"MOE_DOWN_ROWS({OF}, {spans}, {kind}, {weight('down')})"
    return lines


def gate_up(biased: bool) -> str:
    """What the kernels of both matmuls are called."""
    return "gate_up" + "_biased" * biased


def gate_up_bindings(parts: int, biased: bool) -> int:
    """Buffers of such a kernel: x, the routing, two weights, two biases, h."""
    return 1 + 4 + 2 * parts + 2 * biased + 1


def routing_kernels() -> dict[str, str]:
    """Symbol -> line, of what knows no weight format."""
    routes = {f"strixhlo_moe_route_e{most}": f"MOE_ROUTE({OF}, {most // 32})" for most in ROUTE_EXPERTS}
    activate = {
        "strixhlo_moe_activate": f"MOE_ACTIVATE({OF}, (), nullptr, nullptr)",
        "strixhlo_moe_activate_biased": f"MOE_ACTIVATE({OF},"
        " (IN(f32, gate_bias), IN(f32, up_bias),), gate_bias, up_bias)",
    }
    return {
        **routes,
        **activate,
        "strixhlo_moe_gather": f"MOE_GATHER({OF})",
        "strixhlo_moe_combine": f"MOE_COMBINE({OF})",
        "strixhlo_moe_add_gated": f"ADD_GATED({OF})",
    }
