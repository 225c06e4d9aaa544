"""GGUF files as checkpoints: Hugging Face configuration, names and row order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import Checkpoint, open_checkpoint

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "rope_scaling": None,
    "max_position_embeddings": 8192,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_act": "silu",  # not read: hidden_activation is
    "mlp_bias": False,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768,
    "vocab_size": 262144,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "strixhlo_norms_include_one": True,
}


def names_and_shapes_of_transformers(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """What transformers expects of a model with this configuration (nothing is allocated)."""
    kind = {"llama": "Llama", "gemma3_text": "Gemma3"}[checkpoint.config["model_type"]]
    config_class = getattr(transformers, {"Llama": "LlamaConfig", "Gemma3": "Gemma3TextConfig"}[kind])
    keys = {k: v for k, v in checkpoint.config.items() if v is not None and not k.startswith("strixhlo")}
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(config_class(**keys))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return {n: s for n, s in shapes.items() if not (n == "lm_head.weight" and checkpoint.config["tie_word_embeddings"])}


@pytest.mark.parametrize(("model", "config"), [("smollm2_gguf", SMOLLM2), ("gemma3_gguf", GEMMA3)])
def test_the_real_files(model: str, config: dict, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.config == config
    assert (checkpoint.container, checkpoint.files, checkpoint.source) == ("gguf", (path,), str(path))
    assert {t.name: t.shape for t in checkpoint.tensors.values()} == names_and_shapes_of_transformers(checkpoint)
    assert all(name == tensor.name for name, tensor in checkpoint.tensors.items())


def test_formats_and_parts_of_the_real_files(smollm2_gguf: Path, gemma3_gguf: Path) -> None:
    smol, gemma = open_checkpoint(str(smollm2_gguf)).tensors, open_checkpoint(str(gemma3_gguf)).tensors
    assert {t.format for t in smol.values()} == {"f32", "q4_1", "q8_0"}
    assert {t.format for t in gemma.values()} == {"f32", "q5_0", "q8_0", "q4_k", "q6_k"}
    down = gemma["model.layers.0.mlp.down_proj.weight"]
    assert (down.format, down.shape) == ("q6_k", (640, 2048))
    assert {k: (v.shape, v.dtype) for k, v in down.read().items()} == FORMATS["q6_k"].parts(640, 2048)
    norm = smol["model.norm.weight"].read()["dense"]
    assert norm.dtype == np.float32 and norm.shape == (576,)  # mapped, not copied


def interleaved_rotary(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """llama.cpp's "norm" RoPE of one head [head_dim]: neighbours (2i, 2i+1) are rotated together."""
    pairs = x.reshape(-1, 2)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack([pairs[:, 0] * cos - pairs[:, 1] * sin, pairs[:, 0] * sin + pairs[:, 1] * cos], axis=1).reshape(-1)


def half_split_rotary(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Hugging Face's RoPE of one head [head_dim]: row i is rotated with row i + head_dim/2."""
    first, second = np.split(x, 2)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos])


def test_q_and_k_rows_are_in_hugging_face_order(tiny_llama: Callable[..., Path], gguf_builder: dict) -> None:
    """Scores q.k after each one's own RoPE are equal: the file's rows with llama.cpp's, ours with Hugging Face's."""
    tensors = gguf_builder["tensors"](261)
    checkpoint = open_checkpoint(str(tiny_llama(tensors=tensors)))
    raw = {name: data for name, _, _, data in tensors}
    layer = "model.layers.0.self_attn."
    ours_k = checkpoint.tensors[layer + "k_proj.weight"].read()["dense"]
    file_k = np.frombuffer(raw["blk.0.attn_k.weight"], "<f4").reshape(16, 32)
    q = checkpoint.tensors[layer + "q_proj.weight"]
    ours_q = np.asarray(dequantize(FORMATS[q.format], q.read()))
    blocks = np.frombuffer(raw["blk.0.attn_q.weight"], np.uint8).reshape(32, 20)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    file_q = nibbles * blocks[:, :2].copy().view("<f2").astype(np.float32) + blocks[:, 2:4].copy().view("<f2").astype(
        np.float32
    )
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal(32), rng.standard_normal(32)
    at_3, at_7 = [position * 10000.0 ** (-np.arange(0, 8, 2) / 8) for position in (3, 7)]
    for head in range(4):
        rows, k_rows = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
        theirs = interleaved_rotary(file_q[rows] @ x, at_3) @ interleaved_rotary(file_k[k_rows] @ y, at_7)
        ours = half_split_rotary(ours_q[rows] @ x, at_3) @ half_split_rotary(ours_k[k_rows] @ y, at_7)
        assert ours == pytest.approx(theirs, rel=1e-12)
    other = checkpoint.tensors[layer + "v_proj.weight"].read()["dense"]
    assert np.array_equal(other, np.frombuffer(raw["blk.0.attn_v.weight"], "<f4").reshape(16, 32))


