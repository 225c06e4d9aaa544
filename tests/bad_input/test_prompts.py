"""Prompts that do not fit, tokenizers that do not belong to the model, and standard streams that are not there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

Refused = Callable[..., str]


@pytest.fixture
def words(checkpoint: Path, bundle: Path) -> Path:
    """A bundle whose tokenizer knows 400 words, separated by blanks, to a model that knows 320."""
    (bundle / "tokenizer.json").unlink()
    (checkpoint / "tokenizer.json").rename(bundle / "tokenizer.json")
    return bundle


def test_token_that_only_the_tokenizer_has(words: Path, refused: Refused) -> None:
    assert "token id 399 is not in the vocabulary of 320" in refused("run", words, "--raw", "-p", "w1 w399")


def test_prompt_longer_than_the_context(words: Path, refused: Refused) -> None:
    line = refused("run", words, "--raw", "-p", "w1 " * 257)
    assert "257 tokens do not fit into the context of 256; shorten the prompt, or export with a larger" in line


def test_more_tokens_than_the_context(words: Path, accepted: Callable[..., str]) -> None:
    record = json.loads(accepted("run", words, "--raw", "-p", "w1 w2", "-n", "9" * 30, "--ignore-eos", "--json"))
    assert record["finish"] == "length" and len(record["token_ids"]) == 255


def test_no_chat_template(bundle: Path, refused: Refused) -> None:
    assert "this model has no chat template; pass --raw" in refused("run", bundle, "-p", "w1")


def test_text_that_the_tokenizer_cannot_encode(bundle: Path, refused: Refused) -> None:
    (bundle / "tokenizer.json").unlink()
    Tokenizer(WordLevel({"w0": 0}, unk_token="[UNK]")).save(str(bundle / "tokenizer.json"))
    assert "the model's tokenizer cannot encode this text" in refused("run", bundle, "--raw", "-p", "w7")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_tokenizer_files_of_the_bundle(bundle: Path, refused: Refused, name: str) -> None:
    (bundle / name).unlink(missing_ok=True)
    (bundle / name).write_bytes(b"\xff{")
    line = refused("run", bundle, "--raw", "-p", "w1")
    assert name in line and "export the bundle again" in line


def test_text_that_is_not_utf8(bundle: Path, program: list[str], refused_process: Refused) -> None:
    line = refused_process([*program, "run", bundle, "--raw", "-p", b"caf\xe9"])
    assert line == "strixhlo: the argument 'caf\\udce9' is not valid UTF-8"
    line = refused_process([*program, "run", bundle, "--raw", "-p", "-"], input=b"caf\xe9")
    assert line == "strixhlo: standard input is not UTF-8 text (byte 3); convert it first"
    line = refused_process([*program, "chat", bundle], input=b"\ncaf\xe9\n")
    assert line == "strixhlo: standard input is not UTF-8 text (byte 3 of b'caf\\xe9\\n'); convert it first"


@pytest.fixture
def shell(program: list[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """shell(script, arguments): in the script, "$@" is the command."""

    def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-o", "pipefail", "-c", script, "bash", *program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr
        return done

    return run


def test_reader_that_leaves(bundle: Path, shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for arguments in (["inspect"], ["inspect", "--json"], ["run", "--raw", "-p", "w1", "-n", 200]):
        done = shell('"$@" | head -c 3', *arguments, bundle)
        assert (done.returncode, len(done.stdout)) == (0, 3), done.stderr
    # Standard error goes to a reader that has left: the work goes on.
    done = shell('"$@" 2> >(exec true)', "run", "--raw", "-p", "w1", "-n", 2, bundle)
    assert done.returncode == 0 and done.stdout.startswith("w")


def test_output_that_cannot_be_written(bundle: Path, shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for arguments in (["inspect"], ["run", "--raw", "-p", "w1", "-n", 3]):
        done = shell('"$@" > /dev/full', *arguments, bundle)
        assert done.returncode == 2
        *before, last = done.stderr.splitlines()
        assert last == "strixhlo: reading or writing failed: No space left on device"
        assert not before or before[0].startswith("memory: ")  # run says first what it needs


def test_closed_streams(bundle: Path, shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert shell('"$@" >&-', "run", bundle, "--raw", "-p", "w1", "-n", 2).returncode == 0
    done = shell('"$@" <&-', "run", bundle, "--raw", "-p", "-")
    assert (done.returncode, done.stdout) == (2, "") and "standard input, which is closed" in done.stderr
    done = shell('"$@" 2>&-', "run", bundle, "--raw", "-p", "w1", "-n", 2)
    assert done.returncode == 0 and done.stdout.startswith("w")
