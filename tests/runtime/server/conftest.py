"""One server process for all tests here: SmolLM2 behind `strixhlo serve`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI

from strixhlo.bundle import Bundle


@dataclass(frozen=True)
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    model: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """`strixhlo serve ...` on a free port -> (process, address), once it answers."""
    command = [sys.executable, "-m", "strixhlo.cli", "serve", *arguments, "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    assert process.stderr
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"listening on (http://\S+)", line):
            return process, found[1]
    raise AssertionError(f"the server ended with {process.wait()}: {said}")


def stop(process: subprocess.Popen[str]) -> str:
    """SIGTERM; the rest of its standard error, after a clean end."""
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=240)
    assert process.returncode == 0, rest
    return rest


@pytest.fixture(scope="session")
def served(smollm2: Callable[[str], Bundle]) -> Iterator[Served]:
    """SmolLM2, with the page, without keys."""
    bundle = smollm2("int8")
    process, url = start(str(bundle.path), "--webui")
    try:
        yield Served(process, url, bundle.manifest.name)
    finally:
        stop(process)


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """The official client."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120) as opened:
        yield opened


@pytest.fixture
def serve_smollm2(smollm2: Callable[[str], Bundle]) -> Iterator[Callable[..., Any]]:
    """(options) -> (process, address, stop) of another server of SmolLM2."""
    started: list[subprocess.Popen[str]] = []

    def serve(*options: str) -> tuple[subprocess.Popen[str], str, Callable[[subprocess.Popen[str]], str]]:
        process, url = start(str(smollm2("int8").path), *options)
        started.append(process)
        return process, url, stop

    yield serve
    for process in started:
        process.kill()
        process.wait()
