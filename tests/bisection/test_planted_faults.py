"""Proof that compare can fail: faults planted into a bundle are caught, and --bisect names the layer and op of each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import conftest
import gguf_models
import numpy as np
import pytest
from click.testing import CliRunner
from planted_bundles import ENTRY_NAMES, bisected, compared, small_bundle, with_parameter, with_program

from strixhlo.bundle import Bundle
from strixhlo.cli import main
from strixhlo.comparison.native_engine import open_native
from strixhlo.compile.target_kernels import lowering_rules
from strixhlo.compile.targets import Target
from strixhlo.custom_kernels.ops.launch import LoweringRule
from strixhlo.export.layers.rope import Rope
from strixhlo.runtime.native.contender import Contender

WINDOW = 16
DOWN = "model.layers.2.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Three random EXAONE 4 layers in Q4_0. Only layer 1 has a window and rotary positions."""
    folder = tmp_path_factory.mktemp("planted")
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    model = gguf_models.random_model(
        "exaone4", num_hidden_layers=3, sliding_window=WINDOW, layer_types=kinds, rms_norm_eps=1e-6, **rope
    )
    keys = {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [False, True, False],
    }
    source = gguf_models.write_gguf(model, folder / "model.gguf", "exaone4", keys, {"": "Q4_0"})
    return small_bundle(source, folder / "bundle")


@pytest.fixture(scope="module")
def native(bundle: Bundle) -> Contender:
    return open_native("jax", None, bundle, 1, 64)


def test_the_untouched_bundle_passes(bundle: Bundle, native: Contender) -> None:
    result = compared(bundle, native)
    assert result.failures == () and result.numerics.relative_error < 1e-4
    found = bisected(bundle)
    assert found.findings == () and found.ops == 29
    assert found.layer_errors.keys() == {"0", "1", "2", "outside"} and max(found.layer_errors.values()) < 1e-4


def test_swapped_nibbles(bundle: Bundle, native: Contender, tmp_path: Path) -> None:
    bad = with_parameter(bundle, tmp_path / "b", f"{DOWN}.codes", lambda b: (b << 4) | (b >> 4))
    assert compared(bad, native).failures
    first = bisected(bad).first
    assert first and (first.layer, first.op, first.weights) == (2, "mlp.down_proj", (f"{DOWN}.codes",))
    assert "its result is wrong" in str(first) and first.error and first.error > 0.1


def test_layers_come_first_where_not_all_fits(bundle: Bundle, tmp_path: Path) -> None:
    bad = with_parameter(bundle, tmp_path / "b", f"{DOWN}.codes", lambda b: (b << 4) | (b >> 4))
    found = bisected(bad, most_bytes=100_000)
    assert found.first and (found.first.layer, found.first.op) == (2, "mlp.down_proj")
    assert found.layer_errors["2"] > 0.1 > 1e-3 > found.layer_errors["1"]


def test_a_wrong_rope_base(bundle: Bundle, native: Contender, tmp_path: Path) -> None:
    table = Rope(16, 20000.0).angles(64).astype(np.float32)
    bad = with_parameter(bundle, tmp_path / "b", "rope.table.dense", lambda _: table.view(np.uint8))
    assert compared(bad, native).failures
    first = bisected(bad).first
    assert first and (first.layer, first.op, first.weights) == (1, "rope_and_append", ("rope.table.dense",))
    assert "its result is wrong" in str(first)


def test_a_window_that_is_off_by_one(bundle: Bundle, native: Contender, tmp_path: Path) -> None:
    bad = with_program(bundle, tmp_path / "b", lambda text: text.replace("window = 16 : i64", "window = 17 : i64"))
    assert compared(bad, native).failures
    found = bisected(bad)
    assert found.first and (found.first.layer, found.first.op) == (1, "attention")
    assert "its window is 17, which should be 16" in str(found.first)
    assert [f.layer for f in found.findings] == [1, 1]  # the attribute, and the result that it makes


APPEND = re.compile(r'stablehlo\.composite "strixhlo\.rope_and_append" ((?:%\S+, ){2})(%\S+), .*(tensor<1x4xi32>)')


def stale_block(text: str) -> str:
    """Layer 2, the last, does not write the second of its blocks: its block table has none there for it."""
    lines, count = [], 0
    for line in text.splitlines():
        found = APPEND.search(line)
        count += bool(found)
        if found and count % 3 == 0:
            pools, table, kind = found.groups()
            v = f"%stale{count}_"
            lines += [
                f"{v}a = stablehlo.constant dense<[[0, 1000, 0, 0]]> : {kind}",
                f"{v}b = stablehlo.subtract {table}, {v}a : {kind}",
            ]
            line = line.replace(f"{pools}{table},", f"{pools}{v}b,")
        lines.append(line)
    assert count == 3 * len(ENTRY_NAMES)
    return "\n".join(lines)


def test_a_stale_kv_block(bundle: Bundle, native: Contender, tmp_path: Path) -> None:
    bad = with_program(bundle, tmp_path / "b", stale_block)
    assert compared(bad, native).failures
    first = bisected(bad).first
    assert first and first.layer == 2 and "block_table of rope_and_append is wrong" in str(first)


def test_the_command_names_the_target_whose_kernel_is_wrong(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two targets of one program. The attention kernel of one of them sees a window of one more."""
    wrong = "cpu:x86-64-v2"

    def rules(target: Target, activations: str) -> Mapping[str, LoweringRule]:
        found = dict(lowering_rules(target, activations))
        if target.name == wrong:
            right = found["attention"]
            found["attention"] = lambda a, operands: right({**a, "window": a["window"] and a["window"] + 1}, operands)
        return found

    monkeypatch.setattr("strixhlo.compile.compile.lowering_rules", rules)
    conftest.compiled(bundle, target=wrong)
    options = [
        "--bisect",
        "--tokens",
        "40",
        "--greedy",
        "4",
        "-p",
        "16",
        "-n",
        "2",
        "--repeats",
        "1",
        "--threads",
        "1",
        "--json",
    ]
    done = CliRunner().invoke(main, ["compare", str(bundle.path), "--against-target", wrong, *options])
    assert done.exit_code == 1, done.output
    record = json.loads(done.stdout)
    assert record["failures"] and record["native"] == f"strixhlo, {wrong}"
    right, bad = record["bisect"]
    assert right["target"] == "cpu" and right["first"] is None
    assert bad["target"] == wrong
    assert bad["first"].startswith("layer 1, attention: its result is wrong, its operands and weights are right")
