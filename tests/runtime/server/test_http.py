"""curl and raw sockets: errors in OpenAI's form, limits, keys, hosts, metrics, and the end of a server."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from typing import Any

import pytest

from strixhlo.errors import StrixhloError
from strixhlo.runtime.server.run import listen


def curl(url: str, *arguments: str, body: bytes | None = None) -> tuple[int, Any]:
    """(HTTP status, body: JSON where it is)."""
    kind = () if any("Content-Type" in a for a in arguments) else ("-H", "Content-Type: application/json")
    data = () if body is None else ("--data-binary", "@-", *kind)
    command = ["curl", "-sS", "--noproxy", "*", "-w", "\n%{http_code}", *data, *arguments, url]
    done = subprocess.run(command, input=body, capture_output=True, timeout=60, check=True)
    text, _, status = done.stdout.decode().rpartition("\n")
    try:
        return int(status), json.loads(text)
    except ValueError:
        return int(status), text


def test_health_slots_metrics(served: Any) -> None:
    assert curl(f"{served.url}/health") == (200, {"status": "ok"})
    _, slots = curl(f"{served.url}/slots")
    assert slots[0]["model"] == served.model and slots[0]["slots"] == 8
    assert set(slots[0]["blocks"]) == {"total", "in_use", "cached"}
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 2}).encode()
    assert curl(f"{served.url}/v1/completions", body=body)[1]["usage"]["total_tokens"] == 5
    _, metrics = curl(f"{served.url}/metrics")
    counted = [line for line in metrics.splitlines() if line.startswith("strixhlo_generated_tokens_total{")]
    assert len(counted) == 1 and float(counted[0].split()[-1]) >= 2
    assert "strixhlo_drafted_tokens_total{" in metrics and "strixhlo_accepted_tokens_total{" in metrics


def test_tokenize_and_back(served: Any) -> None:
    status, answer = curl(f"{served.url}/tokenize", body=json.dumps({"content": "Grüße 😀"}).encode())
    assert status == 200
    assert curl(f"{served.url}/detokenize", body=json.dumps(answer).encode()) == (200, {"content": "Grüße 😀"})


def test_server_sent_events(served: Any) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 3, "stream": True}).encode()
    _, text = curl(f"{served.url}/v1/completions", "-N", body=body)
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events[-1] == "[DONE]" and all(json.loads(e)["object"] == "text_completion" for e in events[:-1])


def events(url: str, body: dict[str, Any]) -> list[Any]:
    """The JSON of a stream's events."""
    _, text = curl(url, "-N", body=json.dumps(body).encode())
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(d) for d in data if d != "[DONE]"]


def test_every_endpoint_with_curl(served: Any) -> None:
    url = f"{served.url}/v1"
    models = curl(f"{url}/models")[1]["data"]
    assert [m["id"] for m in models] == [served.model] and curl(f"{url}/models/{served.model}")[1] == models[0]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
    whole = curl(f"{url}/chat/completions", body=json.dumps(chat).encode())[1]
    chunks = events(f"{url}/chat/completions", {**chat, "stream": True, "stream_options": {"include_usage": True}})
    deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"] != ""
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 5
    ask = {"input": "Hi", "max_output_tokens": 5, "temperature": 0}
    response = curl(f"{url}/responses", body=json.dumps(ask).encode())[1]
    last = events(f"{url}/responses", {**ask, "stream": True})[-1]["response"]
    assert last["output"][0]["content"] == response["output"][0]["content"] and last["usage"]["output_tokens"] == 5
    status, refused = curl(f"{url}/embeddings", body=json.dumps({"model": served.model, "input": "Hi"}).encode())
    assert (status, refused["error"]["code"]) == (501, "embeddings_not_supported")


