"""compare can fail: faults planted into a bundle or its engine are caught, and the untouched bundle passes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import write_tiny_llama

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.comparison.native_engine import open_native
from strixhlo.comparison.page import comparison_page
from strixhlo.errors import StrixhloError
from strixhlo.runtime.compare import Comparison, Workload, compare, difference
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.contender import Contender
from strixhlo.runtime.native.mlx import Mlx
from strixhlo.runtime.native.transformers_float32 import Float32Model
from strixhlo.runtime.peak import SidePeak
from strixhlo.runtime.program import Program

IDS = tuple(int(i) for i in np.random.default_rng(3).integers(3, 320, 60))
WORK = Workload(IDS, IDS[:8], 4, (16,), (2,), 1)


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory, build: Callable[[Path, Path], Bundle]) -> Bundle:
    """Two random layers whose weights are large enough for attention to prefer some positions; float32 throughout."""
    folder = tmp_path_factory.mktemp("sharp")
    write_tiny_llama(folder / "checkpoint", torch.float32, initializer_range=0.25)
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


def test_mlx_gets_the_rope_base_of_a_new_config(sharp: Bundle, tmp_path: Path) -> None:
    """Of transformers 5, which has it where mlx-lm does not look."""
    folder = Path(shutil.copytree(sharp.manifest.source, tmp_path / "checkpoint"))
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 50000.0
    assert "rope_theta" not in config
    (folder / "config.json").write_text(json.dumps(config))
    ids = IDS[:20]
    theirs, torch_s = (engine.logits(ids) for engine in (Mlx(folder), Float32Model(folder)))
    assert np.linalg.norm(theirs - torch_s) < 1e-2 * np.linalg.norm(torch_s)
    assert np.linalg.norm(Mlx(Path(sharp.manifest.source)).logits(ids) - torch_s) > 5e-2 * np.linalg.norm(torch_s)


@pytest.fixture(scope="module")
def by_jax(sharp: Bundle) -> Contender:
    return open_native("jax", None, sharp, 1, 64)


def test_jax_runs_the_same_functions_without_iree(sharp: Bundle, by_jax: Contender) -> None:
    result = compared(sharp, by_jax)
    assert result.failures == () and result.numerics.relative_error < 1e-4
    assert result.greedy_agreed == result.greedy_tokens == 4


def test_jax_reads_the_checkpoint_and_not_the_bundle(sharp: Bundle, by_jax: Contender, tmp_path: Path) -> None:
    bad = with_changed(sharp, tmp_path / "b", "model.layers.1.mlp.up_proj.weight.dense", lambda rows: rows[::-1])
    assert compared(bad, by_jax).failures


def test_a_wrong_rope_base(sharp: Bundle, native: Float32Model, tmp_path: Path) -> None:
    bad = with_changed(sharp, tmp_path / "b", "rope.table.dense", lambda rows: rows[np.arange(len(rows)) // 2])
    assert compared(bad, native).failures


def test_permuted_rows_of_one_matrix(sharp: Bundle, native: Float32Model, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight.dense"
    assert compared(with_changed(sharp, tmp_path / "b", name, lambda rows: rows[::-1]), native).failures


def test_a_stale_kv_block(sharp: Bundle, native: Float32Model) -> None:
    def share_a_block(engine: Engine) -> None:
        engine.block_table[0, 1] = engine.block_table[0, 0]

    assert compared(sharp, native, share_a_block).failures


class Begins:
    """A native side whose tokenizer begins with BOS and whose template is another one."""

    def __init__(self, native: Contender) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def encode(self, _text: str) -> list[int]:
        return [1, *WORK.prompt]

    def encode_chat(self, _messages: Any) -> list[int]:
        return [5, 6, 8]


class Tokenizer3:
    """Ours."""

    chat_template = "x"

    def encode_chat(self, _messages: Any) -> list[int]:
        return [5, 6, 7]


@pytest.fixture(scope="module")
def beside_other_tokens(sharp: Bundle, native: Float32Model) -> Comparison:
    with Program(sharp, "cpu", 1) as program:
        engine = Engine(program)
        ours = CompiledBundle(engine, Tokenizer3())  # type: ignore[arg-type]
        result = compare(ours, Begins(native), WORK, say=lambda _text: None)  # type: ignore[arg-type]
        engine.close()
    return result


def test_other_tokens_are_reported_and_the_numbers_are_of_equal_ones(beside_other_tokens: Comparison) -> None:
    result = beside_other_tokens
    assert result.prompt_ids == "different: it puts token 1 (BOS) first"
    assert result.chat_ids == "different: 3 tokens and 3, the first 2 equal"
    assert result.failures == () and result.numerics.mean_kl < 1e-6  # the same ids to both sides


class Page(HTMLParser):
    """What a page holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained(beside_other_tokens: Comparison) -> None:
    peak = SidePeak(300 << 20, 200 << 20, None)
    result = replace(beside_other_tokens, native="<script>alert(1)</script>", memory=(peak, "not known of a server"))
    text = comparison_page(result, "tiny & more")
    page = Page(text)
    kinds = Counter(tag for tag, _ in page.tags)
    assert kinds["script"] == kinds["img"] == kinds["link"] == 0
    assert not any({"src", "href", "style", "onload"} & attributes.keys() for _, attributes in page.tags)
    assert "http:" not in text and "https:" not in text and "url(" not in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)  # well-formed
    assert kinds["svg"] == 3 and kinds["circle"] == len(result.trace.ours) == len(IDS[1:]) * 8
    curve = next(a["points"] for t, a in page.tags if t == "polyline")
    assert curve and len(curve.split()) == len(result.trace.kl) == result.numerics.positions
    assert kinds["rect"] == 2 * len(result.speeds)
    for said in ("tiny & more", "<script>alert(1)</script>", "PASS", "pp16", "tg2", "300.0 MiB (+200.0 MiB)", "(BOS)"):
        assert said in page.text
    bad = replace(result, failures=("scored: mean kl 1 is above 0.1",))
    said = Page(comparison_page(bad, "t", ["bisect, cpu: layer 1"])).text
    assert "scored: mean kl 1 is above 0.1" in said and "bisect, cpu: layer 1" in said


@pytest.mark.parametrize(
    ("native", "package", "extra"),
    [("mlx", "mlx.core", "mlx"), ("transformers", "torch", "transformers"), ("llama.cpp", "xllamacpp", "llama-cpp")],
)
def test_an_absent_engine_gives_its_install_line(
    native: str, package: str, extra: str, sharp: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StrixhloError, match=re.escape(f"pip install 'strixhlo[{extra}]'")):
        open_native(native, Path(sharp.manifest.source), sharp, 1, 64)


def test_differences_of_encodings_are_named() -> None:
    assert difference([1, 2], [1, 2]) == "same"
    assert difference([1, 2], [9, 1, 2]) == "different: it puts token 9 (BOS) first"
    assert difference([9, 1], [1]) == "different: we put token 9 (BOS) first"
    assert difference([1, 2, 3], [1, 5]) == "different: 3 tokens and 2, the first 1 equal"
    assert difference(None, [1]).startswith("not compared")
