"""llama.cpp's tensor names -> Hugging Face's, for each supported architecture (names: gguf-py/gguf/constants.py)."""

from __future__ import annotations

import re

_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
_LAYER_OF_ARCHITECTURE = {
    "llama": _LAYER | {"ffn_norm": "post_attention_layernorm"},
    "gemma3": _LAYER
    | {
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}

# Recomputed from the configuration, or read by gguf_config: not weights of the model.
NOT_WEIGHTS = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
_IN_LAYER = re.compile(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)")


def hugging_face_name(name: str, architecture: str) -> str | None:
    """The Hugging Face name of a tensor, or None where the architecture has no such tensor."""
    if name in _MODEL:
        return _MODEL[name]
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match.groups()
    module = _LAYER_OF_ARCHITECTURE[architecture].get(part)
    return None if module is None else f"model.layers.{layer}.{module}.{kind}"
