"""Each key of each family's configuration, set to another value: honoured, or refused by its name, and never ignored.

The keys are those of transformers' own configuration classes, less those that change no logits, so that a new one turns
up here. What is not refused is changed all at once, and the logits must still be transformers'.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from family_checkpoints import CASES, SHAPE, VOCAB, distance, logits, prompt, random_checkpoint

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.hugging_face_config import normalized_config
from strixhlo.export.checkpoint.hugging_face_defaults import with_defaults
from strixhlo.export.layers.cache import Cache
from strixhlo.export.layers.probe import recording
from strixhlo.export.layers.weights import Weight, Weights
from strixhlo.export.models import FAMILIES, model_from_config

TOKENS = 48
BASE: dict[str, dict[str, Any]] = {}  # model type -> what the first case of it changes
for _, _kind, _changes in CASES.values():
    BASE.setdefault(_kind, _changes)

# Who made it, tokens, training, and shapes, which the tensors confirm.
INERT = {*transformers.PreTrainedConfig().to_dict(), "initializer_range", "use_cache", "pretraining_tp"}
INERT |= {"router_aux_loss_coef", "output_router_logits", "bos_token_id", "eos_token_id", "pad_token_id"}
INERT |= {"attention_dropout", "residual_dropout", "embedding_dropout", "resid_pdrop", "embd_pdrop"}
SHAPES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"}
SHAPES |= {"num_key_value_heads", "max_position_embeddings", "vocab_size_per_layer_input", "shared_intermediate_size"}
SHAPES |= {"hidden_size_per_layer_input", "per_layer_config", "tie_word_embeddings", "shared_expert_intermediate_size"}
SHAPES |= {"q_lora_rank"}
# Only read where experts or Mamba layers are, which are refused.
ELSEWHERE = {"num_experts", "top_k_experts", "moe_intermediate_size", "num_experts_per_tok", "time_step_limit"}
# Other values, where none follows from the one that is there.
OTHERS: dict[str, Any] = {
    "sliding_window": 12,
    "use_bidirectional_attention": "all",
    "final_logit_softcapping": 7.0,
    "attn_logit_softcapping": 9.0,
    "layer_types": ["full_attention", "sliding_attention"],
    "no_rope_layers": [0, 1],
    "no_rope_layer_interval": 2,
    "position_embedding_type": None,
    "num_kv_shared_layers": 2,
    "clip_qkv": 0.5,
    "mlp_only_layers": [1],
    "moe_layers": [0, 2],
    "num_local_experts": 2,
    "max_window_layers": 0,
    "original_max_position_embeddings": 16,
    "query_pre_attn_scalar": 50,
    "sliding_window_pattern": 2,
    "_sliding_window_pattern": 2,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0}
    | {"original_max_position_embeddings": 32, "beta_fast": 16.0, "beta_slow": 2.0},
}

# Where the error names another key: the one that the value needs, or the name of transformers 4.
NAMED = {
    "enable_moe_block": ("num_experts",),
    "rope_parameters": ("rope",),
    "layer_types": ("layer_types", "sliding_window"),
}


def another(key: str, value: Any) -> Any:
    """A value that the key does not have."""
    if key == "rope_parameters" and "full_attention" in value:
        sliding = {"rope_type": "default", "rope_theta": 3000.0}
        return {"full_attention": OTHERS[key], "sliding_attention": sliding}
    if key == "rope_parameters" and "llama_4_scaling_beta" in value:
        return OTHERS[key] | {"llama_4_scaling_beta": 0.7}
    if key in OTHERS:
        return OTHERS[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "gelu" if value != "gelu" else "relu"
    assert isinstance(value, int | float), f"{key} = {value!r} is a new key: say what else it may be"
    return value * 1.5 + 0.25


def from_transformers(kind: str, changes: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration as it is saved; None where transformers does not take these values."""
    try:
        config = transformers.AutoConfig.for_model(kind, **deepcopy(SHAPE | changes))
    except Exception as error:  # of any class, it is transformers' verdict
        assert not isinstance(error, AssertionError)
        return None
    return with_defaults(normalized_config(config.to_dict(), Path("config.json")))


@pytest.mark.parametrize("kind", BASE)
def test_no_key_is_ignored(kind: str, tmp_path: Path) -> None:
    base = BASE[kind]
    config = transformers.AutoConfig.for_model(kind, **deepcopy(SHAPE | base))
    keys = {*config.to_dict()} - INERT - SHAPES - ELSEWHERE
    honoured: dict[str, Any] = {}
    for key in sorted(k for k in keys if not k.startswith("mamba_")):
        value = another(key, getattr(config, key))
        changed = from_transformers(kind, base | {key: value})
        if value == getattr(config, key) or changed is None:
            continue
        try:
            model_from_config(changed)
        except StrixhloError as error:
            assert any(name in str(error) for name in NAMED.get(key, (key,))), (key, error)
        else:
            if from_transformers(kind, base | honoured | {key: value}) is not None:
                honoured[key] = value
    model = random_checkpoint(kind, base | honoured, tmp_path)
    ids = prompt()[:TOKENS]
    assert distance(evaluate(tmp_path, ids), logits(model, ids)) < 1e-4, honoured


