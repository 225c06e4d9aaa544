"""Proof that compare can fail: faults planted into a 4-bit bundle are caught, beside a float32 evaluation and beside
llama.cpp, whose rounding has wider limits, and --bisect names the layer and op of each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import conftest
import gguf_models
import numpy as np
import pytest
from click.testing import CliRunner
from planted_bundles import ENTRY_NAMES, bisected, compared, small_bundle, with_parameter, with_program

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.cli import main
from strixhlo.comparison.native_engine import open_native
from strixhlo.compile.target_kernels import lowering_rules
from strixhlo.compile.targets import Target
from strixhlo.custom_kernels.choices import Choices
from strixhlo.custom_kernels.ops.launch import LoweringRule
from strixhlo.export.layers.rope import Rope
from strixhlo.runtime.native.contender import Contender

WINDOW = 16
DOWN = "model.layers.2.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Three random OLMo 3 layers in Q4_0, all with windows, which llama.cpp has too."""
    folder = tmp_path_factory.mktemp("planted")
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    shape = {"num_hidden_layers": 3, "sliding_window": WINDOW, "layer_types": ["sliding_attention"] * 3}
    model = gguf_models.random_model("olmo3", **shape, **gguf_models.EPSILON, rope_parameters=rope)
    keys = gguf_models.RMS | gguf_models.WINDOW
    source = gguf_models.write_gguf(model, folder / "model.gguf", "olmo2", keys, {"": "Q4_0"})
    return small_bundle(source, folder / "bundle")


@pytest.fixture(scope="module")
def native(bundle: Bundle) -> Contender:
    return open_native("jax", None, bundle, 1, 64)


@pytest.fixture(scope="module")
def llama(bundle: Bundle) -> Iterator[Contender]:
    with closing(open_native("llama.cpp", None, bundle, 1, 64)) as opened:
        yield opened


@pytest.fixture
def caught(native: Contender, llama: Contender) -> Callable[[Bundle], bool]:
    """Whether compare fails a bundle beside float32 and beside llama.cpp, by the numbers of whole chunks of a text and
    of tokens decoded one by one each, whatever greedy choices say."""

    def on_all_counts(bundle: Bundle) -> bool:
        sides = [compared(bundle, side).failures for side in (native, llama)]
        return all(any(f.startswith(part) for f in side) for side in sides for part in ("scored", "decoded"))

    return on_all_counts


def test_the_untouched_bundle_passes(bundle: Bundle, native: Contender, llama: Contender, tmp_path: Path) -> None:
    rounded = shutil.copytree(bundle.path, tmp_path / "b", ignore=shutil.ignore_patterns("cpu"))
    for beside in (bundle, conftest.compiled(open_bundle(Path(rounded)), "int8")):
        result = compared(beside, llama)
        assert result.failures == () and result.limits.name.startswith("weights below 8 bits")
        assert max(result.numerics.relative_error, result.decoded.relative_error) < result.limits.relative_error / 2
    result = compared(bundle, native)
    assert result.failures == () and result.numerics.relative_error < 1e-4
    found = bisected(bundle)
    assert found.findings == () and found.ops == 27
    assert found.layer_errors.keys() == {"0", "1", "2", "outside"} and max(found.layer_errors.values()) < 1e-4


def test_swapped_nibbles(bundle: Bundle, caught: Callable[[Bundle], bool], tmp_path: Path) -> None:
    bad = with_parameter(bundle, tmp_path / "b", f"{DOWN}.codes", lambda b: (b << 4) | (b >> 4))
    assert caught(bad)
    first = bisected(bad).first
    assert first and (first.layer, first.op, first.weights) == (2, "mlp.down_proj", (f"{DOWN}.codes",))
    assert "its result is wrong" in str(first) and first.error and first.error > 0.1


def test_layers_come_first_where_not_all_fits(bundle: Bundle, tmp_path: Path) -> None:
    bad = with_parameter(bundle, tmp_path / "b", f"{DOWN}.codes", lambda b: (b << 4) | (b >> 4))
    found = bisected(bad, most_bytes=100_000)
    assert found.first and (found.first.layer, found.first.op) == (2, "mlp.down_proj")
    assert found.layer_errors["2"] > 0.1 > 1e-3 > found.layer_errors["1"]


def test_a_wrong_rope_base(bundle: Bundle, caught: Callable[[Bundle], bool], tmp_path: Path) -> None:
    table = Rope(16, 20000.0).angles(64).astype(np.float32)
    bad = with_parameter(bundle, tmp_path / "b", "rope.local.dense", lambda _: table.view(np.uint8))
    assert caught(bad)
    first = bisected(bad).first
    assert first and (first.layer, first.op, first.weights) == (0, "rope_and_append", ("rope.local.dense",))
    assert "its result is wrong" in str(first)


def test_a_window_that_is_off_by_one(bundle: Bundle, caught: Callable[[Bundle], bool], tmp_path: Path) -> None:
    """From layer 1 on."""

    def wider(text: str) -> str:
        pieces = text.split("window = 16 : i64")
        assert len(pieces) == 1 + 3 * len(ENTRY_NAMES)
        said = ["16" if i % 3 == 0 else "17" for i in range(len(pieces) - 1)]
        return pieces[0] + "".join(f"window = {w} : i64{p}" for w, p in zip(said, pieces[1:], strict=True))

    bad = with_program(bundle, tmp_path / "b", wider)
    assert caught(bad)
    found = bisected(bad)
    assert found.first and (found.first.layer, found.first.op) == (1, "attention")
    assert "its window is 17, which should be 16" in str(found.first)
    assert [f.layer for f in found.findings] == [1, 1, 2, 2]  # the attribute, and the result that it makes


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


def test_a_stale_kv_block(bundle: Bundle, caught: Callable[[Bundle], bool], tmp_path: Path) -> None:
    bad = with_program(bundle, tmp_path / "b", stale_block)
    assert caught(bad)
    first = bisected(bad).first
    assert first and first.layer == 2 and "block_table of rope_and_append is wrong" in str(first)


def test_the_command_names_the_target_whose_kernel_is_wrong(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two targets of one program. The attention kernel of one of them sees a window of one more."""
    wrong = "cpu:x86-64-v2"

    def rules(target: Target, activations: str, choices: Choices) -> Mapping[str, LoweringRule]:
        found = dict(lowering_rules(target, activations, choices))
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
    assert bad["first"].startswith("layer 0, attention: its result is wrong, its operands and weights are right")
