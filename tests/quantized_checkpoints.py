"""FP8, compressed-tensors, ModelOpt, GPTQ and AWQ checkpoints as their makers write them.

compressed-tensors' own package quantizes and decompresses; FP8 and ModelOpt files are written by the published layout
with torch's float8 casts; GPTQ and AWQ files are packed here integer by integer, as AutoGPTQ and AutoAWQ document it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]
# A weight -> the tensors of its module by leaf, and the float32 weights that its maker computes from them.
Quantize = Callable[[torch.Tensor], tuple[State, torch.Tensor]]
E4M3 = torch.float8_e4m3fn
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def write(plain: Path, folder: Path, config: dict[str, Any], quantize: Quantize) -> dict[str, torch.Tensor]:
    """Quantize all projections of the layers; returns every weight as the maker evaluates it."""
    stored, values = {}, {}
    for name, weight in load_file(plain / "model.safetensors").items():
        if "_proj.weight" not in name:
            stored[name] = values[name] = weight.float()
            continue
        state, values[name] = quantize(weight.float())
        stored |= {f"{name.removesuffix('.weight')}.{leaf}": t.contiguous() for leaf, t in state.items()}
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    settings = json.loads((plain / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_bytes((plain / "tokenizer.json").read_bytes())
    return values


# --------------------------------------------------------------------------------------------------------------- FP8


def fp8(shape: tuple[int, int] | None, dtype: torch.dtype, leaf: str = "weight_scale_inv") -> Quantize:
    """One scale for each block of `shape`; None: for the tensor."""

    def quantize(weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        n, k = weight.shape
        rows, columns = shape or (n, k)
        columns = columns or k
        blocks = torch.zeros(-(-n // rows) * rows, -(-k // columns) * columns)
        blocks[:n, :k] = weight
        blocks = blocks.reshape(-(-n // rows), rows, -(-k // columns), columns)
        scale = (blocks.abs().amax((1, 3)) / 448).to(dtype)
        wide = scale.float().repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
        codes = (weight / wide).clamp(-448, 448).to(E4M3)
        stored = scale.reshape(()) if shape is None else scale
        return {"weight": codes, leaf: stored, "input_scale": torch.tensor(1.0)}, codes.float() * wide

    return quantize


# ------------------------------------------------------------------------------------------------- compressed-tensors


def compressed(form: str, **arguments: Any) -> Quantize:
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    compressor = BaseCompressor.get_value_from_registry(form)

    def quantize(weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        n, k = weight.shape
        width = {"channel": k, "tensor": k}.get(str(args.strategy), args.group_size or k)
        grouped = weight.reshape(n, k // width, width)
        low, high = grouped.amin(-1), grouped.amax(-1)
        state: State = {"weight": weight}
        global_scale = None
        if args.strategy == "tensor":
            low, high = weight.min().reshape(1), weight.max().reshape(1)
        if args.strategy == "tensor_group":
            global_scale = (448 * 6 / weight.abs().max()).reshape(1)
            state["weight_global_scale"] = global_scale
        scale, zero = calculate_qparams(low, high, args, global_scale)
        state |= {"weight_scale": scale, "weight_zero_point": zero}
        packed = compressor.compress(state, scheme)
        values = compressor.decompress(dict(packed), scheme)["weight"].float()
        if global_scale is not None:  # the package multiplies in bfloat16 here
            codes = unpack_fp4_from_uint8(packed["weight_packed"], n, k, torch.float32)
            values = codes * (packed["weight_scale"].float() / global_scale).repeat_interleave(16, 1)
        return packed, values

    return quantize


def compressed_config(form: str, **arguments: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": arguments, "format": form}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


# ----------------------------------------------------------------------------------------------------------- ModelOpt


def modelopt_nvfp4(weight: torch.Tensor) -> tuple[State, torch.Tensor]:
    """Two levels of scales: E4M3 for 16 columns, and weight_scale_2 = amax / (6 * 448), which multiplies."""
    n, k = weight.shape
    second = weight.abs().max() / (6 * 448)
    grouped = weight.reshape(n, k // 16, 16)
    scale = (grouped.abs().amax(-1) / 6 / second).to(E4M3)
    wide = (scale.float() * second)[..., None]
    code = ((grouped / wide).abs()[..., None] - FP4).abs().argmin(-1)
    sign = grouped < 0
    codes = (code + 8 * sign).to(torch.uint8).reshape(n, k)
    values = torch.where(sign, -FP4[code], FP4[code]) * wide
    state = {"weight": codes[:, 0::2] | codes[:, 1::2] << 4, "weight_scale": scale, "weight_scale_2": second}
    return state | {"input_scale": torch.tensor(1.0)}, values.reshape(n, k)


# -------------------------------------------------------------------------------------------------------- GPTQ and AWQ


def integers(weight: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes [N, K], zeros [N, groups] from 1 on, float16 scales [N, groups]), asymmetric."""
    n, k = weight.shape
    grouped = weight.reshape(n, k // group, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / (2**bits - 2)).half()
    zero = (-low / scale.float()).round().clamp(1, 2**bits - 1)
    codes = (grouped / scale.float()[..., None] + zero[..., None]).round().clamp(0, 2**bits - 1)
    return codes.reshape(n, k).int(), zero.int(), scale


def pack(values: torch.Tensor, bits: int, order: list[int]) -> torch.Tensor:
    """Rows of values [r, c] -> int32 [r, c * bits / 32]; slot i of a word holds value order[i]."""
    count = 32 // bits
    words = np.zeros((values.shape[0], values.shape[1] // count), np.uint32)
    for slot, column in enumerate(order):
        words |= values[:, column::count].numpy().astype(np.uint32) << np.uint32(bits * slot)
    return torch.from_numpy(words.view(np.int32))


def dequantized(codes: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    group = codes.shape[1] // scale.shape[1]
    wide = [x.float().repeat_interleave(group, 1) for x in (zero, scale)]
    return (codes - wide[0]) * wide[1]


def gptq(bits: int, group: int, offset: int = 1) -> Quantize:
    def quantize(weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        codes, zero, scale = integers(weight, bits, group)
        order = list(range(32 // bits))
        state = {
            "qweight": pack(codes, bits, order).T,
            "qzeros": pack((zero - offset).T, bits, order),
            "scales": scale.T,
            "g_idx": torch.arange(weight.shape[1]).int() // group,
        }
        return state, dequantized(codes, zero, scale)

    return quantize


def awq(weight: torch.Tensor) -> tuple[State, torch.Tensor]:
    codes, zero, scale = integers(weight, 4, 128)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    state = {"qweight": pack(codes.T, 4, order), "qzeros": pack(zero.T, 4, order), "scales": scale.T}
    return state, dequantized(codes, zero, scale)


def hf(**block: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", **block}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
INT4_ZERO = INT4 | {"symmetric": False, "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
FP8_TENSOR = FP8 | {"strategy": "tensor"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": E4M3}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}


def ct(form: str, arguments: dict[str, Any], ours: str) -> tuple[dict[str, Any], Quantize, str]:
    written = {k: str(v) if isinstance(v, torch.dtype) else v for k, v in arguments.items()}
    return compressed_config(form, **written), compressed(form, **arguments), ours


CASES: dict[str, tuple[dict[str, Any], Quantize, str]] = {
    "fp8 of a tensor": (hf(), fp8(None, torch.float32), "fp8_tensor"),
    "fp8 of blocks": (hf(weight_block_size=[128, 128]), fp8((128, 128), torch.float32), "fp8_block128"),
    "fp8 of blocks, bf16": (hf(weight_block_size=[128, 128]), fp8((128, 128), torch.bfloat16), "fp8_block128"),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, fp8((1, 0), torch.float32, "weight_scale"), "fp8_channel"),
    "ct fp8 of rows": ct("float-quantized", FP8, "fp8_channel"),
    "ct fp8 of a tensor": ct("float-quantized", FP8_TENSOR, "fp8_tensor"),
    "ct int4": ct("pack-quantized", INT4, "affine4_g32"),
    "ct int4 with zeros": ct("pack-quantized", INT4_ZERO, "affine4_g128"),
    "ct int8 packed": ct("pack-quantized", INT8, "affine8_g128"),
    "ct int8": ct("int-quantized", INT8, "affine8_g128"),
    "ct nvfp4": ct("nvfp4-pack-quantized", NVFP4, "nvfp4"),
    "ct mxfp4": ct("mxfp4-pack-quantized", MXFP4, "mxfp4"),
    "modelopt fp8": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        fp8(None, torch.float32, "weight_scale"),
        "fp8_tensor",
    ),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, modelopt_nvfp4, "nvfp4"),
    "gptq 4 bits": ({"quant_method": "gptq", "bits": 4}, gptq(4, 128), "affine4_g128"),
    "gptq 8 bits": ({"quant_method": "gptq", "bits": 8}, gptq(8, 32), "affine8_g32"),
    "gptq v2": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, 64, 0), "affine4_g64"),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, "affine4_g128"),
}
