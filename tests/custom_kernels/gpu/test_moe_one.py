"""The kernel of a mixture of experts of one token against the ops' references, where NVIDIA's kernels run."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from moe_cases import DEFAULTS, expected, problem, route_logits

from strixhlo.custom_kernels.gpu.launches import GFX1151, H200
from strixhlo.custom_kernels.gpu.moe_launches import moe_route
from strixhlo.custom_kernels.gpu.moe_one_launch import moe_one, operands_of
from strixhlo.custom_kernels.gpu.moe_pairs_launches import moe_down, moe_gate_up
from strixhlo.custom_kernels.ops.launch import COUNTERS, Lowering
from strixhlo.custom_kernels.ops.moe_route import RESULTS
from strixhlo.custom_kernels.ops.moe_route import reference as route_reference
from strixhlo.custom_kernels.ops.norm import rms_norm

DTYPES = {"float32": "f32", "float16": "f16", "int16": "bf16", "int32": "i32", "int8": "i8"}
ATTRIBUTES = DEFAULTS | {
    "k": 3, "normalize": True, "corrected": False, "activation": "silu", "limit": 0.0, "biased": False,
    "normed": False, "epsilon": 0.0, "offset": 0.0,
}  # fmt: skip


def lowered(v: dict[str, np.ndarray], format: str, chip=H200, **how) -> Lowering | None:
    attributes = ATTRIBUTES | {"format": format} | how
    names = operands_of(format, v["x"].shape[1], attributes["biased"], attributes["normed"])
    lowering = moe_one(chip, attributes, [(v[n].shape, DTYPES[str(v[n].dtype)]) for n in names])
    assert lowering is None or lowering.operands == names
    return lowering


def one_token(format: str, biased: bool = False, position: int = 5, logits: np.ndarray | None = None, **how):
    """A problem of moe_cases of one token, with its router's logits."""
    v = problem(format, 1, biased, **how)
    v["logits"] = route_logits("random", 1, 8) if logits is None else logits
    v["positions"] = np.array([position], np.int32)
    attributes = DEFAULTS | {"k": 3, "normalize": True}
    routed = route_reference(jnp.asarray(v["logits"]), jnp.asarray(v["positions"]), **attributes)
    v |= dict(zip(RESULTS, map(np.asarray, routed), strict=True))
    v[COUNTERS] = np.zeros(32, np.int32)
    return v


def assert_near(y: np.ndarray, want: np.ndarray) -> None:
    assert np.linalg.norm(y - want) < 2e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("name", ["mxfp4", "affine4_g64_bf16_bf16", "q8_0", "nvfp4"])
def test_every_kind_of_format(run_nvidia_launches, name):
    format = name.removesuffix("_bf16_bf16")
    v = one_token(format, shape=(192, 128), narrow=format != name)
    lowering = lowered(v, format)
    assert lowering
    assert_near(run_nvidia_launches(lowering.launches, v)["y"], expected(v, "silu", 0.0))


@pytest.mark.parametrize("multiprocessors", [1, 3])
def test_few_workgroups_take_all_the_work(run_nvidia_launches, multiprocessors):
    """Rows of several parts, units of several tiles, biases, a norm; and the same bits as with many workgroups."""
    v = one_token("mxfp4", True, shape=(608, 96), logits=np.zeros((1, 8), np.float32))
    v["norm"] = np.linspace(0.5, 1.5, 608, dtype=np.float32)
    how = {"biased": True, "normed": True, "epsilon": 1e-3, "offset": 1.0, "activation": "clamped", "limit": 1.5}
    plain = v | {"x": np.asarray(rms_norm(v["x"], v["norm"] + 1.0, 1e-3))}
    few = lowered(v, "mxfp4", replace(H200, multiprocessors=multiprocessors), **how)
    many = lowered(v, "mxfp4", **how)
    assert few and many and few.launches[0].workgroups == multiprocessors < many.launches[0].workgroups
    y = run_nvidia_launches(few.launches, v)["y"]
    assert_near(y, expected(plain, "clamped", 1.5))
    assert y.tobytes() == run_nvidia_launches(many.launches, v)["y"].tobytes()


def test_padding_is_zero(run_nvidia_launches):
    v = one_token("mxfp4", shape=(64, 32), position=-1)
    lowering = lowered(v, "mxfp4")
    assert lowering
    assert (run_nvidia_launches(lowering.launches, v)["y"] == 0).all()


def test_what_needs_more_launches():
    v = one_token("mxfp4", shape=(64, 32))
    assert lowered(v, "mxfp4")
    assert lowered(v, "mxfp4", GFX1151) is None
    assert lowered(v, "mxfp4", groups=4) is None
    assert lowered(v, "mxfp4", corrected=True) is None
    assert lowered(one_token("f16", shape=(64, 32)), "f16") is None


def in_steps(run, v: dict[str, np.ndarray], format: str, biased: bool, rms: dict) -> np.ndarray:
    """The three ops on NVIDIA's kernels: the choice of moe_route itself, then few rows."""
    parts = {w: tuple(n for n in v if n.startswith(f"{w}.")) for w in ("gate", "up", "down")}
    routed = ("expert", "order", "offsets", "tiles")
    biases = (("gate_bias", "up_bias"), ("bias",)) if biased else ((), ())
    own = {"format": format, "k": 3, "biased": biased}
    calls = (
        (lambda a, t: moe_route(a, t), DEFAULTS | {"k": 3, "normalize": True}, ("logits", "positions")),
        (
            lambda a, t: moe_gate_up(H200, a, t),
            own | {"activation": "silu", "limit": 0.0, "normed": True} | rms,
            ("x", *routed, *parts["gate"], *parts["up"], *biases[0], "norm"),
        ),
        (lambda a, t: moe_down(H200, a, t), own, ("h", "weights", "places", *routed, *parts["down"], *biases[1])),
    )
    values = dict(v)
    for rule, attributes, names in calls:
        lowering = rule(attributes, [(values[n].shape, DTYPES[str(values[n].dtype)]) for n in names])
        assert lowering and lowering.operands == names
        values = run(lowering.launches, values)
        assert not any("_gemv_" in launch.symbol for launch in lowering.launches)
    return values["y"]


@pytest.mark.parametrize(("name", "shape"), [("mxfp4", (544, 64)), ("affine4_g64_bf16_bf16", (576, 64))])
def test_a_token_alone_has_the_bits_that_it_has_in_company(run_nvidia_launches, name, shape):
    """Tokens of which some share experts, with norm and biases; all in one launch, and in the launches of several."""
    format, rms, biased = name.removesuffix("_bf16_bf16"), {"epsilon": 1e-3, "offset": 1.0}, name == "mxfp4"
    v = problem(format, 5, biased, shape=shape, narrow=format != name)
    v |= {"logits": route_logits("random", 5, 8) * 0.3, "norm": np.linspace(0.5, 1.5, shape[0], dtype=np.float32)}
    v |= {"positions": np.arange(5, dtype=np.int32), COUNTERS: np.zeros(32, np.int32)}
    v["logits"][:3] = np.round(v["logits"][:3])  # many equal scores
    together = in_steps(run_nvidia_launches, v, format, biased, rms)
    for token in (0, 4):
        alone = v | {n: v[n][token : token + 1] for n in ("x", "logits", "positions")}
        one = lowered(alone, format, biased=biased, normed=True, **rms)
        assert one
        y = run_nvidia_launches(one.launches, alone)["y"]
        assert y[0].tobytes() == together[token].tobytes()
    assert y.tobytes() == in_steps(run_nvidia_launches, alone, format, biased, rms).tobytes()
