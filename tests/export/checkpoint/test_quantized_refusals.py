"""Quantized checkpoints that are not supported, or are not what their config.json says: refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from quantized_checkpoints import (
    CASES,
    INT4,
    INT4_ZERO,
    INT8,
    MXFP4,
    Quantize,
    State,
    awq,
    compressed,
    compressed_config,
    fp8,
    gptq,
    hf,
    modelopt_nvfp4,
    write,
)
from safetensors.torch import load_file, save_file

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint


@pytest.mark.parametrize(
    ("config", "quantize", "message"),
    [
        ({"quant_method": "bitsandbytes"}, awq, "quant_method 'bitsandbytes' is not supported"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, awq, "AWQ of version 'gemv'"),
        ({"quant_method": "gptq", "bits": 3}, gptq(4, 128), "GPTQ with 3 bits"),
        (
            {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
            gptq(4, 128),
            "checkpoint_format 'marlin'",
        ),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, modelopt_nvfp4, "quant_algo 'W4A8_AWQ'"),
        (hf(weight_block_size=[64, 64]), fp8((64, 64), torch.float32), r"blocks of \[64, 64\]"),
        (hf(weight_block_size=[128, 128]), fp8((64, 64), torch.float32), "is no scale of"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, awq, "config_groups name no bits"),
        (
            compressed_config("pack-quantized", **INT4_ZERO),
            compressed("pack-quantized", **INT4),
            r"proj: has 12 scales for each row of 384 columns where config.json says groups of 128 columns",
        ),
        (
            compressed_config("pack-quantized", **INT8 | {"num_bits": 4}),
            compressed("pack-quantized", **INT4),
            "config.json says groups of a row",
        ),
        (
            compressed_config("mxfp4-pack-quantized", num_bits=4, group_size=64),
            compressed("mxfp4-pack-quantized", **MXFP4),
            "config.json says groups of 64 columns",
        ),
        (compressed_config("pack-quantized", num_bits=4, group_size="x"), awq, "group_size 'x' is no number"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, gptq(4, 128), "config.json says groups of 64 columns"),
        ({"quant_method": "awq", "bits": 4, "q_group_size": -1}, awq, "config.json says groups of a row"),
    ],
)
def test_what_is_refused(plain: Path, tmp_path: Path, config: dict, quantize: Quantize, message: str) -> None:
    write(plain, tmp_path / "model", config, quantize)
    with pytest.raises(StrixhloError, match=message):
        open_checkpoint(str(tmp_path / "model"))


NAN, ONES = torch.tensor([torch.nan]), torch.ones(2)


@pytest.mark.parametrize(
    ("case", "leaf", "value", "message"),
    [
        ("ct nvfp4", "weight_global_scale", None, "up_proj.weight_global_scale is missing"),
        ("ct nvfp4", "weight_global_scale", NAN, "weight_global_scale is nan, which is no scale"),
        ("ct nvfp4", "weight_global_scale", torch.tensor([0.0]), "weight_global_scale is 0.0, which is no scale"),
        ("ct nvfp4", "weight_global_scale", torch.tensor([-2.0]), "weight_global_scale is -2.0, which is no scale"),
        ("ct nvfp4", "weight_global_scale", ONES, r"weight_global_scale has shape \[2\], not 1 values"),
        ("modelopt nvfp4", "weight_scale_2", None, "up_proj.weight_scale_2 is missing"),
        ("modelopt nvfp4", "weight_scale_2", NAN[0], "weight_scale_2 is nan, which is no scale"),
        ("modelopt nvfp4", "weight_scale_2", ONES, r"weight_scale_2 has shape \[2\], not 1 values"),
        (
            "ct int4 with zeros",
            "weight_zero_point",
            torch.ones(48, 1).int(),
            r"\[48, 1\] where its weight asks for \[48, 2\]",
        ),
        (
            "ct int4",
            "weight_shape",
            torch.tensor([384, 250]),
            r"weight_shape is \[384, 250\], the packed weight \[384, 25",
        ),
        ("ct int4", "weight_shape", torch.tensor([1.5, 2.5]), r"weight_shape is F32\[2\], not I64"),
        ("ct int8", "weight_scale", torch.ones(192, 1), r"\[192, 1\], which is no scale of \[384, 256\]"),
    ],
)
def test_scales_that_are_wrong(
    plain: Path, tmp_path: Path, case: str, leaf: str, value: torch.Tensor | None, message: str
) -> None:
    write(plain, tmp_path / "model", *CASES[case][:2])
    path, name = tmp_path / "model" / "model.safetensors", "model.layers.1.mlp.up_proj"
    tensors = load_file(path)
    del tensors[f"{name}.{leaf}"]
    save_file(tensors | ({} if value is None else {f"{name}.{leaf}": value}), path)
    with pytest.raises(StrixhloError, match=message):
        open_checkpoint(str(tmp_path / "model")).tensors[f"{name}.weight"].read()


def test_columns_in_another_order_are_refused(plain: Path, tmp_path: Path) -> None:
    def shuffled(weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        state, values = gptq(4, 128)(weight)
        return state | {"g_idx": state["g_idx"].flip(0)}, values

    write(plain, tmp_path / "model", {"quant_method": "gptq", "bits": 4, "desc_act": True}, shuffled)
    with pytest.raises(StrixhloError, match="desc_act = true"):
        open_checkpoint(str(tmp_path / "model"))


def test_a_scale_that_is_missing(plain: Path, tmp_path: Path) -> None:
    def without(weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        state, values = awq(weight)
        del state["scales"]
        return state, values

    write(plain, tmp_path / "model", {"quant_method": "awq", "bits": 4}, without)
    with pytest.raises(StrixhloError, match=r"tensor model\.layers\.0\.\S+\.scales is missing"):
        open_checkpoint(str(tmp_path / "model"))
