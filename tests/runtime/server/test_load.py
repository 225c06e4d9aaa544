"""Four clients at once get as many tokens a second as from llama.cpp's server, in one run on one file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strixhlo.bundle import Bundle

LOAD = Path(__file__).parents[3] / "benchmarks" / "serve_load.py"


@pytest.mark.slow  # a benchmark: what else the machine does moves it
def test_four_clients_beside_llama_cpp(smollm2: Callable[[str], Bundle]) -> None:
    command = [sys.executable, str(LOAD), "--bundle", str(smollm2("int8").path), "--clients", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=True)
    ours, theirs = json.loads(done.stdout)
    assert (ours["server"], theirs["server"]) == ("strixhlo", "llama.cpp")
    assert ours["aggregate"] >= theirs["aggregate"]
