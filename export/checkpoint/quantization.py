"""Who quantized a directory of safetensors, and its tensors as Tensors of our formats.

A maker is known by config.json (`quantization` of MLX, `quantization_config` of the others, or ModelOpt's
hf_quant_config.json). Which modules are quantized is told by the tensors that are there, not by lists of exceptions.
Scales of activations and of the KV cache are left out: both stay in floating point here, which is closer to the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import StrixhloError
from .compressed_tensors import LEAVES, compressed_tensors_reader
from .contents import Tensor
from .hugging_face_config import normalized_name
from .quantized_float import (
    fp8_weight,
    gpt_oss_weight,
    modelopt_weight,
    mx_weight,
    nvfp4_weight,
)
from .quantized_integer import awq_weight, gptq_weight, mlx_affine_weight
from .quantized_module import DENSE, Module, Part, constant, factor_of, require_groups
from .safetensors_file import StoredTensor

SUPPORTED = "fp8, fbgemm_fp8, compressed-tensors, modelopt, mxfp4, awq, gptq, and MLX's quantization"
# Of activations and the KV cache.
NOT_WEIGHTS = re.compile(
    r"\.(input_scale|input_scale_ub|activation_scale|input_global_scale|output_scale|[kvq]_scale|weight_shape)$"
)
Read = Callable[[Module], Tensor]


@dataclass(frozen=True)
class Maker:
    """How one maker stores a quantized module. mark: the leaf by which such a module is known; leaves: all of them;
    separator: between the module's name and a leaf."""

    mark: str
    leaves: frozenset[str]
    read: Read
    separator: str = "."


def maker_of(config: Mapping[str, Any], path: Path, nested: bool) -> Maker | None:
    """The maker that a config's quantization block names, None without one. path: of the file, for errors."""
    mlx = config.get("quantization")
    if isinstance(mlx, dict):
        return Maker("scales", frozenset({"weight", "scales", "biases", "global_scale"}), _mlx(mlx, path, nested))
    block = config.get("quantization_config")
    if block is None:
        return None
    method = block.get("quant_method") if isinstance(block, dict) else None
    if method is None and isinstance(block, dict) and isinstance(block.get("quantization"), dict):
        method, block = "modelopt", block["quantization"]
    if not isinstance(method, str) or not isinstance(block, dict) or method not in MAKERS:
        raise StrixhloError(
            f"{path}: quant_method {str(method)[:60]!r} is not supported ({SUPPORTED} are); use the unquantized model"
        )
    return MAKERS[method](block, path)


