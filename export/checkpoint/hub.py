"""A model on the Hugging Face hub -> files in the local cache. Only data is fetched: no pickled weights, no code."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects

from ...errors import StrixhloError
from ...progress import Stages
from .hub_blobs import fetch, large_files

# owner/name or owner/name@revision
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?")
WANTED = ["*.safetensors", "*.json", "*.jinja"]
# Not in subdirectories (other precisions, other frameworks) but 1_Pooling, which an embedding model has; not the second
# copy that Mistral's repositories hold.
UNWANTED = ["[!1]*/*", "1[!_]*/*", "1_[!P]*/*", "*/*/*", "*/*.safetensors", "consolidated*"]
SILENT = Stages(lambda _name, _total: None, lambda _bytes: None)


def download(hub_id: str, progress: Stages = SILENT) -> Path:
    """Fetch what is missing of a model and return the directory or the GGUF file in the cache.

    After an interruption complete files are not fetched again, and weights go on within a file (hub_blobs.py).
    HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN are honoured; without a network a complete copy in the cache is
    used. StrixhloError says in one line why there is nothing to use.
    """
    match = HUB_ID.fullmatch(hub_id)
    if match is None:
        raise StrixhloError(f"{hub_id}: not a hub id (owner/name or owner/name@revision)")
    name, revision = match.groups()
    try:
        _fetch_weights(hub_id, name, revision, progress)
        progress.stage(f"looking up {hub_id}", 0)
        directory = Path(snapshot_download(name, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED))
        if any(directory.glob("*.safetensors")):
            return directory
        file = _only_gguf(hub_id, _ggufs(name, revision, directory))
        directory = Path(snapshot_download(name, revision=revision, allow_patterns=[file]))
    except LocalEntryNotFoundError as error:
        raise StrixhloError(
            f"{hub_id}: not in the local cache, or not completely, and the hub cannot be reached; "
            f"go online (unset HF_HUB_OFFLINE) or give a local directory or GGUF file"
        ) from error
    except GatedRepoError as error:
        raise StrixhloError(f"{hub_id}: access is gated; accept its terms on the hub, then `hf auth login`") from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise StrixhloError(
            f"{hub_id}: neither a local file or directory nor a model on the hub (if it is private: `hf auth login`)"
        ) from error
    except (HTTPError, OSError, ValueError, TypeError, KeyError) as error:  # the last two: answers that no hub gives
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise StrixhloError(
            f"{hub_id}: download failed ({reason}); run the command again to continue, or give a local directory"
        ) from error
    return directory / file


def _fetch_weights(hub_id: str, name: str, revision: str | None, progress: Stages) -> None:
    """Large files into the cache. Where the hub cannot be asked, nothing: the cache may have all of them."""
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
    except (HfHubHTTPError, OfflineModeIsEnabled, HTTPError):
        return  # snapshot_download uses the cache, or says what is wrong
    names = [f.rfilename for f in info.siblings or ()]
    wanted = list(filter_repo_objects(names, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    if not any(n.endswith(".safetensors") for n in wanted):
        wanted = [_only_gguf(hub_id, [n for n in names if n.endswith(".gguf") and "mmproj" not in n])]
    if info.sha:
        fetch(name, info.sha, large_files(info, wanted), progress)


def _ggufs(name: str, revision: str | None, directory: Path) -> list[str]:
    """The GGUF files of a repository: those in the cache where the hub cannot be asked."""
    try:
        files = HfApi().list_repo_files(name, revision=revision)
    except (HTTPError, OSError):
        files = [path.name for path in directory.glob("*.gguf")]
    return [file for file in files if file.endswith(".gguf") and "mmproj" not in file]


def _only_gguf(hub_id: str, files: list[str]) -> str:
    if not files:
        raise StrixhloError(f"{hub_id}: no *.safetensors and no *.gguf; pickled weights (*.bin, *.pt) are never loaded")
    if len(files) > 1:
        raise StrixhloError(
            f"{hub_id}: {len(files)} GGUF files; fetch one with `hf download {hub_id.partition('@')[0]} FILE` "
            f"and give its path: {', '.join(sorted(files)[:20])}"
        )
    return files[0]
