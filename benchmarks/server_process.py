"""`strixhlo serve` as a child process of a benchmark, and what the system says about it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class ServerProcess:
    """A running server: its process, its port, and the lines that it wrote to standard error."""

    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(default_factory=list)

    def resident(self) -> int:
        """Bytes of memory in RAM (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found, status
        return int(found[1]) << 10

    def handles(self) -> int:
        """Open files and sockets, and threads (Linux)."""
        proc = Path(f"/proc/{self.process.pid}")
        return len(list((proc / "fd").iterdir())) + len(list((proc / "task").iterdir()))


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[ServerProcess]:
    """`strixhlo serve BUNDLE OPTIONS` on a free port, once it answers; killed at the end if it still runs."""
    command = [sys.executable, "-m", "strixhlo.cli", "serve", str(bundle), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"listening on http://\S+:(\d+)", line):
                break
        else:
            raise RuntimeError(f"the server ended with {process.wait()}: {''.join(said)}")
        threading.Thread(target=said.extend, args=(process.stderr,), daemon=True).start()
        yield ServerProcess(process, int(found[1]), said)
    finally:
        process.kill()
        process.wait()
