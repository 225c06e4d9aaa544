"""Checkpoints quantized by mlx_lm's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils as mlx_lm
import numpy as np
from checkpoint_logits import with_tokenizer
from mlx.utils import tree_map


def quantized(plain: Path, folder: Path, *, overrides: dict[str, Any] | None = None, **settings: Any) -> nn.Module:
    """What mlx_lm.convert does after it has loaded a model: quantize it, save it. The model comes back."""
    model, config = mlx_lm.load_model(plain)
    chosen = (lambda path, _: (overrides or {}).get(path, True)) if overrides else None
    arguments = {"group_size": None, "bits": None, **settings}
    model, config = mlx_lm.quantize_model(model, config, **arguments, quant_predicate=chosen)
    folder.mkdir()
    mlx_lm.save_model(folder, model)
    mlx_lm.save_config(config, folder / "config.json")
    with_tokenizer(folder)
    return model


def in_float32(model: nn.Module) -> nn.Module:
    """The model with what is bfloat16 in float32."""
    model.update(tree_map(lambda a: a.astype(mx.float32) if a.dtype == mx.bfloat16 else a, model.parameters()))
    return model


def logits(model: nn.Module, ids: list[int] | np.ndarray) -> np.ndarray:
    """float32 [len(ids), vocabulary]."""
    return np.array(model(mx.array(ids)[None]).astype(mx.float32))[0]
