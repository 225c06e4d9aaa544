"""The GPU kernels of a mixture of experts against the ops' references, on each machine that conftest.py offers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gfx1151_sim.kernel_machine import EXPERTS, TESTED
from kernel_tolerances import RELATIVE_L2
from moe_cases import DEFAULTS, ROUTES, expected, of_512_experts, problem, route_logits, routing

from strixhlo.custom_kernels.gpu.launches import GFX1151, H200
from strixhlo.custom_kernels.gpu.moe_launches import MOST_PAIRS, moe_route
from strixhlo.custom_kernels.gpu.moe_pairs_launches import moe_down, moe_gate_up
from strixhlo.custom_kernels.ops.launch import Launch, Lowering
from strixhlo.custom_kernels.ops.moe_matmul import part_names
from strixhlo.custom_kernels.ops.moe_route import RESULTS
from strixhlo.custom_kernels.ops.moe_route import reference as route_reference
from strixhlo.custom_kernels.ops.norm import rms_norm

SCALE = 0.75  # of what is added to a residual
NO_NORM = {"normed": False, "epsilon": 0.0, "offset": 0.0}
ROUTED = (("random", 1), ("random", 21), ("steps", 21), ("equal", 21), ("one", 21))  # logits of moe_cases, tokens
DTYPES = {"float32": "f32", "float16": "f16", "int16": "bf16", "int32": "i32", "int8": "i8"}


def run_route(run_launches, attributes: dict, operands: list[np.ndarray]) -> dict[str, np.ndarray]:
    lowering = moe_route(attributes, [(a.shape, DTYPES[str(a.dtype)]) for a in operands])
    assert lowering
    return run_launches(lowering.launches, dict(zip(lowering.operands, operands, strict=True)))


def assert_routed(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name in RESULTS:
        if name == "weights":
            np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=1e-7)
        else:
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize("case", ROUTES)
def test_routing(run_launches, case):
    for kind, tokens in ROUTED:
        attributes, operands, want = routing(case, kind, tokens)
        assert_routed(run_route(run_launches, attributes, operands), want)


@pytest.mark.parametrize("scoring", ["softmax", "selected", "sigmoid", "selected_sigmoid"])
def test_routing_of_numbers_that_are_none(run_launches, scoring):
    """A NaN comes last, infinities in their place, and no row changes another."""
    logits = route_logits("random", 6, 12)
    logits[1, 3] = np.nan
    logits[2] = np.nan
    logits[3, :9] = -np.inf
    logits[4, 5:] = -0.0
    logits[4, :5] = 0.0
    attributes = DEFAULTS | {"k": 4, "scoring": scoring, "normalize": True}
    operands = [logits, np.arange(6, dtype=np.int32)]
    results = jax.jit(lambda *o: route_reference(*o, **attributes))(*operands)
    want = dict(zip(RESULTS, map(np.asarray, results), strict=True))
    assert_routed(run_route(run_launches, attributes, operands), want)


def test_what_the_routing_kernel_does_not_take():
    def types(t: int, experts: int) -> list[tuple[tuple[int, ...], str]]:
        return [((t, experts), "f32"), ((t,), "i32")]

    assert moe_route(DEFAULTS | {"k": 2}, types(1, 512)) is not None
    assert moe_route(DEFAULTS | {"k": 2}, types(1, 513)) is None
    assert moe_route(DEFAULTS | {"k": 17}, types(1, 64)) is None
    assert moe_route(DEFAULTS | {"k": 16}, types(MOST_PAIRS // 16 + 1, 64)) is None


def lowerings(v: dict[str, np.ndarray], format: str, attributes: dict) -> tuple[Lowering, Lowering]:
    """Of both matmuls, for a problem of moe_cases."""
    parts = part_names(format, *v["gate_values"].shape[1:])
    biased = attributes["biased"]

    def lowered(rule, own: dict, names: tuple[str, ...]) -> Lowering:
        shape_of_h = ((v["order"].size, v["gate_values"].shape[1]), "f32")
        known = {name: (a.shape, DTYPES.get(str(a.dtype), "")) for name, a in v.items()} | {"h": shape_of_h}
        found = rule(GFX1151, own, [known[name] for name in names])
        assert found and found.operands == names
        return found

    routed = ("expert", "order", "offsets", "tiles")
    gate, up, down = (tuple(f"{which}.{p}" for p in parts) for which in ("gate", "up", "down"))
    up_names = ("x", *routed, *gate, *up, *(("gate_bias", "up_bias") if biased else ()))
    up_names += ("norm",) * attributes["normed"]
    down_names = ("h", "weights", "places", *routed, *down, *(("bias",) if biased else ()))
    down_names += ("residual",) * ("residual" in v)
    own = {name: attributes[name] for name in ("format", "k", "biased")} | {"added": "residual" in v, "scale": SCALE}
    return lowered(moe_gate_up, attributes, up_names), lowered(moe_down, own, down_names)


def run_moe(run_launches, v: dict[str, np.ndarray], format: str, **how) -> tuple[np.ndarray, list[Launch]]:
    attributes = {"format": format, "k": 3, "activation": "silu", "limit": 0.0, "biased": False, **NO_NORM} | how
    up, down = lowerings(v, format, attributes)
    values = run_launches(up.launches, v)
    values["h"] = values[up.results[0]]
    return run_launches(down.launches, values)["y"], [*up.launches, *down.launches]


FOUR_BITS = ("mxfp4", "nvfp4", "affine4_g64_bf16_bf16")
BIASED = ("mxfp4", "q5_k")  # formats of which kernel_machine.py builds kernels with biases


def assert_near(y: np.ndarray, want: np.ndarray) -> None:
    assert np.linalg.norm(y - want) < RELATIVE_L2["f32"] * np.linalg.norm(want)


@pytest.mark.parametrize("name", EXPERTS)
def test_every_format(run_launches, name):
    """One token, few, many (matrix units), and so many of one expert that its last tile has few rows."""
    format = name.removesuffix("_bf16_bf16")
    shape = (192, 64) if format.startswith("affine") else (96, 72 if format == "f16" else 64)
    launched = set()
    for tokens, kind in ((1, "random"), (4, "steps"), (8, "one"), (43, "random"), (80, "one")):
        biased = tokens == 4 and name in BIASED
        v = problem(format, tokens, biased, kind, shape, narrow=format != name)
        y, launches = run_moe(run_launches, v, format, biased=biased)
        assert_near(y, expected(v, "silu", 0.0))
        assert (y[3::7] == 0).all()
        assert len(launches) == 2 or tokens > 8 or launches[0].symbol == "strixhlo_moe_gather"
        launched |= {launch.symbol for launch in launches}
        assert all(len(launch.inputs) + sum(not o.updates for o in launch.outputs) <= 16 for launch in launches)
    more = ("biased", "normed", "chosen")
    known = {s for s in TESTED if "_moe_" in s and f"_{name}" in s and not any(word in s for word in more)}
    assert launched - {"strixhlo_moe_combine"} >= known


@pytest.mark.parametrize("name", FOUR_BITS)
def test_equal_scores(run_launches, name):
    """`test_every_format` has tokens that choose all the same experts and none the others."""
    format = name.removesuffix("_bf16_bf16")
    v = problem(format, 20, False, "equal", (64, 64), narrow=format != name)
    y, _ = run_moe(run_launches, v, format)
    assert_near(y, expected(v, "silu", 0.0))


@pytest.mark.parametrize("name", FOUR_BITS)
def test_512_experts_of_which_a_token_takes_ten(run_launches, name):
    format = name.removesuffix("_bf16_bf16")
    for tokens in (1, 3):
        v, want = of_512_experts(name, tokens)
        y, _ = run_moe(run_launches, v, format, k=10)
        assert_near(y, want)


@pytest.mark.parametrize("activation", ["gelu", "clamped"])
@pytest.mark.parametrize("tokens", [1, 6, 37])
def test_activations_and_biases(run_launches, activation, tokens):
    v = problem("mxfp4", tokens, True, "one", (96, 96))
    y, _ = run_moe(run_launches, v, "mxfp4", activation=activation, limit=1.5, biased=True)
    assert_near(y, expected(v, activation, 1.5))


@pytest.mark.parametrize("tokens", [1, 5, 20])
@pytest.mark.parametrize("biased", [False, True])
def test_norm(run_launches, tokens, biased):
    v = problem("mxfp4", tokens, biased, "one", (96, 64))
    plain = v | {"x": np.asarray(rms_norm(v["x"], v["x"][0] + 1.0, 1e-3))}
    v["norm"] = v["x"][0]
    y, _ = run_moe(run_launches, v, "mxfp4", biased=biased, normed=True, epsilon=1e-3, offset=1.0)
    assert_near(y, expected(plain, "silu", 0.0))


@pytest.mark.parametrize("tokens", [1, 7, 20])
def test_residual(run_launches, tokens):
    """`scale` times the sum is added to it, in the launch that sums; also where a token goes to no expert."""
    v = problem("mxfp4", tokens, True, "steps", (64, 32))
    residual = np.random.default_rng(3).standard_normal(v["x"].shape, np.float32)
    y, launches = run_moe(run_launches, v | {"residual": residual}, "mxfp4", biased=True)
    assert_near(y, residual + SCALE * expected(v, "silu", 0.0))
    assert len(launches) == (2 if tokens <= 8 else len(run_moe(run_launches, v, "mxfp4", biased=True)[1]))


@pytest.mark.parametrize("tokens", [4, 30])
def test_a_row_that_is_no_number_stays_alone(run_launches, tokens):
    v = problem("mxfp4", tokens, False, "one", (64, 32))
    clean, _ = run_moe(run_launches, v, "mxfp4")
    v["x"][1, 5] = np.nan
    v["x"][2, 7] = np.inf
    y, _ = run_moe(run_launches, v, "mxfp4")
    assert np.isnan(y[1]).all() and not np.isfinite(y[2]).any()
    others = np.setdiff1d(np.arange(tokens), [1, 2])
    assert y[others].tobytes() == clean[others].tobytes()


def test_a_row_of_padding_alone_is_zero(run_launches):
    v = problem("mxfp4", 1, False, shape=(64, 32))
    attributes = DEFAULTS | {"k": 3}
    operands = [route_logits("random", 1, 8), np.array([-1], np.int32)]
    v |= dict(zip(RESULTS, map(np.asarray, route_reference(*map(jnp.asarray, operands), **attributes)), strict=True))
    y, _ = run_moe(run_launches, v, "mxfp4")
    assert (y == 0).all()


def test_rows_in_a_batch_are_summed_as_alone(run_launches):
    """What a token gets does not depend on the others', where no matrix units are needed: norm, experts, sum."""
    shape, how = (544, 96), {"biased": True, "normed": True, "epsilon": 1e-3, "offset": 1.0}
    v = problem("mxfp4", 8, True, "steps", shape)
    v["norm"] = np.linspace(0.5, 1.5, shape[0], dtype=np.float32)
    together, _ = run_moe(run_launches, v, "mxfp4", **how)
    for token in (0, 5):
        attributes = DEFAULTS | {"k": 3, "normalize": True}
        logits = route_logits("steps", 8, 8)[token : token + 1]
        routed = route_reference(jnp.asarray(logits), jnp.asarray(np.array([token], np.int32)), **attributes)
        alone = v | dict(zip(RESULTS, map(np.asarray, routed), strict=True)) | {"x": v["x"][token : token + 1]}
        alone["weights"] = v["weights"][token : token + 1]
        y, launches = run_moe(run_launches, alone, "mxfp4", **how)
        assert len(launches) == 2
        assert y[0].tobytes() == together[token].tobytes()


def test_a_launch_keeps_the_chip_busy():
    """Shapes of Qwen3-30B-A3B: workgroups of one token, and the share of x in what they ask for."""
    types = [((1, 2048), "f32"), ((8,), "i32"), ((8,), "i32"), ((129,), "i32"), ((8,), "i32")]
    types += [((128 * 768, 1024), "i8"), ((128 * 768, 64), "i8")] * 2
    attributes = {"format": "mxfp4", "k": 8, "activation": "silu", "limit": 0.0, "biased": False, **NO_NORM}
    for chip, least in ((GFX1151, 40), (H200, 96)):
        lowering = moe_gate_up(chip, attributes, types)
        assert lowering and lowering.launches[0].workgroups >= least
        if chip is GFX1151:
            assert lowering.launches[0].workgroups * 2048 * 4 < 0.1 * 8 * 2 * 768 * 1088
