"""Runs one of our modules in a process of its own, whose crash is then a result and not the end of this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import one_line


def ask(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
    timeout: float = 120,
    package: str | None = __name__.rpartition(".")[0],
) -> tuple[Any, str]:
    """The JSON that `python -m strixhlo.runtime.<module>` prints, or None and how it ended. package: the
    module's, in place of strixhlo.runtime."""
    command = [sys.executable, "-m", f"{package}.{module}", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env=dict(environment),
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout:.0f} s"
    if done.returncode < 0:
        return None, f"ended by {signal.Signals(-done.returncode).name}"
    try:
        return json.loads(done.stdout.splitlines()[-1]), ""
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or [f"code {done.returncode}"]
        return None, one_line(last[0])
