"""gpt-oss's experts: gate and up row by row in turn, quantized as OpenAI stores them, or as transformers dequantizes
them.

OpenAI: `experts.gate_up_proj` in MXFP4 [E, 2N, K], `experts.down_proj` [E, N, K]. transformers, in a float format:
[E, K, 2N] and [E, K, N]. Biases: `experts.gate_up_proj_bias` [E, 2N], `experts.down_proj_bias` [E, N]. Out come
`experts.gate_proj.weight` [E * N, K] and so on, and `experts.gate_proj.bias` [E, N]. MLX has split them already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...custom_kernels.ops.formats import FORMATS
from ...errors import StrixhloError
from .contents import Tensor

_NAME = re.compile(r"(.+\.experts\.)(gate_up_proj|down_proj)(_bias)?")
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def split_gpt_oss_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors, with those of gpt-oss's experts apart. StrixhloError for one of an impossible shape."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if not match:
            found[name] = tensor
            continue
        prefix, leaf, bias = match.groups()
        for i, part in enumerate(_PARTS[leaf]):
            one = _part(tensor, i, len(_PARTS[leaf]), bool(bias))
            new = f"{prefix}{part}.{'bias' if bias else 'weight'}"
            found[new] = replace(one, name=new)
    return found


def _part(tensor: Tensor, i: int, of: int, bias: bool) -> Tensor:
    """The rows i, i + of, ... of each expert."""
    quantized = tensor.format in FORMATS
    if len(tensor.shape) != (2 if bias else 3) or (bias and quantized):
        raise StrixhloError(f"{tensor.name} is {tensor.format}{list(tensor.shape)}: not gpt-oss's; download it again")
    experts, *matrix = tensor.shape
    rows = matrix[0] if bias or quantized else matrix[1]
    if rows % of:
        raise StrixhloError(f"{tensor.name}: gate and up in one tensor of {rows} rows; download the model again")
    if bias:
        return replace(tensor, shape=(experts, rows // of), read=_read(tensor, lambda a: a[:, i::of]), places={})
    columns = matrix[1] if quantized else matrix[0]
    shape = (experts * (rows // of), columns)
    if quantized:
        places = tensor.places if of == 1 else {}
        read = _read(tensor, lambda a: a[:, i::of].reshape(-1, *a.shape[2:]))
        return replace(tensor, shape=shape, read=read, places=places)
    return replace(
        tensor, shape=shape, read=_read(tensor, lambda a: a[:, :, i::of].swapaxes(1, 2).reshape(shape)), places={}
    )


def _read(tensor: Tensor, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[], dict[str, np.ndarray]]:
    return lambda: {name: np.ascontiguousarray(change(part)) for name, part in tensor.read().items()}
