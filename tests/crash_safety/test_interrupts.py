"""Commands that are interrupted end with one line, and leave a bundle whole or none."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import COMMAND, PARTS, names, running, wait_for

from strixhlo.bundle import Bundle

# A shell's background job ignores SIGINT, and so would its children.
HEAR_INTERRUPTS = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """start("run", ...): the command in a process of its own; killed with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HEAR_INTERRUPTS, *COMMAND, *map(str, arguments)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            bufsize=0,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]


def ended(process: subprocess.Popen[str], code: int, line: str) -> bool:
    """Whether the signal ended it, as it should; False where its work was done before that came."""
    _, stderr = process.communicate(timeout=240)
    if process.returncode == 0:
        return False
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr and stderr.splitlines()[-1] == f"strixhlo: {line}"
    return True


def interrupted(attempt: Callable[[], bool]) -> None:
    """One of a few attempts: on a busy machine a command can be faster than the signal."""
    assert any(attempt() for _ in range(6)), "no signal came before the work was done"


@pytest.mark.parametrize(("number", "code", "line"), SIGNALS)
def test_run_is_interrupted(
    tiny: Bundle, start: Callable[..., subprocess.Popen[str]], number: int, code: int, line: str
) -> None:
    def attempt() -> bool:
        process = start("run", tiny.path, "--raw", "-p", "w1", "-n", 250, "--ignore-eos")
        assert process.stdout is not None and process.stdout.read(1)
        process.send_signal(number)
        return ended(process, code, line)

    interrupted(attempt)


@pytest.mark.parametrize(("number", "code", "line"), SIGNALS)
def test_export_is_interrupted(
    checkpoint: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]], number: int, code: int, line: str
) -> None:
    def attempt() -> bool:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        process = start("export", checkpoint, "-o", tmp_path / "out")
        wait_for(lambda: list(tmp_path.glob(".out.partial-*")) or process.poll() is not None)
        process.send_signal(number)
        return ended(process, code, line)

    interrupted(attempt)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("number", "code", "line"), SIGNALS)
def test_compile_is_interrupted(
    bundle: Path, start: Callable[..., subprocess.Popen[str]], number: int, code: int, line: str
) -> None:
    def attempt() -> bool:
        shutil.rmtree(bundle / "cpu", ignore_errors=True)
        process = start("compile", bundle)
        # iree-compile, with the file that it is to write
        wait_for(lambda: running(f"{bundle}/.cpu.partial-") or process.poll() is not None)
        process.send_signal(number)
        return ended(process, code, line)

    interrupted(attempt)
    assert set(names(bundle)) == PARTS
    wait_for(lambda: not running(str(bundle)))


# Ctrl-C while one of our modules is imported.
INTERRUPTED_IMPORT = """
import importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from strixhlo.__main__ import main
sys.argv[:] = ["strixhlo", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize("module", ["strixhlo.cli", "click", "pydantic", "strixhlo.inspection"])
def test_start_is_interrupted(tiny: Bundle, module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module, "inspect", str(tiny.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "strixhlo: interrupted\n")


# A signal while a callback runs whose exceptions Python drops: of a weak reference, of the collector (JAX has one).
DROPPED_EXCEPTION = """
import importlib.abc, os, signal, sys, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
class Referent: pass
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "strixhlo.export.export":
            referent = Referent()
            reference = weakref.ref(referent, lambda _: os.kill(os.getpid(), number))
            del referent
sys.meta_path.insert(0, Finder())
from strixhlo.__main__ import main
number = int(sys.argv[1])
sys.argv[:] = ["strixhlo", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize(("number", "code", "line"), SIGNALS)
def test_a_signal_in_a_callback_that_drops_exceptions(
    checkpoint: Path, tmp_path: Path, number: int, code: int, line: str
) -> None:
    command = [sys.executable, "-c", DROPPED_EXCEPTION, str(int(number)), "export", str(checkpoint)]
    command += ["-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stderr.splitlines()[-1] == f"strixhlo: {line}"
    assert "Traceback" not in done.stderr and names(tmp_path) == []
