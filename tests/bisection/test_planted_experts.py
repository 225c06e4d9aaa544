"""A permuted expert in a bundle: compare catches it, and --bisect names the layer and the matmul."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from planted_bundles import bisected, compared, small_bundle, with_parameter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from strixhlo.bundle import Bundle
from strixhlo.comparison.native_engine import open_native

EXPERTS = 4


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two random Mixtral layers, 2 of 4 experts a token."""
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
    model.save_pretrained(folder / "checkpoint")
    Tokenizer(WordLevel({"w0": 0}, unk_token="w0")).save(str(folder / "checkpoint" / "tokenizer.json"))
    return small_bundle(folder / "checkpoint", folder / "bundle")


def test_a_permuted_expert(bundle: Bundle, tmp_path: Path) -> None:
    native = open_native("jax", None, bundle, 1, 64)
    assert compared(bundle, native).failures == () and bisected(bundle).findings == ()
    (down,) = [p for p in bundle.manifest.parameters if "layers.1." in p and "experts.down_proj" in p]

    def two_swapped(rows: np.ndarray) -> np.ndarray:
        by_expert = rows.reshape(EXPERTS, -1)
        return by_expert[[0, 2, 1, 3]].reshape(rows.shape)

    bad = with_parameter(bundle, tmp_path / "b", down, two_swapped)
    assert compared(bad, native).failures
    first = bisected(bad).first
    assert first and first.layer == 1 and first.op.endswith("experts.down_proj") and first.weights == (down,)
