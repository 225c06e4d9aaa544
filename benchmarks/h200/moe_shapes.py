"""Mixtures of experts whose released shapes the benchmarks run with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strixhlo.export.checkpoint.contents import Checkpoint, Tensor
from strixhlo.export.models import model_from_config

from .shape_bundle import nothing_to_read


@dataclass(frozen=True)
class MoeShape:
    """A layer's experts, and the config.json of the whole model. format: of the experts; others: of the other matrices;
    router: of the router and the embedding. biased, activation, limit: of the experts."""

    hidden: int
    intermediate: int
    layers: int
    experts: int
    chosen: int
    format: str
    others: str
    router: str
    biased: bool
    activation: str
    limit: float
    config: dict[str, Any]

    @property
    def dtypes(self) -> dict[str, str]:
        """Of an affine format's scale and bias."""
        return {"scale": "bf16", "bias": "bf16"} if self.format.startswith("affine") else {}


SHAPES = {
    "Qwen3-30B-A3B": MoeShape(
        2048, 768, 48, 128, 8, "affine4_g64", "affine4_g64", "bf16", False, "silu", 0.0,
        {
            "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0, "tie_word_embeddings": False, "max_position_embeddings": 40960,
        },
    ),
    "gpt-oss-20b": MoeShape(
        2880, 2880, 24, 32, 4, "mxfp4", "bf16", "bf16", True, "clamped", 7.0,
        {
            "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_size": 2880,
            "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 12, "num_experts_per_tok": 4,
            "num_local_experts": 32, "rms_norm_eps": 1e-5, "rope_theta": 150000, "sliding_window": 128,
            "swiglu_limit": 7.0, "max_position_embeddings": 131072, "vocab_size": 201088, "tie_word_embeddings": False,
            "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                "rope_type": "yarn", "truncate": False,
            },
        },
    ),
}  # fmt: skip


def moe_checkpoint(shape: MoeShape) -> Checkpoint:
    """A checkpoint of that shape and those formats, without values."""

    def tensors() -> Iterator[Tensor]:
        for name, dimensions in model_from_config(shape.config).shapes():
            kind = shape.others
            if len(dimensions) != 2 or name.endswith(".bias"):
                kind = "f32"
            elif ".experts." in name:
                kind = shape.format
            elif "embed_tokens" in name or name.endswith((".mlp.gate.weight", ".router.weight")):
                kind = shape.router
            dtypes = shape.dtypes if kind.startswith("affine") else {}
            yield Tensor(name, dimensions, kind, nothing_to_read, dtypes)

    return Checkpoint("random", "safetensors", (), shape.config, {t.name: t for t in tensors()}, lambda _folder: None)
