"""Quantized experts: MLX's stacks against mlx_lm's own models (whose experts are gather_qmm), Hugging Face's tensors of
single experts against transformers with the weights that the maker computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mlx.core as mx
import numpy as np
import pytest
from checkpoint_logits import distance, logits_of
from compiled_checkpoints import CompiledOnce
from coverage_table import covers
from family_checkpoints import CASES, VOCAB, random_checkpoint
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_models import in_float32, logits, quantized

from strixhlo.compile.compile import lower_without_kernels
from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.head_projections import split_head_projections
from strixhlo.export.checkpoint.quantization import assemble, maker_of
from strixhlo.export.checkpoint.safetensors_file import read_safetensors
from strixhlo.export.checkpoint.stacked_experts import stack_experts
from strixhlo.export.layers.head_linear import head_linear
from strixhlo.export.layers.weights import Weight
from strixhlo.export.stored_weights import stored_weights

IDS = np.random.default_rng(1).integers(3, VOCAB, 24)
MLX: dict[str, tuple[dict[str, Any], str]] = {
    "affine 4": ({"bits": 4, "group_size": 32}, "affine4_g32"),
    "mxfp4": ({"mode": "mxfp4"}, "mxfp4"),
    "nvfp4": ({"mode": "nvfp4"}, "nvfp4"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=covers("OLMoE", f"MLX {n}", "cpu", "mlx_lm")) for n in MLX])
def test_stacks_of_mlx_compiled_for_the_cpu(name: str, tmp_path: Path, compiled_once: CompiledOnce) -> None:
    settings, format = MLX[name]
    _, kind, changes = CASES["olmoe"]
    random_checkpoint(kind, changes | {"vocab_size": 256}, tmp_path / "plain")
    model = in_float32(quantized(tmp_path / "plain", tmp_path / "mlx", **settings))
    tensors = open_checkpoint(str(tmp_path / "mlx")).tensors
    assert {t.format for n, t in tensors.items() if ".experts." in n} == {format}
    compiled_once.hold(tmp_path / "mlx", tmp_path / "bundle", lambda ids: logits(model, ids))


def dequantized(stack: Any) -> SwitchLinear:
    """A stack of experts in nvfp4, each with a global scale, as MLX's layer of plain matrices."""
    weight = mx.dequantize(stack.weight, stack.scales, mode="nvfp4", group_size=16, bits=4, dtype=mx.float32)
    experts, n, k = weight.shape
    layer = SwitchLinear(k, n, experts, bias=False)
    layer.weight = weight * (stack.global_scale.reshape(experts, 1, 1) / 2688)
    return layer


def test_a_global_scale_for_each_expert(tmp_path: Path, compiled_once: CompiledOnce) -> None:
    """mlx_lm's model over mx.dequantize's weights (gather_qmm takes such scales on GPUs only)."""
    _, kind, changes = CASES["olmoe"]
    random_checkpoint(kind, changes | {"vocab_size": 256}, tmp_path / "plain")
    model = quantized(tmp_path / "plain", tmp_path / "mlx", mode="nvfp4", global_scale=True)
    parts = open_checkpoint(str(tmp_path / "mlx")).tensors["model.layers.1.mlp.experts.up_proj.weight"].read()
    stack = model.layers[1].mlp.switch_mlp.up_proj
    for e in (0, 7, 15):
        theirs = mx.dequantize(stack.weight[e], stack.scales[e], mode="nvfp4", group_size=16, bits=4, dtype=mx.float32)
        own = {name: part.reshape(16, part.shape[0] // 16, -1)[e] for name, part in parts.items()}
        want = np.array(theirs) * (float(stack.global_scale[e]) / 2688)
        np.testing.assert_allclose(np.asarray(dequantize(FORMATS["nvfp4"], own)), want, rtol=1e-6)
    for layer in model.layers:
        experts = layer.mlp.switch_mlp
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(experts, name, dequantized(getattr(experts, name)))
    in_float32(model)
    compiled_once.hold(tmp_path / "mlx", tmp_path / "bundle", lambda ids: logits(model, ids))


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        (mx.ones(15), r"global_scale has shape \[15\], not 16 values"),
        (mx.array([1.0] * 15 + [mx.nan]), "global_scale is nan, which is no scale"),
        (mx.array([-1.0] + [1.0] * 15), "global_scale is -1.0, which is no scale"),
    ],
)
def test_global_scales_that_are_wrong(tmp_path: Path, scales: mx.array, message: str) -> None:
    with pytest.raises(StrixhloError, match=message):
        stack_of_mlx(tmp_path, scales)


