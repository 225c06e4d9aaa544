"""Mixtures of experts compiled by strixhlo for rocm and run by IREE's HIP driver, against the CPU target: two layers, 8
experts. gpt-oss (sinks, a window in one layer, biases, a clamped SwiGLU) in mxfp4, Qwen 3 in affine 4-bit and in a GGUF
file as llama.cpp's Q4_K_M, which has the experts' down in Q6_K in some layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gguf
import gguf_models
import ml_dtypes
import numpy as np
import pytest
from conftest import QUIET, compiled
from coverage_table import covers
from llama_cpp_quantizer import quantize
from moe_cases import expert_weights
from tokenizers import Tokenizer as WordTokenizer
from tokenizers.models import WordLevel

from gfx1151_sim.program_steps import (
    Run,
    kv_cache_is_updated_in_place,
    nothing_uninitialized_is_read,
    other_orders_and_poison_change_nothing,
    prefill_and_decode,
    same_logits_and_tokens,
)
from gfx1151_sim.simulator import Account, recording, report, start
from strixhlo.bundle import Bundle, open_bundle
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.contents import Checkpoint, Tensor
from strixhlo.export.models import model_from_config
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.block_table import own_table
from strixhlo.runtime.program import Program
from strixhlo.step_traffic import step_traffic

VOCABULARY, STEPS = 320, 4
TOKENS = np.random.default_rng(3).integers(0, 256, 21 + STEPS).tolist()
PROMPT, FOLLOWING = TOKENS[:-STEPS], TOKENS[-STEPS - 1 : -1]
CONFIG = {
    "model_type": "qwen3_moe",
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
QWEN_ONLY = ("num_experts", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")
GPT_OSS = CONFIG | {"model_type": "gpt_oss", "num_local_experts": 8, "intermediate_size": 256, "sliding_window": 9}
GPT_OSS = {k: v for k, v in GPT_OSS.items() if k not in QWEN_ONLY} | {
    "layer_types": ["sliding_attention", "full_attention"]
}
CONFIGS = {"mxfp4": GPT_OSS, "affine4_g64": CONFIG}
Q4_K_M = {"0.ffn_down_exps": "Q6_K", "0.attn_v": "Q6_K", "output.weight": "Q6_K", "ffn_gate_inp": "F32", "": "Q4_K"}
ENTRIES = {
    "prefill_16": ("prefill", 16),
    "score_16": ("score", 16),
    "decode_1": ("decode", 1),
    "decode_2": ("decode", 2),
}


def tensors(format: str) -> Iterator[Tensor]:
    """The model's tensors: matrices in the format, but for the router and the embedding."""
    for seed, (name, shape) in enumerate(model_from_config(CONFIGS[format]).shapes()):
        rng = np.random.default_rng(seed)
        if len(shape) == 1 or name.endswith(".bias"):  # norms, biases, sinks
            small = (name.endswith("norm.weight") + 0.3 * rng.standard_normal(shape)).astype(np.float32)
            yield Tensor(name, shape, "f32", lambda a=small: {"dense": a})
        elif name.endswith((".mlp.gate.weight", ".mlp.router.weight", "embed_tokens.weight")):
            dense = (rng.standard_normal(shape) * 0.06).astype(ml_dtypes.bfloat16)
            yield Tensor(name, shape, "bf16", lambda a=dense: {"dense": a})
        else:
            narrow = format.startswith("affine")
            parts = dict(expert_weights(format, 1, *shape, seed=seed, narrow=narrow).parts)
            if narrow:  # weights around zero
                parts["bias"] = (parts["scale"].astype(np.float32) * -7.5).astype(ml_dtypes.bfloat16)
            yield Tensor(name, shape, format, lambda a=parts: a, {"scale": "bf16", "bias": "bf16"} if narrow else {})


def write_tokenizer(folder: Path) -> None:
    words = WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0")
    WordTokenizer(words).save(str(folder / "tokenizer.json"))


