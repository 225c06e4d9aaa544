"""The native path through a server that speaks OpenAI's /v1/completions: llama-server, vLLM, strixhlo serve, ...

Prompts are token ids, so that both sides get the same ones. Only the likeliest N tokens of a position come back. vLLM
gives those of a whole prompt in one answer (`prompt_logprobs`); elsewhere each position is one request of one token.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import StrixhloError
from .contender import Precision, Timing, TopLogprobs
from .server_logprobs import Row, TextId, chosen_ids, generated_rows, prompt_rows, top_logprobs

API_KEY = "STRIXHLO_NATIVE_API_KEY"  # environment: sent as the bearer token
SECONDS = 600  # for one answer
MOST_BYTES = 1 << 28  # of one answer
TOP = 20  # log-probabilities of a position to ask for
FEWER = {TOP: 5}  # where that many are refused: vLLM's limit at first, then OpenAI's
# What servers that know it do; others ignore it, or refuse it and are asked again without.
EXTENSIONS = {"cache_prompt": False, "return_tokens_as_token_ids": True}


class OpenAIServer:
    """A `Contender` behind an http(s) address. `#name` at its end chooses among several models."""

    name = "server"
    precision: Precision = "reduced"  # not known
    vocab_size: int | None = None  # not known

    def __init__(self, url: str, id_of: TextId, top: int = TOP) -> None:
        """id_of: the id of a token's text, for servers that give texts alone. top: log-probabilities to ask for;
        llama-server gives those of the whole vocabulary."""
        address, _, model = url.partition("#")
        self._root = address.rstrip("/").removesuffix("/v1")
        self._id_of, self._extensions, self._top = id_of, dict(EXTENSIONS), top
        self._model = model or self._only_model()
        self.name = f"server {self._model}"

    def encode(self, text: str) -> list[int] | None:
        """By /tokenize, as llama-server or vLLM has it; None where there is none."""
        return self._tokens({"content": text, "add_special": True, "parse_special": True}) or self._tokens(
            {"model": self._model, "prompt": text, "add_special_tokens": True}
        )

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """By the server's own template: llama-server's /apply-template, or vLLM's /tokenize of messages."""
        conversation = [dict(m) for m in messages]
        rendered = self._try("/apply-template", {"messages": conversation}) or {}
        if isinstance(rendered.get("prompt"), str):
            return self._tokens({"content": rendered["prompt"], "add_special": False, "parse_special": True})
        return self._tokens({"model": self._model, "messages": conversation, "add_generation_prompt": True})

    def logits(self, ids: Sequence[int]) -> TopLogprobs:
        """The likeliest tokens after each of T ids."""
        choice = self._complete(ids, 1, logprobs=self._top, prompt_logprobs=self._top)
        rows = prompt_rows(choice, len(ids))
        if rows:
            rows.append(self._row(choice))
        else:
            rows = [self._row(self._complete(ids[: t + 1], 1, logprobs=self._top)) for t in range(len(ids))]
        return top_logprobs(rows, self._top)

    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """See `Contender`."""
        return chosen_ids(self._complete(ids, n, logprobs=1, ignore_eos=True), self._id_of)[:n]

    def run(self, prompt: Sequence[int], n: int) -> Timing:
        """By our clock, over a stream: to the first text, and from there to the last, of n tokens after the first.

        The network's time is in it. A server that ends the text early is charged for the tokens that it made.
        """
        began = time.perf_counter()
        body = self._body(prompt, n + 1, stream=True, stream_options={"include_usage": True}, ignore_eos=True)
        stamps: list[float] = []
        tokens = n + 1
        for event in self._events(body):
            if any(c.get("text") for c in event.get("choices") or []):
                stamps.append(time.perf_counter())
            tokens = int((event.get("usage") or {}).get("completion_tokens", tokens))
        if not stamps or (n and tokens < 2):
            raise StrixhloError(f"{self._root}: ended after {tokens} of {n + 1} tokens; it cannot be timed")
        return Timing(stamps[0] - began, (stamps[-1] - stamps[0]) * (n / (tokens - 1) if n else 0))

    def close(self) -> None:
        """Nothing is held."""

    def _only_model(self) -> str:
        found = self._ask("/v1/models", None).get("data")
        names = [str(m.get("id")) for m in found if isinstance(m, Mapping)] if isinstance(found, list) else []
        if len(names) != 1:
            raise StrixhloError(
                f"{self._root}: serves {len(names)} models ({', '.join(names[:5])}); name one: {self._root}#NAME"
            )
        return names[0]

    def _row(self, choice: Mapping[str, Any]) -> Row:
        rows = generated_rows(choice, self._id_of)
        if not rows or not rows[0]:
            raise StrixhloError(f"{self._root}: gives no log-probabilities for /v1/completions with logprobs")
        return rows[0]

    def _body(self, ids: Sequence[int], n: int, **options: Any) -> dict[str, Any]:
        body = {"model": self._model, "prompt": [int(i) for i in ids], "max_tokens": n, "temperature": 0}
        return body | self._extensions | options

    def _complete(self, ids: Sequence[int], n: int, **options: Any) -> dict[str, Any]:
        """The one choice of an answer; what a server refuses is left out, from the least common on."""
        while True:
            try:
                answer = self._ask("/v1/completions", self._body(ids, n, **options))
                break
            except RefusedRequest as error:
                if options.get("logprobs", 0) >= TOP:
                    self._top = options["logprobs"] = FEWER.get(options["logprobs"], TOP)
                    options |= {k: self._top for k in ("prompt_logprobs",) if k in options}
                elif self._extensions or {"prompt_logprobs", "ignore_eos"} & options.keys():
                    self._extensions = {}
                    options = {k: v for k, v in options.items() if k == "logprobs"}
                else:
                    raise StrixhloError(f"{error} (a prompt of token ids, with logprobs, is needed)") from None
        choices, usage = answer.get("choices"), answer.get("usage") or {}
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise StrixhloError(f"{self._root}: /v1/completions answers without choices")
        if usage.get("prompt_tokens", len(ids)) != len(ids):
            raise StrixhloError(
                f"{self._root}: evaluated {usage['prompt_tokens']} tokens of a prompt of {len(ids)} ids: it adds or"
                " drops some, so that the numbers would not be of the same text"
            )
        return dict(choices[0])

    def _tokens(self, body: dict[str, Any]) -> list[int] | None:
        tokens = (self._try("/tokenize", body) or {}).get("tokens")
        return [int(i) for i in tokens] if isinstance(tokens, list) and tokens else None

    def _try(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return self._ask(path, body)
        except RefusedRequest:
            return None

    def _ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        with _opened(self._root, path, body) as response:
            data = response.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise StrixhloError(f"{self._root}{path}: answers with more than {MOST_BYTES} bytes")
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            raise StrixhloError(f"{self._root}{path}: does not answer in JSON; is it an OpenAI server?") from None
        return answer if isinstance(answer, dict) else {}

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with _opened(self._root, "/v1/completions", body) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise StrixhloError(f"{self._root}: {str(event['error'])[:300]}")
                    yield event


class RefusedRequest(StrixhloError):
    """The server answered with an HTTP error of the request (4xx)."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key must not follow to another host."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def _opened(root: str, path: str, body: dict[str, Any] | None) -> Any:
    """The response to a GET (no body) or POST; StrixhloError where there is none."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(API_KEY):
        headers["Authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(root + path, None if body is None else json.dumps(body).encode(), headers)
        return urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS)
    except urllib.error.HTTPError as error:
        reason = " ".join(error.read(1000).decode(errors="replace").split())[:300]
        hint = f"; set {API_KEY}" if error.code in (401, 403) else ""
        kind = RefusedRequest if error.code in (400, 404, 405, 422) else StrixhloError
        raise kind(f"{root}{path}: HTTP {error.code}: {reason}{hint}") from None
    except (OSError, ValueError) as error:
        raise StrixhloError(f"{root}{path}: no answer: {getattr(error, 'reason', error)}") from None
