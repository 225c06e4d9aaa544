"""Large files of a hub repository -> the hub's local cache, taken up again in the middle of a file.

huggingface_hub goes on within a file only while the command runs: each of its tries writes a temporary file of its own.
Here a file that is cut short stays in the cache as blobs/<hash>.partial, and the next run asks for the bytes that are
missing (a kill loses what came after the last 10 MB). A file that is complete and has the hash that the hub says
becomes the blob that huggingface_hub looks for.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import WeakFileLock, build_hf_headers, tqdm

from ...errors import StrixhloError
from ...progress import Stages

PIECE = 16 << 20
LARGEST = 50 << 30  # the hub serves larger files through Xet alone: left to huggingface_hub


@dataclass(frozen=True)
class LargeFile:
    """A file in the hub's large-file storage, named by the SHA-256 of what is in it."""

    name: str
    size: int
    sha256: str


def large_files(info: ModelInfo, names: Iterable[str]) -> list[LargeFile]:
    """Those of `names` that are kept by their hash, of a `model_info(files_metadata=True)`."""
    wanted = set(names)
    found = [f for f in info.siblings or () if f.rfilename in wanted and f.lfs is not None]
    return [LargeFile(f.rfilename, f.lfs.size, f.lfs.sha256) for f in found if f.lfs and f.lfs.size <= LARGEST]


def fetch(repository: str, commit: str, files: Iterable[LargeFile], progress: Stages) -> None:
    """Fetch what the cache lacks of these files. StrixhloError when the bytes are not those that the hub names;
    errors of the network and of the disk are passed on."""
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
    for file in files:
        blob = folder / file.sha256
        if blob.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder / f"{file.sha256}.partial.lock"):
            if not blob.exists():
                _fetch_one(repository, commit, file, blob, progress)
        (folder / f"{file.sha256}.partial.lock").unlink(missing_ok=True)


def _fetch_one(repository: str, commit: str, file: LargeFile, blob: Path, progress: Stages) -> None:
    partial = blob.with_name(f"{blob.name}.partial")
    if partial.exists() and partial.stat().st_size > file.size:
        partial.unlink()
    progress.stage(f"downloading {file.name}", file.size)
    with CountingFile(partial, progress.advance) as out:
        out.seek(0, io.SEEK_END)
        progress.advance(out.tell())
        http_get(
            hf_hub_url(repository, file.name, revision=commit),
            out,
            resume_size=out.tell(),
            headers=build_hf_headers(),
            expected_size=file.size,
            tqdm_class=NoBar,
        )
    progress.stage(f"verifying {file.name}", file.size)
    if _sha256(partial, progress) != file.sha256:
        partial.unlink()
        raise StrixhloError(
            f"{repository}: {file.name} is not what the hub says (its SHA-256 differs); run the command again"
        )
    partial.replace(blob)


def _sha256(path: Path, progress: Stages) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            progress.advance(len(piece))
    return digest.hexdigest()


class CountingFile(io.FileIO):
    """A file that is appended to, each write reported. Unbuffered: what is written is there after a kill."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path, "a+")
        self.advance = advance

    def write(self, data: Any) -> int:
        view = memoryview(data)
        while view.nbytes:  # a raw file may take less at once
            written = super().write(view)
            self.advance(written)
            view = view[written:]
        return len(data)


class NoBar(tqdm):
    """huggingface_hub's bar, not shown: there is one of our own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"disable": True}))
