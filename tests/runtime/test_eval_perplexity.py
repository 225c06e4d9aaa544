"""`eval --perplexity`: windows and sums against llama-perplexity's definition, a real model against transformers."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Whitespace

from strixhlo.bundle import Bundle
from strixhlo.cli import main
from strixhlo.errors import StrixhloError
from strixhlo.runtime.compare import PASSAGE
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.transformers_float32 import Float32Model
from strixhlo.runtime.perplexity import negative_log_likelihood, perplexity, summary, windows
from strixhlo.runtime.program import Program
from strixhlo.runtime.tokenizer import load_tokenizer


def test_chunks_score_their_second_half() -> None:
    parts = windows(range(100), 32)
    assert [p.ids for p in parts] == [tuple(range(s, s + 32)) for s in (0, 32, 64)]
    assert [p.ids[p.first :] for p in parts] == [tuple(range(s + 17, s + 32)) for s in (0, 32, 64)]
    assert len(windows(range(100), 32, chunks=2)) == 2


def test_strides_score_every_token_once() -> None:
    parts = windows(range(100), 32, stride=8)
    scored = [i for p in parts for i in p.ids[p.first :]]
    assert scored == list(range(24, 96))
    assert all(len(p.ids) == 32 and p.ids[p.first] - p.ids[0] == 24 for p in parts)


def test_bos_takes_the_first_place() -> None:
    assert windows(range(10, 60), 8, bos=7)[1].ids == (7, *range(19, 26))


@pytest.mark.parametrize(
    ("ctx", "stride", "words"), [(2, None, "too short"), (8, 8, "from 1 to 7"), (51, None, "has 50 tokens, fewer")]
)
def test_numbers_that_do_not_go_together(ctx: int, stride: int | None, words: str) -> None:
    with pytest.raises(StrixhloError, match=words):
        windows(range(50), ctx, stride=stride)


def test_likelihoods_and_their_error() -> None:
    """The sums as perplexity.cpp writes them, over torch's cross entropy."""
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((37, 50)).astype(np.float32) * 5
    logits[3, 7] = -np.inf
    targets = rng.integers(8, 50, 37)
    found = negative_log_likelihood(logits, targets.tolist())
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits).double(), torch.tensor(targets), reduction="none")
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)
    result = summary([found[:20], found[20:]])
    nll, nll2, count = sum(found), sum(x * x for x in found), len(found)
    mean = nll / count
    assert result.value == pytest.approx(math.exp(mean)) and (result.tokens, result.windows) == (37, 2)
    assert result.error == pytest.approx(math.exp(mean) * math.sqrt((nll2 / count - mean * mean) / (count - 1)))
    logits[5] = np.nan
    with pytest.raises(StrixhloError, match="not numbers"):
        negative_log_likelihood(logits, targets.tolist())


@pytest.mark.parametrize("stride", [None, 24])
def test_a_real_model(stride: int | None, smollm2: Callable[[str], Bundle], smollm2_float32: Float32Model) -> None:
    bundle = smollm2("f32")
    ids = load_tokenizer(bundle.path).encode(PASSAGE.read_text("utf-8")[:2000])
    parts = windows(ids, 64, stride=stride, chunks=3)
    expected = []
    for part in parts:
        logits = torch.tensor(smollm2_float32.logits(part.ids[:-1])[part.first - 1 :])
        targets = torch.tensor(part.ids[part.first :])
        expected += torch.nn.functional.cross_entropy(logits, targets, reduction="none").tolist()
    said: list[str] = []
    with Program(bundle, "cpu", 2, context=64) as program, closing(Engine(program)) as engine:
        result = perplexity(engine, parts, said.append)
    assert result.tokens == len(expected) == (93 if stride is None else 72)
    assert result.nll == pytest.approx(np.mean(expected), rel=1e-4)
    assert said[-1] == f"3 of 3: perplexity {result.value:.4f}"


def evaluate(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["eval", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def worded(tiny: Bundle, tmp_path: Path) -> Path:
    """The tiny bundle with a tokenizer that takes words apart."""
    path = Path(shutil.copytree(tiny.path, tmp_path / "bundle"))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_the_command(worded: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(" ".join(f"w{i}" for i in range(100)))
    arguments = (worded, "--perplexity", text, "--threads", 1, "--ctx", 32, "--chunks", 2)
    record = json.loads(evaluate(*arguments, "--json").stdout)
    assert record["tokens"] == 30 and record["windows"] == 2 and record["error"] > 0 and record["text_tokens"] == 100
    assert record["value"] == pytest.approx(math.exp(record["nll"]))
    line = evaluate(*arguments, "--stride", 16).stdout
    assert re.fullmatch(
        r"perplexity \d+\.\d+ ± \d+\.\d+ \(32 of 100 tokens scored, 2 windows of 32, stride 16\)\n", line
    )


def test_the_command_says_what_is_wrong(worded: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"w1 \xff")
    assert "not UTF-8 text (byte 3)" in evaluate(worded, "--perplexity", text, code=2).stderr
    assert "No such file" in evaluate(worded, "--perplexity", tmp_path / "gone", code=2).stderr
    text.write_text("w1 " * 600)
    assert "more than the 256 positions" in evaluate(worded, "--perplexity", text, "--ctx", 300, code=2).stderr
