"""Runs a launch of a strixhlo GPU kernel in the simulator, under every order and poison that must not matter."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from element_cases import symbols

from strixhlo.custom_kernels.gpu.attention_kernels import flash_line
from strixhlo.custom_kernels.gpu.elements import elements_of, with_elements
from strixhlo.custom_kernels.gpu.gemm_tiles import TILES
from strixhlo.custom_kernels.gpu.kernels import GEMV_ROWS, KERNELS, STRIPES, build_hsaco
from strixhlo.custom_kernels.gpu.moe_pairs_kernels import DOWN, PAIRED_TOKENS, GateUpPairs
from strixhlo.custom_kernels.ops.launch import Launch

from .device import CodeObject
from .simulator import using

# The first is what the device may do; each other one differs in what a kernel must not depend on.
VARIANTS: tuple[dict[str, int], ...] = (
    {},
    {"wave_order": 1, "group_order": 1, "poison": 0x5A},
    {"turn": 7, "group_order": 2, "poison": 0x00},
)

# Affine kernels that tests build: every width, group and pair of dtypes is in one of them, for there are 972 in all.
AFFINE = (
    "affine2_g32_f16_f16",
    "affine3_g64_bf16_bf16",
    "affine4_g64_bf16_bf16",
    "affine4_g128_f16_f32",
    "affine5_g32_f32_f32",
    "affine6_g128_bf16_bf16",
    "affine8_g64_f16_f16",
)
# Formats of experts that tests build: their kernels read weights by the code of the matmuls above.
EXPERTS = ("mxfp4", "nvfp4", "affine4_g64_bf16_bf16", "q5_k", "f16")


def _pairs() -> tuple[str, ...]:
    """Kernels of few tokens of experts: each format's, and of some what is around them."""
    forms = [(name, GateUpPairs(chosen=False, corrected=False, biased=False, normed=False)) for name in EXPERTS]
    for joined in (False, True):
        forms.append(("mxfp4", GateUpPairs(chosen=True, corrected=True, biased=False, normed=True, joined=joined)))
    for flags in product((False, True), (False, True), (False, True)):
        chosen, biased, normed = flags
        if any(flags):
            forms.append(("mxfp4", GateUpPairs(chosen=chosen, corrected=False, biased=biased, normed=normed)))
    return tuple(
        symbol
        for tokens in PAIRED_TOKENS
        for symbol in (*(f"{DOWN}{name}_m{tokens}" for name in EXPERTS), *(f.symbol(n, tokens) for n, f in forms))
    )


PAIRS = _pairs()


# Fused matmuls that tests build: format, number of weights, and what is around them (fused_kernels.py).
FUSED = (
    *("q4_1_3n", "q4_1_1r", "q4_1_2gn", "bf16_3b", "q8_0_1br", "q4_0_2gn", "f32_2g", "f32_2gb", "f16_1nb", "q4_k_2n"),
    *(
        "mxfp4_3n",
        "affine4_g64_bf16_bf16_3n",
        "q4_1_3s",
        "q4_1_2gns",
        "f16_1nbsf",
        "f16_1nl",
        "q4_1_2gnlc",
        "q8_0_1nlc",
    ),
    *("q8_0__f16_11n", "q8_0__f16_11gn", "q8_0__f16_11ns", "q8_0__q4_0_21nbs", "q4_k__q6_k_21nw", "q5_k__q4_k_11gnsw"),
)
# The same of many rows on NVIDIA's GPUs, by tile (gemm_tiles.py); of the first each format is tested without more.
TILED = {
    "16x2x4": (
        "q4_1_3",
        "q4_1_2g",
        "bf16_3b",
        "q8_0_1b",
        "q8_0_2b",
        "q8_0_1br",
        "q4_0_2g",
        "f32_2g",
        "f32_2gb",
        "f16_1b",
        "f16_1",
    ),
    "32x2x4": ("q4_0_1", "bf16_1"),
    "32x2x2": ("q4_0_1", "bf16_1"),
    "64x4x2": ("affine4_g64_bf16_bf16_1",),
    "64x4x1": ("q4_0_1", "bf16_1", "q4_0_2g"),
}
# And on AMD's.
MATRIX_TILED = {
    "64w": (
        "q8_0_1",
        "q4_1_3",
        "q4_1_2g",
        "bf16_3b",
        "q8_0_1b",
        "q8_0_2b",
        "q8_0_1br",
        "q4_0_2g",
        "q4_k_2w",
        "q5_k_1w",
    ),
    "16w": ("q8_0_1br", "q4_0_2g"),
}
MATRIX_TILED_MORE = ("q4_0_1b", "q6_k_1w", "q4_k_1w")
TILED_MORE = ("f16_1", "q4_0_1b")
# Formats of embeddings that tests build; K-quants and streams of bits share their code with others.
EMBEDDINGS = (
    *("q4_0", "q5_1", "q8_0", "q4_k", "q6_k", "q3_k", "mxfp4", "nvfp4", "mxfp8", "fp8_block128"),
    *("affine3_g64_bf16_bf16", "affine4_g128_f16_f32", "f32", "f16", "bf16"),
)
FUSED_MORE = ("q6_k_1n",)  # into columns of a result that is there already

OF_ELEMENTS = "activations of "


def relatives(symbol: str) -> str:
    """What kernels are built together with this one: `_family`, and the type of activations unless it is float32."""
    plain, dtype = elements_of(symbol)
    if dtype != "f32" and symbol in symbols(dtype):
        return f"{OF_ELEMENTS}{dtype}"
    return _family(plain) if dtype == "f32" else f"{_family(plain)} x {dtype}"