@pytest.mark.parametrize(
    ("path", "body", "arguments", "status"),
    [
        ("v1/completions", b"{", (), 400),
        ("v1/completions", b"[" * 100_000, (), 400),
        ("v1/completions", b'{"prompt": "\\ud800"}', (), 400),
        ("v1/completions", b'{"prompt": [1, 99999999]}', (), 400),
        ("v1/completions", b'{"prompt": []}', (), 400),
        ("v1/completions", b'{"prompt": "x", "temperature": NaN}', (), 400),
        ("v1/completions", b'{"prompt": "x", "model": "other"}', (), 404),
        ("v1/completions", b"{}", ("-H", "Content-Type: text/plain"), 415),
        ("v1/completions", b" " * (9 << 20), (), 413),
        ("v1/completions", b" " * (9 << 20), ("-H", "Transfer-Encoding: chunked"), 413),
        ("v1/completions", json.dumps({"prompt": "word " * 200_000}).encode(), (), 400),
        ("v1/nothing", b"{}", (), 404),
        ("health", b"{}", (), 405),
        ("v1/completions", b"{}", ("-H", "Host: evil.example"), 403),
        ("v1/completions", b"{}", ("-H", "Origin: http://evil.example"), 403),
        ("v1/completions", b"{}", ("-H", "Origin: http://[evil"), 403),
        ("v1/completions", b'{"prompt": "x", "stop": ["a", "b", 5]}', (), 400),
        ("v1/responses", b'{"input": "x", "text": {"format": 5}}', (), 400),
        ("v1/responses", b'{"input": [{"role": "user", "content": 5}]}', (), 400),
        ("v1/responses", b'{"input": [{"role": "user", "content": [5]}]}', (), 400),
        ("v1/responses", b'{"input": [{"type": "function_call_output", "call_id": "x", "output": {}}]}', (), 400),
        ("detokenize", b'{"tokens": [-1]}', (), 400),
    ],
)
def test_refused_in_openais_form(served: Any, path: str, body: bytes, arguments: tuple[str, ...], status: int) -> None:
    found, answer = curl(f"{served.url}/{path}", *arguments, body=body)
    assert found == status
    assert set(answer["error"]) == {"message", "type", "param", "code"} and answer["error"]["message"]
    assert curl(f"{served.url}/health")[0] == 200


def test_half_closed_sockets_leave_nothing_running(served: Any) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        connection.recv(1)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    body = json.dumps({"prompt": "Once", "max_tokens": 1}).encode()
    assert curl(f"{served.url}/v1/completions", "-m", "10", body=body)[0] == 200


def post(port: int, body: dict[str, Any]) -> socket.socket:
    """A connection on which a completion was asked for."""
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def wait_for(served: Any, running: int, waiting: int) -> None:
    """Until so many requests run and wait."""
    end = time.monotonic() + 120
    while True:
        _, (slots,) = curl(f"{served.url}/slots")
        if (len(slots["running"]), slots["waiting"]) == (running, waiting):
            return
        assert time.monotonic() < end, slots


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_while_its_prompt_waits_or_is_computed(served: Any, streamed: bool) -> None:
    long = {"prompt": [7] * 4, "max_tokens": 900, "n": 8, "ignore_eos": True, "stream": True, "temperature": 2}
    prompt = {"prompt": [11, 12, 13] * 300, "max_tokens": 100, "ignore_eos": True, "stream": streamed}
    with post(served.port, long):
        wait_for(served, 8, 0)
        with post(served.port, prompt):
            wait_for(served, 8, 1)
        wait_for(served, 8, 0)  # left the queue while all slots were taken
    wait_for(served, 0, 0)
    with post(served.port, prompt):
        wait_for(served, 1, 0)
    wait_for(served, 0, 0)


def test_keys_and_the_end_under_load(serve_smollm2: Any) -> None:
    process, url, stop = serve_smollm2("--api-key", "first", "--api-key", "second", "--drain-seconds", "60")
    body = json.dumps({"prompt": "Once", "max_tokens": 200, "ignore_eos": True}).encode()
    for key, status in (("", 401), ("Bearer wrong", 401), ("Basic first", 401), ("Bearer first", 200)):
        assert curl(f"{url}/v1/models", "-H", f"Authorization: {key}")[0] == status
    assert curl(f"{url}/health")[0] == 200
    command = ["curl", "-sS", "--noproxy", "*", "--data-binary", "@-", "-H", "Content-Type: application/json"]
    command += ["-H", "Authorization: Bearer second", f"{url}/v1/completions"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin and client.stdout
        client.stdin.write(body)
        client.stdin.close()
        while not curl(f"{url}/slots", "-H", "Authorization: Bearer first")[1][0]["running"]:
            assert process.poll() is None and client.poll() is None
        stop(process)
        assert json.load(client.stdout)["usage"]["completion_tokens"] == 200


def test_a_port_in_use_is_one_line(served: Any) -> None:
    with pytest.raises(StrixhloError, match=f"cannot listen on 127.0.0.1 port {served.port}: .*in use; choose another"):
        listen("127.0.0.1", served.port)
