"""What decides a build besides the program's text, as hashes that build.json keeps: the sources that lower a program
and compute in it, and what the manifest says of its weights, KV cache and entry points.

The runtime reads sources as text here; it imports neither the compiler's room nor the kernels'.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from .bundle import Manifest

_ROOT = Path(__file__).parent
_ROOMS = ("compile", "custom_kernels")
_OF_KIND = {"cpu": "cpu", "rocm": "gpu", "cuda": "gpu"}  # a target's own room in custom_kernels
# Docstrings (after a line that ends in a colon, or at the begin), and lines that are only a comment: what they say
# changes no program. Other strings stay whole: they are code of the compiler's.
_CPP = re.compile(r"^[ \t]*//[^\n]*", re.MULTILINE)
_WORDS = {
    ".py": re.compile(r'(?:\A|(?<=:\n))[ \t]*""".*?"""[ \t]*$|^[ \t]*# [^\n]*', re.MULTILINE | re.DOTALL),
    ".h": _CPP,
    ".cpp": _CPP,
}


def lowering_sha256(kind: str, root: Path = _ROOT) -> str:
    """Hex SHA-256 of the sources that decide what a program for a kind of target ("cpu", "rocm", ...) becomes, without
    docstrings, comments and empty lines. root: the package's folder."""
    other = {"cpu", "gpu"} - {_OF_KIND.get(kind, "")}
    digest = hashlib.sha256()
    paths = [root / "weight_spans.py", *(p for room in _ROOMS for p in (root / room).rglob("*"))]
    for path in sorted(p for p in paths if p.suffix in _WORDS):
        name = path.relative_to(root)
        if name.parts[0] == "custom_kernels" and name.parts[1] in other:
            continue
        lines = _WORDS[path.suffix].sub("", path.read_text("utf-8")).splitlines()
        digest.update("\n".join([str(name), *filter(str.strip, lines), ""]).encode())
    return digest.hexdigest()


def interface_sha256(manifest: Manifest) -> str:
    """Hex SHA-256 of what a manifest says of the program and of all that goes into it."""
    said = {"program_sha256", "entry_points", "kv_cache", "parameters"}
    return hashlib.sha256(manifest.model_dump_json(include=said).encode()).hexdigest()
