"""Mixtral (arXiv:2401.04088): Mistral's attention, and 2 of 8 experts a token, whose weights sum to one."""

from __future__ import annotations

from ..config_keys import Config
from ..config_values import count
from ..layers.decoder import Decoder
from . import mistral
from .mixture import with_experts


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    size = count(config, "intermediate_size")
    return with_experts(config, mistral.model(config), "num_local_experts", intermediate=size, normalize=True)
