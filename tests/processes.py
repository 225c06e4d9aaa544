"""Commands as processes of their own, and what is running of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from strixhlo.bundle import MANIFEST

COMMAND = [sys.executable, "-m", "strixhlo.cli"]
# What is in the folder of an exported bundle.
PARTS = {MANIFEST, "program.mlir", "weights", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def running(text: str) -> list[str]:
    """Command lines that hold `text`, of processes that are not yet dead."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:  # it has just ended
                continue
            if text in command and state not in "ZX":
                found.append(command)
    return found
