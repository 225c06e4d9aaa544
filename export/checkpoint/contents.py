"""What a checkpoint is to the rest of strixhlo, whatever container it came in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle import Pooling
from .place import Place


@dataclass(frozen=True)
class Tensor:
    """One weight under its Hugging Face name, read only when `read` is called.

    name: e.g. "model.layers.0.self_attn.q_proj.weight".
    shape: logical and row-major; a linear layer is [out, in].
    format: "f32", "f16", "bf16" or a key of custom_kernels.ops.formats.FORMATS.
    read: the parts that formats.py names, or {"dense": array} (bf16 as ml_dtypes.bfloat16).
    part_dtypes: part name -> "f32", "f16" or "bf16", where a part is stored in another dtype than the format's own
        (scale and bias of affine formats).
    places: part name -> where its bytes lie in the checkpoint exactly as the bundle stores them; parts that must be
        converted are left out.
    part_shapes: part name -> its shape, where it is not the format's own (nvfp4's global_scale of stacked experts).
    """

    name: str
    shape: tuple[int, ...]
    format: str
    read: Callable[[], dict[str, np.ndarray]]
    part_dtypes: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    part_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: its configuration, weights and tokenizer.

    config: the keys of a Hugging Face config.json. One key is ours: `strixhlo_norms_include_one` is True where the
        RMS-norm weights already contain the 1 that Gemma adds to them (GGUF files of Gemma).
    write_tokenizer: writes tokenizer.json, tokenizer_config.json, generation_config.json and, where the checkpoint has
        a template, chat_template.jinja into a directory.
    """

    source: str
    container: str  # "gguf" | "safetensors"
    files: tuple[Path, ...]
    config: dict[str, Any]
    tensors: Mapping[str, Tensor]
    write_tokenizer: Callable[[Path], None]
    pooling: Pooling | None = None  # of an embedding model
