"""The config keys that all pre-norm families share; each family's file says what it does differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..config_keys import Config
from ..config_values import attention_heads, count, flag, layer_count, layer_types, positive, refuse
from ..layers.attention import Attention
from ..layers.decoder import Decoder
from ..layers.mlp import Mlp, activation
from ..layers.norm import Norm
from ..layers.rope import Rope

SLIDING, FULL = "sliding_attention", "full_attention"


def pre_norm(config: Config, *, theta: float = 10000.0, head_dim: int | None = None, tied: bool = False) -> Decoder:
    """Full attention with rotary positions, RMS norms, a gated MLP, no biases: Llama's shape.

    theta, head_dim, tied: what the family takes for rope_theta, head_dim and tie_word_embeddings where its config has
    none. StrixhloError for missing keys and impossible values.
    """
    refuse(config, {"quantization_config": (None,)})
    hidden, layers = count(config, "hidden_size"), layer_count(config)
    if config.get("head_dim") is None and head_dim is not None:
        config = config | {"head_dim": head_dim}
    heads, kv_heads, head_dim = attention_heads(config, hidden)
    attention = Attention(
        hidden, heads, kv_heads, head_dim, scale=head_dim**-0.5, rope=Rope.from_config(config, head_dim, theta)
    )
    mlp = Mlp(hidden, count(config, "intermediate_size"), activation(config))
    return Decoder(
        hidden,
        count(config, "vocab_size"),
        (attention,) * layers,
        (mlp,) * layers,
        Norm(positive(config, "rms_norm_eps")),
        tied=flag(config, "tie_word_embeddings", tied),
    )


def partial_rotary(config: Config, rope: Rope | None, head_dim: int, default: float) -> Rope:
    """The rotary embedding over the first partial_rotary_factor of each head."""
    assert rope
    dims = int(head_dim * positive(config, "partial_rotary_factor", default))
    return replace(rope, dims=dims)


def with_attention(decoder: Decoder, **changes: Any) -> Decoder:
    """The decoder with these fields of every layer's attention changed."""
    return replace(decoder, attention=tuple(replace(a, **changes) for a in decoder.attention))


def with_mlp(decoder: Decoder, **changes: Any) -> Decoder:
    """The decoder with these fields of every layer's MLP changed."""
    return replace(decoder, mlp=tuple(replace(m, **changes) for m in decoder.mlp))  # type: ignore[type-var]


def with_windows(config: Config, decoder: Decoder, default: Sequence[str]) -> Decoder:
    """The window sliding_window in the layers that layer_types (default: `default`) names as sliding."""
    kinds = layer_types(config, decoder.layers, default, (SLIDING, FULL))
    config.unused("sliding_window")  # where all layers are full
    window = count(config, "sliding_window") if SLIDING in kinds else 0
    attention = zip(decoder.attention, kinds, strict=True)
    return replace(decoder, attention=tuple(replace(a, window=window if k == SLIDING else 0) for a, k in attention))
