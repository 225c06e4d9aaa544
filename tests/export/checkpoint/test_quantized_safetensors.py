"""FP8, compressed-tensors, ModelOpt, GPTQ, AWQ and gpt-oss checkpoints against their makers' evaluation.

compressed-tensors' own package quantizes and decompresses; FP8 and ModelOpt files are written by the published layout
with torch's float8 casts; GPTQ and AWQ files are packed here integer by integer, as AutoGPTQ and AutoAWQ document it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_logits import IDS, VOCAB, distance, logits_of, random_llama, save, weights_of
from compiled_checkpoints import CompiledOnce
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from coverage_table import covers
from family_checkpoints import logits, random_checkpoint
from safetensors.torch import load_file, save_file

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint

State = dict[str, torch.Tensor]
# A weight -> the tensors of its module by leaf, and the float32 weights that its maker computes from them.
Quantize = Callable[[torch.Tensor], tuple[State, torch.Tensor]]
E4M3 = torch.float8_e4m3fn
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(random_llama(), tmp_path_factory.mktemp("plain"))


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


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_makers(plain: Path, tmp_path: Path, case: str) -> None:
    config, quantize, name = CASES[case]
    theirs = write(plain, tmp_path / "model", config, quantize)
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert {t.format for n, t in checkpoint.tensors.items() if "_proj" in n} == {name}
    assert checkpoint.tensors.keys() == theirs.keys()
    for weight, value in weights_of(checkpoint).items():
        difference = np.abs(value - theirs[weight].numpy()).max() / np.abs(theirs[weight].numpy()).max()
        assert difference < 1e-6, weight


@pytest.mark.parametrize("case", ["fp8 of blocks", "ct int4", "modelopt nvfp4", "awq"])
def test_logits_are_those_of_transformers_with_these_weights(plain: Path, tmp_path: Path, case: str) -> None:
    config, quantize, _ = CASES[case]
    theirs = write(plain, tmp_path / "model", config, quantize)
    model = random_llama()
    model.load_state_dict(theirs)
    with torch.no_grad():
        expected = model(torch.tensor(IDS)[None]).logits[0].numpy()
    assert distance(logits_of(tmp_path / "model"), expected) < 1e-4


NAMES = {
    "fp8 of a tensor": "FP8 tensor",
    "fp8 of blocks": "FP8 128x128",
    "fp8 of blocks, bf16": "FP8 128x128 (bf16 scales)",
    "fbgemm": "FP8 fbgemm",
    "ct fp8 of rows": "compressed-tensors fp8 channel",
    "ct fp8 of a tensor": "compressed-tensors fp8 tensor",
    "ct int4": "compressed-tensors int4",
    "ct int4 with zeros": "compressed-tensors int4 asymmetric",
    "ct int8 packed": "compressed-tensors int8 packed",
    "ct int8": "compressed-tensors int8",
    "ct nvfp4": "compressed-tensors nvfp4",
    "ct mxfp4": "compressed-tensors mxfp4",
    "modelopt fp8": "ModelOpt FP8",
    "modelopt nvfp4": "ModelOpt NVFP4",
    "gptq 4 bits": "GPTQ 4",
    "gptq 8 bits": "GPTQ 8",
    "gptq v2": "GPTQ v2",
    "awq": "AWQ 4",
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=covers("Llama", NAMES[c], "cpu", "transformers")) for c in CASES]
)
def test_compiled_for_the_cpu(plain: Path, tmp_path: Path, compiled_once: CompiledOnce, case: str) -> None:
    """Prompt and decoded tokens of transformers with the weights that the maker computes, in float32."""
    config, quantize, _ = CASES[case]
    model = random_llama()
    model.load_state_dict(write(plain, tmp_path / "model", config, quantize))

    def evaluate(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor(ids)[None], use_cache=False).logits[0].numpy()

    compiled_once.hold(tmp_path / "model", tmp_path / "bundle", evaluate)


def test_modelopt_in_a_file_of_its_own(plain: Path, tmp_path: Path) -> None:
    write(plain, tmp_path / "model", {}, modelopt_nvfp4)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    block = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "model" / "hf_quant_config.json").write_text(json.dumps(block))
    tensors = open_checkpoint(str(tmp_path / "model")).tensors
    assert tensors["model.layers.1.mlp.up_proj.weight"].format == "nvfp4"


def experts(folder: Path, case: str) -> Any:
    """Writes folder/model, one tensor an expert, each with scales of its own; returns transformers' model with the
    weights that the maker computes from them."""
    config, quantize, name = CASES[case]
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": VOCAB}
    model = random_checkpoint("olmoe", {"num_experts": 8, "num_experts_per_tok": 3} | sizes, folder / "plain")
    theirs = write(folder / "plain", folder / "model", config, quantize)
    tensors = open_checkpoint(str(folder / "model")).tensors
    stacked = {"fp8_tensor": "fp8_channel"}.get(name, name)
    assert {t.format for n, t in tensors.items() if ".experts." in n} == {stacked}
    save_file(theirs, folder / "plain" / "model.safetensors", {"format": "pt"})
    model = type(model).from_pretrained(folder / "plain", dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@pytest.mark.parametrize("case", ["fp8 of a tensor", "fp8 of blocks", "ct fp8 of rows", "ct int4", "modelopt fp8"])
def test_experts(tmp_path: Path, case: str) -> None:
    """Their stack computes what transformers does with these weights."""
    model = experts(tmp_path, case)
    assert distance(logits_of(tmp_path / "model"), logits(model, IDS.tolist())) < 1e-4


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=covers("OLMoE", NAMES[c], "cpu", "transformers")) for c in ("ct nvfp4", "modelopt nvfp4")],
)
def test_experts_with_a_global_scale_each(tmp_path: Path, compiled_once: CompiledOnce, case: str) -> None:
    """The stack has all of them; JAX and the compiled program compute what transformers does with these weights."""
    model = experts(tmp_path, case)
    scales = open_checkpoint(str(tmp_path / "model")).tensors["model.layers.1.mlp.experts.up_proj.weight"].read()
    assert scales["global_scale"].shape == (8,) and len(set(scales["global_scale"].tolist())) == 8
    assert distance(logits_of(tmp_path / "model"), logits(model, IDS.tolist())) < 1e-4
    compiled_once.hold(tmp_path / "model", tmp_path / "bundle", lambda ids: logits(model, ids))


def test_experts_of_gpt_oss(plain: Path, tmp_path: Path) -> None:
    """All experts of a layer in one tensor [experts, N, K]; each expert's codes and scales are an mxfp4 weight."""
    rng = np.random.default_rng(0)
    blocks, scales = rng.integers(0, 256, (3, 64, 4, 16), np.uint8), rng.integers(110, 130, (3, 64, 4), np.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    write(plain, tmp_path / "model", {"quant_method": "mxfp4"}, lambda w: ({"weight": w}, w))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors |= {f"{name}_blocks": torch.from_numpy(blocks), f"{name}_scales": torch.from_numpy(scales)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    tensor = open_checkpoint(str(tmp_path / "model")).tensors[name]
    assert (tensor.format, tensor.shape) == ("mxfp4", (3, 64, 128))
    parts = tensor.read()
    assert np.array_equal(parts["codes"].view(np.uint8), blocks.reshape(3, 64, 64))
    assert np.array_equal(parts["scale"].view(np.uint8), scales)
    assert tensor.places.keys() == {"codes", "scale"}


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
