"""The CPU kernels of a mixture of experts against the ops' references, and those against plain numpy."""

from __future__ import annotations

import ctypes
from functools import cache

import jax
import numpy as np
import pytest
from kernel_tolerances import RELATIVE_L2
from moe_cases import DEFAULTS, DENSE_DTYPES, ROUTES, expected, of_512_experts, problem, route_logits, routing

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.moe_launches import moe_down, moe_gate_up, moe_route
from strixhlo.custom_kernels.ops.formats_gguf import GGUF_FORMATS
from strixhlo.custom_kernels.ops.moe_matmul import part_names, scaled_together
from strixhlo.custom_kernels.ops.moe_route import RESULTS
from strixhlo.custom_kernels.ops.moe_route import reference as route_reference

KERNEL_FORMATS = [*GGUF_FORMATS, "mxfp4", "mxfp8", "nvfp4", "fp8_channel", "affine4_g32"]
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int8": "i8"}


def types(*arrays: np.ndarray) -> list[tuple[tuple[int, ...], str]]:
    return [(a.shape, DTYPES[str(a.dtype)]) for a in arrays]


def route(kernels: ctypes.CDLL, attributes: dict, *operands: np.ndarray) -> dict[str, np.ndarray]:
    lowering = moe_route(attributes, types(*operands))
    assert lowering
    buffers = dict(zip(lowering.operands, operands, strict=True))
    run_launches(kernels, lowering.launches, buffers)
    return {name: buffers[name] for name in RESULTS}


@pytest.mark.parametrize("kind", ["random", "equal", "steps", "one"])
@pytest.mark.parametrize("case", ROUTES)
def test_routing(kernels: ctypes.CDLL, case: str, kind: str) -> None:
    for tokens in (1, 3, 21):
        attributes, operands, want = routing(case, kind, tokens)
        got = route(kernels, attributes, *operands)
        for name in RESULTS:
            if name == "weights":
                np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=1e-7)
            else:
                np.testing.assert_array_equal(got[name], want[name], err_msg=name)
        assert (got["ids"][2::5] == ROUTES[case][1]).all()


def test_reference_of_the_routing() -> None:
    """The reference itself: numpy's stable sort by falling score, and what the sorted order means."""
    logits = route_logits("steps", 19, 40)
    positions = np.arange(19, dtype=np.int32)
    positions[4] = -1
    attributes = DEFAULTS | {"k": 5, "normalize": True, "scale": 2.0}
    results = jax.jit(lambda *o: route_reference(*o, **attributes))(logits, positions)
    got = dict(zip(RESULTS, map(np.asarray, results), strict=True))
    scores = np.exp(logits.astype(np.float64))
    scores /= scores.sum(1, keepdims=True)
    for t in range(19):
        if t == 4:
            continue
        ids = np.argsort(-logits[t], kind="stable")[:5]
        np.testing.assert_array_equal(got["ids"][t], ids)
        np.testing.assert_allclose(got["weights"][t], 2 * scores[t, ids] / scores[t, ids].sum(), rtol=1e-5)
    flat = got["ids"].reshape(-1)
    np.testing.assert_array_equal(got["order"], np.argsort(flat, kind="stable"))
    np.testing.assert_array_equal(got["expert"], np.sort(flat))
    np.testing.assert_array_equal(got["offsets"], np.searchsorted(np.sort(flat), np.arange(41)))
    rows = [(s, min(16, got["offsets"][e + 1] - s)) for s in got["tiles"] if s >= 0 for e in [got["expert"][s]]]
    assert sum(count for _, count in rows) == 18 * 5
    assert [s for s, _ in rows] == [0, *np.cumsum([count for _, count in rows])[:-1]]


def test_more_experts_than_the_kernel_takes_have_no_kernel() -> None:
    assert moe_route(DEFAULTS | {"k": 2}, [((1, 513), "f32"), ((1,), "i32")]) is None


def eight_bits(x: np.ndarray) -> np.ndarray:
    """A row whose every 32 columns are multiples of their largest magnitude / 127."""
    runs = x.astype(np.float32).reshape(-1, 32)
    scale = np.abs(runs).max(axis=1, keepdims=True) / np.float32(127)
    return (np.round(runs * (1 / scale)) * scale).reshape(x.shape).astype(np.float64)


