"""Whole programs compiled by strixhlo for rocm and run by IREE's HIP driver: two-layer models with grouped-query
attention, one of them with a window, against the CPU target."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from coverage_table import covers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gfx1151_sim.program_steps import (
    Run,
    kv_cache_is_updated_in_place,
    nothing_uninitialized_is_read,
    other_orders_and_poison_change_nothing,
    prefill_and_decode,
    same_logits_and_tokens,
)
from gfx1151_sim.simulator import recording, report, start
from strixhlo.bundle import Bundle, open_bundle
from strixhlo.cli import main
from strixhlo.comparison.simulated_bench import as_csv, markdown, simulate
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.target_kernels import lowering_rules
from strixhlo.compile.targets import Target, parse_target
from strixhlo.custom_kernels.choices import Choices
from strixhlo.custom_kernels.ops.launch import LoweringRule
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

VOCABULARY, STEPS = 320, 4
ENTRIES = {"prefill_16": ("prefill", 16), "score_16": ("score", 16), "decode_1": ("decode", 1)}
# The prompt is longer than the window and a chunk. What is decoded is given, since random models repeat themselves.
TOKENS = np.random.default_rng(1).integers(0, VOCABULARY, 21 + STEPS).tolist()
PROMPT, FOLLOWING = TOKENS[:-STEPS], TOKENS[-STEPS - 1 : -1]
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 384,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 64,
}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False))


def gemma_with_window() -> PreTrainedModel:
    kinds = ["sliding_attention", "full_attention"]
    rope = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in kinds}
    config = Gemma3TextConfig(**SHAPE, sliding_window=9, layer_types=kinds, rope_parameters=rope)
    return Gemma3ForCausalLM(config)


@pytest.fixture(scope="module", params=[llama, gemma_with_window])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    start()
    folder = tmp_path_factory.mktemp(request.param.__name__)
    torch.manual_seed(0)
    model = request.param()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.3 + 1 if "norm" in name else noise * 0.06)
    model.to(torch.bfloat16).save_pretrained(folder / "checkpoint")
    words = WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "checkpoint" / "tokenizer.json"))
    quiet = Stages(lambda _name, _total: None, lambda _bytes: None)
    checkpoint = open_checkpoint(str(folder / "checkpoint"))
    with pytest.MonkeyPatch.context() as patch:  # what is called, and no more: compiling takes the time
        patch.setattr(export, "ENTRIES", ENTRIES)
        made = export.export_checkpoint(
            checkpoint, folder / "bundle", context=128, dtype="auto", kv_dtype="f16", progress=quiet
        )
    for target in ("cpu", "rocm"):
        compile_bundle(made, parse_target(target), activations="f32", keep_intermediates=None, say=lambda _text: None)
    return open_bundle(made.path)


@pytest.fixture(scope="module")
def simulated(bundle: Bundle) -> Run:
    run = prefill_and_decode(bundle, "rocm", PROMPT, FOLLOWING)
    print(report(run.accounts[-1]))
    return run


@covers("Llama", "safetensors bf16", "rocm", "our cpu")
@covers("Gemma 3", "safetensors bf16", "rocm", "our cpu")
def test_logits_and_tokens_of_the_cpu(bundle: Bundle, simulated: Run) -> None:
    same_logits_and_tokens(simulated, prefill_and_decode(bundle, "cpu", PROMPT, FOLLOWING))


def test_other_orders_and_poison_change_nothing(bundle: Bundle, simulated: Run) -> None:
    other_orders_and_poison_change_nothing(bundle, simulated, PROMPT, FOLLOWING)


def test_nothing_uninitialized_is_read(simulated: Run) -> None:
    nothing_uninitialized_is_read(simulated)


def test_kv_cache_is_updated_in_place(bundle: Bundle, simulated: Run) -> None:
    q = 4 * bundle.manifest.parameters["model.layers.0.self_attn.q_proj.weight.dense"].shape[0]
    kv_cache_is_updated_in_place(bundle, simulated, q, VOCABULARY)


def test_bytes_per_token(bundle: Bundle, simulated: Run) -> None:
    """A decoded token reads each weight but the embedding's other rows once, and the keys and values it sees."""
    manifest = bundle.manifest
    tied = "lm_head" not in " ".join(manifest.parameters)
    weights = sum(p.length for name, p in manifest.parameters.items() if tied or "embed_tokens" not in name)
    row = manifest.entry_points["decode_1"].inputs[-1].shape[-1] * 2
    seen = len(PROMPT) + STEPS
    floor = weights + 2 * 2 * row * seen  # at most: the window hides some
    distinct = simulated.accounts[-1].total("load_distinct")
    assert distinct > 0.95 * weights
    assert distinct < 1.10 * floor
    assert simulated.accounts[-1].total("load_requested") < 1.25 * floor


