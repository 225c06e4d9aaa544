"""A session's KV cache on disk: token ids, and what the model keeps of them, so that going on needs no prefill.

A safetensors file: `ids` int32 [n], and `k_pool`, `v_pool` [layers, n, width] as the pool holds them, in whole blocks,
the layers of one group after another, zeros where a window has left positions behind. Its metadata name the model that
wrote it, by a hash, and no other model takes it. What is read is not trusted.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import StrixhloError
from ..replacement import atomic_write
from .device import DTYPES
from .prefix_copy import cached_prefix, insert_prefix
from .program import Program
from .scheduler import Scheduler

FORMAT, VERSION = "strixhlo-session", "1"
POOLS = ("k_pool", "v_pool")


def fingerprint(program: Program) -> str:
    """Hash of what the cache depends on: program, weights, and how the KV pools are laid out."""
    m, kv = program.bundle.manifest, program.kv_cache
    parts = [m.program_sha256, m.weights_sha256, *(r.sha256 for r in m.references)]
    layout = [kv.dtype, kv.layers, kv.width, kv.block_size, kv.windows]
    return hashlib.sha256(json.dumps([parts, layout]).encode()).hexdigest()


def save_session(program: Program, scheduler: Scheduler, ids: list[int], path: Path) -> int:
    """Write what the prefix cache holds of a text; returns how many of its tokens that are."""
    cached, pools = cached_prefix(scheduler, ids)
    pools = [pool.view(np.uint16) if pool.dtype == DTYPES["bf16"] else pool for pool in pools]  # as their bits
    tensors = {"ids": np.array(cached, np.int32), **dict(zip(POOLS, pools, strict=True))}
    metadata = {"format": FORMAT, "version": VERSION, "model": fingerprint(program)}
    atomic_write(path, save(tensors, metadata))
    return len(cached)


def load_session(program: Program, scheduler: Scheduler, path: Path) -> int:
    """Put a saved cache into the prefix cache; returns how many tokens it has there, less where the pool is full.
    StrixhloError for a file that is broken, or another model's."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            _check_origin(program, path, file.metadata() or {})
            if set(file.keys()) != {"ids", *POOLS}:
                raise StrixhloError(f"{path}: is not a saved session")
            ids = file.get_tensor("ids")
            _check_ids(program, path, ids)
            pools = [file.get_tensor(name) for name in POOLS]
            if program.kv_cache.dtype == "bf16":
                pools = [pool.view(DTYPES["bf16"]) if pool.dtype == np.uint16 else pool for pool in pools]
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise StrixhloError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    for pool, spec in zip(pools, program.kv_cache.pools(), strict=True):
        expected = (spec.shape[0] * len(program.kv_cache.windows), ids.size, spec.shape[2])
        if pool.shape != expected or pool.dtype != DTYPES[spec.dtype]:
            raise StrixhloError(f"{path}: {spec.name} is {pool.dtype}{list(pool.shape)}, not {list(expected)}")
        # Of E4M3's bits, 0x7f with either sign is no number.
        bad = (pool & 0x7F) == 0x7F if pool.dtype == np.int8 else ~np.isfinite(pool)
        if bad.any():
            raise StrixhloError(f"{path}: {spec.name} holds values that no model makes")
    return insert_prefix(scheduler, ids.tolist(), pools)


def _check_origin(program: Program, path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise StrixhloError(f"{path}: is not a session that this strixhlo saved")
    if metadata.get("model") != fingerprint(program):
        raise StrixhloError(f"{path}: was saved with another model, or another type of KV cache")


def _check_ids(program: Program, path: Path, ids: np.ndarray) -> None:
    vocabulary, size = program.bundle.manifest.vocab_size, program.kv_cache.block_size
    whole = ids.ndim == 1 and ids.dtype == np.int32 and ids.size % size == 0 and ids.size <= program.context
    if not whole or (ids.size and not 0 <= ids.min() <= ids.max() < vocabulary):
        raise StrixhloError(f"{path}: its token ids are not such of this model, in whole blocks of {size}")
