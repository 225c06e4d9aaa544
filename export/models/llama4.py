"""Llama 4, text (Meta, 2025): attention in chunks, layers without positions whose queries grow, one expert of many
whose input is weighted, and one that is shared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.activations import float32
from ...custom_kernels.ops.fused_matmul import Residual
from ...custom_kernels.ops.rope_and_append import HeadNorm
from ..config_keys import Config
from ..config_values import count, flag, layer_types, positive, refuse, wrong
from ..layers.attention import Attention
from ..layers.cache import Cache
from ..layers.decoder import FEW, Decoder
from ..layers.linear import projection
from ..layers.mlp import Mlp
from ..layers.moe import Experts
from ..layers.norm import Input, plain
from ..layers.query_scale import QueryScale
from ..layers.weights import Weights
from .mixture import experts_of
from .pre_norm import FULL, pre_norm

CHUNKED = "chunked_attention"


@dataclass(frozen=True)
class Llama4Attention(Attention):
    """head_epsilon: of the norm, without a weight, of each head of q and k (0: there is none). It comes before the
    rotation here and after it in transformers, which is the same where the rotation does not lengthen."""

    head_epsilon: float = 0.0

    def __call__(
        self, w: Weights, prefix: str, x: Input, cache: Cache, layer: int, residual: Residual | None = None
    ) -> tuple[jax.Array, Cache]:
        """As `Attention` does it."""
        p = f"{prefix}{self.module}."
        ones = jnp.ones(self.head_dim, jnp.float32)
        q, cache = cache.append(
            self._qkv(w, p, x),
            heads=self.heads,
            kv_heads=self.kv_heads,
            layer=layer,
            norm=HeadNorm("rms", self.head_epsilon, ones, ones) if self.head_epsilon else None,
            table=w[self.rope.table].dense if self.rope else None,
            interleaved=self.rope is not None and self.rope.interleaved,
            query_scale=w[self.query_scale.table].dense if self.query_scale else None,
        )
        mixed = cache.read(q, kv_heads=self.kv_heads, layer=layer, scale=self.scale, window=self.window)
        return projection(mixed, w, p + self.output, self.output_bias, residual), cache


@dataclass(frozen=True)
class Llama4Experts(Experts):
    """One expert a token; what it is given is multiplied by its weight, what it gives is not."""

    def __call__(
        self,
        w: Weights,
        prefix: str,
        x: Input,
        positions: jax.Array | None = None,
        residual: Residual | None = None,
    ) -> jax.Array:
        """x [T, hidden] -> [T, hidden]; see `Experts`."""
        assert positions is not None and self.k == 1
        p, base = f"{prefix}{self.module}.", self._with_shared(w, prefix, x, residual)
        if len(x) > FEW:  # that many are multiplied before the matmuls
            x = plain(x)
        routing = self.route(w, p, x, positions)
        if len(x) <= FEW:
            return self.mix(w, p, x, routing, base, weighed=True)
        weighed = (float32(plain(x)) * routing.weights).astype(plain(x).dtype)
        return self.mix(w, p, weighed, replace(routing, weights=jnp.ones_like(routing.weights)), base)


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "num_experts_per_tok": (1, None)})
    refuse(config, {"for_llm_compressor": (False, None)})
    decoder = pre_norm(config, theta=500000.0, head_dim=128)
    size, hidden = count(config, "intermediate_size"), decoder.hidden
    dense = Mlp(hidden, count(config, "intermediate_size_mlp"), "silu", module="feed_forward")
    experts = experts_of(
        config | {"num_experts_per_tok": 1},
        hidden,
        "num_local_experts",
        Llama4Experts,
        intermediate=size,
        scoring="selected_sigmoid",
        shared=Mlp(hidden, size, "silu", module="feed_forward.shared_expert"),
        shared_gate="",
        router="router",
        module="feed_forward",
    )
    sparse = _sparse_layers(config, decoder.layers)
    return replace(
        decoder,
        attention=_attention(config, decoder),
        mlp=tuple(experts if i in sparse else dense for i in range(decoder.layers)),
    )


def _sparse_layers(config: Config, layers: int) -> set[int]:
    """moe_layers, or each interleave_moe_layer_step-th layer."""
    step, listed = count(config, "interleave_moe_layer_step", 1), config.get("moe_layers")
    if listed is None:
        return {*range(step - 1, layers, step)}
    if not isinstance(listed, list) or any(type(i) is not int for i in listed):
        raise wrong("moe_layers", listed, "a list of layer numbers")
    return {*listed}


def _attention(config: Config, decoder: Decoder) -> tuple[Llama4Attention, ...]:
    """One a layer: rotated ones in chunks, the others over all positions."""
    a, layers, bias = decoder.attention[0], decoder.layers, flag(config, "attention_bias", False)
    assert a.rope
    interval = count(config, "no_rope_layer_interval", 4)
    rotated = config.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or any(r not in (0, 1) for r in rotated):
        raise wrong("no_rope_layers", rotated, f"a list of {layers} numbers, 1 where the layer is rotated")
    whole = config.get("attention_chunk_size") is None
    kinds = layer_types(config, layers, [CHUNKED if r and not whole else FULL for r in rotated], (CHUNKED, FULL))
    chunk = count(config, "attention_chunk_size") if CHUNKED in kinds else 0
    epsilon = decoder.norm.epsilon if flag(config, "use_qk_norm", True) else 0.0
    tuned = config.get("attn_temperature_tuning", True)  # first releases have a number here
    if type(tuned) not in (bool, int):
        raise wrong("attn_temperature_tuning", tuned, "true or false")
    grown = QueryScale(positive(config, "attn_scale", 0.1), count(config, "floor_scale", 8192), first=1)
    one = Llama4Attention(a.hidden, a.heads, a.kv_heads, a.head_dim, a.scale, bias=bias, output_bias=bias)
    rope = replace(a.rope, interleaved=True)
    if epsilon:  # the norm takes away by how much a rotation lengthens
        rope = replace(rope, scaling=replace(rope.scaling, magnitude=1.0))
    rotary = replace(one, rope=rope, head_epsilon=epsilon)
    plain = replace(one, query_scale=grown if tuned else None)
    return tuple(
        replace(rotary if r else plain, window=-chunk if kind == CHUNKED else 0)
        for r, kind in zip(rotated, kinds, strict=True)
    )
