"""The contender behind a URL: the answers of llama-server, vLLM and OpenAI, and what servers refuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from strixhlo.errors import StrixhloError
from strixhlo.runtime.native.openai_server import API_KEY, OpenAIServer
from strixhlo.runtime.numerics import compare_top, log_softmax

V = 40
TABLE = log_softmax(np.random.default_rng(0).normal(size=(V, V)) * 3)  # log-probabilities after each token
IDS = [3, 1, 4, 1, 5, 9]


def best(token: int, n: int) -> list[tuple[int, float]]:
    order = np.argsort(-TABLE[token])[:n]
    return [(int(i), float(TABLE[token, i])) for i in order]


def generated(body: dict[str, Any]) -> list[int]:
    ids = [body["prompt"][-1]]
    while len(ids) <= body["max_tokens"]:
        ids.append(best(ids[-1], 1)[0][0])
    return ids


def llama_server(body: dict[str, Any]) -> dict[str, Any]:
    ids = generated(body)
    content = [
        {
            "id": new,
            "token": "?",
            "top_logprobs": [{"id": i, "token": "?", "logprob": v} for i, v in best(old, body["logprobs"])],
        }
        for old, new in pairwise(ids)
    ]
    return {"text": "x", "logprobs": {"content": content}}


def vllm(body: dict[str, Any]) -> dict[str, Any]:
    assert body["return_tokens_as_token_ids"]
    ids, n = generated(body), body["logprobs"]
    choice = {
        "logprobs": {
            "tokens": [f"token_id:{i}" for i in ids[1:]],
            "top_logprobs": [{f"token_id:{i}": v for i, v in best(t, n)} for t in ids[:-1]],
        }
    }
    if k := body.get("prompt_logprobs"):
        rows = [{str(i): {"logprob": v, "rank": 1} for i, v in best(t, k)} for t in body["prompt"][:-1]]
        choice["prompt_logprobs"] = [None, *rows]
    return choice


def openai(body: dict[str, Any]) -> dict[str, Any]:
    """Texts alone, five at most, and no field that it does not know."""
    if body["logprobs"] > 5 or "cache_prompt" in body or "prompt_logprobs" in body:
        raise ValueError("unknown")
    ids = generated(body)
    tops = [{f"w{i}": v for i, v in best(t, body["logprobs"])} for t in ids[:-1]]
    return {"logprobs": {"tokens": [f"w{i}" for i in ids[1:]], "top_logprobs": tops}}


Start = Callable[..., OpenAIServer]


@pytest.fixture
def start() -> Iterator[Start]:
    """(what answers, extra prompt tokens, tokens to ask for) -> a contender before a server that wants a key."""
    servers = []

    def run(choice: Callable[[dict[str, Any]], dict[str, Any]], more: int = 0, top: int = 20) -> OpenAIServer:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def answer(self, code: int, value: dict[str, Any]) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def do_GET(self) -> None:
                known = self.headers["Authorization"] == "Bearer secret"
                self.answer(200 if known else 401, {"data": [{"id": "m"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/completions":
                    return self.answer(404, {})
                try:
                    found = choice(body)
                except ValueError:
                    return self.answer(400, {"error": "unknown field"})
                usage = {"prompt_tokens": len(body["prompt"]) + more, "completion_tokens": body["max_tokens"]}
                return self.answer(200, {"choices": [found], "usage": usage})

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return OpenAIServer(f"http://127.0.0.1:{server.server_port}/v1", lambda text: int(text[1:]), top)

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("choice", "n"), [(llama_server, 20), (vllm, 20), (openai, 5)])
def test_the_likeliest_tokens_by_id(
    start: Start, choice: Callable[..., Any], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, "secret")
    server = start(choice)
    assert server.name == "server m"
    found = server.logits(IDS)
    assert found.ids.shape == (len(IDS), n)
    for t, token in enumerate(IDS):
        assert dict(zip(found.ids[t].tolist(), found.logprobs[t].tolist(), strict=True)) == pytest.approx(
            dict(best(token, n))
        )
    assert server.greedy(IDS, 4) == generated({"prompt": IDS, "max_tokens": 4})[1:]
    assert server.encode("text") is None and server.encode_chat([{"role": "user", "content": "x"}]) is None
    same = compare_top(TABLE[IDS], found.ids, found.logprobs, [1, 4, 1, 5, 9, 2]).summary(V, n)
    assert same.mean_kl < 1e-9 and same.relative_error < 1e-9 and same.top_n == n
    other = compare_top(TABLE[::-1][IDS], found.ids, found.logprobs, [1, 4, 1, 5, 9, 2]).summary(V, n)
    assert other.mean_kl > 0.1 and other.top1_agreement < 0.9


def test_the_whole_vocabulary_of_llama_server(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "secret")
    found = start(llama_server, top=V).logits(IDS)
    whole = found.dense(V)
    assert whole is not None and np.allclose(whole, TABLE[IDS])
    assert start(llama_server).logits(IDS).dense(V) is None  # 20 of 40
    assert start(openai, top=V).logits(IDS).ids.shape == (len(IDS), 5)  # refuses 40, then 20


def test_a_server_that_adds_a_token_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "secret")
    with pytest.raises(StrixhloError, match="evaluated 7 tokens of a prompt of 6"):
        start(vllm, 1).logits(IDS)


def test_without_the_key_the_variable_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY, raising=False)
    with pytest.raises(StrixhloError, match=f"HTTP 401.*set {API_KEY}"):
        start(vllm)


def test_no_server() -> None:
    with pytest.raises(StrixhloError, match="no answer"):
        OpenAIServer("http://127.0.0.1:9", lambda _text: None)
