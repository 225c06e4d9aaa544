"""lm-evaluation-harness's own client of completion servers (`local-completions`) before `strixhlo serve`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from openai import OpenAI

from strixhlo.bundle import Bundle
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.numerics import log_softmax
from strixhlo.runtime.program import Program
from strixhlo.runtime.tokenizer import load_tokenizer

QUESTIONS = [
    ("The capital of France is", [" Paris", " Rome", " a red fish"], 0),
    ("Two and two make", [" seven", " four"], 1),
    ("Water is", [" dry", " wet", " a kind of stone"], 1),  # which the model does not say, so that not all are right
]
TASK = """task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: label
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def scores(smollm2: Callable[[str], Bundle]) -> list[list[float]]:
    """Of each question, the log-likelihood of each choice, by the engine alone."""
    bundle = smollm2("int8")
    encode = load_tokenizer(bundle.path).encode
    found = []
    with Program(bundle, "cpu", 1) as program, closing(Engine(program)) as engine:
        for question, choices, _ in QUESTIONS:
            before = encode(question)
            found.append([likelihood(engine, before, encode(question + c)[len(before) :]) for c in choices])
    return found


def likelihood(engine: Engine, before: list[int], following: list[int]) -> float:
    engine.reset()
    rows = log_softmax(engine.score([*before, *following]))
    return float(sum(rows[len(before) - 1 + i, token] for i, token in enumerate(following)))


def test_a_task_from_local_data(
    served: Any, smollm2: Callable[[str], Bundle], scores: list[list[float]], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    lines = [json.dumps({"question": q, "choices": c, "label": i}) for q, c, i in QUESTIONS]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tiny.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    found = simple_evaluate(
        "local-completions",
        model_args={
            "base_url": f"{served.url}/v1/completions",
            "model": served.model,
            "tokenizer_backend": "huggingface",
            "tokenizer": str(smollm2("int8").path),
            "max_retries": 1,
        },
        tasks=["tiny_choice"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        log_samples=True,
    )
    assert found
    for sample in found["samples"]["tiny_choice"]:
        theirs = [score for (score, _greedy), *_ in sample["resps"]]
        assert theirs == pytest.approx(scores[sample["doc_id"]], abs=0.02)  # chunks of other sizes: other sums
    right = [int(np.argmax(s)) == label for s, (_, _, label) in zip(scores, QUESTIONS, strict=True)]
    assert found["results"]["tiny_choice"]["acc,none"] == pytest.approx(np.mean(right)) and not all(right)


def test_a_prompt_with_its_log_probabilities(client: OpenAI, served: Any) -> None:
    options: Any = {"model": served.model, "prompt": "Once upon a time", "echo": True, "logprobs": 1, "temperature": 0}
    alone = client.completions.create(**options, max_tokens=0).choices[0]
    more = client.completions.create(**options, max_tokens=2)
    both = more.choices[0]
    for choice, tokens in ((alone, 4), (both, 6)):
        found = choice.logprobs
        assert found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
        assert "".join(found.tokens) == choice.text and len(found.tokens) == tokens
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        scored = zip(found.token_logprobs[1:], found.top_logprobs[1:], strict=True)
        assert all(p and top and p <= max(top.values()) < 0 for p, top in scored)
        offsets = [choice.text.index(t, at) for t, at in zip(found.tokens, found.text_offset, strict=True)]
        assert offsets == found.text_offset
    assert alone.text == "Once upon a time" and alone.finish_reason == "length"
    assert more.usage and more.usage.completion_tokens == 2
    streamed = [e.choices[0] for e in client.completions.create(**options, max_tokens=2, stream=True)]
    assert streamed[0].text == alone.text and streamed[0].logprobs == alone.logprobs
    assert "".join(c.text for c in streamed) == both.text
