"""The experts of a layer as one weight each of gate, up and down, however the checkpoint stores them.

`<layer>.mlp.experts.gate_proj.weight` [E * N, K] holds expert e's row n at row e * N + n. Checkpoints have one tensor
an expert (`experts.0.gate_proj.weight`), stacks with a dimension of experts (MLX: `switch_mlp`), or a stack in which
each expert's gate rows come before its up rows (transformers 5: `experts.gate_up_proj`; Granite: `input_linear`), or
such stacks with rows and columns exchanged (Llama 4: `feed_forward.experts`). gpt-oss's are in gpt_oss_experts.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...custom_kernels.ops.formats import FORMATS
from ...custom_kernels.ops.moe_matmul import GLOBAL
from ...errors import StrixhloError
from .contents import Tensor

_ONE = re.compile(r"(.+\.experts)\.(0|[1-9]\d{0,5})\.(\w+\.weight)")
_STACK = re.compile(
    r"(.+\.)(?:switch_mlp|experts\.switch_glu|experts)\.(gate_proj|up_proj|down_proj|gate_up_proj)(\.weight)?"
)
# Mixtral's and Granite's names of the layer's parts.
_RENAMED = (
    (".block_sparse_moe.input_linear.", ".mlp.experts.gate_up_proj."),
    (".block_sparse_moe.output_linear.", ".mlp.experts.down_proj."),
    (".block_sparse_moe.router.layer.", ".mlp.gate."),
    (".block_sparse_moe.", ".mlp."),
)
_MIXTRAL = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}


def expert_name(name: str) -> str:
    """A tensor's name as the families' files have it."""
    for theirs, ours in _RENAMED:
        if theirs in name:
            name = name.replace(theirs, ours)
            for short, long in _MIXTRAL.items():
                name = name.replace(short, long)
    return name


def stack_experts(tensors: Mapping[str, Tensor], count: int = 0) -> dict[str, Tensor]:
    """All tensors, with those of experts stacked. count: how many experts a layer has; 0: as many as there are tensors.
    StrixhloError where an expert is missing, one too many, or unlike the others."""
    stacked: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        one, stack = _ONE.fullmatch(name), _STACK.fullmatch(name)
        if one:
            experts.setdefault(f"{one[1]}.{one[3]}", {})[int(one[2])] = tensor
        elif stack and len(tensor.shape) == 3 and not (stack[2] == "gate_up_proj" and tensor.format in FORMATS):
            if stack[1].endswith(".feed_forward.") and not stack[3]:
                tensor = _exchanged(tensor)
            for flat in _flat(tensor, f"{stack[1]}experts.", stack[2]):
                _add(stacked, flat.name, flat)
        else:
            _add(stacked, name, tensor)
    for name, members in experts.items():
        wanted = max(count, max(members) + 1)
        if len(members) < wanted:
            absent = next(e for e in range(wanted) if e not in members)
            raise StrixhloError(f"{name}: expert {absent} is missing of {wanted}; download the model again")
        if 0 < count < wanted:
            raise StrixhloError(f"{name}: has {wanted} experts where the model says {count}; download the model again")
        _add(stacked, name, _joined(name, [members[e] for e in range(len(members))]))
    return stacked


def _add(stacked: dict[str, Tensor], name: str, tensor: Tensor) -> None:
    if name in stacked:
        raise StrixhloError(f"{name}: is there twice, as a stack and expert by expert; download the model again")
    stacked[name] = tensor


def _flat(tensor: Tensor, prefix: str, leaf: str) -> list[Tensor]:
    """A stack [E, N, K] as [E * N, K]; of gate and up together, as two."""
    experts, n, k = tensor.shape
    if leaf != "gate_up_proj":
        return [scaled_apart(flat_stack(tensor, f"{prefix}{leaf}.weight"), experts)]
    if n % 2:
        raise StrixhloError(f"{tensor.name}: gate and up in one tensor of {n} rows; download the model again")

    def half(part: int) -> Callable[[], dict[str, np.ndarray]]:
        def read() -> dict[str, np.ndarray]:
            ((name, values),) = tensor.read().items()
            return {name: values.reshape(experts, 2, n // 2, k)[:, part].reshape(-1, k)}

        return read

    shape = (experts * n // 2, k)
    return [
        replace(tensor, name=f"{prefix}{name}.weight", shape=shape, read=half(part), places={})
        for part, name in enumerate(("gate_proj", "up_proj"))
    ]


def flat_stack(tensor: Tensor, name: str) -> Tensor:
    """A stack [E, N, K] of any format as [E * N, K], under this name."""
    experts, n, k = tensor.shape

    def read() -> dict[str, np.ndarray]:
        parts = tensor.read().items()
        return {p: part.reshape(-1, *part.shape[2:]) if p != GLOBAL else part for p, part in parts}

    return replace(tensor, name=name, shape=(experts * n, k), read=read)


def scaled_apart(tensor: Tensor, experts: int) -> Tensor:
    """A stack as [E * N, K]; nvfp4's with a global scale for each expert, where it has one for all too."""
    if tensor.format != "nvfp4":
        return tensor

    def read() -> dict[str, np.ndarray]:
        parts = tensor.read()
        return parts | {GLOBAL: np.broadcast_to(parts[GLOBAL], (experts,)).copy()}

    places = {part: place for part, place in tensor.places.items() if part != GLOBAL}
    return replace(tensor, read=read, places=places, part_shapes={GLOBAL: (experts,)})


def _exchanged(tensor: Tensor) -> Tensor:
    """A stack [E, K, N] that is not quantized, as [E, N, K]."""
    if tensor.format in FORMATS:
        raise StrixhloError(f"{tensor.name}: quantized experts of this layout are not supported; use another packing")
    experts, k, n = tensor.shape

    def read() -> dict[str, np.ndarray]:
        return {name: part.swapaxes(1, 2) for name, part in tensor.read().items()}

    return replace(tensor, shape=(experts, n, k), read=read, places={})


def _joined(name: str, members: list[Tensor]) -> Tensor:
    """Tensors [N, K] of one format as one [E * N, K]."""
    first = members[0]
    for e, tensor in enumerate(members):
        if (tensor.shape, tensor.format, tensor.part_dtypes) != (first.shape, first.format, first.part_dtypes):
            raise StrixhloError(
                f"{tensor.name} is {tensor.format}{list(tensor.shape)}, expert 0 {first.format}{list(first.shape)};"
                f" experts must be alike (expert {e})"
            )
    if len(first.shape) != 2:
        raise StrixhloError(f"{first.name}: an expert's weight is a matrix, not {list(first.shape)}; convert it again")
    (n, k), count = first.shape, len(members)
    format = "fp8_channel" if first.format == "fp8_tensor" else first.format  # a scale an expert: one for each row
    if format in FORMATS:
        fmt = FORMATS[format]
        one, all_parts = fmt.parts(n, k), fmt.parts(count * n, k)
        stacked = (all_parts[p][0] == (count * shape[0], *shape[1:]) for p, (shape, _) in one.items() if p != GLOBAL)
        if not all(stacked):
            raise StrixhloError(f"{name}: experts of {n}x{k} in {format} cannot be stacked; that is not supported")

    def read() -> dict[str, np.ndarray]:
        parts = [tensor.read() for tensor in members]
        if format != first.format:
            parts = [part | {"scale": np.repeat(part["scale"], n, axis=0)} for part in parts]
        return {p: np.concatenate([part[p] for part in parts]) for p in parts[0]}

    shapes = {GLOBAL: (count,)} if format == "nvfp4" else {}
    return Tensor(name, (count * n, k), format, read, first.part_dtypes, part_shapes=shapes)
