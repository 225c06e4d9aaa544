"""The kernel of a mixture of experts of one token against the ops' references, where NVIDIA's kernels run."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_tolerances import ARRAYS, RELATIVE_L2
from moe_cases import DEFAULTS, expected, problem, route_logits

from strixhlo.custom_kernels.gpu.launches import GFX1151, H200, SM_90
from strixhlo.custom_kernels.gpu.moe_kernels import OneForm
from strixhlo.custom_kernels.gpu.moe_launches import moe_route
from strixhlo.custom_kernels.gpu.moe_one_launch import moe_one, operands_of
from strixhlo.custom_kernels.gpu.moe_pairs_launches import moe_down, moe_gate_up
from strixhlo.custom_kernels.ops.launch import COUNTER_WORDS, COUNTERS, SCRATCH_WORDS, Launch, Lowering
from strixhlo.custom_kernels.ops.moe_route import RESULTS
from strixhlo.custom_kernels.ops.moe_route import reference as route_reference
from strixhlo.custom_kernels.ops.norm import rms_norm

DTYPES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int16": "bf16", "int32": "i32", "int8": "i8",
}  # fmt: skip
COUNTED = np.zeros(SCRATCH_WORDS + COUNTER_WORDS, np.int32)
GROUPS = {"scoring": "sigmoid", "groups": 4, "group_k": 2, "group_top": 1}
ATTRIBUTES = DEFAULTS | {
    "k": 3, "normalize": True, "corrected": False, "activation": "silu", "limit": 0.0, "biased": False,
    "normed": False, "epsilon": 0.0, "offset": 0.0, "added": False, "added_scale": 1.0,
}  # fmt: skip


def lowered(v: dict[str, np.ndarray], format: str, chip=H200, **how) -> Lowering | None:
    attributes = ATTRIBUTES | {"format": format} | how
    form = OneForm(*(attributes[name] for name in ("corrected", "biased", "normed", "added")))
    names = operands_of(format, v["x"].shape[1], form)
    lowering = moe_one(chip, attributes, [(v[n].shape, DTYPES[str(v[n].dtype)]) for n in names])
    assert lowering is None or lowering.operands == names
    return lowering


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 of what that dtype holds."""
    return values.astype(ARRAYS[dtype]).astype(np.float64)


def routed(v: dict[str, np.ndarray], routing: dict) -> dict[str, np.ndarray]:
    """What moe_route's reference makes of a problem's logits; routing: its attributes."""
    attributes = DEFAULTS | {"k": 3, "normalize": True, "biased": "correction" in v} | routing
    operands = [jnp.asarray(v[n]) for n in ("logits", "positions", "correction") if n in v]
    results = jax.jit(lambda *o: route_reference(*o, **attributes))(*operands)
    return dict(zip(RESULTS, map(np.asarray, results), strict=True))


def one_token(
    format: str,
    biased: bool = False,
    position: int = 5,
    logits: np.ndarray | None = None,
    dtype: str = "f32",
    correction: np.ndarray | None = None,
    routing: dict | None = None,
    **how,
):
    """A problem of moe_cases of one token, with its router's logits; activations of that dtype."""
    v = problem(format, 1, biased, **how)
    logits = route_logits("random", 1, 8) if logits is None else logits
    v |= {"logits": logits.astype(ARRAYS[dtype]), "x": v["x"].astype(ARRAYS[dtype])}
    v["positions"] = np.array([position], np.int32)
    if correction is not None:
        v["correction"] = correction
    return v | routed(v, routing or {}) | {COUNTERS: COUNTED}


def assert_near(y: np.ndarray, want: np.ndarray, dtype: str = "f32") -> None:
    assert np.linalg.norm(y.astype(np.float64) - want) < 2 * RELATIVE_L2[dtype] * np.linalg.norm(want)


KINDS = (("mxfp4", "f16"), ("affine4_g64_bf16_bf16", "bf16"), ("q8_0", "f32"), ("nvfp4", "f32"), ("bf16", "f32"))


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_every_kind_of_format(run_nvidia_launches, name, dtype):
    format = name.removesuffix("_bf16_bf16")
    v = one_token(format, shape=(192, 128), narrow=format != name, dtype=dtype)
    lowering = lowered(v, format)
    assert lowering
    y = run_nvidia_launches(lowering.launches, v)["y"]
    assert y.dtype == ARRAYS[dtype]
    assert_near(y, expected(v, "silu", 0.0, lambda x: rounded(x, dtype)), dtype)


