"""Commands that are interrupted, killed, or run twice at once: a bundle is whole or refused, and nothing piles up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strixhlo import replacement
from strixhlo.bundle import BUILD, MANIFEST, VMFB, Bundle, open_bundle
from strixhlo.errors import StrixhloError
from strixhlo.inspection import verify_bundle
from strixhlo.replacement import replaced_directory

COMMAND = [sys.executable, "-m", "strixhlo.cli"]
PARTS = {MANIFEST, "program.mlir", "weights", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}


@pytest.fixture(scope="module")
def checkpoint(tiny: Bundle) -> Path:
    """The checkpoint that the tiny bundle was made from."""
    return Path(tiny.manifest.source)


@pytest.fixture
def bundle(tiny: Bundle, tmp_path: Path) -> Path:
    """An exported bundle without a program."""
    return shutil.copytree(tiny.path, tmp_path / "bundle", ignore=shutil.ignore_patterns("cpu"))


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


# ------------------------------------------------------------------------------------------------------- interrupts


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


# ------------------------------------------------------------------------------------------------------------ kill -9

# Imports everything once, then forks: a child runs the command and is killed so many seconds after a file is there.
KILLER = """
import os, pathlib, signal, sys, time, warnings
warnings.simplefilter("ignore")
import strixhlo.compile.compile, strixhlo.export.checkpoint.checkpoint, strixhlo.export.export
from strixhlo.cli import main
folder, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
def wait(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.0005)
for line in sys.stdin:
    seconds, pattern = line.split()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        main(command)
    wait(lambda: any(folder.glob(pattern)), 240)
    wait(lambda: False, float(seconds))
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Killer:
    """Runs one command again and again, and kills it."""

    def __init__(self, folder: Path, *command: object) -> None:
        words = [sys.executable, "-c", KILLER, str(folder), *map(str, command)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def kill(self, seconds: float, after: str) -> int:
        """Kill it that long after a file of this pattern is there. The exit status: 0 when it was faster, else -9."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{seconds} {after}\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        assert status in (0, -9)
        return status

    def close(self) -> None:
        self.process.communicate(timeout=240)


def test_export_is_killed(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    killer = Killer(tmp_path, "export", checkpoint, "-o", out)
    moments = [(s, ".out.partial-*") for s in (0, 0.3, 0.6)]
    moments += [(s, ".out.partial-*/program.mlir") for s in (0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03)]
    before: Bundle | None = None
    for seconds, after in [*moments, (240, "out"), *moments]:  # first there is no bundle, then there is one
        status = killer.kill(seconds, after)
        try:
            bundle = open_bundle(out)
            verify_bundle(bundle)
            assert set(names(out)) == PARTS
            before = bundle
        except StrixhloError as error:
            assert before is None and "no such bundle" in str(error)  # never one that was there before
        assert (before is not None) >= (status == 0)
        assert len(list(tmp_path.iterdir())) <= 2  # the bundle, and what the last one left behind
    assert before is not None
    killer.close()
    subprocess.run([*COMMAND, "export", str(checkpoint), "-o", str(out)], check=True, capture_output=True)
    assert names(tmp_path) == ["out"]


def test_compile_is_killed(bundle: Path) -> None:
    killer = Killer(bundle, "compile", bundle)
    moments = [(s, ".cpu.partial-*") for s in (0, 0.2, 0.5, 0.9)]
    moments += [(s, ".cpu.partial-*/program.vmfb") for s in (0, 0.002)]
    for seconds, after in moments:
        killer.kill(seconds, after)
        assert len(set(names(bundle)) - PARTS - {"cpu"}) <= 1
        if (bundle / "cpu").exists():
            verify_bundle(open_bundle(bundle))
            assert names(bundle / "cpu") == [BUILD, VMFB]
            shutil.rmtree(bundle / "cpu")
        else:
            done = subprocess.run([*COMMAND, "run", str(bundle), "--raw", "-p", "w1"], capture_output=True, text=True)
            assert done.returncode == 2 and "not compiled for cpu; run `strixhlo compile" in done.stderr
    killer.close()
    wait_for(lambda: not running(str(bundle)))  # iree-compile goes with its parent
    subprocess.run([*COMMAND, "compile", str(bundle)], check=True, capture_output=True)
    assert set(names(bundle)) == PARTS | {"cpu"}
    verify_bundle(open_bundle(bundle))


def test_a_child_ends_with_its_parent() -> None:
    sleep = f"600.{os.getpid()}"
    script = (
        "import subprocess, sys\nfrom strixhlo.end_with_parent import ends_with_parent\n"
        f"subprocess.run(ends_with_parent(['/bin/sleep', '{sleep}']))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    wait_for(lambda: any(c.startswith("/bin/sleep") for c in running(sleep)))
    parent.kill()
    parent.wait()
    wait_for(lambda: not running(sleep))


# A clang that says its version, and then takes its time.
SLOW_CLANG = """#!/bin/sh
case "$*" in *--version*) echo "clang version 22.0.0"; exit;; esac
exec sleep {seconds}
"""


def test_kernels_that_are_built_go_with_the_compiler_process_and_what_it_leaves_is_swept(tmp_path: Path) -> None:
    seconds = f"600.{os.getpid()}1"
    clang = tmp_path / "clang"
    clang.write_text(SLOW_CLANG.format(seconds=seconds))
    clang.chmod(0o755)
    script = "from strixhlo.custom_kernels.toolchain import build_cpu_object; build_cpu_object('x86-64-v3')"
    places = {"STRIXHLO_CACHE": str(tmp_path / "cache")}
    parent = subprocess.Popen([sys.executable, "-c", script], env=os.environ | places | {"STRIXHLO_CLANG": str(clang)})
    wait_for(lambda: any(c.startswith("sleep") for c in running(seconds)))
    parent.kill()
    parent.wait()
    wait_for(lambda: not running(seconds))
    (left,) = names(tmp_path / "cache" / "kernels")
    assert left.startswith(".building.partial-")
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | places)
    (built,) = names(tmp_path / "cache" / "kernels")
    assert built.startswith("cpu-x86-64-v3-") and built.endswith(".o")


# ------------------------------------------------------------------------------------------------------- two at once


def both(commands: list[list[object]]) -> None:
    processes = [
        subprocess.Popen([*COMMAND, *map(str, c)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for c in commands
    ]
    for process in processes:
        _, stderr = process.communicate(timeout=480)
        assert process.returncode == 0, stderr


def test_two_exports_to_one_place(checkpoint: Path, tmp_path: Path) -> None:
    both([["export", checkpoint, "-o", tmp_path / "out"]] * 3)
    verify_bundle(open_bundle(tmp_path / "out"))
    assert names(tmp_path) == ["out"]


def test_two_compilations_of_one_bundle(bundle: Path) -> None:
    both([["compile", bundle], ["compile", bundle, "--activations", "f32"]])
    verify_bundle(open_bundle(bundle))
    assert set(names(bundle)) == PARTS | {"cpu"}


# ------------------------------------------------------------------------------------------- folders that are replaced


def fill(folder: Path, text: str) -> None:
    (folder / "mark").write_text(text)
    (folder / "text").write_text(text)


def test_leftovers_go_and_what_is_in_use_stays(tmp_path: Path) -> None:
    left = tmp_path / ".out.partial-00000000"
    left.mkdir()
    fill(left, "left")
    others = (".out.partial-notours", ".other.partial-00000000", ".out.partial-00000000.txt")
    for name in others:
        (tmp_path / name).mkdir()
    with replaced_directory(tmp_path / "out", "mark") as first:
        assert not left.exists()
        fill(first, "first")
        with replaced_directory(tmp_path / "out", "mark") as second:
            fill(second, "second")
        assert first.exists()
    assert (tmp_path / "out" / "text").read_text() == "first"
    assert names(tmp_path) == sorted(["out", *others])


@pytest.mark.parametrize("missing", ["exchange", "locks"])
def test_file_systems_that_can_do_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def no_locks(_: Path) -> None:
        raise OSError("no locks available")

    if missing == "exchange":
        monkeypatch.setattr(replacement, "_exchanged", lambda _a, _b: False)
    else:
        monkeypatch.setattr(replacement, "_lock", no_locks)
    for text in ("1", "2", "3"):
        with replaced_directory(tmp_path / "out", "mark") as folder:
            fill(folder, text)
        assert (tmp_path / "out" / "text").read_text() == text
        assert names(tmp_path) == ["out"]


def test_readers_see_one_folder_or_the_other(tmp_path: Path) -> None:
    """A folder that is replaced a hundred times is there every time that one looks."""
    out = tmp_path / "out"
    with replaced_directory(out, "mark") as folder:
        fill(folder, "0")
    script = (
        "import pathlib, sys\nfrom strixhlo.replacement import replaced_directory\n"
        "for i in range(100):\n"
        "    with replaced_directory(pathlib.Path(sys.argv[1]), 'mark') as folder:\n"
        "        (folder / 'mark').write_text(str(i)), (folder / 'text').write_text(str(i))\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(out)])
    looks = 0
    while writer.poll() is None:
        descriptor = os.open(out, os.O_RDONLY)  # fails if `out` is gone for a moment
        os.close(descriptor)
        looks += 1
    assert writer.returncode == 0 and looks > 100
    assert names(tmp_path) == ["out"]


def test_error_while_reading_names_what_was_read(tmp_path: Path) -> None:
    with (
        pytest.raises(StrixhloError, match=r"gone: No such file or directory$"),
        replaced_directory(tmp_path / "out", "mark"),
    ):
        (tmp_path / "elsewhere" / "gone").read_text()
    assert names(tmp_path) == []
