"""Two minutes of the soak that `make soak` runs for thirty."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from strixhlo.bundle import Bundle

SOAK = Path(__file__).parents[3] / "benchmarks" / "serve_soak.py"
ACTIONS = {"streamed", "whole", "slow_reader", "burst", "abort", "abort_whole", "half_closed", "half_sent"}
ACTIONS |= {"malformed", "oversize", "long_prompt", "sampled_chat"}


def test_two_minutes_of_soak(smollm2: Callable[[str], Bundle]) -> None:
    command = [sys.executable, str(SOAK), str(smollm2("int8").path), "--minutes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert not found["faults"] and found["resident_growth"] <= 0.05
    assert set(found["happened"]) > ACTIONS and found["happened"]["tokens checked"] > 500
