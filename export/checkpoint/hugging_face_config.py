"""One shape for the variants of config.json and of tensor names that transformers has written over the years."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...errors import StrixhloError

# Kept from a multimodal configuration's outer level where the text model's own does not say otherwise.
_OUTER_KEYS = (
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "quantization",
    "quantization_config",
)
_TEXT_PREFIXES = (("language_model.", ""), ("model.language_model.", "model."))
_OTHER_MODALITY = re.compile(
    r"(model\.)?(vision_tower|vision_model|multi_modal_projector|audio_tower|embed_vision|embed_audio)\."
)
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")  # in files of early Llama models; follows from the configuration
# EXAONE 3 as its makers published it: GPT-2's names.
_EXAONE_KEYS = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
_EXAONE_NAMES = (
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.h.", "model.layers."),
    ("transformer.ln_f.", "model.norm."),
    (".attn.attention.out_proj.", ".self_attn.o_proj."),
    (".attn.attention.", ".self_attn."),
    (".ln_1.", ".input_layernorm."),
    (".ln_2.", ".post_attention_layernorm."),
    (".mlp.c_fc_0.", ".mlp.gate_proj."),
    (".mlp.c_fc_1.", ".mlp.up_proj."),
    (".mlp.c_proj.", ".mlp.down_proj."),
)


def renamed(name: str, model_type: object) -> str:
    """A tensor's name as the family's file has it, where a model's makers published it under others."""
    if model_type == "exaone":
        for theirs, ours in _EXAONE_NAMES:
            name = name.replace(theirs, ours)
    return name


def normalized_config(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """config.json with a multimodal model's text part moved up and the rotary settings as transformers 4 names them.

    transformers 5 writes `rope_parameters`, one set or (Gemma 3) one per layer type; out come `rope_theta`,
    `rope_scaling` (None where nothing is scaled) and `rope_local_base_freq`.
    """
    text = config.get("text_config")
    if isinstance(text, dict):
        config = {key: config[key] for key in _OUTER_KEYS if key in config} | text
    else:
        config = dict(config)
    if config.get("model_type") == "exaone":
        config = {_EXAONE_KEYS.get(key, key): value for key, value in config.items()}
    parameters = config.pop("rope_parameters", None)
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise StrixhloError(f"{path}: rope_parameters is not an object; get the model's config.json again")
        config |= _rope_keys(parameters, path)
    scaling = config.get("rope_scaling")
    if isinstance(scaling, dict):
        config["rope_scaling"] = _rope_scaling(scaling)
    return config


def _rope_keys(parameters: dict[str, Any], path: Path) -> dict[str, Any]:
    per_layer_type = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    keys: dict[str, Any] = {}
    if per_layer_type:
        unknown = per_layer_type.keys() - {"full_attention", "sliding_attention"}
        if unknown or "full_attention" not in per_layer_type:
            raise StrixhloError(f"{path}: rope_parameters of layer types {sorted(per_layer_type)} are not supported")
        sliding = per_layer_type.get("sliding_attention", {})
        if _rope_scaling(sliding) is not None:
            raise StrixhloError(f"{path}: rope_parameters scale the sliding layers, which is not supported")
        if "rope_theta" in sliding:
            keys["rope_local_base_freq"] = sliding["rope_theta"]
        parameters = per_layer_type["full_attention"]
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in parameters:
            keys[key] = parameters[key]
    keys["rope_scaling"] = _rope_scaling(parameters)
    return keys


def _rope_scaling(parameters: dict[str, Any]) -> dict[str, Any] | None:
    """The scaling alone, under `rope_type`; None for "default"."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return None
    rest = {k: v for k, v in parameters.items() if k not in ("type", "rope_theta", "partial_rotary_factor")}
    return rest | {"rope_type": kind}


def normalized_name(name: str, nested: bool) -> str | None:
    """A tensor's name in the text model; None for what is not part of it. nested: the model has a `text_config`."""
    if _DERIVED.fullmatch(name):
        return None
    if nested:
        if _OTHER_MODALITY.match(name):
            return None
        for prefix, replacement in _TEXT_PREFIXES:
            if name.startswith(prefix):
                return replacement + name.removeprefix(prefix)
    return name
