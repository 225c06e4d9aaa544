"""`strixhlo bench --target rocm --simulate`: what each launch of a decoded token does, beside the least it could read.

The simulator (tests/gfx1151_sim of a checkout) executes the program's machine code under IREE's own HIP driver. It has
no clock, so nothing here is a time.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from ..bundle import Bundle
from ..command_group import Progress
from ..errors import StrixhloError
from ..progress import spinner

# Of a launch of the simulator's account, what is summed up.
SUMS = ("load_requested", "load_distinct", "store_requested", "store_distinct", "lds_moved")


@dataclass(frozen=True)
class SimulatedToken:
    """One decoded token: its position, the launches' records, and the floor in bytes (weights; keys and values)."""

    position: int
    launches: tuple[dict[str, Any], ...]
    weight_bytes: float
    kv_bytes: int

    def total(self, name: str) -> int:
        """The sum of one number over the launches."""
        return sum(launch[name] for launch in self.launches)

    @property
    def floor(self) -> float:
        """Bytes that must be read: active weights, and the keys and values that the token sees."""
        return self.weight_bytes + self.kv_bytes

    def record(self) -> dict[str, Any]:
        """Plain data for JSON."""
        sums = {name: self.total(name) for name in (*SUMS, "wmma")}
        return {
            "position": self.position,
            "launches": list(self.launches),
            "sum": {"launches": len(self.launches), "instructions": self.instructions(), **sums},
            "floor": {"weights": self.weight_bytes, "kv": self.kv_bytes, "bytes": self.floor},
            "distinct_over_floor": sums["load_distinct"] / self.floor,
            "requested_over_floor": sums["load_requested"] / self.floor,
        }

    def instructions(self) -> dict[str, int]:
        """By class, over all launches."""
        totals: dict[str, int] = {}
        for launch in self.launches:
            for name, count in launch["instructions"].items():
                totals[name] = totals.get(name, 0) + count
        return totals


def show_simulated(bundle: Bundle, target: str, prompt: Sequence[int], decode: Sequence[int], output: str) -> None:
    """Print the account of the last decoded token; `prompt` and `decode` are one number of tokens each."""
    if len(prompt) != 1 or len(decode) != 1 or 0 in (*prompt, *decode):
        raise StrixhloError("--simulate takes one -p and one -n, both above 0: a token takes seconds to execute")
    with spinner(Progress(), "simulating") as say:
        token = simulate(bundle, target, prompt[0], decode[0], say)
    click.echo({"md": markdown, "json": as_json, "csv": as_csv}[output](token))


def simulate(bundle: Bundle, target: str, prompt: int, decode: int, say: Any = lambda _text: None) -> SimulatedToken:
    """Prefill `prompt` random tokens, then decode `decode` ones; the account is of the last."""
    try:
        from gfx1151_sim import simulator
    except ModuleNotFoundError as error:
        if error.name != "gfx1151_sim":
            raise
        raise StrixhloError(
            "--simulate needs the gfx1151 simulator, which is in tests/ of a checkout and not importable here; run it"
            " with PYTHONPATH=<checkout>/tests"
        ) from None
    simulator.start()  # before any use of IREE's HIP driver
    from ..runtime.bench import Test, check_room
    from ..runtime.engine import Engine
    from ..runtime.program import Program
    from ..step_traffic import step_traffic

    check_room(bundle, [Test("tg", decode, 1, prompt)])
    tokens = np.random.default_rng(0).integers(0, bundle.manifest.vocab_size, prompt + decode).tolist()
    with Program(bundle, target, context=prompt + decode) as program:
        traffic = step_traffic(bundle, program.build)
        engine = Engine(program)
        try:
            say(f"prompt of {prompt} tokens")
            engine.prefill(tokens[:prompt])
            for step, token in enumerate(tokens[prompt:]):
                say(f"token {step + 1} of {decode}")
                with simulator.recording() as account:
                    engine.decode_greedy(token)
        finally:
            engine.close()
    position = prompt + decode - 1
    launches = tuple(_launch(launch) for launch in account.launches)
    return SimulatedToken(position, launches, traffic.weight_bytes(1), traffic.kv_bytes(position))


def _launch(launch: Any) -> dict[str, Any]:
    fields = ("kernel", "grid", "block", "lds_bytes", *SUMS, "instructions")
    return {name: getattr(launch, name) for name in fields} | {"wmma": launch.instructions.get("wmma", 0)}


def markdown(token: SimulatedToken) -> str:
    """A line for each kernel and grid, their sum, and the floor."""
    groups: dict[tuple[str, tuple[int, ...]], list[dict[str, Any]]] = {}
    for launch in token.launches:
        groups.setdefault((launch["kernel"], tuple(launch["grid"])), []).append(launch)
    classes = [name for name, count in token.instructions().items() if count]
    head = ["kernel", "grid", "launches", "LDS a group", "requested", "lines x 64", "stored", "LDS moved", *classes]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for (kernel, grid), part in groups.items():
        whole = SimulatedToken(0, tuple(part), 0, 0)
        lines.append(_row([kernel, "x".join(map(str, grid)), len(part), part[0]["lds_bytes"]], whole, classes))
    lines.append(_row(["sum", "", len(token.launches), ""], token, classes))
    distinct, requested = token.total("load_distinct"), token.total("load_requested")
    return "\n".join(
        [
            *lines,
            "",
            f"- one decoded token at position {token.position}, executed in the simulator: work, not time",
            "- requested: bytes that active lanes loaded; lines x 64: the distinct 64-byte lines among them, each once"
            " a launch; stored: bytes; the last columns: instructions by class, of all waves"
            f" ({token.total('wmma')} WMMA)",
            f"- floor: {token.floor:,.0f} bytes ({token.weight_bytes:,.0f} of active weights, {token.kv_bytes:,} of"
            f" keys and values); read in distinct lines: {distinct / token.floor:.3f}x, requested:"
            f" {requested / token.floor:.3f}x",
        ]
    )


def _row(first: Sequence[object], part: SimulatedToken, classes: Sequence[str]) -> str:
    by_class = part.instructions()
    sums = [part.total(n) for n in ("load_requested", "load_distinct", "store_requested", "lds_moved")]
    return "| " + " | ".join(map(str, [*first, *sums, *(by_class.get(name, 0) for name in classes)])) + " |"


def as_json(token: SimulatedToken) -> str:
    """Every launch, the sums and the floor."""
    return json.dumps(token.record(), indent=1)


def as_csv(token: SimulatedToken) -> str:
    """A line for each launch, in order."""
    out = io.StringIO()
    rows = []
    for launch in token.launches:
        row = {name: value for name, value in launch.items() if name != "instructions"}
        shapes = {name: "x".join(map(str, launch[name])) for name in ("grid", "block")}
        rows.append(row | shapes | {f"instructions_{k}": v for k, v in launch["instructions"].items()})
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")
