"""Structured output: a JSON schema, a regular expression or a Lark grammar decides which tokens may come next."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from ..errors import StrixhloError, one_line
from .sampling import SamplingParams

NOTHING_FOLLOWS = "structured output: no token of this model can follow; loosen the schema or grammar"
# Between the tokens of JSON; without a bound a small model may write empty lines for ever.
WHITESPACE: Any = {"whitespace_pattern": r"[\x20\x0A]{1,20}"}


class Constraints:
    """Makes the constraints of one model's requests; reading the vocabulary takes a second, at the first of them."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, sorted(eos_ids)
        self._vocabulary: LLTokenizer | None = None

    def create(self, params: SamplingParams) -> Constraint:
        """The constraint of a request. StrixhloError for a schema, expression or grammar that cannot be used."""
        if self._vocabulary is None:
            try:
                self._vocabulary = LLTokenizer(
                    self._tokenizer.to_str(), n_vocab=self._vocab_size, eos_token=self._eos_ids or None
                )
            except Exception as error:  # of any kind, from Rust
                raise StrixhloError(f"structured output does not work with this tokenizer: {_line(error)}") from None
        try:
            matcher = LLMatcher(self._vocabulary, _grammar(params))
        except Exception as error:
            raise StrixhloError(f"structured output: {_line(error)}; correct the schema or grammar") from None
        if matcher.is_error():
            raise StrixhloError(f"structured output: {_line(matcher.get_error())}; correct the schema or grammar")
        made = Constraint(matcher)
        made.allowed()  # some that match nothing, or cost too much, are known only then
        return made


class Constraint:
    """Where one request stands in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def complete(self) -> bool:
        """Nothing can follow."""
        return bool(self._matcher.is_stopped())

    def masked(self, logits: np.ndarray) -> np.ndarray:
        """A copy of logits float32 [vocabulary] with -inf for what may not come next."""
        bits = self.allowed()
        allowed = np.zeros(logits.size, bool)
        allowed[: bits.size] = bits[: logits.size]
        return np.where(allowed, logits, np.float32(-np.inf))

    def allowed(self) -> np.ndarray:
        """For each token 1 where it may come next; StrixhloError where none may."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._check()
        if not bits.any():
            raise StrixhloError(NOTHING_FOLLOWS)
        return bits

    def accept(self, token: int) -> None:
        """Go on behind a token that `masked` allowed."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            error = _line(self._matcher.get_error())
            if error == "NoExtensionBias":  # llguidance's name of it
                raise StrixhloError(NOTHING_FOLLOWS)
            raise StrixhloError(f"structured output: {error}; simplify the schema or grammar")


def _grammar(params: SamplingParams) -> str:
    if params.json_schema is not None:
        return str(LLMatcher.grammar_from_json_schema(json.dumps(params.json_schema), defaults=WHITESPACE))
    if params.regex is not None:
        return str(LLMatcher.grammar_from_regex(params.regex))
    return str(LLMatcher.grammar_from_lark(params.grammar or ""))


def _line(error: object) -> str:
    return one_line(str(error).partition("<state>")[0])  # behind it llguidance's own state