@pytest.mark.parametrize(
    ("tokens", "columns", "few"), [(1, 5760, True), (8, 5760, True), (9, 64, False), (8, 6016, False)]
)
def test_few_tokens_are_one_launch_a_matmul(tokens: int, columns: int, few: bool) -> None:
    """As long as a workgroup's stack holds the rounded rows."""
    pairs, experts = tokens * 2, 32
    shapes = [
        (tokens, columns),
        (pairs,),
        (pairs,),
        (33,),
        (40,),
        *[(experts * 96, columns // 2), (experts * 96, columns // 32)] * 2,
    ]
    types_ = list(zip(shapes, ["f32", *["i32"] * 4, *["i8", "f16"] * 2], strict=True))
    how = {"format": "q4_0", "k": 2, "biased": False, "activation": "silu", "limit": 0.0}
    lowering = moe_gate_up(how, types_, True)
    assert lowering and (len(lowering.launches) == 1) == few
    shapes = [
        (pairs, 64),
        (tokens, 2),
        (tokens, 2),
        (pairs,),
        (pairs,),
        (33,),
        (40,),
        (experts * 96, 32),
        (experts * 96, 2),
    ]
    types_ = list(zip(shapes, ["f32", "f32", *["i32"] * 5, "i8", "f16"], strict=True))
    lowering = moe_down(how, types_, True)
    assert lowering and (len(lowering.launches) == 1) == (tokens <= 8)


@cache
def solved(format: str, tokens: int, biased: bool, kind: str, rounds: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A problem and what it must give; rounds: with inputs of 8 bits. The same for every variant of the kernels."""
    v = problem(format, tokens, biased, kind)
    return v, expected(v, "silu", 0.0, *((eight_bits,) if rounds else ()))


def run_moe(kernels: ctypes.CDLL, v: dict[str, np.ndarray], attributes: dict, fast: bool = False) -> np.ndarray:
    values = dict(v)
    down_attributes = {name: attributes[name] for name in ("format", "k", "biased")}
    format, biased = attributes["format"], attributes["biased"]
    for rule, own in ((moe_gate_up, attributes), (moe_down, down_attributes)):
        names = ("x", "expert", "order", "offsets", "tiles", "gate", "up", *(("gate_bias", "up_bias") * biased))
        if rule is moe_down:
            names = ("h", "weights", "places", "expert", "order", "offsets", "tiles", "down", *(("bias",) * biased))
        parts = part_names(format, *v["gate_values"].shape[1:])
        flat = [f"{n}.{p}" for n in names for p in (parts if n in ("gate", "up", "down") else ("",))]
        operand_types = [
            (values[n.removesuffix(".")].shape, DTYPES.get(str(values[n.removesuffix(".")].dtype), "i32")) for n in flat
        ]
        lowering = rule(own, operand_types, fast)
        assert lowering and lowering.operands == tuple(n.removesuffix(".") for n in flat)
        for launch in lowering.launches:  # intermediate buffers start as NaN: what is not computed must not be read
            for output in launch.outputs:
                empty = {"i8": (np.int8, -77), "i32": (np.int32, 12345)}.get(output.dtype, (np.float32, np.nan))
                values[output.name] = np.full(output.shape, empty[1], empty[0])
        run_launches(kernels, lowering.launches, values)
    return values["y"]


@pytest.mark.parametrize("format", [*KERNEL_FORMATS, *DENSE_DTYPES])
def test_every_format(kernels: ctypes.CDLL, format: str) -> None:
    for tokens in (1, 4, 43):
        v, want = solved(format, tokens, tokens == 4, "random", False)
        attributes = {"format": format, "k": 3, "activation": "silu", "limit": 0.0, "biased": tokens == 4}
        y = run_moe(kernels, v, attributes)
        assert np.linalg.norm(y - want) < RELATIVE_L2["f32"] * np.linalg.norm(want), tokens
        assert (y[3::7] == 0).all()


@pytest.mark.parametrize("format", ["q4_0", "q5_1", "q2_k", "mxfp4", "nvfp4", "affine4_g32"])
def test_8_bit_activations(kernels: ctypes.CDLL, format: str) -> None:
    """Against experts whose inputs are rounded the same way: a few of the second rounding's fall the other way."""
    for tokens, kind in ((1, "random"), (4, "random"), (18, "one")):
        v, want = solved(format, tokens, True, kind, True)
        attributes = {"format": format, "k": 3, "activation": "silu", "limit": 0.0, "biased": True}
        y = run_moe(kernels, v, attributes, fast=True)
        assert np.linalg.norm(y - want) < 2e-3 * np.linalg.norm(want), tokens
    exact = run_moe(kernels, v, attributes)
    assert 2e-3 < np.linalg.norm(y - exact) / np.linalg.norm(exact) < 5e-2  # it is the rounding kernel that ran


FOUR_BITS = ["mxfp4", "nvfp4", "affine4_g32"]


@pytest.mark.parametrize("format", FOUR_BITS)
def test_crowded_experts(kernels: ctypes.CDLL, format: str) -> None:
    """All tokens choose the same experts and none the others, all scores are equal, or many."""
    for kind, tokens in (("one", 37), ("equal", 20), ("steps", 6)):
        v, want = solved(format, tokens, False, kind, False)
        y = run_moe(kernels, v, {"format": format, "k": 3, "activation": "silu", "limit": 0.0, "biased": False})
        assert np.linalg.norm(y - want) < RELATIVE_L2["f32"] * np.linalg.norm(want), kind


@pytest.mark.parametrize("format", FOUR_BITS)
def test_512_experts_of_which_a_token_takes_ten(kernels: ctypes.CDLL, format: str) -> None:
    for tokens in (1, 12):
        v, want = of_512_experts(format, tokens)
        y = run_moe(kernels, v, {"format": format, "k": 10, "activation": "silu", "limit": 0.0, "biased": False})
        assert np.linalg.norm(y - want) < RELATIVE_L2["f32"] * np.linalg.norm(want), tokens


@pytest.mark.parametrize("activation", ["gelu", "clamped"])
@pytest.mark.parametrize("kind", ["one", "equal", "steps"])
def test_activations_and_crowded_experts(kernels: ctypes.CDLL, activation: str, kind: str) -> None:
    v = problem("f32", 37, True, kind)
    attributes = {"format": "f32", "k": 3, "activation": activation, "limit": 1.5, "biased": True}
    y, want = run_moe(kernels, v, attributes), expected(v, activation, 1.5)
    assert np.linalg.norm(y - want) < RELATIVE_L2["f32"] * np.linalg.norm(want)


def test_one_global_scale_of_all_experts_has_no_kernel() -> None:
    """Bundles that older versions exported: kernels read a scale for each expert."""
    names, shapes = ("codes", "scale", "global_scale"), [((32, 4), "i8"), ((32, 2), "i8")]
    assert scaled_together(names, [*shapes, ((1,), "f32")], 8)
    assert not scaled_together(names, [*shapes, ((8,), "f32")], 8)


@pytest.mark.parametrize("format", ["f16", "q4_1", "nvfp4"])
def test_references_of_the_matmuls(format: str) -> None:
    from strixhlo.custom_kernels.ops.moe_matmul import reference_down, reference_gate_up

    v = problem(format, 5, True)
    names = part_names(format, *v["gate_values"].shape[1:])
    routed = [v[n] for n in ("expert", "order", "offsets", "tiles")]
    gate, up, down = ([v[f"{w}.{n}"] for n in names] for w in ("gate", "up", "down"))
    how = {"format": format, "k": 3, "biased": True}
    gate_up = jax.jit(lambda *o: reference_gate_up(*o, **how, activation="silu", limit=0.0))
    h = gate_up(v["x"], *routed, *gate, *up, v["gate_bias"], v["up_bias"])
    y = jax.jit(lambda *o: reference_down(*o, **how))(h, v["weights"], v["places"], *routed, *down, v["bias"])
    want = expected(v, "silu", 0.0)
    assert np.linalg.norm(y - want) < RELATIVE_L2["f32"] * np.linalg.norm(want)
