"""Experts' matmuls of many rows in the tiles of dense ones (moe_gemm.h), with rows of each expert as given."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cuda_kit.recording import NVIDIA
from kernel_tolerances import ARRAYS, RELATIVE_L2
from moe_cases import expected, expert_weights, named

from strixhlo.custom_kernels.gpu.launches import GFX1151, H200, Chip
from strixhlo.custom_kernels.gpu.moe_launches import moe_down, moe_gate_up
from strixhlo.custom_kernels.ops.moe_matmul import part_names
from strixhlo.custom_kernels.ops.moe_route import most_tiles

ROUTED = ("expert", "order", "offsets", "tiles")
TYPES = {"float32": "f32", "float16": "f16", "int16": "bf16", "int32": "i32", "int8": "i8"}
on_nvidia = pytest.mark.parametrize("machine", NVIDIA, indirect=True)
NO_NORM = {"normed": False, "epsilon": 0.0, "offset": 0.0}


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int16) if array.dtype == ml_dtypes.bfloat16 else array


def routed(counts: list[int]) -> dict[str, np.ndarray]:
    """A choice of one expert a token that gives each expert so many rows, in a shuffled order; the last token is
    padding."""
    experts, ids = len(counts), np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    ids = np.append(np.random.default_rng(len(ids)).permutation(ids), np.int32(experts)).astype(np.int32)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    starts = [first + at for first, n in zip(offsets, counts, strict=False) for at in range(0, n, 16)]
    tiles = np.full(most_tiles(len(ids), experts), -1, np.int32)
    tiles[: len(starts)] = starts
    weights = np.where(ids < experts, 0.5 + 0.5 / (1 + ids), 0).astype(np.float32)
    values = {"ids": ids[:, None], "weights": weights[:, None], "places": places[:, None], "order": order}
    return values | {"expert": ids[order], "offsets": offsets, "tiles": tiles}


def problem(format: str, x: str, counts: list[int], shape: tuple[int, int], narrow: bool) -> dict[str, np.ndarray]:
    """Operands of both matmuls; shape: columns of x and of h."""
    v, rng, experts = routed(counts), np.random.default_rng(sum(counts)), len(counts)
    v["x"] = (rng.standard_normal((len(v["ids"]), shape[0])) * 0.25).astype(ARRAYS[x])
    sizes = {"gate": (shape[1], shape[0]), "up": (shape[1], shape[0]), "down": shape}
    for seed, (name, (n, k)) in enumerate(sizes.items()):
        weight = expert_weights(format, experts, n, k, seed, narrow)
        v |= named(name, format, weight)
        v[f"{name}_values"] = weight.values.astype(np.float64)
        v[f"{name}_bias"] = rng.standard_normal((experts, n), np.float32)
    return v | {"bias": v["down_bias"]}


def run(run_launches, chip: Chip, v: dict[str, np.ndarray], format: str, biased: bool, activation: str) -> np.ndarray:
    """Both matmuls, in tiles: on NVIDIA's GPUs all rows of one in one launch."""
    x = TYPES[str(bits(v["x"]).dtype)]
    parts = {w: [f"{w}.{p}" for p in part_names(format, *v[f"{w}_values"].shape[1:])] for w in ("gate", "up", "down")}
    biases = (("gate_bias", "up_bias"), ("bias",)) if biased else ((), ())
    own = {"format": format, "k": 1, "biased": biased}
    up = own | {"activation": activation, "limit": 1.5} | NO_NORM
    values = {name: bits(a) for name, a in v.items()}
    values["h"] = bits(np.zeros((len(v["order"]), v["gate_values"].shape[1]), ARRAYS[x]))
    calls = (
        (moe_gate_up, up, ("x", *ROUTED, *parts["gate"], *parts["up"], *biases[0])),
        (moe_down, own, ("h", "weights", "places", *ROUTED, *parts["down"], *biases[1])),
    )
    for rule, attributes, names in calls:
        types = [(values[n].shape, x if n in ("x", "h") else TYPES[str(values[n].dtype)]) for n in names]
        lowering = rule(chip, attributes, types)
        assert lowering and lowering.operands == names
        multiplied = [launch.symbol for launch in lowering.launches if "_gem" in launch.symbol]
        assert any("_gemm_" in symbol for symbol in multiplied)
        assert not (chip.tiles and any("_gemv_" in symbol for symbol in multiplied))
        results = run_launches(lowering.launches, values)
        values |= {"h" if rule is moe_gate_up else "y": bits(results[lowering.results[0]])}
    return values["y"].view(ARRAYS[x]).astype(np.float64)


def assert_near(y: np.ndarray, want: np.ndarray, x: str) -> None:
    assert np.isfinite(y).all() and (y[-1] == 0).all()
    assert np.linalg.norm(y - want) <= RELATIVE_L2[x] * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("name", "x", "counts"),
    [
        ("mxfp4", "f32", [66, 0, 15, 17, 16, 1]),  # two tiles of an expert, none, tiles of 16 and of 32
        ("mxfp4", "f16", [0, 33, 0]),  # all rows of one expert
        ("affine4_g64_bf16_bf16", "bf16", [17, 0, 3]),
        ("nvfp4", "bf16", [17, 3]),
        ("fp8_channel", "f32", [17, 3]),
        ("q5_k", "bf16", [17, 3]),  # gate and up apart, since both have too many parts for one launch
        ("bf16", "f32", [17, 3]),
        ("f32", "bf16", [9, 3]),
    ],
)
@on_nvidia
def test_nvidia(run_launches, name, x, counts):
    format = name.removesuffix("_bf16_bf16")
    v = problem(format, x, counts, (256, 256) if format == "q5_k" else (192, 64), format != name)
    biased = name in ("mxfp4", "affine4_g64_bf16_bf16")
    activation = "clamped" if biased else "gelu"
    if not biased:
        v |= {n: np.zeros_like(a) for n, a in v.items() if n.endswith("bias")}
    assert_near(run(run_launches, H200, v, format, biased, activation), expected(v, activation, 1.5), x)


def test_float16_of_both_on_gfx1151(run_launches):
    """Weights and activations: AMD's units hold them exactly."""
    v = problem("f16", "f16", [40, 0, 15, 16], (72, 48), False)
    assert_near(run(run_launches, GFX1151, v, "f16", True, "silu"), expected(v, "silu", 0.0), "f16")


def test_workgroups():
    """As many tiles as rows can need, not as many as the busiest expert would."""
    types = [((512, 2048), "bf16"), ((4096,), "i32"), ((4096,), "i32"), ((129,), "i32"), ((384,), "i32")]
    types += [((128 * 768, 1024), "i8"), ((128 * 768, 64), "i8")] * 2
    attributes = {"format": "mxfp4", "k": 8, "activation": "silu", "limit": 0.0, "biased": False} | NO_NORM
    for chip, tiles in ((H200, 4096 // 64 + 128), (GFX1151, 4096 // 64 + 128)):
        lowering = moe_gate_up(chip, attributes, types)
        assert lowering and lowering.launches[-1].workgroups == tiles * 768 // 64