def test_bench_accounts_for_every_launch_of_a_token(bundle: Bundle) -> None:
    """`bench --simulate` beside an account of our own of the same step."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 7).tolist()
    with Program(bundle, "rocm", 1) as program:
        engine = Engine(program)
        engine.prefill(tokens[:5])
        engine.decode_greedy(tokens[5])
        with recording() as account:
            engine.decode_greedy(tokens[6])
        engine.close()
    token = simulate(bundle, "rocm", 5, 2)
    record = token.record()
    assert record["position"] == 6 and len(record["launches"]) == len(account.launches)
    for name in ("load_requested", "load_distinct", "store_requested", "lds_moved"):
        assert record["sum"][name] == account.total(name)
    assert record["sum"]["instructions"] == account.instructions()
    assert 0.95 < record["distinct_over_floor"] < 1.10
    assert markdown(token).splitlines()[-1].startswith(f"- floor: {token.floor:,.0f} bytes")
    assert len(as_csv(token).splitlines()) == 1 + len(account.launches)


def compared_with_rocm(path: Path, *options: str, code: int) -> dict[str, Any]:
    """`compare --against-target rocm` on TOKENS."""
    text = path.parent / "text"
    text.write_text(" ".join(f"w{i}" for i in TOKENS))
    small = ("--tokens", "24", "--greedy", "2", "-p", "16", "-n", "1", "--repeats", "1", "--threads", "1")
    command = ["compare", str(path), "--against-target", "rocm", "--text", str(text), *small, "--no-memory", "--json"]
    done = CliRunner().invoke(main, [*command, *options])
    assert done.exit_code == code, done.output
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.mark.parametrize("bundle", [gemma_with_window], indirect=True)
def test_compare_holds_the_two_targets_of_a_bundle_against_each_other(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right program passes. One whose attention kernel sees a window of one more does not, and --bisect says which
    of the two targets is wrong, and where."""
    right = compared_with_rocm(bundle.path, code=0)
    assert right["native"] == "strixhlo, rocm" and right["limits"]["name"] == "float32 on both sides"
    assert right["numerics"]["relative_error"] < 2e-3 and right["greedy_agreed"] == 2

    def rules(target: Target, activations: str, choices: Choices) -> Mapping[str, LoweringRule]:
        found = dict(lowering_rules(target, activations, choices))
        if target.kind == "rocm":
            kernel = found["attention"]
            found["attention"] = lambda a, operands: kernel({**a, "window": a["window"] and a["window"] + 1}, operands)
        return found

    monkeypatch.setattr("strixhlo.compile.compile.lowering_rules", rules)
    copy = Path(shutil.copytree(bundle.path, tmp_path / "bundle", ignore=shutil.ignore_patterns("rocm")))
    compile_bundle(
        open_bundle(copy), parse_target("rocm"), activations="f32", keep_intermediates=None, say=lambda _text: None
    )
    wrong = compared_with_rocm(copy, "--bisect", code=1)
    assert wrong["failures"]
    cpu, rocm = wrong["bisect"]
    assert (cpu["target"], cpu["first"], rocm["target"]) == ("cpu", None, "rocm")
    assert rocm["first"].startswith("layer 0, attention: its result is wrong, its operands and weights are right")