# Scores whose best expert is in a group that is not taken, and a correction that changes the choice.
CHOICES: dict[str, tuple[dict, np.ndarray | None]] = {
    "a correction": ({"scoring": "sigmoid"}, np.float32([0, 0, 0.9, 0, 0, -1, 0, 0.4])),
    "groups": ({"scoring": "softmax", "groups": 4, "group_k": 2, "group_top": 1}, None),
    "both, the best two of a group": (GROUPS | {"group_top": 2}, np.linspace(-0.4, 0.5, 8, dtype=np.float32)),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", ["random", "equal", "steps"])
def test_corrected_and_grouped_choices(run_nvidia_launches, choice, kind):
    routing, correction = CHOICES[choice]
    v = one_token("mxfp4", logits=route_logits(kind, 1, 8), routing=routing, correction=correction, shape=(64, 32))
    lowering = lowered(v, "mxfp4", corrected=correction is not None, **routing)
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


@pytest.mark.parametrize("name", ["mxfp4", "affine4_g64_bf16_bf16"])
def test_spans_of_extreme_scales(run_nvidia_launches, name):
    """Rows of down by spans are the ones that go by chunks: NaN, zero, subnormal and large scales, each in its row."""
    format = name.removesuffix("_bf16_bf16")
    v = one_token(format, shape=(128, 320), narrow=format != name)
    scales = v["down.scale"].reshape(8, 128, -1)
    extreme = [255, 0, 1, 190, 60] if format == "mxfp4" else [0x7FC0, 0x8000, 0x0001, 0x5F00, 0x1F00]
    for row, bits in enumerate(extreme):
        scales[:, 7 * row + 3, 1] = np.array(bits, f"u{scales.itemsize}").view(scales.dtype)
    with_spans, without = lowered(v, format, SM_90), lowered(v, format, H200)
    assert with_spans and without and "_spans_" in with_spans.launches[0].symbol
    got, want = (run_nvidia_launches(o.launches, v)["y"][0] for o in (with_spans, without))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(got[3])
    finite = np.isfinite(want)
    assert (np.isfinite(got) == finite).all() and finite.sum() >= 126
    np.testing.assert_allclose(got[finite], want[finite], rtol=2e-4, atol=2e-5 * np.median(np.abs(want[finite])))


def test_spans_of_infinite_and_tiny_columns(run_nvidia_launches):
    """Columns of x: subnormal and huge ones in their units, then an infinite one and NaN."""
    v = one_token("mxfp4", shape=(320, 64))
    for columns in ({0: 1e-41, 40: 3e10, 70: -2e-30}, {100: np.inf}, {101: np.nan, 7: -np.inf}):
        for column, value in columns.items():
            v["x"][0, column] = value
        lowering = lowered(v, "mxfp4", SM_90)
        assert lowering
        got, want = run_nvidia_launches(lowering.launches, v)["y"], expected(v, "silu", 0.0)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        finite = np.isfinite(want)
        assert np.linalg.norm(got[finite] - want[finite]) <= 1e-5 * np.linalg.norm(want[finite])


def test_padding_is_zero(run_nvidia_launches):
    v = one_token("mxfp4", shape=(64, 32), position=-1)
    lowering = lowered(v, "mxfp4")
    assert lowering
    assert (run_nvidia_launches(lowering.launches, v)["y"] == 0).all()


def test_what_needs_more_launches():
    v = one_token("mxfp4", shape=(64, 32))
    assert lowered(v, "mxfp4")
    assert lowered(v, "mxfp4", GFX1151) is None
    assert lowered(v, "mxfp4", groups=64) is None
    assert lowered(one_token("f16", shape=(64, 32)), "f16") is None
    assert lowered(one_token("q4_k"), "q4_k") is None  # 20 buffers, and a dispatch has 16 at most


def in_steps(run, v: dict[str, np.ndarray], format: str, biased: bool, rms: dict, routing: dict, chip) -> np.ndarray:
    """The three ops on NVIDIA's kernels: the choice of moe_route itself, then few rows."""
    parts = {w: tuple(n for n in v if n.startswith(f"{w}.")) for w in ("gate", "up", "down")}
    routed = ("expert", "order", "offsets", "tiles")
    biases = (("gate_bias", "up_bias"), ("bias",)) if biased else ((), ())
    own = {"format": format, "k": 3, "biased": biased}
    router = tuple(n for n in ("logits", "positions", "correction") if n in v)
    routing = routing | {"biased": "correction" in v}
    added, last = {"added": "residual" in v, "scale": 0.5}, ("residual",) * ("residual" in v)
    of_down = ("h", "weights", "places", *routed)
    calls = (
        (lambda a, t: moe_route(a, t), DEFAULTS | {"k": 3, "normalize": True} | routing, router),
        (
            lambda a, t: moe_gate_up(chip, a, t),
            own | {"activation": "silu", "limit": 0.0, "normed": True} | rms,
            ("x", *routed, *parts["gate"], *parts["up"], *biases[0], "norm"),
        ),
        (lambda a, t: moe_down(chip, a, t), own | added, (*of_down, *parts["down"], *biases[1], *last)),
    )
    known = {n: (a.shape, DTYPES[str(a.dtype)]) for n, a in v.items() if str(a.dtype) in DTYPES}
    launches: list[Launch] = []
    for rule, attributes, names in calls:
        lowering = rule(attributes, [known[n] for n in names])
        assert lowering and not any("_gemv_" in launch.symbol for launch in lowering.launches)
        own_names = dict(zip(lowering.operands, names, strict=True))
        launches += [replace(o, inputs=tuple(own_names.get(n, n) for n in o.inputs)) for o in lowering.launches]
        known |= {o.name: (o.shape, o.dtype) for launch in lowering.launches for o in launch.outputs}
    return run(tuple(launches), v)["y"]


ALONE = [
    ("mxfp4", (544, 64), "f32", {}, H200),
    ("mxfp4", (576, 64), "f32", {}, SM_90),  # by spans
    ("mxfp4", (320, 128), "bf16", GROUPS, SM_90),
    ("affine4_g64_bf16_bf16", (320, 320), "f32", {}, SM_90),
    ("affine4_g64_bf16_bf16", (576, 64), "bf16", GROUPS, SM_90),  # by spans
    ("nvfp4", (544, 64), "f16", {}, H200),
    ("bf16", (544, 64), "bf16", {}, H200),
]


@pytest.mark.parametrize(("name", "shape", "dtype", "routing", "chip"), ALONE)
def test_a_token_alone_has_the_bits_that_it_has_in_company(run_nvidia_launches, name, shape, dtype, routing, chip):
    """Tokens of which some share experts, with norm, biases, a correction or a residual; all in one launch, and in the
    launches of several."""
    format, rms, biased = name.removesuffix("_bf16_bf16"), {"epsilon": 1e-3, "offset": 1.0}, name == "mxfp4"
    v = problem(format, 5, biased, shape=shape, narrow=format != name)
    logits = route_logits("random", 5, 8) * 0.3
    logits[:3] = np.round(logits[:3])  # many equal scores
    v |= {"logits": logits.astype(ARRAYS[dtype]), "x": v["x"].astype(ARRAYS[dtype])}
    v |= {"norm": np.linspace(0.5, 1.5, shape[0], dtype=np.float32), COUNTERS: COUNTED}
    v |= {"positions": np.arange(5, dtype=np.int32)}
    if routing:
        v["correction"] = np.linspace(0.2, -0.3, 8, dtype=np.float32)
    else:
        v["residual"] = v["x"][::-1].copy()
    how = {"biased": biased, "normed": True, "corrected": bool(routing), "added": not routing, "added_scale": 0.5}
    together = in_steps(run_nvidia_launches, v, format, biased, rms, routing, chip)
    for token in (0, 4):
        of_token = ("x", "logits", "positions", *(("residual",) if "residual" in v else ()))
        alone = v | {n: v[n][token : token + 1] for n in of_token}
        one = lowered(alone, format, chip, **how, **rms, **routing)
        assert one and ("_spans_" in one.launches[0].symbol) == chip.expert_spans
        y = run_nvidia_launches(one.launches, alone)["y"]
        assert y[0].tobytes() == together[token].tobytes()
    assert y.tobytes() == in_steps(run_nvidia_launches, alone, format, biased, rms, routing, chip).tobytes()
