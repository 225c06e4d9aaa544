"""compare can fail: faults planted into a bundle or its engine are caught, and the untouched bundle passes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.native_engine import open_native
from strixhlo.runtime.compare import Comparison, Workload, compare, difference
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.contender import Contender
from strixhlo.runtime.native.mlx import Mlx
from strixhlo.runtime.native.transformers_float32 import Float32Model
from strixhlo.runtime.program import Program

IDS = tuple(int(i) for i in np.random.default_rng(3).integers(3, 320, 60))
WORK = Workload(IDS, IDS[:8], 4, (16,), (2,), 1)


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory, build: Callable[[Path, Path], Bundle]) -> Bundle:
    """Two random layers whose weights are large enough for attention to prefer some positions; float32 throughout."""
    folder = tmp_path_factory.mktemp("sharp")
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder / "checkpoint")
    Tokenizer(WordLevel({"w0": 0}, unk_token="w0")).save(str(folder / "checkpoint" / "tokenizer.json"))
    return build(folder / "checkpoint", folder / "bundle")


@pytest.fixture(scope="module")
def native(sharp: Bundle) -> Float32Model:
    return Float32Model(Path(sharp.manifest.source))


def compared(bundle: Bundle, native: Contender, fault: Callable[[Engine], None] = lambda _: None) -> Comparison:
    with Program(bundle, "cpu", 1) as program:
        engine = Engine(program)
        fault(engine)
        result = compare(CompiledBundle(engine, None), native, WORK, say=lambda _text: None)
        engine.close()
    return result


def with_changed(bundle: Bundle, out: Path, parameter: str, change: Callable[[np.ndarray], np.ndarray]) -> Bundle:
    """A copy whose parameter (its bytes [rows, row bytes]) is changed."""
    shutil.copytree(bundle.path, out)
    where = bundle.manifest.parameters[parameter]
    data = np.memmap(out / "weights/model.safetensors", np.uint8, "r+", where.offset, (where.length,))
    rows = data.reshape(where.shape[0], -1)
    rows[:] = change(rows.copy())
    data.flush()
    return open_bundle(out)


def test_the_untouched_bundle_passes(sharp: Bundle, native: Float32Model) -> None:
    result = compared(sharp, native)
    assert result.failures == () and result.numerics.relative_error < 1e-4
    assert result.greedy_agreed == result.greedy_tokens
    assert [s.test for s in result.speeds] == ["pp16", "tg2"]


def test_mlx_agrees_and_rounds_its_own_way(sharp: Bundle) -> None:
    result = compared(sharp, Mlx(Path(sharp.manifest.source)))
    assert result.failures == () and result.numerics.relative_error < 0.01
    assert result.limits.name.startswith("16-bit") and result.greedy_agreed == 4


def test_jax_runs_the_same_functions_without_iree(sharp: Bundle) -> None:
    native = open_native("jax", None, sharp, 1, 64)
    result = compared(sharp, native)
    assert result.failures == () and result.numerics.relative_error < 1e-4
    assert result.greedy_agreed == result.greedy_tokens == 4


def test_jax_reads_the_checkpoint_and_not_the_bundle(sharp: Bundle, tmp_path: Path) -> None:
    bad = with_changed(sharp, tmp_path / "b", "model.layers.1.mlp.up_proj.weight.dense", lambda rows: rows[::-1])
    assert compared(bad, open_native("jax", None, bad, 1, 64)).failures


def test_a_wrong_rope_base(sharp: Bundle, native: Float32Model, tmp_path: Path) -> None:
    bad = with_changed(sharp, tmp_path / "b", "rope.table.dense", lambda rows: rows[np.arange(len(rows)) // 2])
    assert compared(bad, native).failures


def test_permuted_rows_of_one_matrix(sharp: Bundle, native: Float32Model, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight.dense"
    assert compared(with_changed(sharp, tmp_path / "b", name, lambda rows: rows[::-1]), native).failures


def test_a_stale_kv_block(sharp: Bundle, native: Float32Model) -> None:
    def share_a_block(engine: Engine) -> None:
        engine._table[0, 1] = engine._table[0, 0]

    assert compared(sharp, native, share_a_block).failures


def test_differences_of_encodings_are_named() -> None:
    assert difference([1, 2], [1, 2]) == "same"
    assert difference([1, 2], [9, 1, 2]) == "different: it puts token 9 (BOS) first"
    assert difference([9, 1], [1]) == "different: we put token 9 (BOS) first"
    assert difference([1, 2, 3], [1, 5]) == "different: 3 tokens and 2, the first 1 equal"
    assert difference(None, [1]).startswith("not compared")
