"""GLM-4.5 to 4.7 (arXiv:2508.06471): half of each head rotated, norms of q and k by choice, DeepSeek-V3's mixture."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import flag
from ..layers.decoder import Decoder
from .mixture import scored_experts, with_first_layers_dense
from .pre_norm import partial_rotary, pre_norm, with_attention


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    decoder = pre_norm(config)
    rope = partial_rotary(config, decoder.attention[0].rope, decoder.head_dim, 0.5)
    norm = decoder.norm if flag(config, "use_qk_norm", False) else None
    decoder = with_attention(decoder, rope=rope, bias=flag(config, "attention_bias", False), norm=norm)
    return with_first_layers_dense(config, decoder, scored_experts(config, decoder.hidden))
