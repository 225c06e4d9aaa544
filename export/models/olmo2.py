"""OLMo 2 (arXiv:2501.00656) and OLMo 3: norms after attention and MLP only, and of the whole of q and k."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from ..config_keys import Config
from ..config_values import flag, positive, refuse
from ..layers.cache import Cache
from ..layers.decoder import Decoder
from ..layers.probe import probe
from ..layers.rope import Rope
from ..layers.weights import Weights
from .pre_norm import FULL, SLIDING, pre_norm, with_attention, with_windows

NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True)
class PostNorm(Decoder):
    """Layers that normalize what attention and MLP give, not what they take."""

    def layer(self, w: Weights, x: jax.Array, cache: Cache, i: int) -> tuple[jax.Array, Cache]:
        """Layer i: x [T, hidden] -> the same."""
        p, (after_attention, after_mlp) = f"model.layers.{i}.", self.norms
        mixed, cache = self.attention[i](w, p, x, cache, i)
        x = probe(self.norm.added_to(x, mixed, w, p + after_attention), f"layers.{i}.attention")
        return probe(self.norm.added_to(x, self.mlp[i](w, p, x), w, p + after_mlp), f"layers.{i}.mlp"), cache


def post_norm(d: Decoder) -> PostNorm:
    """The decoder with post-norm layers."""
    return PostNorm(d.hidden, d.vocab_size, d.attention, d.mlp, d.norm, d.tied, norms=NORMS)


def model(config: Config, theta: float = 10000.0) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    refuse(config, {"partial_rotary_factor": (1.0, None), "clip_qkv": (None,)})
    decoder, bias = pre_norm(config, theta=theta), flag(config, "attention_bias", False)
    changes = {"norm": decoder.norm, "norm_over": "projection", "bias": bias, "output_bias": bias}
    return post_norm(with_attention(decoder, **changes))


def olmo3(config: Config) -> Decoder:
    """OLMo 3: three layers of four have a window, and their rotary embedding is not scaled."""
    d = model(config, 500000.0)
    d = with_windows(config, d, [FULL if (i + 1) % 4 == 0 else SLIDING for i in range(d.layers)])
    base = positive(config, "rope_local_base_freq", positive(config, "rope_theta", 500000.0))
    local = Rope(d.head_dim, base, table="rope.local")
    return replace(d, attention=tuple(replace(a, rope=local) if a.window else a for a in d.attention))
