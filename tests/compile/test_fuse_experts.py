"""A mixture of experts of one token is one dispatch where the target has a kernel for all of it."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moe_cases import expert_weights

from strixhlo.compile.compile import lower_without_kernels
from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.ops.moe_matmul import moe_down, moe_gate_up
from strixhlo.custom_kernels.ops.moe_route import moe_route


def program(tokens: int, layers: int = 2, dtype: str = "float32", corrected: bool = False, **routing) -> str:
    """StableHLO of some layers of experts in mxfp4, one after the other."""
    correction = jnp.linspace(-1, 1, 8, dtype=jnp.float32) if corrected else None
    parts = {n: expert_weights("mxfp4", 8, 64, 64, seed=i).parts for i, n in enumerate(("gate", "up", "down"))}

    def main(x, logits, positions):
        for _ in range(layers):
            routed = moe_route(logits, positions, correction, k=2, normalize=True, **routing)
            h = moe_gate_up(
                x, routed, parts["gate"], parts["up"], format="mxfp4", norm=x[0].astype(jnp.float32), epsilon=1e-6
            )
            x = moe_down(h, routed, parts["down"], format="mxfp4")
        return x

    shapes = (((tokens, 64), dtype), ((tokens, 8), dtype), ((tokens,), np.int32))
    exported = jax.export.export(jax.jit(main))(*(jax.ShapeDtypeStruct(*s) for s in shapes))
    return exported.mlir_module()


@pytest.mark.parametrize(
    ("how", "symbol"),
    [
        ({}, "moe_one_normed_gemv_mxfp4"),
        ({"groups": 4, "group_k": 2, "dtype": "float16"}, "moe_one_normed_gemv_mxfp4_xf16"),
        ({"corrected": True, "scoring": "sigmoid", "dtype": "bfloat16"}, "moe_one_corrected_normed_gemv_mxfp4_xbf16"),
    ],
)
def test_one_token_is_one_dispatch_on_cuda(how, symbol):
    lowered = lower_without_kernels(program(1, **how), parse_target("cuda"), "f32", None)
    text = str(lowered.program)
    assert len(re.findall(rf"::@strixhlo_{symbol}\b", text)) == 2
    assert "moe_route_e" not in text.partition("hal.executable.source")[0]
    # One tensor of counters, filled once, and handed from one launch to the next.
    assert len(re.findall(r"flow.tensor.splat", text)) == 1
    assert lowered.report["kernel_dispatches"] == 2


@pytest.mark.parametrize("routing", [{}, {"groups": 4}])
@pytest.mark.parametrize(("tokens", "dispatches"), [(1, 2), (8, 2), (9, 5)])
def test_few_tokens_are_two_dispatches_on_rocm(tokens, dispatches, routing):
    """The choice of the experts, the norm, gate and up; down and the sum."""
    lowered = lower_without_kernels(program(tokens, 1, **routing), parse_target("rocm"), "f32", None)
    assert lowered.report["kernel_dispatches"] == dispatches
    assert ("moe_gate_up_pairs_chosen" in str(lowered.program)) == (tokens <= 8)


@pytest.mark.parametrize(("tokens", "dispatches"), [(2, 4), (3, 9)])
def test_few_tokens_are_two_dispatches_on_cuda(tokens, dispatches):
    """The same; of both layers, which share one tensor of counters, as those of three tokens share a choice."""
    lowered = lower_without_kernels(program(tokens), parse_target("cuda"), "f32", None)
    assert lowered.report["kernel_dispatches"] == dispatches
    text = str(lowered.program)
    assert ("moe_gate_up_chosen_few" in text) == ("moe_down_chosen_few" in text) == (tokens <= 2)
    assert len(re.findall(r"flow.tensor.splat", text)) == (tokens <= 2)


def test_one_token_is_two_dispatches_where_the_one_has_no_such_scores():
    """Launches of both kinds are given counters of their own."""
    how = {"scoring": "selected_sigmoid", "dtype": "bfloat16"}
    lowered = lower_without_kernels(program(1, **how), parse_target("cuda"), "f32", None)
    assert lowered.report["kernel_dispatches"] == 4
    assert "moe_gate_up_chosen_few_normed_mxfp4_xbf16" in str(lowered.program)


def test_a_residual_is_added_in_the_one_dispatch():
    parts = {n: expert_weights("mxfp4", 8, 64, 64, seed=i).parts for i, n in enumerate(("gate", "up", "down"))}

    def main(x, logits, positions):
        routed = moe_route(logits, positions, k=2)
        h = moe_gate_up(x, routed, parts["gate"], parts["up"], format="mxfp4")
        return moe_down(h, routed, parts["down"], format="mxfp4", residual=x, scale=0.5)

    shapes = ((jnp.float32, (1, 64)), (jnp.float32, (1, 8)), (jnp.int32, (1,)))
    text = jax.export.export(jax.jit(main))(*(jax.ShapeDtypeStruct(s, d) for d, s in shapes)).mlir_module()
    lowered = lower_without_kernels(text, parse_target("cuda"), "f32", None)
    assert lowered.report["kernel_dispatches"] == 1
    assert "moe_one_added_gemv" in str(lowered.program)


def test_what_somebody_else_wants_stays():
    parts = {n: expert_weights("mxfp4", 8, 64, 64, seed=i).parts for i, n in enumerate(("gate", "up", "down"))}

    def main(x, logits, positions):
        routed = moe_route(logits, positions, k=2)
        h = moe_gate_up(x, routed, parts["gate"], parts["up"], format="mxfp4")
        return moe_down(h, routed, parts["down"], format="mxfp4"), routed.ids

    shapes = ((jnp.float32, (1, 64)), (jnp.float32, (1, 8)), (jnp.int32, (1,)))
    text = jax.export.export(jax.jit(main))(*(jax.ShapeDtypeStruct(s, d) for d, s in shapes)).mlir_module()
    assert "moe_one" not in str(lower_without_kernels(text, parse_target("cuda"), "f32", None).program)