def assemble(stored: Iterable[tuple[str, StoredTensor]], maker: Maker | None) -> dict[str, Tensor]:
    """(name in the text model, tensor) of the whole checkpoint -> Tensors; StrixhloError names what is wrong."""
    named = dict(stored)
    modules = _modules(named, maker) if maker else {}
    taken = {id(part) for parts in modules.values() for part in parts.values()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in named.items():
        if id(tensor) not in taken and not (maker and NOT_WEIGHTS.search(name)):
            tensors[name] = _dense(name, tensor)
    for name, parts in modules.items():
        assert maker is not None
        tensor_ = maker.read(Module(name, parts))
        if tensor_.name in tensors:
            raise StrixhloError(f"tensor {tensor_.name} is there quantized and not quantized; download the model again")
        tensors[tensor_.name] = tensor_
    return tensors


def _modules(named: Mapping[str, StoredTensor], maker: Maker) -> dict[str, dict[str, StoredTensor]]:
    mark = maker.separator + maker.mark
    modules: dict[str, dict[str, StoredTensor]] = {}
    for name in named:
        if name.endswith(mark):
            module = name.removesuffix(mark)
            leaves = {leaf: named.get(f"{module}{maker.separator}{leaf}") for leaf in sorted(maker.leaves)}
            modules[module] = {leaf: part for leaf, part in leaves.items() if part is not None}
    return modules


def _dense(name: str, tensor: StoredTensor) -> Tensor:
    if tensor.dtype not in DENSE:
        raise StrixhloError(
            f"{tensor.place.path}: tensor {name!r} has dtype {tensor.dtype}, which is not supported"
            f" (F32, F16 and BF16 are) without a quantization that says what it means"
        )
    return Tensor(
        name, tensor.shape, DENSE[tensor.dtype], lambda: {"dense": tensor.array()}, places={"dense": tensor.place}
    )


# ------------------------------------------------------------------------------------------------------------- makers


def _mlx(block: Mapping[str, Any], path: Path, nested: bool) -> Read:
    """Bits, group and mode for all modules, and for single ones under their names."""

    def settings(value: Mapping[str, Any]) -> tuple[str, int, int]:
        mode = value.get("mode", "affine")
        bits: Any = value.get("bits")
        group: Any = value.get("group_size")
        allowed = {"affine": {(b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)}}
        allowed |= {"mxfp4": {(4, 32)}, "nvfp4": {(4, 16)}, "mxfp8": {(8, 32)}}
        whole = type(bits) is int and type(group) is int
        if not whole or not isinstance(mode, str) or (bits, group) not in allowed.get(mode, set()):
            raise StrixhloError(
                f"{path}: quantization: mode {mode!r}, {bits!r} bits, groups of {group!r} is not supported"
                f" (affine: 2-6 or 8 bits in groups of 32, 64 or 128; mxfp4, mxfp8, nvfp4)"
            )
        return mode, bits, group

    general = {k: v for k, v in block.items() if k in ("bits", "group_size", "mode")}
    single: dict[str, Mapping[str, Any]] = {}
    for key, value in block.items():
        if isinstance(value, dict):
            name = normalized_name(f"{key}.weight", nested)
            if name is not None:
                single[name.removesuffix(".weight")] = value
    overrides = {name: settings({"bits": None, "group_size": None, **value}) for name, value in single.items()}
    default = settings(general) if general else None

    def read(module: Module) -> Tensor:
        chosen = overrides.get(module.name, default)
        if chosen is None:
            raise module.fail(f"{path.name} does not say how it is quantized")
        mode, bits, group = chosen
        if mode == "affine":
            return mlx_affine_weight(module, bits, group)
        codes = module.part("weight", ("U32",), (2, 3))
        scale = module.part("scales", ("U8",), (2, 3))
        if mode == "nvfp4":
            own = module.parts.get("global_scale")  # of a stack: one for each expert, or one for all
            factors = codes.shape[0] if len(codes.shape) == 3 and own and math.prod(own.shape) != 1 else 1
            return nvfp4_weight(module, codes, scale, _mlx_global_scale(module, factors), factors)
        return mx_weight(module, f"{module.name}.weight", codes, scale, bits)

    return read


def _mlx_global_scale(module: Module, factors: int) -> Part:
    """MLX's optional nvfp4 global scale is the largest magnitude: w = fp4 * e4m3 * g / 2688 (6 * 448)."""
    if "global_scale" not in module.parts:
        return constant(1.0, (1,))
    return factor_of(module, "global_scale", factors, whole=2688)


def _fp8(block: Mapping[str, Any], path: Path) -> Maker:
    size = block.get("weight_block_size")
    if size is not None and not (isinstance(size, list) and all(type(n) is int for n in size)):
        raise StrixhloError(f"{path}: weight_block_size {size!r} is not two numbers; get the model's config.json again")
    read = partial(fp8_weight, scale_leaf="weight_scale_inv", block=size)
    return Maker("weight_scale_inv", frozenset({"weight", "weight_scale_inv"}), lambda module: read(module))


def _fbgemm(_block: Mapping[str, Any], _path: Path) -> Maker:
    return Maker("weight_scale", _SCALED, lambda module: fp8_weight(module, "weight_scale", None))


_SCALED = frozenset({"weight", "weight_scale"})


def _modelopt(block: Mapping[str, Any], path: Path) -> Maker:
    algorithm = block.get("quant_algo")
    if algorithm not in ("FP8", "NVFP4", "MIXED_PRECISION"):
        raise StrixhloError(f"{path}: ModelOpt's quant_algo {algorithm!r} is not supported (FP8 and NVFP4 are)")
    return Maker("weight_scale", _SCALED | {"weight_scale_2"}, modelopt_weight)


def _compressed_tensors(block: Mapping[str, Any], path: Path) -> Maker:
    return Maker("weight_scale", LEAVES, compressed_tensors_reader(block, path))


def _gptq(block: Mapping[str, Any], path: Path) -> Maker:
    bits = block.get("bits")
    if type(bits) is not int or bits not in (2, 4, 8):
        raise StrixhloError(f"{path}: GPTQ with {bits!r} bits is not supported (2, 4 and 8 are)")
    version = block.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise StrixhloError(f"{path}: GPTQ's checkpoint_format {version!r} is not supported (gptq and gptq_v2 are)")
    offset = 1 if version == "gptq" else 0
    group = _group_size(block, path)
    return Maker("qweight", _QWEIGHT, _of_groups(lambda module: gptq_weight(module, bits, offset), group, path))


def _group_size(block: Mapping[str, Any], path: Path) -> int | None:
    """The columns that share a scale, 0: a whole row; None where a GPTQ or AWQ config does not say it."""
    size = block.get("group_size", block.get("q_group_size"))
    if size is not None and type(size) is not int:
        raise StrixhloError(f"{path}: group_size {size!r:.40} is no number; get the model's config.json again")
    return None if size is None else max(0, size)


def _of_groups(read: Read, group: int | None, path: Path) -> Read:
    """`read`, and the scales held against the config's group size."""

    def checked(module: Module) -> Tensor:
        tensor = read(module)
        if group is not None:
            require_groups(module, tensor.shape[1], module.parts["scales"].shape[0], {group}, path)
        return tensor

    return checked


_QWEIGHT = frozenset({"qweight", "qzeros", "scales", "g_idx"})


def _awq(block: Mapping[str, Any], path: Path) -> Maker:
    bits, version = block.get("bits", block.get("w_bit")), str(block.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise StrixhloError(f"{path}: AWQ of version {version!r} with {bits!r} bits is not supported (gemm, 4 bits is)")
    return Maker("qweight", _QWEIGHT, _of_groups(awq_weight, _group_size(block, path), path))


def _gpt_oss(_block: Mapping[str, Any], _path: Path) -> Maker:
    return Maker("blocks", frozenset({"blocks", "scales"}), gpt_oss_weight, separator="_")


MAKERS: dict[str, Callable[[Mapping[str, Any], Path], Maker]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "mxfp4": _gpt_oss,
}
