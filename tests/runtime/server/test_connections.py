"""Connections that send nothing, no HTTP, or too slowly; no model is needed for these."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

SECONDS = 1.0  # for a head, and for a body
SERVER = f"""
import socket
from strixhlo.runtime.server import http_protocol
from strixhlo.runtime.server.app import Settings, create_app
from strixhlo.runtime.server.run import listen, serve
http_protocol.HEAD_SECONDS, http_protocol.STALL_SECONDS, http_protocol.MAX_CONNECTIONS = {SECONDS}, {SECONDS}, 8
bound = listen("127.0.0.1", 0)
bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
app = create_app({{}}, Settings(body_seconds={SECONDS}))
serve(app, bound, drain_seconds=1, ready=lambda: print(bound.getsockname()[1], flush=True))
"""
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server without models and with short limits; it writes nothing to standard error."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout and process.stderr
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()
        assert process.stderr.read() == ""


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes; its usual limits are longer than this waits."""
    parts = []
    with suppress(ConnectionResetError):  # it closed before it had read all that was sent
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("sent", [b"", HEALTH[:20], HEALTH, HEALTH + HEALTH[:20]], ids=len)
def test_a_head_has_a_time_limit(port: int, sent: bytes) -> None:
    """Also one of which a byte comes now and then, and that of the next request on a connection that is kept open."""
    with connect(port) as connection:
        connection.sendall(sent)
        if sent == HEALTH[:20]:
            with suppress(ConnectionError):  # on a busy machine the time may be over before the last byte
                for byte in HEALTH[20:24]:
                    time.sleep(0.1)
                    connection.sendall(bytes([byte]))
        said = read_all(connection)
    assert said.count(b'{"status":"ok"}') == sent.count(HEALTH)


def test_a_body_has_a_time_limit(port: int) -> None:
    for head in (b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
        with connect(port) as connection:
            connection.sendall(POST + head)
            said = read_all(connection)
        status, _, body = said.partition(b"\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 408 ") and json.loads(body)["error"]["code"] == "timeout"


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(HEALTH + HEALTH.replace(b"/health", b"/v1/models") + HEALTH)
        said = read_all(connection)
    assert [said.find(b'"ok"'), said.find(b'"list"'), said.rfind(b'"ok"')] == sorted(
        {said.find(b'"ok"'), said.find(b'"list"'), said.rfind(b'"ok"')}
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00" * 20 + b"\r\n\r\n",
        HEALTH.replace(b"Host", b"Ho st"),
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nnot-a-size\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        POST + b"Content-Length: -5\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_openais_form(port: int, sent: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(sent)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and json.loads(body)["error"]["message"]


def test_a_client_that_does_not_read_is_cut_off(port: int) -> None:
    """Its answers fill all buffers; the server stops to read, then closes, and the unread rest is lost."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", port))
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(HEALTH * 100)


def test_too_many_connections_are_sent_away(port: int) -> None:
    opened = [connect(port) for _ in range(12)]
    try:
        for connection in opened:
            connection.sendall(HEALTH)
        first = []
        for connection in opened:
            try:
                first.append(connection.recv(15))
            except ConnectionError:
                first.append(b"")
        assert first.count(b"HTTP/1.1 200 OK") == 8 and first.count(b"") == 4
    finally:
        for connection in opened:
            connection.close()
