"""Gate and up of few tokens with the choice of their experts in one launch, against the launches of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from kernel_tolerances import ARRAYS
from moe_cases import DEFAULTS, expert_weights, named, problem, route_logits

from strixhlo.custom_kernels.gpu.launches import GFX1151, H200, SM_90
from strixhlo.custom_kernels.gpu.rules import gpu_rules
from strixhlo.custom_kernels.ops.launch import COUNTER_WORDS, COUNTERS, SCRATCH_WORDS, Lowering, LoweringRule
from strixhlo.custom_kernels.ops.moe_route import reference as route_reference

Rules = dict[str, LoweringRule]
DTYPES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int16": "bf16", "int32": "i32", "int8": "i8",
}  # fmt: skip
RULES = gpu_rules(GFX1151)
# The kernels take more tokens than the rules let them.
ON_NVIDIA = {"chunks": gpu_rules(replace(H200, chosen_tokens=8)), "spans": gpu_rules(replace(SM_90, chosen_tokens=8))}
COUNTED = np.zeros(SCRATCH_WORDS + COUNTER_WORDS, np.int32)
ROUTING = ("expert", "order", "offsets", "tiles")
GROUPED = {"scoring": "sigmoid", "normalize": True, "scale": 2.5, "groups": 4, "group_k": 2, "biased": True}
SHARED = ("residual", "shared", "logits")
MIXTURE = {"k": 3, "activation": "silu", "limit": 0.0, "biased": False, "normed": False, "epsilon": 1e-3, "offset": 1.0}


def lowered(
    op: str, attributes: dict[str, Any], v: dict[str, np.ndarray], names: tuple[str, ...], rules: Rules = RULES
) -> Lowering:
    """With the operands of these names."""
    found = rules[op](attributes, [(v[n].shape, DTYPES[str(v[n].dtype)]) for n in names])
    assert found and found.operands == names
    return found


def run_both(
    run, v: dict[str, np.ndarray], route: dict[str, Any], how: dict[str, Any], rules: Rules = RULES
) -> tuple[dict, dict]:
    """What three launches leave and what two do; `chosen` of the former: put together from the router's results. Where
    there is a gated shared expert, `add_gated` goes before the former."""
    how = MIXTURE | how
    route = DEFAULTS | {"k": how["k"]} | route
    weights = {w: tuple(n for n in v if n.startswith(f"{w}.")) for w in ("gate", "up", "down")}
    gate_up = (*weights["gate"], *weights["up"], *(("gate_bias", "up_bias") if how["biased"] else ()))
    gate_up += ("norm",) * how["normed"]
    weighed = ("weights",) * how.get("weighed", False)
    added = ("residual",) * how.pop("added", True)
    down = (*weights["down"], *(("bias",) if how["biased"] else ()), *added)
    gated = {"scale": 0.5, "column": v["logits"].shape[1] - 1} if "shared" in v else {}
    logits = ("logits", "positions", *(("correction",) if route["biased"] else ()))
    of_down = {"format": how["format"], "k": how["k"], "biased": how["biased"], "added": bool(added)}
    of_down["scale"] = 0.5

    apart = v | run(
        rules["moe_route"](route, types_of(v, logits)).launches, v | {"bias": v.get("correction", v["bias"])}
    )
    apart["bias"] = v["bias"]
    if gated:
        base = {"base": v["residual"], "x": v["shared"], "logits": v["logits"]}
        apart["residual"] = run(rules["add_gated"](gated, types_of(base, tuple(base))).launches, base)["y"]
    for op, attributes, names in (
        ("moe_gate_up", how, ("x", *ROUTING, *gate_up, *weighed)),
        ("moe_down", of_down, ("h", "weights", "places", *ROUTING, *down)),
    ):
        apart = run(lowered(op, attributes, apart, names, rules).launches, apart)
        if weighed:
            apart["weights"] = np.ones_like(apart["weights"])
    bits = apart["weights"].reshape(-1).view(np.int32)
    apart["chosen"] = np.stack([apart["expert"], apart["order"], bits])

    together = dict(v)
    if how.get("joined", False):
        of_down |= {
            "joined": True,
            "pairs": apart["h"].shape[0],
            "inner": apart["h"].shape[1],
            "x": DTYPES[str(v["x"].dtype)],
        }
    experts = route.get("experts", v["logits"].shape[1])
    if gated:
        down += ("shared", "logits")
        of_down |= {"gated": True, "shared_scale": gated["scale"], "column": gated["column"]}
    both = route | how | {"corrected": route["biased"], "biased": how["biased"], "experts": experts}
    of_down["experts"] = experts
    for op, attributes, names in (
        ("moe_chosen_gate_up", both, (*logits, "x", *gate_up)),
        ("moe_chosen_down", of_down, (*("h",) * (not how.get("joined", False)), "chosen", *down)),
    ):
        launches = lowered(op, attributes, together, names, rules).launches
        assert len(launches) == 1
        together = run(launches, together)
    together["chosen"] = together["chosen"].reshape(-1)[: apart["chosen"].size]
    return apart, together


def types_of(v: dict[str, np.ndarray], names: tuple[str, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(v[n].shape, DTYPES[str(v[n].dtype)]) for n in names]


def few_tokens(format: str, tokens: int, kind: str, biased: bool = False, **how: Any) -> dict[str, np.ndarray]:
    """A problem of moe_cases with its router's logits, a norm, a correction and a residual."""
    v = problem(format, tokens, biased, kind, **how)
    rng = np.random.default_rng(7)
    v["logits"], v["positions"] = route_logits(kind, tokens, 8), np.arange(tokens, dtype=np.int32)
    v["positions"][3::7] = -1
    v["norm"] = np.linspace(0.5, 1.5, v["x"].shape[1], dtype=np.float32)
    v["correction"] = np.linspace(-0.4, 0.5, 8, dtype=np.float32)
    v["residual"] = rng.standard_normal(v["x"].shape, np.float32)
    return v


