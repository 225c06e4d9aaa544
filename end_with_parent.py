"""Child processes that do not outlive the process that waits for them, even when that is killed.

The child sets its parent-death signal (Linux, prctl(2)) and then becomes the program, which keeps it. `preexec_fn`
would do without the small interpreter in between, but is not safe in a process with threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# 1 is PR_SET_PDEATHSIG, 9 is SIGKILL; the parent may have been killed before the first line.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def ends_with_parent(command: Sequence[str]) -> list[str]:
    """The command that runs `command`, a path and its arguments, as a child that is killed when this process is."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
