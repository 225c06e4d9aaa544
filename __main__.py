"""The command `strixhlo`, also as `python -m strixhlo`: Ctrl-C ends it with one line while modules are still loaded."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the commands and run the one that is asked for."""
    try:
        from .cli import main as commands

        commands()
    except KeyboardInterrupt:
        print("strixhlo: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
