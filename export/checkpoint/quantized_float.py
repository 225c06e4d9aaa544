"""FP8, MXFP4, MXFP8 and NVFP4 weights as Hugging Face, compressed-tensors, ModelOpt, MLX and gpt-oss store them.

Layouts: `weight_scale_inv` of transformers' FineGrainedFP8 and DeepSeek-V3 (a factor in spite of its name);
compressed-tensors' float-quantized, nvfp4-pack-quantized (its global scale divides) and mxfp4-pack-quantized;
ModelOpt's weight_scale and weight_scale_2 (which multiply).
"""

from __future__ import annotations

from collections.abc import Sequence

from .contents import Tensor
from .quantized_module import Module, Part, bits_of, factor_of, float32_of, require_shape, weight
from .safetensors_file import StoredTensor

SCALES = ("F32", "BF16", "F16", "F8_E8M0")


def fp8_weight(module: Module, scale_leaf: str, block: Sequence[int] | None) -> Tensor:
    """`weight` in E4M3 with a scale for the tensor, for each row, or for each block of 128x128."""
    codes = module.part("weight", ("F8_E4M3",))
    scale = module.part(scale_leaf, SCALES, (0, 1, 2))
    n, k = codes.shape
    if block is not None and len(scale.shape) == 2 and list(block) != [128, 128]:
        raise module.fail(f"FP8 with blocks of {list(block)} is not supported; blocks of 128x128, rows and tensors are")
    blocks = (-(-n // 128), -(-k // 128))
    if block is not None and scale.shape == blocks:
        name, shape = "fp8_block128", blocks
    elif scale.shape in ((), (1,), (1, 1)):
        name, shape = "fp8_tensor", (1, 1)
    elif scale.shape in ((n,), (n, 1)):
        name, shape = "fp8_channel", (n, 1)
    else:
        raise module.fail(f"{scale.name} has shape {list(scale.shape)}, which is no scale of {[n, k]} FP8 weights")
    parts = {"codes": bits_of(codes, "i8", (n, k)), "scale": float32_of(scale, shape)}
    return weight(module, f"{module.name}.weight", name, (n, k), parts)


def mx_weight(module: Module, name: str, codes: StoredTensor, scale: StoredTensor, bits: int) -> Tensor:
    """Packed E2M1 or E4M3 codes [..., N, bytes] and E8M0 scales of 32 weights each [..., N, K/32]."""
    *lead, n, _ = codes.shape
    k = codes.place.nbytes // max(1, n * _product(lead)) * 8 // bits
    shape = (*lead, n, k)
    require_shape(module, scale, (*lead, n, k // 32))
    packed = (*lead, n, k * bits // 8)
    parts = {"codes": bits_of(codes, "i8", packed), "scale": bits_of(scale, "i8", scale.shape)}
    return weight(module, name, "mxfp4" if bits == 4 else "mxfp8", shape, parts)


def nvfp4_weight(
    module: Module, codes: StoredTensor, scale: StoredTensor, global_scale: Part, factors: int = 1
) -> Tensor:
    """Packed E2M1 codes [..., N, bytes], E4M3 scales of 16 weights each, and the factor of both, or one for each of
    stacked experts (factors: how many)."""
    *lead, n, _ = codes.shape
    k = codes.place.nbytes // max(1, n * _product(lead)) * 2
    require_shape(module, scale, (*lead, n, k // 16))
    parts = {
        "codes": bits_of(codes, "i8", (*lead, n, k // 2)),
        "scale": bits_of(scale, "i8", scale.shape),
        "global_scale": global_scale,
    }
    shapes = {"global_scale": (factors,)}
    return weight(module, f"{module.name}.weight", "nvfp4", (*lead, n, k), parts, shapes)


def _product(lead: Sequence[int]) -> int:
    result = 1
    for size in lead:
        result *= size
    return result


def modelopt_weight(module: Module) -> Tensor:
    """NVIDIA ModelOpt: FP8 of one scale, or NVFP4 with a second scale that multiplies."""
    if "weight_scale_2" not in module.parts and module.part("weight", ("F8_E4M3", "U8")).dtype != "U8":
        return fp8_weight(module, "weight_scale", None)
    codes = module.part("weight", ("U8",))
    scale = module.part("weight_scale", ("F8_E4M3",))
    return nvfp4_weight(module, codes, scale, factor_of(module, "weight_scale_2"))


def packed_fp4_weight(module: Module) -> Tensor:
    """compressed-tensors nvfp4-pack-quantized (with a global scale, which divides) and mxfp4-pack-quantized."""
    codes = module.part("weight_packed", ("U8",))
    scale = module.part("weight_scale", ("U8", "F8_E8M0", "F8_E4M3"))
    if "weight_global_scale" not in module.parts and scale.dtype != "F8_E4M3":
        return mx_weight(module, f"{module.name}.weight", codes, scale, 4)
    scale = module.part("weight_scale", ("F8_E4M3",))
    return nvfp4_weight(module, codes, scale, factor_of(module, "weight_global_scale", divides=True))


def gpt_oss_weight(module: Module) -> Tensor:
    """gpt-oss: <name>_blocks uint8 [experts, N, K/32, 16] and <name>_scales [experts, N, K/32] of all experts."""
    blocks = module.part("blocks", ("U8",), (4,))
    scales = module.part("scales", ("U8",), (3,))
    experts, n, groups, size = blocks.shape
    if size != 16 or scales.shape != (experts, n, groups):
        raise module.fail(f"blocks {list(blocks.shape)} and scales {list(scales.shape)} are not MXFP4")
    shape = (experts, n, groups * 32)
    parts = {
        "codes": bits_of(blocks, "i8", (experts, n, groups * 16)),
        "scale": bits_of(scales, "i8", scales.shape),
    }
    return weight(module, module.name, "mxfp4", shape, parts)