def test_one_global_scale_for_all_experts(tmp_path: Path) -> None:
    assert stack_of_mlx(tmp_path, mx.array([5376.0]))["global_scale"].tolist() == [2.0] * 16


def stack_of_mlx(folder: Path, scales: mx.array) -> dict[str, np.ndarray]:
    """The parts of a stack of 16 experts with these global scales."""
    codes, stack = mx.zeros((16, 64, 8), mx.uint32), "model.layers.0.mlp.switch_mlp.up_proj"
    parts = {"weight": codes, "scales": mx.zeros((16, 64, 4), mx.uint8), "global_scale": scales}
    path = folder / "model.safetensors"
    mx.save_safetensors(str(path), {f"{stack}.{leaf}": part for leaf, part in parts.items()})
    stored = {t.name: t for t in read_safetensors(path)}
    maker = maker_of({"quantization": {"mode": "nvfp4", "bits": 4, "group_size": 16}}, folder / "config.json", False)
    return stack_experts(assemble(stored.items(), maker))["model.layers.0.mlp.experts.up_proj.weight"].read()


def test_latent_attention_of_mlx(tmp_path: Path) -> None:
    """DeepSeek-V3 as mlx_lm stores it: kv_b_proj in two stacks of heads, quantized too."""
    _, kind, changes = CASES["deepseek 3"]
    sizes: dict[str, Any] = {"qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 32, "n_group": 1, "topk_group": 1}
    sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}  # mlx_lm reads older names of others
    random_checkpoint(kind, changes | sizes, tmp_path / "plain")
    model = in_float32(quantized(tmp_path / "plain", tmp_path / "mlx", bits=4, group_size=32))
    tensors = open_checkpoint(str(tmp_path / "mlx")).tensors
    embed = tensors["model.layers.0.self_attn.embed_q.weight"]
    assert (embed.format, embed.shape) == ("affine4_g32", (6 * 32, 32))
    assert distance(logits_of(tmp_path / "mlx", IDS), logits(model, IDS)) < 1e-4


@pytest.mark.parametrize("scales", [None, [5376.0], [2688.0 * (h + 1) / 2 for h in range(6)]])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_stacks_of_heads_in_nvfp4(tmp_path: Path, scales: list[float] | None, target: str) -> None:
    """Without a global scale, with one for all heads, with one for each: kernels take one for each, and so do parts."""
    stack = "model.layers.0.self_attn.embed_q"
    values = mx.random.normal((6, 32, 32), key=mx.random.key(0))
    codes, small = mx.quantize(values, group_size=16, bits=4, mode="nvfp4")
    stored = {"weight": codes, "scales": small} | ({} if scales is None else {"global_scale": mx.array(scales)})
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {f"{stack}.{leaf}": part for leaf, part in stored.items()})
    block = {"quantization": {"mode": "nvfp4", "bits": 4, "group_size": 16}}
    tensors = assemble(((t.name, t) for t in read_safetensors(path)), maker_of(block, path, False))
    sizes = {"num_attention_heads": 6, "qk_nope_head_dim": 32, "v_head_dim": 32}
    tensor = split_head_projections(tensors, sizes)[f"{stack}.weight"]
    factors = np.broadcast_to(np.array(scales or [2688.0], np.float32) / 2688, (6,))
    theirs = np.array(mx.dequantize(codes, small, mode="nvfp4", group_size=16, bits=4, dtype=mx.float32))
    x = np.random.default_rng(0).standard_normal((3, 6, 32)).astype(np.float32)
    want = np.einsum("thk,hnk->thn", x, theirs * factors[:, None, None])

    def program(parts: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return head_linear(x, Weight(parts, "nvfp4", 32))

    stored_parts = {name: jnp.asarray(part) for name, part in tensor.read().items()}
    specs = stored_weights({"w": tensor}, {}, "auto")["w"].parts
    assert {n: p.shape for n, p in stored_parts.items()} == {n: shape for n, (shape, _) in specs.items()}
    np.testing.assert_allclose(np.asarray(program(stored_parts, jnp.asarray(x))), want, rtol=1e-4, atol=1e-4)
    text = str(jax.export.export(jax.jit(program))(stored_parts, jnp.asarray(x)).mlir_module())
    assert lower_without_kernels(text, parse_target(target), "f32", None).report["kernel_dispatches"] > 0
