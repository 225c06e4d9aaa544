"""Small inputs to be spoiled, and how the command line must refuse them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from strixhlo.bundle import Bundle
from strixhlo.cli import main
from strixhlo.replacement import atomic_write

CONFIG = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def weights() -> dict[str, np.ndarray]:
    """The tensors of CONFIG, random float16."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (320, 64), "model.norm": (64,), "lm_head": (320, 64)}
    for i in range(2):
        p = f"model.layers.{i}."
        shapes |= {f"{p}input_layernorm": (64,), f"{p}post_attention_layernorm": (64,)}
        shapes |= {f"{p}self_attn.{n}_proj": (rows, 64) for n, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64))}
        shapes |= {f"{p}mlp.gate_proj": (96, 64), f"{p}mlp.up_proj": (96, 64), f"{p}mlp.down_proj": (64, 96)}
    rng = np.random.default_rng(0)
    return {f"{n}.weight": (rng.standard_normal(s) / 8).astype(np.float16) for n, s in shapes.items()}


def last_line(stderr: str) -> str:
    """The one line of an error, which is the last one."""
    assert "Traceback" not in stderr and "Exception" not in stderr
    lines = stderr.splitlines()
    assert [line for line in lines if line.startswith("strixhlo: ")] == lines[-1:]
    return lines[-1]


@pytest.fixture
def refused() -> Callable[..., str]:
    """refused("export", ...): run the command in this process; it must end with exit code 2 and the line returned."""

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        if not isinstance(result.exception, SystemExit):
            raise AssertionError(f"not refused: {result.output}") from result.exception
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        return last_line(result.stderr)

    return run


@pytest.fixture
def accepted() -> Callable[..., str]:
    """accepted("export", ...): run the command in this process; it must succeed, and returns its standard output."""

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def refused_process() -> Callable[..., str]:
    """refused_process([command, ...]): like `refused`, but a process of its own; options go to subprocess.run."""

    def run(command: list[object], **options: object) -> str:
        words = [os.fspath(w) if isinstance(w, bytes | Path) else str(w) for w in command]
        done = subprocess.run(words, capture_output=True, check=False, timeout=300, **options)
        assert (done.returncode, done.stdout) == (2, b""), done.stderr.decode()
        return last_line(done.stderr.decode())

    return run


@pytest.fixture
def program() -> list[str]:
    """The first words of a command line."""
    return [sys.executable, "-m", "strixhlo.cli"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small random Llama as safetensors; its tokenizer has 400 tokens, the model 320."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights(), folder / "model.safetensors")
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(400)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def bundle(tiny: Bundle, tmp_path: Path) -> Path:
    """A private copy of a compiled bundle (hard links; a test replaces files and never writes into one)."""
    return shutil.copytree(tiny.path, tmp_path / "bundle", copy_function=os.link)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Where to export to; at the end of the test nothing may be there, nor beside it under a temporary name."""
    before = {p.name for p in tmp_path.iterdir()}
    yield tmp_path / "out"
    assert {p.name for p in tmp_path.iterdir()} - before <= {"checkpoint", "model.gguf"}


@pytest.fixture
def edit() -> Callable[[Path, Callable[[dict], object]], None]:
    """edit(path, change): replace a JSON file by what `change` makes of it."""

    def edit_file(path: Path, change: Callable[[dict], object]) -> None:
        record = json.loads(path.read_text())
        change(record)
        atomic_write(path, json.dumps(record).encode())

    return edit_file
