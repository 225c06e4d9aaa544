"""A soak of `strixhlo serve`: right requests and wrong ones at once, clients that leave, SIGTERM under load at the end.

    python benchmarks/serve_soak.py BUNDLE [--minutes 30] [--clients 6] [--seed 0]

Verified, else the exit status is 1: every completed greedy stream is the prompt's reference; every wrong request is
refused in OpenAI's form; resident memory stays within 5% after the warm-up; nothing runs, waits, or holds a block of
the KV pool at the end; after SIGTERM what runs is finished and the rest refused, and the server ends with status 0.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from raw_http import ask
from server_process import ServerProcess, serving
from soak_actions import ACTIONS, Action, Clients, Reference, Wrong, streamed

SECONDS = 120  # for one action; then it hangs
# Reuse of a prefix changes which chunk computes a position, and with it logits: nearer than this the order of the best
# two tokens is not certain, and a reference ends before it.
GAP = 0.25
WORDS = ("river", "stone", "apple", "window", "garden", "silver", "thunder", "paper", "castle", "orange", "music")


async def reference(port: int, rng: random.Random) -> Reference:
    """A prompt that says the same several times, so that the model is sure how it goes on; answered alone."""
    while True:
        phrase = " ".join(rng.choices(WORDS, k=rng.randrange(5, 25)))
        _, ids = await ask(
            port, "/tokenize", json.dumps({"content": ". ".join([phrase] * rng.randrange(3, 8))}).encode()
        )
        body = {"prompt": ids["tokens"], "max_tokens": 64, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        _, answer = await ask(port, "/v1/completions", json.dumps(body).encode())
        choice = answer["choices"][0]
        best = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"]]
        sure = next((i for i, top in enumerate(best) if len(top) < 2 or top[-1] - top[-2] < GAP), len(best))
        if sure >= 12:
            begins = [*choice["logprobs"]["text_offset"], len(choice["text"])]
            return Reference(tuple(ids["tokens"]), choice["text"][: begins[sure]], sure)


async def fill_cache(port: int, rng: random.Random) -> None:
    """Prompts by chance until no more blocks of the KV pool can be used: a block's memory is resident from its first
    use, and how soon all have been used is a matter of the machine's speed."""
    before = -1
    while True:
        _, (slots,) = await ask(port, "/slots", b"", "GET")
        blocks = slots["blocks"]
        if blocks["cached"] <= before:
            return
        before = blocks["cached"]
        for _ in range(slots["slots"]):
            ids = [rng.randrange(10, 5000) for _ in range(2 * blocks["total"])]
            await ask(port, "/v1/completions", json.dumps({"prompt": ids, "max_tokens": 1}).encode())


@dataclass
class Soak:
    """One run: the server, its clients, and what was found."""

    server: ServerProcess
    clients: Clients
    until: float
    faults: list[str] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)

    async def act(self, action: Action) -> None:
        """One action; a failure becomes a fault."""
        name = action.__name__
        try:
            async with asyncio.timeout(SECONDS):
                await action(self.clients)
            self.clients.happened[name] += 1
        except TimeoutError:
            self.faults.append(f"{name}: no end after {SECONDS} seconds")
        except (ConnectionError, EOFError) as error:
            if not self.clients.stopping:
                self.faults.append(f"{name}: {type(error).__name__}: {error}")
        except Wrong as error:
            self.faults.append(f"{name}: {error}")

    async def client(self) -> None:
        """Actions until the time is over."""
        while time.monotonic() < self.until and len(self.faults) < 20:
            await self.act(self.clients.rng.choices(list(ACTIONS), list(ACTIONS.values()))[0])

    async def watch(self) -> None:
        """Resident memory, once a second."""
        while time.monotonic() < self.until:
            self.resident.append((time.monotonic(), self.server.resident()))
            await asyncio.sleep(1)

    async def at_rest(self) -> dict[str, Any]:
        """/slots once nothing runs; a fault if that does not come."""
        slots: dict[str, Any] = {}
        for _ in range(300):
            _, (slots,) = await ask(self.server.port, "/slots", b"", "GET")
            if not slots["running"] and not slots["waiting"] and not slots["blocks"]["in_use"]:
                return slots
            await asyncio.sleep(0.1)
        self.faults.append(f"not at rest 30 seconds after the last client left: {slots}")
        return slots

    async def terminate(self) -> None:
        """SIGTERM while streams run and more come."""
        under_load = [asyncio.create_task(self.act(streamed)) for _ in range(6)]
        await asyncio.sleep(0.5)
        self.clients.stopping = True
        self.server.process.send_signal(signal.SIGTERM)
        more = [asyncio.create_task(self.act(streamed)) for _ in range(6)]
        await asyncio.gather(*under_load, *more)
        try:
            code = await asyncio.to_thread(self.server.process.wait, 60)
        except Exception as error:
            self.faults.append(f"after SIGTERM: {error}")
            return
        if code:
            self.faults.append(f"the server ended with {code}")


def growth(samples: list[tuple[float, int]], warm: float) -> float:
    """Largest over smallest resident memory after the warm-up, less 1."""
    sizes = [size for at, size in samples if at >= warm]
    return max(sizes) / min(sizes) - 1


async def run(server: ServerProcess, minutes: float, clients: int, seed: int) -> dict[str, Any]:
    """The whole of it -> what was found."""
    rng = random.Random(seed)
    references = [await reference(server.port, rng) for _ in range(8)]
    soak = Soak(server, Clients(server.port, references, rng), 0)
    await fill_cache(server.port, rng)
    for action in ACTIONS:  # all clients at once, so that memory has been as high as this mix can bring it
        await asyncio.gather(*(soak.act(action) for _ in range(clients)))
    handles, began = server.handles(), time.monotonic()
    soak.until = began + minutes * 60
    await asyncio.gather(soak.watch(), *(soak.client() for _ in range(clients)))
    rest = await soak.at_rest()
    grown = growth(soak.resident, began + minutes * 60 / 4)
    if grown > 0.05:
        soak.faults.append(f"resident memory moved by {grown:.1%} after the warm-up")
    if server.handles() > handles + 8:
        soak.faults.append(f"{server.handles()} open files and threads at the end, {handles} at the beginning")
    await soak.terminate()
    said = "".join(server.said)
    if "Traceback" in said or "internal error" in said:
        soak.faults.append(f"the server wrote: {said[-2000:]}")
    sizes = [size >> 20 for _, size in soak.resident]
    return {
        "minutes": minutes,
        "happened": dict(soak.clients.happened),
        "resident_MiB": sizes[:: max(len(sizes) // 20, 1)],
        "resident_growth": round(grown, 4),
        "slots_at_rest": rest,
        "faults": soak.faults,
    }


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--clients", default=6, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(bundle: Path, minutes: float, clients: int, seed: int) -> None:
    """Run it; exit status 1 where something was wrong."""
    with serving(bundle, "--parallel", "4", "--queue", "8", "--drain-seconds", "45") as server:
        found = asyncio.run(run(server, minutes, clients, seed))
    click.echo(json.dumps(found, indent=1))
    if found["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