def k_quants(folder: Path) -> Checkpoint:
    """A GGUF file of the config's shape, quantized by llama.cpp; its vocabulary is another one."""
    theirs = {name: value for name, value in CONFIG.items() if name not in ("model_type", "vocab_size")}
    model = gguf_models.random_model("qwen3_moe", **theirs)
    keys = gguf_models.RMS | gguf_models.EXPERTS | {"expert_used_count": CONFIG["num_experts_per_tok"]}
    keys |= {f"attention.{part}_length": CONFIG["head_dim"] for part in ("key", "value")}
    keys |= {"expert_feed_forward_length": CONFIG["moe_intermediate_size"]}

    def as_llama_cpp(weights: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
        return quantize(weights.reshape(-1, weights.shape[-1]), kind).reshape(*weights.shape[:-1], -1)

    path = folder / "experts.gguf"
    return open_checkpoint(str(gguf_models.write_gguf(model, path, "qwen3moe", keys, Q4_K_M, as_llama_cpp)))


ROCM = {
    "mxfp4": [("gpt-oss", "safetensors mxfp4")],
    "affine4_g64": [("MoE of Qwen 3", "MLX affine 4")],
    "q4_k": [("MoE of Qwen 3", "GGUF Q4_K"), ("MoE of Qwen 3", "GGUF Q6_K")],
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(f, marks=[covers(*n, "rocm", "our cpu") for n in names]) for f, names in ROCM.items()],
)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    start()
    folder, format = tmp_path_factory.mktemp(request.param), request.param
    if format in CONFIGS:
        named = {t.name: t for t in tensors(format)}
        checkpoint = Checkpoint("random", "safetensors", (), CONFIGS[format], named, write_tokenizer)
    else:
        checkpoint = k_quants(folder)
    out = folder / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "ENTRIES", ENTRIES)
        made = export.export_checkpoint(checkpoint, out, context=128, dtype="auto", kv_dtype="f16", progress=QUIET)
    return open_bundle(compiled(compiled(made, "f32", "cpu"), "f32", "rocm").path)


@pytest.fixture(scope="module")
def simulated(bundle: Bundle) -> Run:
    run = prefill_and_decode(bundle, "rocm", PROMPT, FOLLOWING)
    print(report(run.accounts[-1]))
    return run


def test_logits_and_tokens_of_the_cpu(bundle: Bundle, simulated: Run) -> None:
    same_logits_and_tokens(simulated, prefill_and_decode(bundle, "cpu", PROMPT, FOLLOWING))


def test_other_orders_and_poison_change_nothing(bundle: Bundle, simulated: Run) -> None:
    other_orders_and_poison_change_nothing(bundle, simulated, PROMPT, FOLLOWING)


def test_nothing_uninitialized_is_read(simulated: Run) -> None:
    nothing_uninitialized_is_read(simulated)


def test_kv_cache_is_updated_in_place(bundle: Bundle, simulated: Run) -> None:
    q = 4 * CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    kv_cache_is_updated_in_place(bundle, simulated, q, VOCABULARY)


def of_experts(account: Account) -> tuple[int, int]:
    """Bytes that a step's two launches for each layer's experts ask for, and those that differ."""
    experts = [launch for launch in account.launches if "_moe_" in launch.kernel and "pairs" in launch.kernel]
    assert len(experts) == 2 * 2
    return sum(launch.load_requested for launch in experts), sum(launch.load_distinct for launch in experts)


def test_a_token_reads_its_experts_only(bundle: Bundle, simulated: Run) -> None:
    """Beside the active weights, keys and values, and what one launch leaves to another; each at most once or so."""
    account = simulated.accounts[-1]
    traffic = step_traffic(bundle)
    step = traffic.step_bytes(1, len(PROMPT) + STEPS - 1, 1)
    floor = step + account.total("store_distinct")
    assert 0.95 * step < account.total("load_distinct") < 1.10 * floor
    asked, read = of_experts(account)
    assert asked < 1.25 * read
    assert account.total("load_requested") < 1.25 * floor
    own = traffic.expert_bytes * traffic.used / traffic.experts
    assert own <= read < 1.05 * own


def test_tokens_with_an_expert_in_common_read_it_once(bundle: Bundle, simulated: Run) -> None:
    """The same token at two positions, which are alike enough to choose some of the same experts. Of each row every
    workgroup asks for x twice, and for the norm's weight: three times what a token alone asks for beside weights."""
    length, traffic = 16, step_traffic(bundle)
    with Program(bundle, "rocm", 1) as program, closing(BatchEngine(program)) as engine:
        table = own_table(program.kv_cache, program.context)
        blocks = [own.tolist() for own in table.reshape(-1, table.shape[-1])]
        engine.prefill(PROMPT[:length], 0, blocks)
        with recording() as account:
            engine.decode([PROMPT[0]] * 2, [length, length + 1], [blocks] * 2)
    asked, read = of_experts(account)
    own = traffic.expert_bytes * traffic.used / traffic.experts  # of one token, both layers
    others = traffic.step_bytes(1, length, 1) - own + traffic.kv_bytes(length + 1)
    assert own <= read < 0.95 * 2 * own
    asked_alone, read_alone = of_experts(simulated.accounts[-1])
    assert asked - read < 4 * (asked_alone - read_alone)
    floor = others + read + account.total("store_distinct")
    assert account.total("load_distinct") < 1.10 * floor
