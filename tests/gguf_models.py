"""A random transformers model -> a GGUF file, as llama.cpp's converter writes it, by the `gguf` package.

Tensor names are the package's own map from Hugging Face's. What the converter changes is done here: rows of q and k
interleaved (its `permute`), 1 added to Gemma's norms, Apertus' activation moved into the metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel

TOKENS = ["<|endoftext|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "he", "ll", "hell"]
SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
INTERLEAVED = ("llama", "smollm3", "granite")


def random_model(model_type: str, **changes: Any) -> Any:
    """A model of any type with random norms and biases too, float32."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **(SHAPE | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            shift = 0.0 if "gemma" in model_type else 1.0
            p.copy_(torch.randn_like(p) * (0.3 if norm else 0.1) + (shift if norm else 0.0))
    return model


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """float32 [T, V]."""
    with torch.no_grad():
        return model(torch.tensor(ids)[None]).logits[0].numpy()


Quantize = Callable[[np.ndarray, gguf.GGMLQuantizationType], np.ndarray]


def write_gguf(
    model: Any,
    path: Path,
    architecture: str,
    keys: dict[str, Any],
    types: dict[str, str],
    quantize: Quantize = gguf.quants.quantize,
) -> Path:
    """keys: metadata under the architecture's prefix, beside those of the shape. types: tensor type by a part of the
    tensor's name (the first that fits), F32 else."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    for key, value in keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array, bool: writer.add_bool}
        add[type(value)](f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    _add_tensors(writer, model, architecture, types, quantize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(
    writer: gguf.GGUFWriter, model: Any, architecture: str, types: dict[str, str], quantize: Quantize
) -> None:
    config = model.config
    kind = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    state = {k: v for k, v in model.state_dict().items() if not k.endswith(("act_fn.beta", "act_fn.eps"))}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for key in ("alpha_p", "alpha_n"):
        values = [state.pop(n).item() for n in list(state) if n.endswith(f"act_fn.{key}")]
        if values:
            writer.add_array(f"xielu.{key}", values)
    if architecture == "apertus":
        layers = config.num_hidden_layers
        writer.add_array("xielu.beta", [0.5] * layers)
        writer.add_array("xielu.eps", [-1e-6] * layers)
    for name, tensor in state.items():
        array = tensor.float().numpy()
        base, _, kind_of = name.rpartition(".")
        target = names.get_name(base) or names.get_name(name)
        assert target, name
        if architecture in INTERLEAVED and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = array.reshape(heads, 2, len(array) // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if architecture.startswith("gemma") and "norm" in name:
            array = array + 1
        if architecture in ("command-r",) and name.endswith(("q_norm.weight", "k_norm.weight")):
            array = array.reshape(-1, array.shape[-1])
        wanted = next((t for part, t in types.items() if part in target and array.ndim == 2), "F32")
        quantized = gguf.GGMLQuantizationType[wanted]
        data = array if wanted == "F32" else quantize(array, quantized)
        writer.add_tensor(f"{target}.{kind_of}", np.ascontiguousarray(data), raw_dtype=quantized)
