"""The shape that all engines get, and which format of each engine stands beside which of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A Llama: names as in a Hugging Face config."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int

    def config(self, context: int) -> dict[str, Any]:
        """config.json."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        rest = {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False}
        return own | rest | {"max_position_embeddings": context, "hidden_act": "silu"}


SHAPES = {
    "8b": Shape(4096, 14336, 32, 32, 8, 128, 128256),  # Llama 3.1 8B
    "tiny": Shape(256, 512, 2, 4, 2, 64, 512),
}


@dataclass(frozen=True)
class Beside:
    """mlx: arguments of mlx.nn.quantize (None: not quantized; absent where MLX has no such format). torch: its own
    quantized matmul that is nearest, see torch_llama.KINDS."""

    torch: str | None
    mlx: dict[str, Any] | None
    has_mlx: bool = True


FORMATS: dict[str, Beside] = {
    "bf16": Beside(None, None),
    "mxfp4": Beside("int4", {"mode": "mxfp4", "bits": 4, "group_size": 32}),
    "nvfp4": Beside("int4", {"mode": "nvfp4", "bits": 4, "group_size": 16}),
    "mxfp8": Beside("fp8", {"mode": "mxfp8", "bits": 8, "group_size": 32}),
    "fp8_channel": Beside("fp8", None, has_mlx=False),
    "affine4_g64": Beside("int4", {"mode": "affine", "bits": 4, "group_size": 64}),
    "affine8_g64": Beside("int8", {"mode": "affine", "bits": 8, "group_size": 64}),
    "q4_0": Beside("int4", None, has_mlx=False),
    "q4_k": Beside("int4", None, has_mlx=False),
    "q8_0": Beside("int8", None, has_mlx=False),
}
