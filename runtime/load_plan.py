"""What programs get of their device, decided before anything is loaded: the size of the KV pools, and the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bundle import Build, Bundle, KVCache, built_cache
from .cache_size import CacheSize, cache_size
from .device_pool import device_pool
from .memory import KV_CACHE, Budget, memory_budget, needed_items, require_fit
from .pools import os_reserve


@dataclass(frozen=True)
class LoadPlan:
    """Of one program."""

    size: CacheSize
    budget: Budget
    kv: KVCache  # with rows as exported


def shortage(plan: LoadPlan, parallel: int) -> str:
    """ "" where the KV pools hold `parallel` sequences of full length; else what they hold, and what would."""
    rows, one = plan.size.rows, plan.kv.rows_for(plan.size.context)
    if rows >= one * parallel:
        return ""
    whole = rows // one
    shorter = plan.kv.positions_in(rows // parallel)
    context = f", --ctx {shorter}" if shorter else ""
    return (
        f"memory for {whole} of {parallel} sequences of {plan.size.context} positions at a time, more only when"
        f" shorter; --parallel {whole}{context} or a narrower KV cache fit whole"
    )


def load_plans(
    programs: Sequence[tuple[Bundle, Build]], limit: int | None = None, context: int | None = None, parallel: int = 1
) -> list[LoadPlan]:
    """The plans of programs for one target that run together, in order.

    limit: bytes that they may take, in place of what the device has left. context, parallel: of each one's KV pools,
    see `cache_size`; what is left beside the weights of all, and where the device's memory is RAM beside the system's
    part of it (`os_reserve`), is shared evenly. StrixhloError where one does not fit.
    """
    kind = programs[0][1].target.partition(":")[0]
    pool = device_pool(kind)
    amount = pool.usable if limit is None else limit
    beside = sum(
        item.bytes
        for bundle, build in programs
        for item in needed_items(bundle.manifest, build, kind)
        if item.name != KV_CACHE
    )
    if amount is not None and limit is None and pool.name == "RAM":
        beside += os_reserve(pool.limit or 0)  # pools that shrink to what is left do not take the system's part
    room = None if amount is None else (amount - beside) // len(programs)
    plans = []
    for bundle, build in programs:
        size = cache_size(bundle, build, context, parallel, room)
        budget = memory_budget(bundle.manifest, build, kind, pool, limit=limit, context=context, rows=size.rows)
        require_fit(budget, str(bundle.path))
        plans.append(LoadPlan(size, budget, built_cache(bundle.manifest, build)))
    return plans
