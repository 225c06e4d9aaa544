"""What every request passes first: its host and origin, its key, the size of its body and the time to send it."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

PUBLIC = frozenset({"/health", "/", "/page.js", "/page.css"})  # without a key


class Gate:
    """ASGI middleware; refuses in OpenAI's form, and hands the body on whole.

    keys: any of them opens (none: no key is needed). hosts: names that a Host header may have, so that a page elsewhere
    cannot reach a local server through a name of its own (DNS rebinding); None: any.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Sequence[str], hosts: frozenset[str] | None, max_body: int, body_seconds: float
    ) -> None:
        self._app, self._keys, self._hosts = app, tuple(k.encode() for k in keys), hosts
        self._max_body, self._body_seconds = max_body, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            self._check(scope["path"], headers)
            body = await self._body(headers, receive)
        except ApiError as error:
            await _refuse(error, send)
            return
        if body is None:  # the client left
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and _name(host) not in self._hosts:
            raise ApiError(403, f"this server does not answer for the host {host!r}", code="host_not_allowed")
        origin = headers.get(b"origin")
        if origin is not None and _netloc(origin.decode("latin-1")) != host:
            raise ApiError(403, "requests from other web pages are not allowed", code="origin_not_allowed")
        if self._keys and path not in PUBLIC and not self._opens(headers.get(b"authorization", b"")):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")

    def _opens(self, authorization: bytes) -> bool:
        """Every key is compared, each in constant time."""
        scheme, _, key = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and any([hmac.compare_digest(key.strip(), k) for k in self._keys])

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        length = headers.get(b"content-length", b"0")
        too_large = ApiError(413, f"the body is larger than {self._max_body} bytes", code="body_too_large")
        if length.isdigit() and int(length) > self._max_body:
            await _drain(receive, 4 * self._max_body)
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._max_body:
                        await _drain(receive, 4 * self._max_body)
                        raise too_large
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            seconds = f"{self._body_seconds:.0f}"
            raise ApiError(408, f"the body did not come within {seconds} seconds", code="timeout") from None


async def _drain(receive: Receive, most: int) -> None:
    """Read on for a while: a connection closed with unread data is reset, and the client would not see the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while most > 0:
                message = await receive()
                most -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _netloc(origin: str) -> str | None:
    """Its host and port; None of one that is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _name(host: str) -> str:
    """The host without its port."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0].lower()


async def _refuse(error: ApiError, send: Send) -> None:
    body = json.dumps(error.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))  # the rest of the body, if any, is not read
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
