"""A folder that is replaced is there all the time, and nothing piles up beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import names

from strixhlo import replacement
from strixhlo.errors import StrixhloError
from strixhlo.replacement import atomic_write, replaced_directory


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


def test_only_files_are_replaced_by_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StrixhloError, match="pipe: is no ordinary file; choose another name"):
        atomic_write(tmp_path / "pipe", b"x")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "file").touch()
    for place, error in (("file/inside", NotADirectoryError), ("none/inside", FileNotFoundError), (".", OSError)):
        with pytest.raises(error) as raised:
            atomic_write(tmp_path / place, b"x")
        assert raised.value.filename == str(tmp_path / place)
    assert names(tmp_path) == ["file", "pipe"]


def test_error_while_reading_names_what_was_read(tmp_path: Path) -> None:
    with (
        pytest.raises(StrixhloError, match=r"gone: No such file or directory$"),
        replaced_directory(tmp_path / "out", "mark"),
    ):
        (tmp_path / "elsewhere" / "gone").read_text()
    assert names(tmp_path) == []
