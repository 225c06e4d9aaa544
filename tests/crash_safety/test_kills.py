"""Commands that are killed leave a bundle whole or none, and no process behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from processes import COMMAND, PARTS, names, running, wait_for

from strixhlo.bundle import BUILD, VMFB, Bundle, open_bundle
from strixhlo.errors import StrixhloError
from strixhlo.inspection import verify_bundle

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
