"""How many positions one sequence may have, and how many rows the KV pools get, chosen when a program is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from ..bundle import Build, Bundle, KVCache, built_cache
from ..errors import StrixhloError


@dataclass(frozen=True)
class CacheSize:
    """context: positions of one sequence at most; rows: of the pools, which all sequences share."""

    context: int
    rows: int


def cache_size(bundle: Bundle, build: Build, context: int | None, parallel: int, room: int | None) -> CacheSize:
    """The pools for `parallel` sequences of `context` positions (None: all that the bundle has), or as much of that as
    goes into `room` bytes (None: not known), though never less than one whole sequence.

    A program whose pools are fixed has what was exported. StrixhloError for a context that the bundle does not have.
    """
    kv = built_cache(bundle.manifest, build)
    most = min(bundle.manifest.context, kv.blocks * kv.block_size)
    context = most if context is None else context
    if context > most:
        raise StrixhloError(
            f"{bundle.path}: a context of {context} is not possible, it was exported for {most}; export it with"
            f" --context {context}"
        )
    if not build.kv_rows_free:
        return CacheSize(min(context, kv.positions_in(kv.rows)), kv.rows)
    one = kv.rows_for(context)
    rows = one * parallel
    if room is not None:
        rows = max(one, min(rows, room // _block_bytes(kv) * kv.block_size))
    return CacheSize(context, rows)


def _block_bytes(kv: KVCache) -> int:
    return 2 * kv.layers * kv.block_size * kv.width * kv.element_bytes


def require_kv_dtype(bundle: Bundle, build: Build, dtype: str | None) -> None:
    """StrixhloError, with the command that helps, unless the program's KV cache is of that type (None: any)."""
    kv = built_cache(bundle.manifest, build)
    if dtype is None or kv.dtype == dtype:
        return
    command = (
        f"strixhlo compile {bundle.path} --target {build.target} --kv-cache-dtype {dtype}"
        if build.kv_rows_free
        else f"strixhlo export {bundle.manifest.source} -o {bundle.path} --kv-dtype {dtype}"
    )
    raise StrixhloError(f"{bundle.path}: its {build.target} program has a KV cache in {kv.dtype}; run `{command}`")
