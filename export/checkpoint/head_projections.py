"""The matrices of latent attention (MLA) that belong to single heads, as the families read them.

`kv_b_proj.weight` [heads * (plain + value), kv_rank] makes each head's keys and values of a latent vector. Attention
over the latents needs its two parts alone: `embed_q.weight` [heads * kv_rank, plain], which is each head's key rows
turned round, and `unembed_out.weight` [heads * value, kv_rank]. Turned rows of a quantized matrix are of no format: its
parts are then float32 (`export --dtype` chooses another type). mlx_lm stores the parts of DeepSeek-V3, with a dimension
of heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...custom_kernels.ops.formats import FORMATS, dequantize
from .contents import Tensor
from .stacked_experts import flat_stack, scaled_apart

WHOLE, EMBED, UNEMBED = ".self_attn.kv_b_proj.weight", ".self_attn.embed_q.weight", ".self_attn.unembed_out.weight"


def split_head_projections(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """All tensors, with `kv_b_proj` in its two parts. One of another shape than config says stays as it is."""
    keys = ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")
    sizes = [size for size in map(config.get, keys) if type(size) is int and size > 0]
    if len(sizes) != len(keys):
        return dict(tensors)
    heads, plain, value = sizes
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(WHOLE) and len(tensor.shape) == 2 and tensor.shape[0] == heads * (plain + value):
            for part in _parts(tensor, heads, plain, value):
                found[part.name] = part
        elif name.endswith((EMBED, UNEMBED)) and len(tensor.shape) == 3:
            found[name] = scaled_apart(flat_stack(tensor, name), tensor.shape[0])
        else:
            found[name] = tensor
    return found


def _parts(tensor: Tensor, heads: int, plain: int, value: int) -> tuple[Tensor, Tensor]:
    layer, rank = tensor.name.removesuffix(WHOLE), tensor.shape[1]

    def of_heads() -> np.ndarray:
        return _values(tensor).reshape(heads, plain + value, rank)

    def embed() -> dict[str, np.ndarray]:
        return {"dense": np.ascontiguousarray(of_heads()[:, :plain].swapaxes(1, 2)).reshape(heads * rank, plain)}

    def unembed() -> dict[str, np.ndarray]:
        return {"dense": np.ascontiguousarray(of_heads()[:, plain:]).reshape(heads * value, rank)}

    format = "f32" if tensor.format in FORMATS else tensor.format
    return (
        Tensor(layer + EMBED, (heads * rank, plain), format, embed),
        Tensor(layer + UNEMBED, (heads * value, rank), format, unembed),
    )


def _values(tensor: Tensor) -> np.ndarray:
    parts = tensor.read()
    if tensor.format not in FORMATS:
        return parts["dense"]
    return np.asarray(dequantize(FORMATS[tensor.format], {name: jnp.asarray(part) for name, part in parts.items()}))
