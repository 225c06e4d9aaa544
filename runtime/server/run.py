"""The listening socket and the life of a server: start, SIGTERM (finish what runs, refuse the new), end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ...errors import StrixhloError
from .http_protocol import HttpProtocol

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; StrixhloError when the address is in use or not ours. Port 0: any free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StrixhloError(f"--host {host}: {error.strerror or error}") from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(128)  # now, so that a second server on this port fails here
    except OSError as error:
        bound.close()
        raise StrixhloError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --port or --host"
        ) from None
    return bound


def allowed_hosts(host: str) -> frozenset[str] | None:
    """Names in Host headers: a server on loopback answers only for loopback's names; any other for all."""
    return LOOPBACK if host in ("localhost", "127.0.0.1", "::1") else None


class _Server(uvicorn.Server):
    """SIGTERM and SIGINT: refuse new requests, let those that run finish; a second signal, or the drain time, ends."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so once requests are answered."""
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours in place of uvicorn's, which raises the signal again after a clean end."""

        def end(_number: int, _frame: FrameType | None) -> None:
            self.force_exit = self.should_exit
            self.should_exit = self._app.state.draining = True

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(app: FastAPI, bound: socket.socket, *, drain_seconds: int, ready: Callable[[], None]) -> None:
    """Serve until a signal. Call it in the main thread."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a line for all that is no HTTP is what floods a log
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        loop="asyncio",
        http=HttpProtocol,
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=drain_seconds,
        h11_max_incomplete_event_size=64 << 10,
    )
    asyncio.run(_Server(config, app, ready).serve([bound]))
