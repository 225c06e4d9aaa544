"""One short file per model family, read top to bottom. `FAMILIES` maps a config's model_type to its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Protocol

import jax
import numpy as np

from ...custom_kernels.ops.activations import DTYPES
from ...errors import StrixhloError
from ..config_keys import Config
from ..config_values import required, shown
from ..layers.cache import Cache
from ..layers.weights import Weights
from . import (
    apertus,
    cohere,
    deepseek,
    ernie4_5_moe,
    exaone,
    exaone4,
    gemma2,
    gemma3,
    gemma4,
    glm,
    glm4_moe,
    gpt_oss,
    granite,
    internlm3,
    llama,
    llama4,
    mistral,
    mixtral,
    olmo2,
    olmoe,
    phi3,
    phimoe,
    qwen2,
    qwen3,
    qwen_moe,
    seed_oss,
    smollm3,
    starcoder2,
)


class Model(Protocol):
    """What a family's file offers to the tracer."""

    @property
    def layers(self) -> int: ...
    @property
    def pool(self) -> tuple[int, int]: ...
    @property
    def windows(self) -> tuple[int, ...]: ...
    @property
    def hidden(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]: ...
    def tables(self, context: int) -> dict[str, np.ndarray]: ...
    def hidden_states(self, w: Weights, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]: ...
    def normalized(self, w: Weights, hidden: jax.Array) -> jax.Array: ...
    def logits(self, w: Weights, hidden: jax.Array) -> jax.Array: ...
    def unused(self, name: str) -> bool: ...


# model_type -> reads a config of that type.
FAMILIES: dict[str, Callable[[Config], Model]] = {
    "apertus": apertus.model,
    "cohere": cohere.model,
    "cohere2": cohere.cohere2,
    "deepseek_v2": deepseek.v2,
    "deepseek_v3": deepseek.v3,
    "ernie4_5_moe": ernie4_5_moe.model,
    "exaone": exaone.model,
    "exaone4": exaone4.model,
    "gemma2": gemma2.model,
    "gemma3_text": gemma3.model,
    "gemma4_text": gemma4.model,
    "glm": glm.model,
    "glm4": glm.glm4,
    "glm4_moe": glm4_moe.model,
    "gpt_oss": gpt_oss.model,
    "granite": granite.model,
    "granitemoehybrid": granite.granite4,
    "granitemoe": granite.granitemoe,
    "internlm3": internlm3.model,
    "llama": llama.model,
    "llama4_text": llama4.model,
    "ministral": mistral.model,
    "ministral3": mistral.ministral3,
    "mistral": mistral.model,
    "mixtral": mixtral.model,
    "olmo2": olmo2.model,
    "olmo3": olmo2.olmo3,
    "olmoe": olmoe.model,
    "phi3": phi3.model,
    "phimoe": phimoe.model,
    "qwen2": qwen2.model,
    "qwen2_moe": qwen_moe.qwen2_moe,
    "qwen3": qwen3.model,
    "qwen3_moe": qwen_moe.qwen3_moe,
    "seed_oss": seed_oss.model,
    "smollm3": smollm3.model,
    "starcoder2": starcoder2.model,
}

# Known, and what they need that is not there.
LACKING = {
    name: "its gated delta layers (linear attention) are not implemented"
    for name in ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
}

# Families whose residual stream leaves float16's range (65,504): their makers trained, and run, them in bfloat16.
TOO_LARGE_FOR_F16 = frozenset({"gemma2", "gemma3_text", "gemma4_text"})


def check_activations(config: Mapping[str, Any], activations: str) -> None:
    """StrixhloError for a type of activations that is not known, or that a family's numbers do not fit."""
    if activations not in DTYPES:
        raise StrixhloError(f"activations {activations!r} are not possible; choose one of {', '.join(DTYPES)}")
    kind = config.get("model_type")
    if activations == "f16" and kind in TOO_LARGE_FOR_F16:
        raise StrixhloError(
            f"model type {shown(kind)} overflows float16: export it with --activations bf16, which has float32's range"
        )


def model_from_config(config: Mapping[str, Any]) -> Model:
    """The family's model for a Hugging Face config; StrixhloError that names an unknown one, or a key that it does not
    honour."""
    kind = required(config, "model_type")
    if isinstance(kind, str) and kind in LACKING:
        raise StrixhloError(f"model type {shown(kind)} is not supported: {LACKING[kind]}")
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = get_close_matches(str(kind), FAMILIES, 1, 0.0)[0]
        supported = ", ".join(sorted(FAMILIES))
        raise StrixhloError(f"model type {shown(kind)} is not supported; the nearest that is: {near}; all: {supported}")
    keys = Config(config)
    model = FAMILIES[kind](keys)
    keys.refuse_unread()
    return model
