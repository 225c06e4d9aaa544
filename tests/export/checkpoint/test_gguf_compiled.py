"""One GGUF file with every tensor type that is read, quantized by llama.cpp: compiled for the CPU, against transformers
with the weights that the `gguf` package dequantizes."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf_models
import numpy as np
import torch
from compiled_checkpoints import CompiledOnce
from coverage_table import covers
from llama_cpp_quantizer import quantize

SIMPLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")
TYPES = (*SIMPLE, "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16")
MODULES = {
    f"blk.{layer}.{ours}": f"model.layers.{layer}.{theirs}.weight"
    for layer in range(2)
    for ours, theirs in {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }.items()
} | {"token_embd": "model.embed_tokens.weight", "output": "lm_head.weight"}


def as_llama_cpp(weights: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind.name in ("F16", "BF16"):
        return gguf.quants.quantize(weights, kind)
    return quantize(weights.reshape(-1, weights.shape[-1]), kind).reshape(*weights.shape[:-1], -1)


def every_type(function: object) -> object:
    for name in TYPES:
        function = covers("Llama", f"GGUF {name}", "cpu", "transformers")(function)
    return function


@every_type
def test_every_tensor_type_compiled(tmp_path: Path, compiled_once: CompiledOnce) -> None:
    model = gguf_models.random_model(
        "llama", hidden_size=256, intermediate_size=512, num_hidden_layers=2, tie_word_embeddings=False
    )
    kinds = {name: TYPES[i % len(TYPES)] for i, name in enumerate(MODULES)} | {"token_embd": "Q4_K", "output": "Q6_K"}
    assert set(kinds.values()) == set(TYPES)
    path = gguf_models.write_gguf(
        model, tmp_path / "mixed.gguf", "llama", {"attention.layer_norm_rms_epsilon": 1e-6}, kinds, as_llama_cpp
    )
    state = model.state_dict()
    for name, module in MODULES.items():
        kind = gguf.GGMLQuantizationType[kinds[name]]
        weights = gguf.quants.dequantize(as_llama_cpp(state[module].numpy(), kind), kind)
        difference = np.linalg.norm(weights - state[module].numpy()) / np.linalg.norm(weights)
        assert difference < 0.5, name
        state[module] = torch.from_numpy(np.array(weights))
    model.load_state_dict(state)
    bundle = compiled_once.hold(path, tmp_path / "bundle", lambda ids: gguf_models.logits(model, np.array(ids)))
    assert bundle.manifest.weight_formats.keys() >= {t.lower() for t in TYPES}


@covers("MoE of Qwen 1.5", "GGUF Q4_K", "cpu", "transformers")
@covers("MoE of Qwen 1.5", "GGUF Q6_K", "cpu", "transformers")
@covers("MoE of Qwen 1.5", "GGUF MXFP4", "cpu", "transformers")
def test_stacks_of_experts_compiled(tmp_path: Path, compiled_once: CompiledOnce) -> None:
    """Gate and up in one type, down in others from layer to layer, as files of mixed types have them."""
    model_type, changes, keys = gguf_models.ARCHITECTURES["qwen2moe"]
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 2}
    model = gguf_models.random_model(model_type, **changes | sizes)
    kinds = {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q4_K", "0.ffn_down_exps": "Q6_K", "1.ffn_down_exps": "MXFP4"}
    keys = keys | {"expert_feed_forward_length": 256}
    path = gguf_models.write_gguf(model, tmp_path / "experts.gguf", "qwen2moe", keys, kinds, as_llama_cpp)
    state = model.state_dict()
    for layer, down in enumerate(("Q6_K", "MXFP4")):
        for name, kind_name in (("gate_up_proj", "Q4_K"), ("down_proj", down)):
            stack, kind = state[f"model.layers.{layer}.mlp.experts.{name}"], gguf.GGMLQuantizationType[kind_name]
            stack.copy_(torch.from_numpy(gguf.quants.dequantize(as_llama_cpp(stack.numpy(), kind), kind)))
    bundle = compiled_once.hold(path, tmp_path / "bundle", lambda ids: gguf_models.logits(model, np.array(ids)))
    assert bundle.manifest.weight_formats.keys() >= {"q4_k", "q6_k", "mxfp4"}
