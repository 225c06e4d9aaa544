"""As much of HTTP/1.1 as a client needs that behaves badly on purpose: every byte and every end is the caller's."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, *, receive_buffer: int | None = None) -> Connection:
    """A connection to the server; receive_buffer: bytes that the system may hold for a slow reader."""
    if receive_buffer is None:
        return await asyncio.open_connection("127.0.0.1", port)
    bare = socket.socket()
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    bare.setblocking(False)
    await asyncio.get_running_loop().sock_connect(bare, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=bare, limit=receive_buffer)


def request_head(path: str, length: int, method: str = "POST") -> bytes:
    """The head of a JSON request after which the connection closes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Connection: close"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def send(connection: Connection, path: str, body: bytes) -> None:
    """Write a whole request."""
    connection[1].write(request_head(path, len(body)) + body)


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """(status, headers with lower-case names)."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    return int(head[0].split()[1]), headers


async def read_events(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """The JSON of each server-sent event of a chunked body, up to [DONE]. EOFError when the stream is cut."""
    held = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        held += (await reader.readexactly(size + 2))[:-2]
        *lines, held = held.split(b"\n")
        for line in lines:
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    raise EOFError("the stream ended without [DONE]")


async def ask(port: int, path: str, body: bytes, method: str = "POST") -> tuple[int, Any]:
    """(status, JSON) of one whole exchange."""
    reader, writer = await connect(port)
    try:
        writer.write(request_head(path, len(body), method) + body)
        status, headers = await read_head(reader)
        return status, json.loads(await reader.readexactly(int(headers["content-length"])))
    finally:
        writer.close()
