"""Faults in a 4-bit mixture of experts: compare catches them beside float32 and beside MLX, whose rounding has wider
limits, and --bisect names the layer and the matmul."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx_lm.utils as mlx_lm
import numpy as np
import pytest
import torch
import transformers
from planted_bundles import bisected, compared, small_bundle, with_parameter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from strixhlo.bundle import Bundle
from strixhlo.comparison.native_engine import open_native
from strixhlo.runtime.native.contender import Contender

EXPERTS = 4
BITS = {"bits": 4, "group_size": 32}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two random Mixtral layers, 2 of 4 experts a token, in MLX's 4 bits, as mlx_lm.convert makes them."""
    folder = tmp_path_factory.mktemp("experts")
    config = transformers.AutoConfig.for_model(
        "mixtral",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder / "plain")
    quantized, settings = mlx_lm.quantize_model(*mlx_lm.load_model(folder / "plain"), **BITS)
    (folder / "checkpoint").mkdir()
    mlx_lm.save_model(folder / "checkpoint", quantized)
    mlx_lm.save_config(settings, folder / "checkpoint" / "config.json")
    Tokenizer(WordLevel({"w0": 0}, unk_token="w0")).save(str(folder / "checkpoint" / "tokenizer.json"))
    return small_bundle(folder / "checkpoint", folder / "bundle")


@pytest.fixture(scope="module")
def natives(bundle: Bundle) -> list[Contender]:
    return [open_native(name, None, bundle, 1, 64) for name in ("jax", "mlx")]


def test_the_untouched_bundle_passes(bundle: Bundle, natives: list[Contender]) -> None:
    assert bundle.manifest.weight_formats["affine4_g32"]
    exact, rounded = (compared(bundle, side) for side in natives)
    assert exact.failures == rounded.failures == () and bisected(bundle).findings == ()
    assert rounded.limits.name.startswith("weights below 8 bits") and exact.limits.name.startswith("float32")


def two_experts_swapped(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(EXPERTS, -1)[[0, 2, 1, 3]].reshape(rows.shape)


def nibbles_swapped(rows: np.ndarray) -> np.ndarray:
    return (rows << 4) | (rows >> 4)


@pytest.mark.parametrize(
    ("change", "parts"), [(two_experts_swapped, ("codes", "scale", "bias")), (nibbles_swapped, ("codes",))]
)
def test_a_fault_in_the_experts_of_a_layer(
    bundle: Bundle,
    natives: list[Contender],
    tmp_path: Path,
    change: Callable[[np.ndarray], np.ndarray],
    parts: tuple[str, ...],
) -> None:
    (name,) = {
        n.rpartition(".")[0] for n in bundle.manifest.parameters if "layers.1." in n and "experts.down_proj" in n
    }
    bad = bundle
    for part in parts:
        bad = with_parameter(bad, tmp_path / part, f"{name}.{part}", change)
    assert all(compared(bad, side).failures for side in natives)
    first = bisected(bad).first
    assert first and first.layer == 1 and first.op.endswith("experts.down_proj")
    assert {*first.weights} == {f"{name}.{part}" for part in parts}
