"""Downloads from a hub on the loopback device: interrupted in the middle of a file, by the server and by a kill."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = save({"a": np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)})
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}
CHUNK = 1 << 16
HALF = 8 * CHUNK
PROGRAM = f"""
import sys
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = {CHUNK}  # 10 MB: more than this model has
from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.hub import download
from strixhlo.progress import Stages
done = []
try:
    path = download("owner/model", Stages(lambda name, total: print(name, total, file=sys.stderr), done.append))
except StrixhloError as error:
    sys.exit("refused: " + str(error))
print(path, sum(done))
"""


class Hub:
    """A repository of two files. stop_at: bytes of the weights after which a connection stalls, or is cut."""

    def __init__(self) -> None:
        self.stop_at: int | None = None  # once
        self.stalls = False
        self.answers = 200  # to a range: 206 where the server honours ranges
        self.weights = WEIGHTS
        self.ranges: list[str | None] = []  # of every request for the weights
        self.stalled, self.release = threading.Event(), threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                hub.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if request.path.startswith("/api/models/owner/model"):
            answer = self.tree() if "/tree/" in request.path else self.info()
            return self.send(request, 200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
        match = re.fullmatch(r"/owner/model/resolve/[^/]+/(.+)", request.path)
        if match is None or match[1] not in FILES:
            return self.send(request, 404, {"X-Error-Code": "EntryNotFound"}, b"")
        name, data = match[1], FILES[match[1]]
        tag = hashlib.sha256(data).hexdigest()
        headers = {
            "ETag": f'"{tag}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(data)),
            "Accept-Ranges": "bytes",
        }
        first, status = 0, 200
        if name == "model.safetensors":
            data = self.weights
            if request.command == "GET":
                self.ranges.append(request.headers.get("Range"))
                if (asked := request.headers.get("Range")) and self.answers == 206:
                    first, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
                    headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        stop = None
        if name != "config.json" and request.command == "GET":
            stop, self.stop_at = self.stop_at, None
        return self.send(request, status, headers, data[first:], stop)

    def tree(self) -> list[dict]:
        files = []
        for name, data in FILES.items():
            tag = hashlib.sha256(data).hexdigest()
            lfs = {"oid": tag, "size": len(data), "pointerSize": 1} if name.endswith("safetensors") else None
            files.append({"type": "file", "path": name, "size": len(data), "oid": tag} | ({"lfs": lfs} if lfs else {}))
        return files

    def info(self) -> dict:
        siblings = []
        for file in self.tree():
            lfs = {"lfs": {**file["lfs"], "sha256": file["lfs"]["oid"]}} if "lfs" in file else {}
            siblings.append({"rfilename": file["path"], "size": file["size"], "blobId": file["oid"], **lfs})
        return {"id": "owner/model", "modelId": "owner/model", "sha": COMMIT, "siblings": siblings, "tags": []}

    def send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        data: bytes,
        stop: int | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        request.wfile.write(data if stop is None else data[:stop])
        request.wfile.flush()
        if stop is not None:
            if self.stalls:
                self.stalled.set()
                self.release.wait(60)
            request.close_connection = True


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.release.set()
    hub.server.shutdown()
    hub.server.server_close()


def start(hub: Hub, folder: Path) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.upper().startswith("HF_") and "PROXY" not in k.upper()}
    environment |= {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": "60",
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> Path:
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    path, done = out.rsplit(maxsplit=1)
    assert int(done) == 2 * len(WEIGHTS), "the bar counts the file once while it comes and once while it is verified"
    assert f"downloading model.safetensors {len(WEIGHTS)}" in errors
    assert (Path(path) / "model.safetensors").read_bytes() == WEIGHTS
    assert not list(Path(path).parents[1].glob("blobs/*partial*"))
    return Path(path)


def partial(folder: Path) -> Path | None:
    return next((p for p in folder.rglob("*.partial")), None)


def test_a_killed_download_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.stop_at, hub.stalls, hub.answers = HALF, True, 206
    process = start(hub, tmp_path)
    assert hub.stalled.wait(240), process.communicate()[1]
    limit = time.monotonic() + 60  # what was sent may still be on its way to the file
    while ((there := partial(tmp_path)) is None or there.stat().st_size < HALF) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hub.release.set()
    there = partial(tmp_path)
    assert there and there.stat().st_size == HALF and there.read_bytes() == WEIGHTS[:HALF]
    finished(start(hub, tmp_path))
    assert hub.ranges == [None, f"bytes={HALF}-"]


def test_a_cut_connection(hub: Hub, tmp_path: Path) -> None:
    hub.stop_at, hub.answers = HALF, 206
    finished(start(hub, tmp_path))
    assert hub.ranges == [None, f"bytes={HALF}-"]


def test_a_server_without_ranges(hub: Hub, tmp_path: Path) -> None:
    """It sends the whole file again, which must not be appended to what is there."""
    blobs = tmp_path / "hub" / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(WEIGHTS).hexdigest()}.partial").write_bytes(b"x" * 1000)
    out, errors = start(hub, tmp_path).communicate(timeout=240)
    assert hub.ranges == ["bytes=1000-"]
    assert (Path(out.rsplit(maxsplit=1)[0]) / "model.safetensors").read_bytes() == WEIGHTS, errors


def test_other_bytes_than_the_hub_says_are_refused(hub: Hub, tmp_path: Path) -> None:
    hub.weights = WEIGHTS[:-1] + b"\x77"
    out, errors = start(hub, tmp_path).communicate(timeout=240)
    assert out == "" and "model.safetensors is not what the hub says (its SHA-256 differs)" in errors
    assert "Traceback" not in errors and partial(tmp_path) is None


def test_an_answer_that_no_hub_gives(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "tree", lambda: "no list")
    monkeypatch.setattr(hub, "info", lambda: {"id": "owner/model", "siblings": [{"size": 1}]})
    _, errors = start(hub, tmp_path).communicate(timeout=240)
    assert "refused: owner/model: download failed" in errors and "Traceback" not in errors
