"""Where a bundle cannot be written: names that are taken, folders that are locked, disks that fill up."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strixhlo.bundle import MANIFEST, PROGRAM, WEIGHTS, Bundle

Refused = Callable[..., str]


def test_output_path_that_is_taken(checkpoint: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / MANIFEST).write_text('{"name": "a browser extension"}')
    before = sorted(tmp_path.rglob("*"))
    for out, message in (
        ("file", "exists and is not a strixhlo folder (no manifest.json); choose another name, or remove it"),
        ("file/b", "file is a file); choose another name"),
        ("file/b/c", "cannot be written (Not a directory)"),
        ("folder", "its manifest.json is not a bundle's; choose another --out, or remove it"),
        ("checkpoint", "holds the checkpoint model.safetensors, which would be lost"),
        (".", "holds the checkpoint model.safetensors, which would be lost"),
    ):
        assert message in refused("export", checkpoint, "-o", tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_current_directory(
    checkpoint: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is the current directory, and would be replaced" in refused("export", checkpoint, "-o", ".")


def test_a_link_stays(checkpoint: Path, tmp_path: Path, accepted: Callable[..., str]) -> None:
    (tmp_path / "link").symlink_to("there")
    for _ in range(2):
        accepted("export", checkpoint, "-o", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / MANIFEST).is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "link", "there"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that other users reach too, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def read_only(*folders: Path) -> Iterator[None]:
    """Nobody can write to the folders: root, for whom permissions mean nothing, is somebody else for that time."""
    for folder in folders:
        folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for folder in folders:
            folder.chmod(0o755)


def test_folder_that_cannot_be_written(checkpoint: Path, open_folder: Path, refused: Refused) -> None:
    source = shutil.copytree(checkpoint, open_folder / "checkpoint")
    for file in source.iterdir():
        file.chmod(0o644)
    (open_folder / "locked").mkdir()
    with read_only(open_folder / "locked"):
        line = refused("export", source, "-o", open_folder / "locked" / "out")
    assert "out: cannot be written (Permission denied); choose a place that you can write to" in line
    assert not list((open_folder / "locked").iterdir())


def test_read_only_bundle_runs_and_does_not_compile(
    tiny: Bundle, open_folder: Path, refused: Refused, accepted: Callable[..., str]
) -> None:
    bundle = shutil.copytree(tiny.path, open_folder / "bundle")
    with read_only(bundle, bundle / "cpu"):
        assert accepted("run", bundle, "--raw", "-p", "w1", "-n", "2").startswith("w")
        line = refused("compile", bundle, "--activations", "f32")
    assert "cpu: cannot be written (Permission denied)" in line


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[list[str]]:
    """A file system of that size at `folder`; where nothing can be mounted, a limit to the size of a file. Yields the
    words that go before a command."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield [] if mounted else ["bash", "-c", f'ulimit -f {kilobytes // 3}; exec "$@"', "bash"]
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("first", [PROGRAM, WEIGHTS, MANIFEST])
def test_disk_that_fills_up_during_export(
    checkpoint: Path,
    tmp_path: Path,
    program: list[str],
    refused_process: Refused,
    accepted: Callable[..., str],
    first: str,
) -> None:
    """`first` is the first file that does not fit."""
    accepted("export", checkpoint, "-o", tmp_path / "whole")
    files = [p for p in (tmp_path / "whole").rglob("*") if p.is_file()]
    sizes = {p.name: -(-p.stat().st_size // 4096) * 4 for p in files}  # KiB on a disk
    half_weights = sizes[Path(WEIGHTS).name] // 2
    kilobytes = {
        PROGRAM: sizes[PROGRAM] // 2,
        WEIGHTS: sum(sizes.values()) - sizes[MANIFEST] - half_weights,
        MANIFEST: sum(sizes.values()) - 4,
    }
    disk = tmp_path / "disk"
    with small_disk(disk, kilobytes[first]) as limits:
        line = refused_process([*limits, *program, "export", checkpoint, "-o", disk / "b"])
        assert "cannot be written" in line
        assert "No space left on device" in line or "File too large" in line
        assert not list(disk.iterdir())


@pytest.mark.parametrize("full", ["the bundle's", "the temporary files'"])
def test_disk_that_fills_up_during_compile(
    tiny: Bundle, tmp_path: Path, program: list[str], refused_process: Refused, full: str
) -> None:
    disk = tmp_path / "disk"
    exported = [p for p in tiny.path.iterdir() if p.name != "cpu"]
    size = sum(p.stat().st_size for folder in (tiny.path, tiny.path / "weights") for p in folder.iterdir()) // 1000
    with small_disk(disk, size + 200 if full == "the bundle's" else 64) as limits:
        bundle = (disk if full == "the bundle's" else tmp_path) / "bundle"
        shutil.copytree(tiny.path, bundle, ignore=shutil.ignore_patterns("cpu"))
        elsewhere = {} if full == "the bundle's" else {"TMPDIR": str(disk)}
        line = refused_process([*limits, *program, "compile", bundle], env=os.environ | elsewhere)
        assert "iree-compile: no space left on device; free some" in line
        assert {p.name for p in bundle.iterdir()} == {p.name for p in exported}
        assert full == "the bundle's" or not list(disk.iterdir())
