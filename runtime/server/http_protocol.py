"""HTTP/1.1 as uvicorn speaks it, with what it has no setting for: a time limit for the head of a request, a bound on
connections, and errors of the protocol in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError

HEAD_SECONDS = 30.0  # from the connection, or the end of the last answer, to the end of a request's head
MAX_CONNECTIONS = 512  # half of the open files that a process has by default

log = logging.getLogger("strixhlo.server")


class HttpProtocol(H11Protocol):
    """One connection. uvicorn's own timer for connections that are kept open ends with the first byte that comes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; one too many is sent away."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """An answer is out, and the head of the next request may be there already."""
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before and not self.transport.is_closing():
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        body = json.dumps(ApiError(400, msg).body()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers.append((b"connection", b"close"))
        events = (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body))
        try:
            for event in (*events, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError as error:  # an answer has begun: nothing else can be said
            log.info("a connection is closed: %s", error)
        self.transport.close()

    def _await_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._no_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _no_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
