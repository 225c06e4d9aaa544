"""One vector of a text, by an embedding model: chunk after chunk, each between two steps of the scheduler, so that
nobody who generates waits for more than one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from ..bundle import Pooling
from ..errors import StrixhloError
from .requests import QueueFull
from .scheduler import Scheduler


def embed(
    scheduler: Scheduler, pooling: Pooling, ids: Sequence[int], go_on: Callable[[], bool] = lambda: True
) -> np.ndarray:
    """float32 [hidden] of token ids. go_on: asked before each chunk; False ends it with an error.

    Raises QueueFull while sequences hold the blocks that it needs, StrixhloError for ids that cannot be processed.
    """
    engine = scheduler.engine
    engine.check_prompt(ids)
    total = np.zeros(0, np.float64)
    blocks = scheduler.between_steps(partial(_allocate, scheduler, -(-len(ids) // engine.block_size)))
    try:
        for start in range(0, len(ids), engine.embed_rows):
            if not go_on():
                raise StrixhloError("the embedding was cancelled")
            chunk = ids[start : start + engine.embed_rows]
            part = scheduler.between_steps(partial(engine.embed, chunk, start, blocks)).astype(np.float64)
            total = part if pooling.method == "last" or not start else total + part
    finally:
        with suppress(StrixhloError):  # it was closed: there is no pool any more
            scheduler.between_steps(partial(_release, scheduler, blocks))
    if pooling.method == "mean":
        total /= len(ids)
    if not np.isfinite(total).all():
        raise StrixhloError("the embedding is not finite: the model's output is broken; try another target or --dtype")
    return normalized(total) if pooling.normalize else total.astype(np.float32)


def normalized(vector: np.ndarray) -> np.ndarray:
    """The same direction with length 1, float32; zeros stay."""
    return (vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32)


def _allocate(scheduler: Scheduler, spans: int) -> list[list[int]]:
    """Blocks of each group of layers; nobody is preempted for them."""
    pool = scheduler.pool
    if scheduler.pressed or spans * len(pool.windows) > pool.available:
        raise QueueFull("the KV pool is in use; try again later")
    return [[block for _ in range(spans) if (block := pool.allocate()) is not None] for _ in pool.windows]


def _release(scheduler: Scheduler, blocks: Sequence[Sequence[int]]) -> None:
    for own in blocks:
        scheduler.pool.release(own)
