"""HTTP/1.1 as uvicorn speaks it, with what it has no setting for: time limits for the head of a request and for a
client that does not read, a bound on connections, and errors of the protocol in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError

HEAD_SECONDS = 30.0  # from the connection, or the end of the last answer, to the end of a request's head
STALL_SECONDS = 60.0  # for a client that reads nothing of an answer that waits to be sent
MAX_CONNECTIONS = 512  # half of the open files that a process has by default

log = logging.getLogger("strixhlo.server")


class HttpProtocol(H11Protocol):
    """One connection. uvicorn's own timer for connections that are kept open ends with the first byte that comes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._idle: asyncio.TimerHandle | None = None  # no request is at work
        self._stall: asyncio.TimerHandle | None = None  # more waits to be sent than may
        self._unsent: float = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; one too many is sent away."""
        super().connection_made(transport)
        self._begin_idle()
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._end_idle()

    def on_response_complete(self) -> None:
        """An answer is written, and the head of the next request may be there already."""
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before:
            self._begin_idle()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        super().pause_writing()
        self._stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read on."""
        self._end_stall()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._end_idle()
        self._end_stall()
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
        self._begin_idle()

    def _begin_idle(self) -> None:
        self._end_idle()
        self._unsent = math.inf
        self._idle = self.loop.call_later(HEAD_SECONDS, self._idle_too_long)

    def _end_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _idle_too_long(self) -> None:
        """Close; what is not sent yet has time as long as the client reads on."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self.transport.close()
        elif unsent < self._unsent:
            self._unsent = unsent
            self._idle = self.loop.call_later(HEAD_SECONDS, self._idle_too_long)
        else:
            self.transport.abort()