def test_biases_follow_their_weights(tiny_llama: Callable[..., Path], gguf_builder: dict) -> None:
    bias = np.arange(32, dtype="<f4")
    tensors = [*gguf_builder["tensors"](261), ("blk.0.attn_q.bias", [32], 0, bias.tobytes())]
    checkpoint = open_checkpoint(str(tiny_llama(tensors=tensors)))
    ours = checkpoint.tensors["model.layers.0.self_attn.q_proj.bias"].read()["dense"]
    assert ours[:8].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert checkpoint.config["attention_bias"] is True


def test_untied_output(tiny_llama: Callable[..., Path], gguf_builder: dict) -> None:
    tensors = [*gguf_builder["tensors"](261), ("output.weight", [32, 261], 1, bytes(2 * 32 * 261))]
    checkpoint = open_checkpoint(str(tiny_llama(tensors=tensors)))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.tensors["lm_head.weight"].format == "f16"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported; the nearest that is: "),
        ({"general.architecture": None}, "general.architecture is missing"),
        ({"general.architecture": 3}, "general.architecture is not a string"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": "one"}, "llama.block_count is 'one', not a count"),
        ({"llama.block_count": 0}, "impossible"),
        ({"llama.attention.layer_norm_rms_epsilon": "x"}, "llama.attention.layer_norm_rms_epsilon is 'x'"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "not a number"),
        ({"llama.attention.head_count_kv": np.array([2, 4])}, "llama.attention.head_count_kv differs between layers"),
        ({"llama.attention.head_count": 8, "llama.attention.key_length": 8}, "blk.0.attn_q.weight"),
        ({"llama.attention.value_length": 16}, "llama.attention.value_length differs from the head size 8"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count differs from the head size 8"),
        ({"llama.attention.scale": 0.5}, "llama.attention.scale is not supported"),
        ({"llama.attention.sliding_window": 512}, "llama.attention.sliding_window is not supported"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "9 of 8 experts"),
        (
            {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_gating_func": 2},
            "llama.expert_gating_func = 2",
        ),
        ({"split.count": 2}, "llama-gguf-split --merge"),
    ],
)
def test_unsupported_metadata_is_named(tiny_llama: Callable[..., Path], metadata: dict, message: str) -> None:
    path = tiny_llama(metadata)
    with pytest.raises(StrixhloError) as error:
        open_checkpoint(str(path))
    assert message in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_uniform_values_per_layer_are_accepted(tiny_llama: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(str(tiny_llama({"llama.attention.head_count_kv": np.array([2, 2])})))
    assert checkpoint.config["num_key_value_heads"] == 2


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (("blk.0.ssm_a", [32], 0, bytes(128)), "tensor 'blk.0.ssm_a' is unknown in the architecture 'llama'"),
        (("blk.0.attn_q_norm.weight", [32], 0, bytes(128)), "'blk.0.attn_q_norm.weight' is unknown"),
        (("blk.00.attn_v.bias", [16], 0, bytes(64)), "'blk.00.attn_v.bias' is unknown"),
        (("output.weight", [256, 2], 23, bytes(272)), "'output.weight' has type IQ4_XS, which is not supported; use"),
        (("output.weight", [256, 1], 16, bytes(66)), "'output.weight' has type IQ2_XXS"),
        (("output.weight", [32, 2, 2], 8, bytes(136)), "'output.weight' is quantized but not a matrix"),
    ],
)
def test_unsupported_tensors_are_named(
    tiny_llama: Callable[..., Path], gguf_builder: dict, tensor: tuple, message: str
) -> None:
    with pytest.raises(StrixhloError) as error:
        open_checkpoint(str(tiny_llama(tensors=[*gguf_builder["tensors"](261), tensor])))
    assert message in str(error.value)


def test_a_file_without_an_embedding(tiny_llama: Callable[..., Path], gguf_builder: dict) -> None:
    with pytest.raises(StrixhloError, match=r"token_embd\.weight is missing"):
        open_checkpoint(str(tiny_llama(tensors=gguf_builder["tensors"](261)[1:])))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.gguf", "no such file or directory"),
        ("models/missing.gguf", "no such file or directory"),
        ("a b", "not a hub id"),
        ("/nowhere/at/all", "no such file or directory"),
        ("", "neither config.json"),
        ("/dev/null", "neither a file nor a directory"),
    ],
)
def test_what_is_no_checkpoint(source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StrixhloError, match=message):
        open_checkpoint(source)


def test_a_directory_whose_only_model_is_a_gguf(tiny_llama: Callable[..., Path]) -> None:
    path = tiny_llama()
    assert open_checkpoint(str(path.parent)).files == (path,)
    path.with_name("other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(StrixhloError, match=r"2 GGUF files; give one of them: other.gguf, tiny.gguf"):
        open_checkpoint(str(path.parent))
