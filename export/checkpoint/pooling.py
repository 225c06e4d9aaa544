"""Whether a checkpoint is an embedding model: what stands beside it for sentence-transformers, or in a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...bundle import Pooling
from ...errors import StrixhloError
from .gguf import GgufFile
from .gguf_metadata import integer
from .text_files import read_json, read_text

MODULES = "modules.json"
METHODS = {"lasttoken": "last", "mean": "mean"}
# llama.cpp's enum llama_pooling_type; its embeddings are of length 1 unless one asks for others.
GGUF_METHODS = {1: "mean", 3: "last"}
NO_EMBEDDINGS = 0


def directory_pooling(directory: Path) -> Pooling | None:
    """What modules.json of sentence-transformers says; None without that file. StrixhloError for what is not done here:
    pooling other than the mean or the last token, and further layers."""
    path = directory / MODULES
    if not path.is_file():
        return None
    method, normalize = None, False
    for module in _modules(path):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            method = _method(directory, path, module.get("path"))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise StrixhloError(f"{path}: a module of type {kind!r:.80} is not supported: only Pooling and Normalize")
    if method is None:
        raise StrixhloError(f"{path}: names no Pooling; download the model again")
    return Pooling.model_validate({"method": method, "normalize": normalize})


def gguf_pooling(file: GgufFile, architecture: str) -> Pooling | None:
    """What the key pooling_type says; None where there is none."""
    key = f"{architecture}.pooling_type"
    kind = integer(file, key, NO_EMBEDDINGS)
    if kind == NO_EMBEDDINGS:
        return None
    if kind not in GGUF_METHODS:
        raise StrixhloError(f"{file.path}: {key} = {kind} is not supported: only 1 (mean) and 3 (last token)")
    return Pooling.model_validate({"method": GGUF_METHODS[kind]})


def _modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StrixhloError(f"{path}: not valid JSON ({error}); download it again") from None
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise StrixhloError(f"{path}: is no list of modules; download it again")
    return modules


def _method(directory: Path, path: Path, folder: Any) -> str:
    """The pooling that its config.json names, as "pooling_mode", or by flags as older files do."""
    if not isinstance(folder, str) or Path(folder).name != folder:
        raise StrixhloError(f"{path}: the Pooling module lies in {folder!r:.80}, which is not a plain folder name")
    file = directory / folder / "config.json"
    config = read_json(file)
    named = config.get("pooling_mode")
    flags = [n for n, on in config.items() if n.startswith("pooling_mode_") and on is True]
    modes = [named] if named else [n.removeprefix("pooling_mode_").removesuffix("_tokens") for n in flags]
    if len(modes) != 1 or modes[0] not in METHODS:
        raise StrixhloError(f"{file}: pooling {modes!r:.80} is not supported: only {' or '.join(METHODS)}")
    return METHODS[modes[0]]