def evaluate(folder: Path, ids: list[int]) -> np.ndarray:
    """Logits of every position, float32, through the functions that the tracer traces."""
    checkpoint = open_checkpoint(str(folder))
    model = model_from_config(checkpoint.config)
    arrays = {}
    for name, shape in model.shapes():
        assert checkpoint.tensors[name].shape == shape, name
        arrays[name] = checkpoint.tensors[name].read()["dense"].astype(np.float32)
    arrays |= model.tables(128)
    weights = Weights(
        {n: Weight({"dense": jnp.asarray(a)}, "f32", a.shape[-1] if a.ndim else 1) for n, a in arrays.items()}
    )
    pool = jnp.zeros((model.pool[0], 128, model.pool[1]), jnp.float32)
    table, positions = jnp.arange(8, dtype=jnp.int32)[None], jnp.arange(len(ids), dtype=jnp.int32)
    probed: list[str] = []

    def run() -> jax.Array:
        with recording() as states:
            tokens = jnp.asarray(ids, jnp.int32)
            hidden, _ = model.hidden_states(weights, tokens, Cache(pool, pool, table, positions, 16))
        probed.extend(name for name, _ in states)
        return model.logits(weights, hidden)

    found = np.asarray(jax.jit(run)())
    layers = [f"layers.{i}.{part}" for i in range(model.layers) for part in ("attention", "mlp")]
    assert probed == ["embedding", *layers]
    return found


@pytest.mark.parametrize("kind", BASE)
def test_what_is_left_out_is_what_transformers_takes(kind: str) -> None:
    """Older files, and those of multimodal models, leave out what equals the default of their class."""
    sizes = {"hidden_size": 3072, "intermediate_size": 4096, "num_hidden_layers": 24, "tie_word_embeddings": False}
    if kind == "deepseek_v2":  # its class has none
        sizes |= {"num_experts_per_tok": 2}
    if kind == "ernie4_5_moe":  # 20 heads do not divide the size above
        sizes |= {"num_attention_heads": 24}
    if kind == "granitemoehybrid":
        sizes |= {"num_local_experts": 0, "layer_types": ["full_attention"] * 24}
    full = transformers.AutoConfig.for_model(kind, **sizes).to_dict()
    both = (full, {"model_type": kind} | sizes)
    whole, short = (with_defaults(normalized_config(config, Path("config.json"))) for config in both)
    assert model_from_config(short) == model_from_config(whole)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("llama", {"rope_interleaved": True}, "rope_interleaved"),
        ("llama", {"attn_temperature_tuning": True}, "attn_temperature_tuning"),
        ("mistral", {"num_experts": 8}, "num_experts"),
        ("qwen3", {"mlp_bias": True}, "mlp_bias"),
        ("cohere2", {"layer_switch": 7}, "layer_switch"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0, "attn_scale": 3.0}}, "attn_scale"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [8, 4]}}, "mrope_section"),
        ("gemma4_text", {"rope_scaling": None}, "partial_rotary_factor"),
        ("gemma4_text", {"layer_types": 5}, "layer_types"),
        ("qwen2", {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "ntk"),
    ],
)
def test_keys_of_nobody(kind: str, changes: dict[str, Any], named: str) -> None:
    """Keys that transformers' class does not have either: what they would change is not known."""
    config = from_transformers(kind, BASE[kind])
    assert config and model_from_config(config)
    with pytest.raises(StrixhloError, match=named):
        model_from_config(config | changes)


@pytest.mark.parametrize("name", ["yarn", "su"])
def test_first_names_of_longrope(name: str) -> None:
    """Phi-3's first releases; transformers reads both as LongRoPE."""
    base = {k: v for k, v in SHAPE.items()} | {"model_type": "phi3", "rms_norm_eps": 1e-5}
    block = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = base | {"original_max_position_embeddings": 32}
    first = model_from_config(config | {"rope_scaling": block | {"type": name}})
    assert first == model_from_config(config | {"rope_scaling": block | {"rope_type": "longrope"}})


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"])
def test_families_with_layers_that_are_not_there(kind: str) -> None:
    with pytest.raises(StrixhloError, match=f"'{kind}' is not supported: its gated delta layers"):
        model_from_config({"model_type": kind})


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(StrixhloError, match="'qwen33' is not supported; the nearest that is: qwen3"):
        model_from_config({"model_type": "qwen33"})


def test_every_family_is_here() -> None:
    assert BASE.keys() <= FAMILIES.keys() and VOCAB
