"""`strixhlo compare` refuses in one line what cannot be, before anything is loaded."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.cli import main
from strixhlo.runtime.program import Program


def refused(bundle: Bundle, *arguments: object) -> str:
    done = CliRunner().invoke(main, ["compare", str(bundle.path), *map(str, arguments)])
    assert done.exit_code == 2, done.output
    assert (
        "Traceback" not in done.stderr and sum(line.startswith("strixhlo: ") for line in done.stderr.splitlines()) < 2
    )
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give either --native"),
        (("--native", "jax", "--against-target", "rocm"), "give either --native"),
        (("--native", "llama"), "neither one of llama.cpp, mlx, transformers, jax nor"),
        (("--native", "jax", "-p", ","), "is no list of whole numbers from 1 on"),
        (("--native", "jax", "-n", "0"), "is no list of whole numbers from 1 on"),
        (("--native", "jax", "--tokens", "17"), "17 is not in the range"),
        (("--native", "jax", "--greedy", "100000"), "--greedy needs 100.* positions, more than the context of 256"),
        (("--native", "jax", "-p", "16,300"), "-p needs 300 positions, more than the context of 256"),
        (("--native", "jax", "-p", "16", "-n", "250"), "-n needs 266 positions, more than the context of 256"),
        (("--native", "jax", "-p", "16", "--text", "/dev/zero"), "/dev/zero: not a file of at most"),
        (("--native", "jax", "-p", "16", "--text", "/nowhere"), "/nowhere: No such file"),
        (("--native", "jax", "-p", "16", "--html", "/nowhere/a.html"), "--html /nowhere/a.html: no such folder"),
        (("--native", "jax", "-p", "16", "--memory-budget", "lots"), "lots"),
        (("--native", "jax", "-p", "16", "--target", "cuda"), "not compiled for cuda"),
        (("--against-target", "cpu"), "--against-target cpu: is the target that runs already"),
        (("--against-target", "tpu"), "target 'tpu' is not known"),
        (("--native", "http://127.0.0.1:1", "-p", "16", "--source", "/nowhere"), "nothing would read it"),
        (("--native", "jax", "-p", "16", "--bisect", "--source", "/nowhere"), "/nowhere"),
    ],
)
def test_what_cannot_be(tiny: Bundle, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "__init__", lambda *_: pytest.fail("a program was loaded"))
    assert re.search(words, refused(tiny, *arguments))


def test_places_and_texts_that_cannot_be(tiny: Bundle, tmp_path: Path) -> None:
    jax = ("--native", "jax", "-p", 16)
    assert "is a folder" in refused(tiny, *jax, "--html", tmp_path)
    (tmp_path / "short").write_text("w1 w2")
    assert "at least 18 are needed" in refused(tiny, *jax, "--text", tmp_path / "short")
    (tmp_path / "latin").write_bytes("Gr\xfc\xdfe".encode("latin-1"))
    assert "is not UTF-8 text (byte 2)" in refused(tiny, *jax, "--text", tmp_path / "latin")


def test_the_source_of_another_model_is_named_and_a_budget_kept(tiny: Bundle, tmp_path: Path) -> None:
    words = Path(shutil.copytree(tiny.path, tmp_path / "bundle"))
    tokenizer = Tokenizer.from_file(str(words / "tokenizer.json"))
    tokenizer.pre_tokenizer = Whitespace()  # as it is, a text is one token
    tokenizer.save(str(words / "tokenizer.json"))
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=96, **shape)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "other")
    said = refused(
        open_bundle(words), "--native", "transformers", "-p", 16, "-n", 2, "--greedy", 2, "--source", tmp_path / "other"
    )
    assert "has a model of 96 tokens, the bundle's has 320" in said and "--source" in said
    said = refused(open_bundle(words), "--native", "transformers", "-p", 16, "--greedy", 2, "--memory-budget", "100M")
    assert "--memory-budget leaves 100.0 MiB; what would fit" in said
