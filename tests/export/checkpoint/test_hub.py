"""Hub ids without a network: the offline cache, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError
from safetensors.numpy import save_file

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint import hub
from strixhlo.export.checkpoint.checkpoint import open_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, offline, with a working directory that holds no model of that name."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def cached(cache: Path, owner_and_name: str, revision: str = "main") -> Path:
    """The snapshot directory of a model in the cache, as a finished download leaves it."""
    repository = cache / f"models--{owner_and_name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(COMMIT)
    return snapshot


def refused(source: str) -> str:
    with pytest.raises(StrixhloError) as error:
        open_checkpoint(source)
    assert source in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def test_safetensors_in_the_cache(cache: Path) -> None:
    snapshot = cached(cache, "owner/model")
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"model.norm.weight": np.ones(4, np.float32)}, snapshot / "model.safetensors")
    checkpoint = open_checkpoint("owner/model")
    assert checkpoint.files == (snapshot / "model.safetensors",)
    assert list(checkpoint.tensors) == ["model.norm.weight"]


def test_a_revision_in_the_cache(cache: Path) -> None:
    snapshot = cached(cache, "owner/model", "v2")
    (snapshot / "config.json").write_text("{}")
    save_file({"a": np.ones(4, np.float32)}, snapshot / "model.safetensors")
    assert list(open_checkpoint("owner/model@v2").tensors) == ["a"]
    assert "not in the local cache" in refused("owner/model@v3")


def test_a_gguf_in_the_cache(cache: Path, gguf_builder: dict) -> None:
    snapshot = cached(cache, "owner/model-GGUF")
    (snapshot / "model-Q4_1.gguf").write_bytes(gguf_builder["tiny"]())
    (snapshot / "mmproj-model-f16.gguf").write_bytes(b"vision")
    assert open_checkpoint("owner/model-GGUF").files == (snapshot / "model-Q4_1.gguf",)
    (snapshot / "model-Q8_0.gguf").write_bytes(b"")
    assert "2 GGUF files; fetch one with `hf download owner/model-GGUF FILE`" in refused("owner/model-GGUF")


@pytest.mark.usefixtures("cache")
def test_what_is_not_in_the_cache() -> None:
    message = refused("owner/absent")
    assert "not in the local cache" in message and "give a local directory or GGUF file" in message


def test_pickled_weights_are_not_a_model(cache: Path) -> None:
    snapshot = cached(cache, "owner/pickled")
    (snapshot / "config.json").write_text("{}")
    (snapshot / "pytorch_model.bin").write_bytes(b"pickle")
    assert "pickled weights (*.bin, *.pt) are never loaded" in refused("owner/pickled")


def test_only_wanted_files_are_asked_for() -> None:
    files = [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "1_Pooling/config.json",
        "README.md",
        "tokenizer.model",
        "pytorch_model.bin",
        "model.pt",
        "modeling_x.py",
        "onnx/model.safetensors",
        "1_Pooling/model.safetensors",
        "16bit/config.json",
        "1_Dense/config.json",
        "original/params.json",
        "consolidated.safetensors",
        "model-Q4.gguf",
    ]
    wanted = huggingface_hub.utils.filter_repo_objects(files, allow_patterns=hub.WANTED, ignore_patterns=hub.UNWANTED)
    assert list(wanted) == files[:5]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_errors_of_the_hub_are_one_line(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    errors, request = huggingface_hub.errors, SimpleNamespace(headers={}, method="GET", url="https://hub/owner/model")
    kind = {401: errors.RepositoryNotFoundError, 403: errors.GatedRepoError, 404: errors.RevisionNotFoundError}

    def fail(*_: object, **__: object) -> str:
        raise kind.get(status, HfHubHTTPError)(
            f"{status}\nsecond line", response=errors.Response(status, request=request)
        )

    monkeypatch.setattr(hub, "snapshot_download", fail)
    message = refused("owner/model")
    words = {
        401: "nor a model on the hub",
        403: "access is gated",
        404: "nor a model on the hub",
        500: "download failed",
    }
    assert words[status] in message


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("source", ["owner/..", "owner/" + "x" * 200])
def test_names_that_the_hub_does_not_allow(source: str) -> None:
    assert "download failed" in refused(source)


@pytest.mark.usefixtures("cache")
def test_a_local_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "owner" / "model"
    local.mkdir(parents=True)
    (local / "config.json").write_text("{}")
    save_file({"local": np.ones(4, np.float32)}, local / "model.safetensors")
    asked: list[str] = []
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: asked.append(name))
    assert list(open_checkpoint("owner/model").tensors) == ["local"] and asked == []


def test_the_revision_and_the_patterns_reach_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple] = []

    def record(name: str, **options: object) -> str:
        calls.append((name, options))
        save_file({"a": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", record)
    assert hub.download("owner/model@refs/pr/1") == tmp_path
    options = {"revision": "refs/pr/1", "allow_patterns": hub.WANTED, "ignore_patterns": hub.UNWANTED}
    assert calls == [("owner/model", options)]
