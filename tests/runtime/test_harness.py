"""`eval --tasks`: lm-evaluation-harness on the tiny model, tasks and data from local files, against our own sums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import Whitespace

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.cli import main
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.numerics import log_softmax
from strixhlo.runtime.program import Program
from strixhlo.runtime.tokenizer import load_tokenizer

QUESTIONS = [
    {"question": f"w{i} w{2 * i + 1} w5", "choices": [f"w{i + j} w9" for j in range(3)], "label": i % 3}
    for i in range(6)
]
HEAD = "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
CHOICE = """task: tiny_choice
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: label
doc_to_choice: "{{choices}}"
metric_list:
  - metric: acc
"""
TEXT = """task: tiny_text
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - metric: word_perplexity
"""
ANSWER = """task: tiny_answer
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["w0"]
  max_gen_toks: 3
metric_list:
  - metric: exact_match
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def worded(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The tiny bundle with a tokenizer that takes words apart."""
    path = Path(shutil.copytree(tiny.path, tmp_path_factory.mktemp("harness") / "bundle"))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    return open_bundle(path)


@pytest.fixture
def engine(worded: Bundle) -> Iterator[Engine]:
    with Program(worded, "cpu", 1) as program, closing(Engine(program)) as opened:
        yield opened


def ids(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def likelihood(engine: Engine, before: list[int], following: list[int]) -> float:
    engine.reset()
    rows = log_softmax(engine.score([*before, *following]))
    return float(sum(rows[len(before) - 1 + i, token] for i, token in enumerate(following)))


def folder_of(tmp_path: Path, docs: list[dict[str, object]], *tasks: str) -> Path:
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, docs)))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for i, task in enumerate(tasks):
        (folder / f"{i}.yaml").write_text(task + HEAD.format(data=data))
    return folder


def evaluate(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["eval", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_tasks_from_local_data(worded: Bundle, engine: Engine, tmp_path: Path) -> None:
    docs: list[dict[str, object]] = []
    right, total, words = 0, 0.0, 0
    first = min(load_tokenizer(worded.path).eos_ids)  # stands before a text, since the tokenizer has no BOS
    for i, question in enumerate(QUESTIONS):
        before = ids(str(question["question"]))
        scores = [likelihood(engine, before, ids(c)) for c in question["choices"]]  # type: ignore[attr-defined]
        right += int(np.argmax(scores)) == question["label"]
        total += likelihood(engine, [first], before)
        words += len(before)
        engine.reset()
        token, answer = int(engine.prefill(before).argmax()), []
        for _ in range(3):
            answer.append(f"w{token}")
            token = int(engine.decode(token).argmax())
        docs.append({**question, "answer": " ".join(answer) if i else "something else"})
    folder = folder_of(tmp_path, docs, CHOICE, TEXT, ANSWER)
    arguments = (worded.path, "--tasks", "tiny_choice,tiny_text,tiny_answer", "--task-path", folder, "--threads", 1)
    record = json.loads(evaluate(*arguments, "--json").stdout)
    results = record["results"]
    assert results["tiny_choice"]["acc,none"] == pytest.approx(right / 6)
    assert results["tiny_text"]["word_perplexity,none"] == pytest.approx(np.exp(-total / words), rel=1e-4)
    assert results["tiny_answer"]["exact_match,none"] == pytest.approx(5 / 6)
    assert record["n-samples"]["tiny_choice"]["effective"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either --perplexity FILE or --tasks"),
        (("--tasks", "a", "--stride", "4"), "--stride goes with --perplexity"),
        (("--perplexity", "a", "--limit", "4"), "--limit goes with --tasks"),
        (("--tasks", "a", "--task-path", "/nowhere"), "/nowhere: no such folder"),
        (("--tasks", ","), "names no task"),
        (("--perplexity", "a", "--ctx", "99999999"), "--ctx 99999999 is more than the 256 positions"),
    ],
)
def test_what_is_wrong_is_one_line(worded: Bundle, arguments: tuple[str, ...], words: str) -> None:
    assert words in evaluate(worded.path, *arguments, code=2).stderr


def test_a_task_that_does_not_exist(worded: Bundle, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, [{"question": "w1"}], CHOICE)
    error = evaluate(worded.path, "--tasks", "tiny", "--task-path", folder, code=2).stderr
    assert f"no task 'tiny' in {folder}" in error
