"""Greedy tokens of a rocm program in the gfx1151 simulator, with what each step launched and moved.

  GFX1151_SIM=<simulator> TINYGRAD=<checkout> python benchmarks/simulate_rocm.py BUNDLE "Once upon a time" [tokens]

The simulator executes the program's machine code under IREE's own HIP driver, 10 s a token for a model of 135M weights.
It has no clock: the numbers are work, not time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def main(arguments: Sequence[str]) -> None:
    """Print the tokens, and per step launches, instructions and bytes."""
    bundle_path, prompt, count = Path(arguments[0]), arguments[1], int(arguments[2]) if len(arguments) > 2 else 8
    sys.path.insert(0, os.environ["GFX1151_SIM"])
    import hipsim  # type: ignore[import-not-found]

    hipsim.install()  # before IREE's HIP driver is used
    from launches import summary  # type: ignore[import-not-found]

    from strixhlo.bundle import open_bundle
    from strixhlo.runtime.engine import Engine
    from strixhlo.runtime.program import Program
    from strixhlo.runtime.tokenizer import load_tokenizer

    bundle = open_bundle(bundle_path)
    ids = load_tokenizer(bundle.path).encode(prompt)
    with Program(bundle, "rocm") as program:
        engine = Engine(program)
        with hipsim.record() as first:
            logits = engine.prefill(ids)
        show(f"prefill of {len(ids)} tokens", first)
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(int(np.argmax(logits)))
            print("tokens", tokens, flush=True)
            with hipsim.record() as records:
                logits = engine.decode(tokens[-1])
            show("decode", records)
        print(summary(records))
        engine.close()


def show(step: str, records: Any) -> None:
    """One line for a step."""
    read, written = records.total("load_unique"), records.total("store_unique")
    print(
        f"{step}: {len(records)} launches, {records.total('wave_instrs'):,} wave instructions,"
        f" {read:,} bytes read, {written:,} written, {records.copies} copies of {records.copy_bytes:,} bytes",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