def assert_same(apart: dict[str, np.ndarray], together: dict[str, np.ndarray]) -> None:
    assert together["chosen"].tobytes() == apart["chosen"].tobytes()
    assert together["y"].tobytes() == apart["y"].tobytes()


@pytest.mark.parametrize(("tokens", "kind"), [(1, "random"), (3, "one"), (8, "steps"), (5, "equal")])
@pytest.mark.parametrize("normed", [False, True])
def test_choice_and_matmuls_are_those_of_three_launches(run_amd_launches, tokens, kind, normed):
    """Bit for bit, rows of padding included; biases where there is a norm."""
    v = few_tokens("mxfp4", tokens, kind, biased=normed)
    how = {"format": "mxfp4", "k": 3, "normed": normed, "biased": normed}
    assert_same(*run_both(run_amd_launches, v, {"normalize": True}, how))


ROUTERS = {
    "corrected scores in groups": GROUPED,
    "a sparse mixer": {"scoring": "sparsemixer", "jitter": 0.2},
    "factors of the weights": {"normalize": True, "biased": True, "factored": True, "logit_scale": 0.5},
}


@pytest.mark.parametrize("route", ROUTERS.values(), ids=ROUTERS)
def test_routers(run_amd_launches, route):
    for tokens in (1, 6):
        v = few_tokens("mxfp4", tokens, "random")
        assert_same(*run_both(run_amd_launches, v, route, {"format": "mxfp4", "k": 3, "normed": True}))


@pytest.mark.parametrize("tokens", [1, 3])
def test_both_results_in_one_buffer(run_amd_launches, tokens):
    """Where there is one buffer too many: three times three numbers end within 16 bytes."""
    v = few_tokens("mxfp4", tokens, "random")
    how = {"format": "mxfp4", "normed": True, "joined": True}
    assert_same(*run_both(run_amd_launches, v, GROUPED, how))


def test_weights_of_the_input(run_amd_launches):
    """Llama 4: gate and up are multiplied; in launches of its own, x is, which is rounded elsewhere."""
    for tokens in (1, 5):
        v = few_tokens("mxfp4", tokens, "steps")
        how = {"format": "mxfp4", "k": 1, "normed": True, "weighed": True}
        apart, together = run_both(run_amd_launches, v, {"scoring": "selected_sigmoid"}, how)
        assert together["chosen"].tobytes() == apart["chosen"].tobytes()
        np.testing.assert_allclose(together["y"], apart["y"], rtol=1e-4, atol=1e-4)