def _family(symbol: str) -> str:
    """The weight format of a matmul kernel, "experts of" one where it is of a mixture of experts, "stripes of" and
    "tiles of" one where they are of few and of many rows on NVIDIA's GPUs, "matrix tiles" of many on AMD's, "fused" of
    the other fused ones, "embedding" of rows, itself of attention on the matrix units, "" for others."""
    if re.fullmatch(r"strixhlo_fused_gemm_\w+_m\d+w(_more)?", symbol):
        return "matrix tiles"
    if found := re.fullmatch(r"strixhlo_fused_gemm_(\w+?)_[123]g?n?b?r?w?_m.*", symbol):
        return f"tiles of {found.group(1)}"
    if symbol.startswith(tuple(f"strixhlo_fused_{stripes}_" for stripes in STRIPES)):
        return f"stripes of {symbol}"
    if "_pairs_" in symbol:
        return "pairs"
    for family in ("fused", "embedding"):
        if symbol.startswith(f"strixhlo_{family}_"):
            return family
    if flash_line(symbol):
        return symbol
    if re.fullmatch(r"strixhlo_moe_\w+_gemm_f16_m64w", symbol):
        return "experts of float16 alone"  # activations too
    if found := re.fullmatch(r"strixhlo_moe_(?:gate_up(?:_biased)?|rows)_gem[vm]_(\w+?)(_m\d+w?)?", symbol):
        return f"experts of {found.group(1)}"
    if found := re.fullmatch(r"strixhlo_(wide_|deep_)?stripes_(\w+)_m\d+", symbol):
        return f"{found.group(1) or ''}stripes of {found.group(2)}"
    found = re.fullmatch(r"strixhlo_gem[vm]_(\w+)_m\d+", symbol)
    return found.group(1) if found else ""


def _tested(name: str) -> bool:
    if name.startswith(tuple(f"{stripes} of " for stripes in STRIPES)):
        return False  # never on gfx1151
    if name.startswith("experts of "):
        return name.removeprefix("experts of ") in EXPERTS
    return not name.startswith("affine") or name in AFFINE


TESTED = [symbol for symbol in KERNELS if _tested(relatives(symbol))] + list(PAIRS)


def kernels_of(name: str) -> list[str]:
    """The kernels that `relatives` gives this name."""
    if name.startswith(OF_ELEMENTS):
        return [*symbols(name.removeprefix(OF_ELEMENTS))]
    name, _, dtype = name.partition(" x ")
    return [
        with_elements(symbol, dtype or "f32")
        for symbol in _kernels_of(name, dtype or "f32")
        if not dtype or symbol != "strixhlo_argmax"
    ]


def _kernels_of(name: str, dtype: str) -> list[str]:
    if name.startswith("stripes of strixhlo_"):
        return [name.removeprefix("stripes of ")]
    if name == "fused":
        into_y = [f"strixhlo_fused_{kernel}_m{m}_more" for kernel in FUSED_MORE for m in GEMV_ROWS]
        return [f"strixhlo_fused_{kernel}_m{m}" for kernel in FUSED for m in GEMV_ROWS] + into_y
    if name == "matrix tiles":
        made = [f"strixhlo_fused_gemm_{form}_m{tile}" for tile, forms in MATRIX_TILED.items() for form in forms]
        return [*made, *(f"strixhlo_fused_gemm_{form}_m64w_more" for form in MATRIX_TILED_MORE)]
    if name == "pairs":
        return list(PAIRS)
    if name == "embedding":
        return [f"strixhlo_embedding_{format}" for format in EMBEDDINGS]
    if name.startswith("tiles of "):
        return [symbol for symbol in _tiled_kernels(dtype) if _family(symbol) == name]
    if flash_line(name):
        return [name]
    return [symbol for symbol in KERNELS if relatives(symbol) == name]


def _tiled_kernels(dtype: str) -> list[str]:
    formats = sorted({_family(symbol) for symbol in TESTED if "_gemm_" in symbol and "_moe_" not in symbol})
    tiles = {tile.name for tile in TILES[dtype]}
    made = [f"strixhlo_fused_gemm_{name}_1_m16x2x4" for name in formats]
    made += [f"strixhlo_fused_gemm_{form}_m{t}" for t, forms in TILED.items() if t in tiles for form in forms]
    return list(dict.fromkeys([*made, *(f"strixhlo_fused_gemm_{form}_m16x2x4_more" for form in TILED_MORE)]))


def all_code_objects() -> list[Path]:
    """The code objects that `gfx1151` runs, which hold all tested kernels; the assembly is beside each."""
    return [build_hsaco("gfx1151", kernels_of(name)) for name in sorted({relatives(symbol) for symbol in TESTED})]


def gfx1151(variants: tuple[dict[str, int], ...] = VARIANTS) -> Callable[[Launch, list[np.ndarray]], None]:
    """A function (launch, buffers) -> None that runs a launch on buffers in place. AssertionError when two variants
    differ; device.HipError for faults: out of bounds, misaligned, a race."""
    built: dict[str, CodeObject] = {}

    def run(launch: Launch, buffers: list[np.ndarray]) -> None:
        results = []
        for options in variants:
            copies = [buffer.copy() for buffer in buffers]
            name = relatives(launch.symbol)
            if name not in built:
                built[name] = CodeObject(build_hsaco("gfx1151", kernels_of(name)))
            with using(**options):
                built[name].launch(launch.symbol, [launch.workgroups], [launch.threads], [*copies, *launch.scalars])
            results.append(copies)
        for options, copies in zip(variants, results, strict=True):
            for first, other in zip(results[0], copies, strict=True):
                assert first.tobytes() == other.tobytes(), f"{launch.symbol}: {options} changes the result"
        for buffer, result in zip(buffers, results[0], strict=True):
            buffer[...] = result

    return run
