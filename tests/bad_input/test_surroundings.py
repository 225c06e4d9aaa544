"""Systems that are not supported, and packages that are not installed."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., str]


@pytest.mark.parametrize(("system", "name"), [("win32", "Windows"), ("darwin", "Darwin")])
def test_other_systems(bundle: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, system: str, name: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "system", lambda: name)
    line = refused("inspect", bundle)
    assert line == f"strixhlo: {name} on x86_64 is not supported yet; strixhlo runs on Linux x86-64"


def test_other_processors(bundle: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "Linux on aarch64 is not supported yet; strixhlo runs on Linux x86-64" in refused("inspect", bundle)


WITHOUT = """
import sys
class Absent:
    names = sys.argv[1].split(",")
    def find_spec(self, name, path=None, target=None):
        if any(name == n or name.startswith(n + ".") for n in self.names):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from strixhlo.cli import main
main(sys.argv[2:])
"""


def test_run_needs_neither_jax_nor_a_compiler(bundle: Path) -> None:
    absent = "jax,jaxlib,iree.compiler,ziglang,safetensors,huggingface_hub,torch,transformers,xllamacpp,gguf"
    command = [sys.executable, "-c", WITHOUT, absent, "run", str(bundle), "--raw", "-p", "w1", "-n", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("w"), done.stderr


@pytest.mark.parametrize(
    ("module", "command", "requirement"),
    [
        ("jax", "export", "'jax==0.10.2'"),
        ("jax", "compile", "'jax==0.10.2'"),
        ("iree.compiler", "compile", "'iree-base-compiler==3.13.0'"),
        ("iree.runtime", "run", "'iree-base-runtime==3.13.0'"),
    ],
)
def test_missing_packages(
    tmp_path: Path, bundle: Path, refused_process: Refused, module: str, command: str, requirement: str
) -> None:
    options = {"export": ["-o", tmp_path / "out"], "compile": [], "run": ["-p", "x"]}[command]
    line = refused_process([sys.executable, "-c", WITHOUT, module, command, bundle, *options])
    assert line == f"strixhlo: the Python package {module} is missing; run `pip install {requirement}`"
    assert not (tmp_path / "out").exists()
