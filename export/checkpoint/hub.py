"""A model on the Hugging Face hub -> files in the local cache. Only data is fetched: no pickled weights, no code."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ...errors import StrixhloError

# owner/name or owner/name@revision
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?")
WANTED = ["*.safetensors", "*.json", "*.jinja"]
# Not in subdirectories (other precisions, other frameworks); not the second copy that Mistral's repositories hold.
UNWANTED = ["*/*", "consolidated*"]


def download(hub_id: str) -> Path:
    """Fetch what is missing of a model and return the directory or the GGUF file in the cache.

    Files that are complete are not fetched again after an interruption. HF_HUB_OFFLINE, HF_HOME and HF_TOKEN are
    honoured; without a network a complete copy in the cache is used. StrixhloError says in one line why there is
    nothing to use.
    """
    match = HUB_ID.fullmatch(hub_id)
    if match is None:
        raise StrixhloError(f"{hub_id}: not a hub id (owner/name or owner/name@revision)")
    name, revision = match.groups()
    try:
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
    except (HTTPError, OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise StrixhloError(
            f"{hub_id}: download failed ({reason}); run the command again to continue, or give a local directory"
        ) from error
    return directory / file


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
