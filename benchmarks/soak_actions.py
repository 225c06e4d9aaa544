"""What the clients of a soak do: right requests, whose answers are checked, and all kinds of wrong ones."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from raw_http import ask, connect, read_events, read_head, request_head, send

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Wrong(Exception):
    """The server did what it must not do."""


@dataclass(frozen=True)
class Reference:
    """A prompt, and the greedy answer that it has alone."""

    prompt: tuple[int, ...]
    text: str
    tokens: int

    def body(self, **more: Any) -> bytes:
        """The request that must give it."""
        fields = {"prompt": self.prompt, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
        return json.dumps({**fields, **more}).encode()


@dataclass
class Clients:
    """What all clients share: where the server is, what is right, and what happened so far."""

    port: int
    references: list[Reference]
    rng: random.Random
    happened: Counter[str] = field(default_factory=Counter)
    stopping: bool = False  # SIGTERM was sent: 503 and refused connections are right too

    def right(self) -> Reference:
        """Any of the references."""
        return self.rng.choice(self.references)

    def refused(self, status: int) -> bool:
        """Whether a right request was refused as it may be."""
        if status == 429 or (status == 503 and self.stopping):
            self.happened[f"refused with {status}"] += 1
            return True
        if status != 200:
            raise Wrong(f"a right request was answered with {status}")
        return False


def check(found: str, wanted: Reference) -> None:
    """A whole answer is the reference."""
    if found != wanted.text:
        raise Wrong(f"wrong stream: {found!r} in place of {wanted.text!r}")


async def whole(clients: Clients) -> None:
    """A greedy completion."""
    wanted = clients.right()
    status, answer = await ask(clients.port, COMPLETIONS, wanted.body())
    if not clients.refused(status):
        check(answer["choices"][0]["text"], wanted)
        clients.happened["tokens checked"] += wanted.tokens


async def streamed(clients: Clients, *, pause: float = 0, receive_buffer: int | None = None) -> None:
    """A greedy stream, read to its end."""
    wanted = clients.right()
    reader, writer = await connect(clients.port, receive_buffer=receive_buffer)
    try:
        send((reader, writer), COMPLETIONS, wanted.body(stream=True))
        status, _ = await read_head(reader)
        if clients.refused(status):
            return
        text = ""
        async with aclosing(read_events(reader)) as events:
            async for event in events:
                if "error" in event:
                    raise Wrong(f"an error in a stream: {event}")
                text += event["choices"][0]["text"]
                await asyncio.sleep(pause)
        check(text, wanted)
        clients.happened["tokens checked"] += wanted.tokens
    finally:
        writer.close()


async def slow_reader(clients: Clients) -> None:
    """The same through a small window, read with pauses."""
    await streamed(clients, pause=0.05, receive_buffer=2048)


async def burst(clients: Clients) -> None:
    """More requests at once than may wait."""
    await asyncio.gather(*(streamed(clients) for _ in range(12)))


async def sampled_chat(clients: Clients) -> None:
    """A chat completion by chance."""
    body = {"messages": [{"role": "user", "content": f"Count to {clients.rng.randrange(10)}."}], "max_tokens": 12}
    body |= {"temperature": 1.2, "top_p": 0.9, "seed": clients.rng.randrange(1 << 32)}
    status, answer = await ask(clients.port, CHAT, json.dumps(body).encode())
    if not clients.refused(status) and answer["usage"]["completion_tokens"] > 12:
        raise Wrong(f"more tokens than asked for: {answer}")


async def abort(clients: Clients) -> None:
    """A client that leaves after some bytes of the stream, or before the first."""
    reader, writer = await connect(clients.port)
    send((reader, writer), COMPLETIONS, clients.right().body(stream=True, max_tokens=200))
    if clients.rng.random() < 0.7:
        await reader.read(clients.rng.randrange(1, 2000))
    await asyncio.sleep(clients.rng.random() / 5)
    if clients.rng.random() < 0.5:
        writer.transport.abort()  # a reset in place of an end
    writer.close()


async def abort_whole(clients: Clients) -> None:
    """The same without a stream."""
    reader, writer = await connect(clients.port)
    send((reader, writer), CHAT, json.dumps({"messages": [{"role": "user", "content": "Hi"}], "n": 2}).encode())
    await asyncio.sleep(clients.rng.random())
    writer.close()


async def half_closed(clients: Clients) -> None:
    """A client that will send no more, which counts as one that left."""
    reader, writer = await connect(clients.port)
    try:
        send((reader, writer), COMPLETIONS, clients.right().body(stream=True, max_tokens=200))
        writer.write_eof()
        await reader.read()
    finally:
        writer.close()


async def half_sent(clients: Clients) -> None:
    """A body of which only the beginning comes."""
    _, writer = await connect(clients.port)
    writer.write(request_head(COMPLETIONS, 1000) + b'{"prompt": "')
    await asyncio.sleep(clients.rng.random() / 2)
    writer.close()


async def malformed(clients: Clients) -> None:
    """Bodies that are no JSON, or no request."""
    right = clients.right().body()
    bodies = [right[: clients.rng.randrange(len(right))], clients.rng.randbytes(200), b"[" * 50_000, b"", b"null"]
    bodies += [b'{"prompt": "x", "n": 0}', b'{"prompt": [-1]}', b'{"prompt": [99999999]}', b'{"prompt": "\\ud800"}']
    await refused_as(clients, clients.rng.choice(bodies), 400)


async def oversize(clients: Clients) -> None:
    """A body beyond the limit."""
    await refused_as(clients, b" " * (9 << 20), 413)


async def long_prompt(clients: Clients) -> None:
    """1 MB of text, which no context here can hold, or so much less that only its tokens tell that."""
    text = "".join(clients.rng.choices("abcdefgh \n", k=clients.rng.choice([60_000, 1 << 20])))
    await refused_as(clients, json.dumps({"prompt": text}).encode(), 400)


async def refused_as(clients: Clients, body: bytes, wanted: int) -> None:
    """Refused with this status, in OpenAI's form."""
    status, answer = await ask(clients.port, COMPLETIONS, body)
    if clients.stopping and status == 503:
        return
    if status != wanted or not answer["error"]["message"]:
        raise Wrong(f"answered with {status} in place of {wanted}: {str(answer)[:200]}")


Action = Callable[[Clients], Awaitable[None]]
ACTIONS: dict[Action, int] = {  # with how often each is chosen
    streamed: 10,
    whole: 6,
    slow_reader: 2,
    sampled_chat: 3,
    burst: 1,
    abort: 8,
    abort_whole: 3,
    half_closed: 3,
    half_sent: 3,
    malformed: 5,
    oversize: 1,
    long_prompt: 1,
}
