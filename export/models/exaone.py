"""EXAONE 3 and 3.5 (LG, arXiv:2408.03541, 2412.04862): Llama; its older files name keys and tensors as GPT-2 does."""

from __future__ import annotations

from ..config_keys import Config
from ..layers.decoder import Decoder
from . import llama


def model(config: Config) -> Decoder:
    """Reads a Hugging Face config; StrixhloError for missing keys and unsupported flags."""
    return llama.model({"rope_theta": 500000.0, "rms_norm_eps": 1e-5} | config)