def test_a_gated_shared_expert(run_amd_launches):
    """Its gate is a column beside the router's logits. Added in the launch of down, or in one of its own."""
    tokens = 4
    v = few_tokens("mxfp4", tokens, "steps")
    v["logits"] = np.concatenate([v["logits"], route_logits("random", tokens, 2)], axis=1)
    v["shared"] = np.random.default_rng(5).standard_normal(v["x"].shape, np.float32)
    down = ("down.codes", "down.scale")
    own = {"column": 9, "scale": 0.75}
    route = DEFAULTS | {"k": 3, "normalize": True, "experts": 8}
    names = ("logits", "positions", "x", "gate.codes", "gate.scale", "up.codes", "up.scale")
    both = route | MIXTURE | {"format": "mxfp4", "corrected": False}
    values = run_amd_launches(lowered("moe_chosen_gate_up", both, v, names).launches, v)
    routed = run_amd_launches(RULES["moe_route"](route, types_of(v, ("logits", "positions"))).launches, v)
    assert values["chosen"][0].tobytes() == routed["expert"].tobytes()
    of_down = {"format": "mxfp4", "k": 3, "biased": False, "added": True, "scale": 0.75, "experts": 8}
    gated = of_down | {"gated": True, "column": 9, "shared_scale": 0.75}
    y = run_amd_launches(lowered("moe_chosen_down", gated, values, ("h", "chosen", *down, *SHARED)).launches, values)[
        "y"
    ]
    base = {"base": v["residual"], "x": v["shared"], "logits": v["logits"]}
    added = run_amd_launches(RULES["add_gated"](own, types_of(base, tuple(base))).launches, base)["y"]
    gate = 1 / (1 + np.exp(-v["logits"][:, 9:].astype(np.float64)))
    np.testing.assert_allclose(added, v["residual"] + 0.75 * gate * v["shared"], rtol=1e-5, atol=1e-5)
    values["residual"] = added
    apart = run_amd_launches(
        lowered("moe_chosen_down", of_down, values, ("h", "chosen", *down, "residual")).launches, values
    )
    np.testing.assert_allclose(y, apart["y"], rtol=1e-5, atol=1e-5)


def test_a_choice_among_many_experts(run_amd_launches):
    """160 of them, of which each token takes 16: as many pairs as there may be."""
    tokens, experts, k = 8, 160, 16
    v = {"logits": route_logits("random", tokens, experts), "positions": np.arange(tokens, dtype=np.int32)}
    v["x"] = np.random.default_rng(0).standard_normal((tokens, 32), np.float32)
    for seed, which in enumerate(("gate", "up")):
        v |= named(which, "mxfp4", expert_weights("mxfp4", experts, 8, 32, seed=seed))
    names = ("logits", "positions", "x", "gate.codes", "gate.scale", "up.codes", "up.scale")
    route = DEFAULTS | {"k": k, "scoring": "selected"}
    attributes = route | MIXTURE | {"format": "mxfp4", "k": k, "corrected": False, "experts": experts}
    got = run_amd_launches(lowered("moe_chosen_gate_up", attributes, v, names).launches, v)["chosen"]
    _, weights, _, order, expert, *_ = route_reference(jnp.asarray(v["logits"]), jnp.asarray(v["positions"]), **route)
    np.testing.assert_array_equal(got[0], expert)
    np.testing.assert_array_equal(got[1], order)
    np.testing.assert_allclose(got[2].view(np.float32), np.ravel(weights), rtol=2e-5)


def test_what_is_better_apart():
    v = few_tokens("mxfp4", 8, "random")
    names = ("logits", "positions", "x", "gate.codes", "gate.scale", "up.codes", "up.scale")
    attributes = DEFAULTS | MIXTURE | {"format": "mxfp4", "corrected": False, "experts": 8}
    types = types_of(v, names)
    assert RULES["moe_chosen_gate_up"](attributes, types)
    many = [((9, *types[0][0][1:]), "f32"), ((9,), "i32"), ((9, *types[2][0][1:]), "f32"), *types[3:]]
    assert RULES["moe_chosen_gate_up"](attributes, many) is None
    half = [types[0], types[1], (types[2][0], "f16"), *types[3:]]
    assert RULES["moe_chosen_gate_up"](attributes, half) is None
    nine = [((9, *shape[1:]), dtype) for shape, dtype in types[:3]]
    assert ON_NVIDIA["chunks"]["moe_chosen_gate_up"](attributes, types)
    assert ON_NVIDIA["chunks"]["moe_chosen_gate_up"](attributes, [nine[0], ((9,), "i32"), nine[2], *types[3:]]) is None


# Format, dtype of activations, shape, way; of q4_k the compiler has no launch of one token alone.
ON_UNITS = [
    ("mxfp4", "f32", (544, 96), "chunks"),
    ("affine4_g64_bf16_bf16", "bf16", (576, 64), "spans"),
    ("q4_k", "bf16", (256, 256), "chunks"),
    ("bf16", "bf16", (608, 64), "chunks"),
]


