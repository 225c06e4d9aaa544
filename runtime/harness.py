"""lm-evaluation-harness over an engine in this process: log-likelihoods by the score entry, greedy or sampled texts.

https://github.com/EleutherAI/lm-evaluation-harness, the interface of `lm_eval.api.model.LM`. Import this module only
where tasks are wanted: lm-eval is an optional package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ..errors import StrixhloError
from .detokenize import StopMatcher, StreamingDetokenizer
from .engine import Engine
from .perplexity import negative_log_likelihood
from .sampling import SamplingParams, sample, step_rng
from .tokenizer import BundleTokenizer

GENERATED = 256  # tokens at most where a task does not say


class HarnessModel(TemplateLM):
    """Requests are computed one after the other, each from an empty cache."""

    def __init__(self, engine: Engine, tokenizer: BundleTokenizer, say: Callable[[str], None]) -> None:
        super().__init__()
        self._engine, self._tokenizer, self._say = engine, tokenizer, say
        head = tokenizer.encode("")
        self._prefix = head[0] if head else min(tokenizer.eos_ids, default=0)

    @property
    def eot_token_id(self) -> int:
        """What stands before a text that has nothing before it: BOS where the model wants one, else an end of text."""
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """For the harness's caches."""
        return str(self._engine.program.bundle.path)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Text -> ids, with the model's BOS unless told otherwise."""
        if add_special_tokens is False:
            return list(self._tokenizer.tokenizer.encode(string, add_special_tokens=False).ids)
        return self._tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        results = []
        for number, (_texts, before, following) in enumerate(requests, 1):
            self._say(f"log-likelihood {number} of {len(requests)}")
            results.append(self._score(before, following))
        return results

    def _score(self, before: Sequence[int], following: Sequence[int]) -> tuple[float, bool]:
        """The log-likelihood of ids, and whether each is the likeliest; what does not fit is cut from the left."""
        engine = self._engine
        if len(following) > engine.context:
            raise StrixhloError(
                f"eval: a continuation of {len(following)} tokens does not fit into the context of {engine.context};"
                " export with a larger --context"
            )
        ids = [*before, *following][-(engine.context + 1) :]
        if len(ids) == len(following):  # nothing stands before the first one
            ids = [self._prefix, *ids][-(engine.context + 1) :]
        at = len(ids) - len(following)
        engine.reset()
        if at > 1:
            engine.prefill(ids[: at - 1])
        logits = engine.score(ids[at - 1 : -1])
        nll = negative_log_likelihood(logits, following)
        return -float(nll.sum()), bool((logits.argmax(axis=1) == np.asarray(following)).all())

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, in windows of the context side by side."""
        del disable_tqdm
        results = []
        for number, (text,) in enumerate((request.args for request in requests), 1):
            self._say(f"text {number} of {len(requests)}")
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self._prefix,
                max_seq_len=self._engine.context,
                context_len=1,
            )
            results.append(sum(self._score(*pair)[0] for pair in map(make_disjoint_window, windows)))
        return results

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts up to a stop string of the task; greedy unless it asks for do_sample and a temperature."""
        del disable_tqdm
        texts = []
        for number, request in enumerate(requests, 1):
            self._say(f"text {number} of {len(requests)}")
            texts.append(self._generate(request.args[0], request.args[1]))
        return texts

    def _generate(self, text: str, wanted: dict[str, Any]) -> str:
        engine = self._engine
        until = wanted.get("until") or []
        most = int(wanted.get("max_gen_toks", wanted.get("max_tokens", GENERATED)))
        params = SamplingParams(
            temperature=float(wanted.get("temperature", 0.0)) if wanted.get("do_sample") else 0.0,
            top_p=float(wanted.get("top_p", 1.0)),
            max_tokens=min(most, engine.context - 1),
            stop=(until,) if isinstance(until, str) else tuple(s for s in until if s),
        )
        ids = self.tok_encode(text)[-(engine.context - params.max_tokens) :]
        detokenizer, stops = StreamingDetokenizer(self._tokenizer.tokenizer), StopMatcher(params.stop)
        engine.reset()
        logits, found = engine.prefill(ids), ""
        for step in range(params.max_tokens):
            token = sample(logits, params, step_rng(0, step))
            if token in self._tokenizer.eos_ids:
                break
            found += stops.push(detokenizer.push(token))
            if stops.matched is not None:
                return found
            if step + 1 < params.max_tokens:
                logits = engine.decode(token)
        return found + stops.push(detokenizer.finish()) + stops.finish()


def evaluate(
    model: HarnessModel, tasks: Sequence[str], *, folder: Path | None, fewshot: int | None, limit: int | None
) -> dict[str, Any]:
    """The harness's results. folder: of task files (YAML), in place of those that the harness brings along.

    StrixhloError for tasks that do not exist, or whose data cannot be had.
    """
    manager = TaskManager(include_path=None if folder is None else str(folder), include_defaults=folder is None)
    unknown = [name for name in tasks if name not in manager.all_tasks]
    if unknown:
        raise StrixhloError(
            f"eval: no task {unknown[0]!r} in {folder or 'lm-evaluation-harness'}; see `lm_eval ls tasks`"
        )
    try:
        found = simple_evaluate(model, tasks=list(tasks), task_manager=manager, num_fewshot=fewshot, limit=limit)
    except (OSError, ValueError, KeyError, ImportError) as error:  # a data set that is not there, a broken task file
        reason = " ".join(str(error).split())[:300]
        raise StrixhloError(f"eval: {', '.join(tasks)}: {type(error).__name__}: {reason}") from error
    return dict(found or {})
