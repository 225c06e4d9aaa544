"""compressed-tensors' quantization_config, held against the tensors of each module.

Groups of modules may have formats of their own (`config_groups`, each with `targets`); a module is told apart by its
tensors, and what these are must be what one of the groups says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import StrixhloError
from .contents import Tensor
from .quantized_float import fp8_weight, packed_fp4_weight
from .quantized_integer import int8_weight, packed_integer_weight
from .quantized_module import Module, require_groups

LEAVES = frozenset(
    {
        "weight",
        "weight_scale",
        "weight_packed",
        "weight_shape",
        "weight_global_scale",
        "weight_zero_point",
        "weight_g_idx",
    }
)


def compressed_tensors_reader(block: Mapping[str, Any], path: Path) -> Callable[[Module], Tensor]:
    """What reads a module. block: `quantization_config`; path: of its file, for errors. StrixhloError where the block
    says nothing usable; the reader raises it where a module is not what the block says."""
    widths = _widths(block, path)
    if block.get("transform_config"):
        raise StrixhloError(f"{path}: compressed-tensors' transform_config is not supported; use a model without it")

    def read(module: Module) -> Tensor:
        packed = module.parts.get("weight_packed")
        if packed is None:
            weight = module.part("weight", ("F8_E4M3", "I8"))
            return int8_weight(module) if weight.dtype == "I8" else fp8_weight(module, "weight_scale", [128, 128])
        bits = 4 if packed.dtype == "U8" else _integer_bits(module, set(widths))
        tensor = packed_fp4_weight(module) if packed.dtype == "U8" else packed_integer_weight(module, bits)
        _check_shape(module, tensor)
        require_groups(module, tensor.shape[1], module.parts["weight_scale"].shape[1], widths.get(bits, set()), path)
        return tensor

    return read


def _widths(block: Mapping[str, Any], path: Path) -> dict[int, set[int]]:
    """Bits -> the columns that share a scale, of all config groups with so many; 0: a whole row."""
    groups = block.get("config_groups")
    found: dict[int, set[int]] = {}
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and type(weights.get("num_bits")) is int:
            size = weights.get("group_size")
            if size is not None and type(size) is not int:
                raise StrixhloError(f"{path}: group_size {size!r:.40} is no number; get the model's config.json again")
            found.setdefault(weights["num_bits"], set()).add(max(0, size or 0))
    if not found:
        raise StrixhloError(
            f"{path}: compressed-tensors' config_groups name no bits; get the model's config.json again"
        )
    return found


def _integer_bits(module: Module, found: set[int]) -> int:
    integer = found & {4, 8}
    if len(integer) == 1:
        return next(iter(integer))
    raise module.fail(f"packed integers of {sorted(found)} bits are not supported; 4 or 8 bits are")


def _check_shape(module: Module, tensor: Tensor) -> None:
    """weight_shape, of the weight before it was packed; rows that were padded to whole words are not supported."""
    if "weight_shape" not in module.parts:
        return
    said = module.part("weight_shape", ("I64", "I32"), (1,)).array().tolist()
    if said != list(tensor.shape):
        raise module.fail(
            f"weight_shape is {said}, the packed weight {list(tensor.shape)}; use a model whose rows fill whole words,"
            " or download it again"
        )
