"""llama.cpp's tensor names -> Hugging Face's, for each supported architecture (names: gguf-py/gguf/constants.py)."""

from __future__ import annotations

import re

from .gguf_architectures import ARCHITECTURES

_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Recomputed from the configuration, or read by gguf_config: not weights of the model.
NOT_WEIGHTS = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.attn_rot_embd\.weight")
_IN_MODEL = re.compile(r"(\w+)\.(weight|bias)")
# Files of before April 2024 have a tensor for each expert.
_ONE_EXPERT = re.compile(r"blk\.(0|[1-9]\d*)\.(ffn_(?:gate|up|down))\.(0|[1-9]\d*)\.weight")
_IN_LAYER = re.compile(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)")


def hugging_face_name(name: str, architecture: str) -> str | None:
    """The Hugging Face name of a tensor, or None where the architecture has no such tensor."""
    outside = _IN_MODEL.fullmatch(name)
    names = _MODEL | dict(ARCHITECTURES[architecture].outside)
    if outside is not None and outside[1] in names:
        return f"{names[outside[1]]}.{outside[2]}"
    one = _ONE_EXPERT.fullmatch(name)
    if one is not None:
        stack = ARCHITECTURES[architecture].tensors.get(f"{one[2]}_exps")
        if stack is None:
            return None
        experts, _, leaf = stack.rpartition(".")
        return f"model.layers.{one[1]}.{experts}.{one[3]}.{leaf}.weight"
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match.groups()
    module = ARCHITECTURES[architecture].tensors.get(part)
    if module is None:
        return None
    bare = part in ARCHITECTURES[architecture].bare
    return f"model.layers.{layer}.{module}" if bare else f"model.layers.{layer}.{module}.{kind}"
