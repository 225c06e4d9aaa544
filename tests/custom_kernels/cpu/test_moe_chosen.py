"""A mixture of few tokens on the CPU that chooses its experts in the launch of gate and up, against three launches."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from moe_cases import DEFAULTS, problem, route_logits

from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.rules import cpu_rules

DTYPES = {"float32": "f32", "float16": "f16", "int32": "i32", "int8": "i8"}
ROUTING = ("expert", "order", "offsets", "tiles")
MIXTURE = {"activation": "silu", "limit": 0.0, "biased": False, "normed": True, "epsilon": 1e-3, "offset": 1.0}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of moe_route, of moe_gate_up
    "softmax": ({"k": 3, "normalize": True}, {"biased": True}),
    "corrected scores in groups": (
        {"k": 3, "scoring": "sigmoid", "normalize": True, "groups": 4, "group_k": 2, "biased": True},
        {},
    ),
    "factors of the weights": ({"k": 3, "biased": True, "factored": True, "logit_scale": 0.5}, {}),
    "weights of the input": ({"k": 1, "scoring": "selected_sigmoid"}, {"weighed": True, "normed": False}),
}


def run(
    kernels: ctypes.CDLL, op: str, attributes: dict[str, Any], v: dict[str, np.ndarray], names: tuple[str, ...]
) -> None:
    """Launches of one op of operands of these names; results are added to v."""
    types = [(v[n].shape, DTYPES[str(v[n].dtype)]) for n in names]
    lowering = cpu_rules(attributes.get("format") == "q4_0")[op](attributes, types)
    assert lowering and len(lowering.launches) == 1
    own = dict(zip(lowering.operands, (v[n] for n in names), strict=True))
    run_launches(kernels, lowering.launches, own)
    v.update({n: own[n] for n in lowering.results})


@pytest.mark.parametrize("case", CASES)
def test_two_launches_give_what_three_do(kernels: ctypes.CDLL, case: str) -> None:
    """Bit for bit, rows of padding included, and with a gated shared expert."""
    route, how = DEFAULTS | CASES[case][0], MIXTURE | CASES[case][1]
    for format, tokens, kind in (("q4_0", 1, "random"), ("mxfp4", 8, "steps"), ("f32", 5, "one")):
        v = problem(format, tokens, how["biased"], kind)
        rng = np.random.default_rng(7)
        v["logits"] = np.concatenate([route_logits(kind, tokens, 8), route_logits("random", tokens, 1)], axis=1)
        v["positions"] = np.arange(tokens, dtype=np.int32)
        v["positions"][3::7] = -1
        v["norm"] = np.linspace(-0.5, 0.5, v["x"].shape[1], dtype=np.float32)
        v["correction"] = np.linspace(-0.4, 0.5, 8, dtype=np.float32)
        v["base"], v["shared"] = (rng.standard_normal(v["x"].shape, np.float32) for _ in range(2))
        parts = {w: tuple(n for n in v if n.startswith(f"{w}.")) for w in ("gate", "up", "down")}
        own = (*parts["gate"], *parts["up"], *("gate_bias", "up_bias") * how["biased"], *("norm",) * how["normed"])
        of_down = (*parts["down"], *("bias",) * how["biased"])
        logits = ("logits", "positions", *("correction",) * route["biased"])
        route |= {"experts": 8}
        how |= {"format": format, "k": route["k"]}
        down = {"format": format, "k": route["k"], "biased": how["biased"], "added": True, "scale": 0.5}

        apart = dict(v)
        run(kernels, "moe_route", route, apart, logits)
        weights = apart["weights"]
        run(kernels, "moe_gate_up", how, apart, ("x", *ROUTING, *own, *("weights",) * how.get("weighed", False)))
        if how.get("weighed"):
            apart["weights"] = np.ones_like(weights)
        sum_of = {"column": 8, "scale": 0.75}
        added = {"base": v["base"], "x": v["shared"], "logits": v["logits"]}
        run(kernels, "add_gated", sum_of, added, ("base", "x", "logits"))
        gate = 1 / (1 + np.exp(-v["logits"][:, 8:].astype(np.float64)))
        np.testing.assert_allclose(added["y"], v["base"] + 0.75 * gate * v["shared"], rtol=1e-5, atol=1e-6)
        apart["base"] = np.zeros_like(v["base"])
        run(kernels, "moe_down", down, apart, ("h", "weights", "places", *ROUTING, *of_down, "base"))

        together = dict(v)
        both = route | how | {"corrected": route["biased"], "biased": how["biased"]}
        run(kernels, "moe_chosen_gate_up", both, together, (*logits, "x", *own))
        assert together["h"].tobytes() == apart["h"].tobytes()
        bits = apart["weights"].reshape(-1).view(np.int32)
        np.testing.assert_array_equal(together["chosen"], np.stack([apart["expert"], apart["order"], bits]))
        gated = down | {"experts": 8, "gated": True, "column": 8, "shared_scale": 0.75}
        run(kernels, "moe_chosen_down", gated, together, ("h", "chosen", *of_down, "base", "shared", "logits"))
        np.testing.assert_allclose(together["y"], apart["y"] + added["y"], rtol=1e-4, atol=1e-4)
