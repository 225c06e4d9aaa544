"""Numbers and text from sysfs and procfs: a value, or the reason why there is none. Bad files raise nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
ABSURD = 1 << 50  # 1 PiB: no memory size of a machine that runs this is as large


@dataclass(frozen=True)
class Number:
    """A number that was read: `value`, or None and the `problem` ("missing", "no permission", "'abc' is no number")."""

    value: int | None
    problem: str = ""

    @property
    def positive(self) -> int | None:
        """The value when it is above zero: a total of 0 says that nothing was found out."""
        return self.value or None


MISSING = Number(None, "missing")


def read_text(path: Path) -> tuple[str | None, str]:
    """The contents without surrounding blanks, or None and the reason."""
    try:
        return path.read_text("utf-8", errors="replace").strip(), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, "missing"
    except PermissionError:
        return None, "no permission"
    except OSError as error:
        return None, f"unreadable ({error.strerror or type(error).__name__})"


def read_number(path: Path, scale: int = 1) -> Number:
    """A non-negative integer times `scale`; a negative, absurd (1 PiB or more) or malformed one is a problem."""
    text, problem = read_text(path)
    return Number(None, problem) if text is None else number(text, scale)


def number(text: str, scale: int = 1) -> Number:
    """The same for a text that was read already."""
    try:
        value = int(text, 0) * scale
    except ValueError:
        return Number(None, f"{text[:40]!r} is no number")
    if value < 0 or value >= ABSURD:
        return Number(None, f"{text[:40]} is absurd")
    return Number(value)


def read_table(path: Path, separator: str | None = None) -> tuple[dict[str, str], str]:
    """A file of lines "name value" (KFD's properties) or "name: value" (meminfo) as a dict, or {} and the reason."""
    text, problem = read_text(path)
    table: dict[str, str] = {}
    for line in (text or "").splitlines():
        name, *value = line.split(separator, 1)
        if value:
            table[name.strip()] = value[0].strip()
    return table, problem


def entries(path: Path) -> list[Path]:
    """What is in a folder, names that are numbers in numerical order; [] when it cannot be listed."""
    try:
        found = list(path.iterdir())
    except OSError:
        return []
    return sorted(found, key=lambda p: (int(p.name) if p.name.isdecimal() else -1, p.name))
