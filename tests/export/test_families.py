"""Each family against transformers, on small random checkpoints that transformers itself wrote, float32 all the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from coverage_table import covers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from strixhlo.bundle import Bundle
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

VOCAB = 320
PROMPT, DECODED = 64, 32
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


LLAMA, GEMMA3 = (
    [covers(model, f"safetensors {dtype}", "cpu", "transformers") for dtype in ("f32", "bf16")]
    for model in ("Llama", "Gemma 3")
)


def llama_plain() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False))


def llama_3_scaling_tied() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=32, tie_word_embeddings=True, rope_parameters=LLAMA3))


def gemma3_window() -> PreTrainedModel:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0},
    }
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SHAPE, head_dim=48, sliding_window=20, layer_types=kinds, rope_parameters=rope, query_pre_attn_scalar=40
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(llama_plain, marks=LLAMA),
        pytest.param(llama_3_scaling_tied, marks=LLAMA),
        pytest.param(gemma3_window, marks=GEMMA3),
    ],
)
def test_logits_and_greedy_tokens(
    tmp_path: Path, build: Callable[[Path, Path], Bundle], make: Callable[[], PreTrainedModel], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # norms of exactly one would hide a missing one
            parameter.copy_(
                torch.randn_like(parameter) * (0.3 if "norm" in name else 0.15) + (1.0 if "norm" in name else 0)
            )
    model.to(dtype).save_pretrained(tmp_path / "checkpoint")
    words = {f"w{i}": i for i in range(VOCAB)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(tmp_path / "checkpoint" / "tokenizer.json"))
    bundle = build(tmp_path / "checkpoint", tmp_path / "bundle")
    # Read back, and not cast back: a cast to bfloat16 would round the rotary frequencies too.
    model = type(model).from_pretrained(tmp_path / "checkpoint", dtype=torch.float32).eval()
    prompt = np.random.default_rng(1).integers(0, VOCAB, PROMPT).tolist()
    with torch.no_grad():
        sequence = model.generate(
            torch.tensor([prompt]), max_new_tokens=DECODED, min_new_tokens=DECODED, do_sample=False, pad_token_id=0
        )[0].tolist()
        expected = model(torch.tensor([sequence])).logits[0].numpy()
    with Program(bundle, "cpu", 2) as program:
        engine = Engine(program)
        scored = engine.score(sequence[:PROMPT])
        assert relative_error(scored, expected[:PROMPT]) < 1e-4
        engine.reset()
        logits, tokens = engine.prefill(prompt), []
        for step in range(DECODED):
            assert relative_error(logits, expected[PROMPT - 1 + step]) < 1e-4
            tokens.append(int(logits.argmax()))
            if step < DECODED - 1:
                logits = engine.decode(sequence[PROMPT + step])
        engine.close()
    assert tokens == sequence[PROMPT:]


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
