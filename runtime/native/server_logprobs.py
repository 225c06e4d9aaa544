"""The likeliest tokens in a completion's answer, in the shapes that servers give them.

llama-server: choices[].logprobs.content[].top_logprobs, a list of {id, token, logprob}. vLLM: for prompt positions
choices[].prompt_logprobs, dictionaries of id -> {logprob}, and for generated ones choices[].logprobs.top_logprobs,
dictionaries of "token_id:<id>" -> logprob. OpenAI's own: the same with the token's text as key, whose id is looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .contender import TopLogprobs

IDS = "token_id:"
SMALLEST = -103.98  # log(2**-150): servers write what a float32 probability cannot hold as the lowest float
Row = list[tuple[int, float]]  # ids and natural log-probabilities, in any order
TextId = Callable[[str], int | None]  # the one id of this text; None: none, or several


def generated_rows(choice: Mapping[str, Any], id_of: TextId) -> list[Row]:
    """The likeliest tokens at each generated position, the chosen one among them; empty: the server gave none."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return []
    content, tops = logprobs.get("content"), logprobs.get("top_logprobs")
    if isinstance(content, list):
        return [_listed(step, id_of) for step in content]
    return [_keyed(top, lambda key: _token_id(key, id_of)) for top in tops] if isinstance(tops, list) else []


def chosen_ids(choice: Mapping[str, Any], id_of: TextId) -> list[int]:
    """The generated ids, as far as they can be told."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return []
    content, tokens = logprobs.get("content"), logprobs.get("tokens")
    if isinstance(content, list):
        found = [_entry_id(step, id_of) for step in content]
    else:
        found = [_token_id(str(t), id_of) for t in tokens] if isinstance(tokens, list) else []
    return [i for i in found[: found.index(None) if None in found else None] if i is not None]


def prompt_rows(choice: Mapping[str, Any], tokens: int) -> list[Row]:
    """The likeliest tokens after each of the first tokens - 1 prompt tokens; empty: the server gave none."""
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != tokens or not all(isinstance(r, Mapping) for r in rows[1:]):
        return []
    return [_keyed(row, lambda key: int(key) if key.isdecimal() else None) for row in rows[1:]]


def top_logprobs(rows: Sequence[Row], n: int) -> TopLogprobs:
    """The n likeliest of each row."""
    ids, values = np.full((len(rows), n), -1, np.int64), np.full((len(rows), n), -np.inf)
    for t, row in enumerate(rows):
        best = sorted(dict(row).items(), key=lambda pair: -pair[1])[:n]
        ids[t, : len(best)], values[t, : len(best)] = [i for i, _ in best], [v for _, v in best]
    return TopLogprobs(ids, values)


def _listed(step: Any, id_of: TextId) -> Row:
    entries = step.get("top_logprobs") if isinstance(step, Mapping) else None
    pairs = [(_entry_id(e, id_of), _value(e)) for e in entries] if isinstance(entries, list) else []
    return [(i, v) for i, v in pairs if i is not None and v is not None]


def _keyed(row: Any, key_id: TextId) -> Row:
    pairs = [(key_id(str(k)), _value(v)) for k, v in row.items()] if isinstance(row, Mapping) else []
    return [(i, v) for i, v in pairs if i is not None and v is not None]


def _entry_id(entry: Any, id_of: TextId) -> int | None:
    if not isinstance(entry, Mapping):
        return None
    known = entry.get("id")
    return known if isinstance(known, int) else _token_id(str(entry.get("token", "")), id_of)


def _token_id(text: str, id_of: TextId) -> int | None:
    digits = text.removeprefix(IDS)
    return int(digits) if text.startswith(IDS) and digits.isdecimal() else id_of(text)


def _value(entry: Any) -> float | None:
    value = entry.get("logprob") if isinstance(entry, Mapping) else entry
    return max(float(value), SMALLEST) if isinstance(value, int | float) and not math.isnan(value) else None
