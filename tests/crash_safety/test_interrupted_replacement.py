"""Ctrl-C after any call that makes, locks or swaps folders: the old content or the new one, and nothing beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from strixhlo import replacement
from strixhlo.replacement import replaced_directory, scratch_directory


class Interrupt:
    """Raises KeyboardInterrupt when the n-th call made by replacement.py returns."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        caller = frame if event == "c_return" else frame.f_back if event == "return" else None
        if (
            caller is None
            or caller.f_code.co_filename != replacement.__file__
            or "<genexpr>" in functions(frame, caller)
        ):
            return  # what is raised while a generator is closed is dropped (command_group.py makes it come again)
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)  # as a signal does, it comes once
            raise KeyboardInterrupt


def functions(*frames: FrameType) -> list[str]:
    return [frame.f_code.co_name for frame in frames]


def interrupted(work: Callable[[], None], n: int) -> bool:
    """Whether `work` was interrupted at its n-th call, rather than done."""
    sys.setprofile(Interrupt(n))
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def write(path: Path, content: str) -> None:
    with replaced_directory(path, "marker") as folder:
        (folder / "marker").write_text(content)


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_replaced_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:
        monkeypatch.setattr(replacement, "_exchanged", lambda *_: False)
    path, n, old = tmp_path / "out", 1, 0
    write(path, "old")
    while interrupted(lambda: write(path, "new"), n):
        found = sorted(p.name for p in tmp_path.iterdir())
        assert "out" in found, n
        content = (path / "marker").read_text()
        assert content in ("old", "new"), n
        old += content == "old"
        if content == "old":
            assert found == ["out"], n  # a whole new folder may leave what it replaced, for the next writer to remove
        n += 1
        write(path, "old")
    assert old > 20 and (path / "marker").read_text() == "new"


def test_a_scratch_folder(tmp_path: Path) -> None:
    def work() -> None:
        with scratch_directory(tmp_path / "building") as folder:
            (folder / "part").write_text("half")
            raise InterruptedError

    n = 1
    while True:
        try:
            assert interrupted(work, n)
        except InterruptedError:
            break
        assert n < 500
        assert list(tmp_path.iterdir()) == [], n
        n += 1
    assert n > 5