def few_on_nvidia(name: str, dtype: str, shape: tuple[int, int], tokens: int, kind: str) -> dict[str, np.ndarray]:
    format = name.removesuffix("_bf16_bf16")
    v = few_tokens(format, tokens, kind, biased=name == "mxfp4", shape=shape, narrow=format != name)
    v |= {n: v[n].astype(ARRAYS[dtype]) for n in ("x", "logits", "residual")}
    return v | {COUNTERS: COUNTED}


@pytest.mark.parametrize(("name", "dtype", "shape", "way"), ON_UNITS)
def test_two_launches_on_nvidia(run_nvidia_launches, name, dtype, shape, way):
    """Bit for bit those of the launches of more tokens, rows of padding included."""
    format, rules = name.removesuffix("_bf16_bf16"), ON_NVIDIA[way]
    for tokens, kind in ((1, "random"), (3, "one"), (8, "steps")):
        v = few_on_nvidia(name, dtype, shape, tokens, kind)
        how = {"format": format, "normed": True, "biased": name == "mxfp4", "added": tokens != 3}
        route = GROUPED if tokens == 8 and name != "q4_k" else {"normalize": True}
        apart, together = run_both(run_nvidia_launches, v, route, how, rules)
        assert_same(apart, together)
        assert np.isfinite(together["y"].astype(np.float32)).all()


@pytest.mark.parametrize("route", ROUTERS.values(), ids=ROUTERS)
def test_routers_on_nvidia(run_nvidia_launches, route):
    for tokens in (1, 6):
        v = few_tokens("mxfp4", tokens, "random") | {COUNTERS: COUNTED}
        assert_same(*run_both(run_nvidia_launches, v, route, {"format": "mxfp4", "normed": True}, ON_NVIDIA["chunks"]))


@pytest.mark.parametrize(("name", "dtype", "way"), [("mxfp4", "f32", "spans"), ("q4_k", "bf16", "chunks")])
def test_both_results_in_one_buffer_on_nvidia(run_nvidia_launches, name, dtype, way):
    for tokens in (1, 3):
        v = few_on_nvidia(name, dtype, (96, 64), tokens, "random")
        how = {"format": name, "normed": True, "biased": name == "mxfp4", "joined": True}
        assert_same(*run_both(run_nvidia_launches, v, {"scoring": "sigmoid", "biased": True}, how, ON_NVIDIA[way]))


def test_weights_of_the_input_on_nvidia(run_nvidia_launches):
    """As `test_weights_of_the_input`; what a token gets does not depend on its company."""
    v = few_tokens("mxfp4", 5, "steps") | {COUNTERS: COUNTED}
    how = {"format": "mxfp4", "k": 1, "normed": True, "weighed": True}
    route = {"scoring": "selected_sigmoid"}
    apart, together = run_both(run_nvidia_launches, v, route, how, ON_NVIDIA["chunks"])
    np.testing.assert_allclose(together["y"], apart["y"], rtol=1e-4, atol=1e-4)
    alone = v | {n: v[n][4:] for n in ("x", "logits", "positions", "residual")}
    _, one = run_both(run_nvidia_launches, alone, route, how, ON_NVIDIA["chunks"])
    assert one["y"][0].tobytes() == together["y"][4].tobytes()


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_gated_shared_expert_on_nvidia(run_nvidia_launches, tokens):
    """Bit for bit as `add_gated` and what takes its result do it."""
    v = few_tokens("mxfp4", tokens, "steps") | {COUNTERS: COUNTED}
    v["logits"] = np.concatenate([v["logits"], route_logits("random", tokens, 2)], axis=1)
    v["shared"] = np.random.default_rng(5).standard_normal(v["x"].shape, np.float32)
    route = {"normalize": True, "experts": 8}
    assert_same(*run_both(run_nvidia_launches, v, route, {"format": "mxfp4"}, ON_NVIDIA["chunks"]))


@pytest.mark.parametrize("workgroups", [1, 3])
def test_tokens_of_padding_alone_and_few_workgroups(run_nvidia_launches, workgroups):
    """Many blocks of rows for each counter, and for each workgroup; all rows of padding."""
    chip = replace(H200, multiprocessors=workgroups)
    v = few_on_nvidia("mxfp4", "f32", (4224, 64), 2, "random")
    how = {"format": "mxfp4", "normed": True, "biased": True}
    apart, together = run_both(run_nvidia_launches, v, {"normalize": True}, how, gpu_rules(chip))
    assert_same(apart, together)
    v["positions"] = np.full(2, -1, np.int32)
    apart, together = run_both(run_nvidia_launches, v, {"normalize": True}, how, gpu_rules(chip))
    assert together["y"].tobytes() == apart["y"].tobytes() == v["residual"].tobytes()
