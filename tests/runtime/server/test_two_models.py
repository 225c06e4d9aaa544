"""Two models in one server: held against the memory together before loading, reported one by one at the end."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import httpx

from strixhlo.bundle import MANIFEST, Bundle, open_bundle, write_record

from .conftest import start, stop


def test_memory_of_two_models(tiny: Bundle, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.path, tmp_path / "other", copy_function=os.link)
    (folder / MANIFEST).unlink()
    write_record(folder / MANIFEST, tiny.manifest.model_copy(update={"name": "other"}))
    process, url = start(str(tiny.path), str(open_bundle(folder).path), "--memory-budget", "2G")
    try:
        for name in (tiny.manifest.name, "other"):
            body = {"model": name, "prompt": "w1 w2", "max_tokens": 3}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=240).status_code == 200
    finally:
        rest = stop(process)
    for name in (tiny.manifest.name, "other"):
        line = next(line for line in rest.splitlines() if line.startswith(f"{name}: "))
        assert all(word in line for word in ("planned: weights", "KV cache", "temporaries", "results", "reserve"))
    assert re.search(r"^memory peak of this process, all models together: .* resident$", rest, re.M)
