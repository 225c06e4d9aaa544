"""What a prefix cache holds of a text, copied out of the KV pools and back: a session on disk is that."""

from __future__ import annotations

import numpy as np

from .scheduler import Scheduler


def cached_prefix(scheduler: Scheduler, ids: list[int]) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """What the prefix cache has of a text: the ids, which may have other boundaries, and their rows of the pools,
    [groups * layers, ids, width] each."""
    pool, engine = scheduler.pool, scheduler.engine

    def read() -> tuple[tuple[int, ...], list[np.ndarray]]:
        match = pool.match([*ids, 0], engine.context)
        try:
            return match.ids, engine.read_blocks(match.blocks)
        finally:
            for own in match.blocks:
                pool.release(own)

    return scheduler.between_steps(read)


def insert_prefix(scheduler: Scheduler, ids: list[int], rows: list[np.ndarray]) -> int:
    """Put what `cached_prefix` gave into the prefix cache, as far as blocks are free; how many ids that are."""
    pool, engine = scheduler.pool, scheduler.engine

    def write() -> int:
        size = engine.block_size
        blocks = pool.allocate_prefix(len(ids) // size)
        spans = len(blocks[0])
        engine.write_blocks(blocks, [r[:, : spans * size] for r in rows])
        chain = None
        for i in range(spans):
            chain = pool.register([own[i] for own in blocks], ids[i * size : (i + 1) * size], chain)
        for own in blocks:
            pool.release(own)
        return spans * size

    return scheduler.between_steps(write)
