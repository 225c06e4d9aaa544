"""Command R (Cohere) and Command R7B/A: attention and MLP side by side after one LayerNorm, scaled logits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from ...custom_kernels.ops.fused_matmul import Residual
from ..config_keys import Config
from ..config_values import count, flag, positive, refuse
from ..layers.cache import Cache
from ..layers.decoder import Decoder
from ..layers.norm import Norm
from ..layers.probe import probe
from ..layers.weights import Weights
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_windows

# What Command R7B's configuration says about itself.
_AS_RELEASED = {
    "order_of_interleaved_layers": ("local_attn_first",),
    "position_embedding_type": ("rope_gptj",),
    "rotary_pct": (1.0,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
}


@dataclass(frozen=True)
class Parallel(Decoder):
    """Layers whose attention and MLP take the same normalized input."""

    def layer(self, w: Weights, x: jax.Array, cache: Cache, i: int) -> tuple[jax.Array, Cache]:
        """Layer i: x [T, hidden] -> the same."""
        p = f"model.layers.{i}."
        normed = self.norm.before_matmul(x, w, p + self.norms[0])
        x, cache = self.attention[i](w, p, normed, cache, i, Residual(x))
        x = probe(x, f"layers.{i}.attention")
        return probe(self.mlp[i](w, p, normed, residual=Residual(x)), f"layers.{i}.mlp"), cache


def model(config: Config, theta: float = 500000.0) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None)})
    norm = Norm(positive(config, "layer_norm_eps", 1e-5), "layer")
    d = pre_norm(config | {"rms_norm_eps": norm.epsilon}, theta=theta, tied=True)
    rope, bias = d.attention[0].rope, flag(config, "attention_bias", False)
    assert rope
    d = with_attention(d, rope=replace(rope, interleaved=True), bias=bias, output_bias=bias)
    if flag(config, "use_qk_norm", False):
        d = with_attention(d, norm=norm, norm_over="each head")
    scale = positive(config, "logit_scale", 0.0625)
    return Parallel(
        d.hidden, d.vocab_size, d.attention, d.mlp, norm, d.tied, logit_scale=scale, norms=("input_layernorm",)
    )


def cohere2(config: Config) -> Decoder:
    """Command R7B and A: three layers of four have a window, the others no positions."""
    d = model(config, 10000.0)
    period = count(config, "sliding_window_pattern", 4)
    refuse(config, _AS_RELEASED | {"layer_switch": (period,)})
    config.unused("use_embedding_sharing", "use_parallel_embedding")
    d = with_windows(config, d, [FULL if (i + 1) % period == 0 else SLIDING for i in range(d.layers)])
    return replace(d, attention=tuple(a if a.window else replace(a, rope=None) for a in d.attention))
