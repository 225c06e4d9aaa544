"""What programs get of their device, decided before anything is loaded: the size of the KV pools, and the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bundle import Build, Bundle
from .cache_size import CacheSize, cache_size
from .device_pool import device_pool
from .memory import KV_CACHE, Budget, memory_budget, needed_items, require_fit


@dataclass(frozen=True)
class LoadPlan:
    """Of one program."""

    size: CacheSize
    budget: Budget


def shortage(plan: LoadPlan, parallel: int) -> str:
    """ "" where the KV pools hold `parallel` sequences of full length; else what they hold, and what would."""
    wanted = plan.size.context * parallel
    if plan.size.rows >= wanted:
        return ""
    whole = plan.size.rows // plan.size.context
    return (
        f"memory for {plan.size.rows} positions: {whole} of {parallel} sequences of {plan.size.context} at a time, more"
        f" only when shorter; --parallel {whole}, --ctx {plan.size.rows // parallel} or a narrower KV cache fit whole"
    )


def load_plans(
    programs: Sequence[tuple[Bundle, Build]], limit: int | None = None, context: int | None = None, parallel: int = 1
) -> list[LoadPlan]:
    """The plans of programs for one target that run together, in order.

    limit: bytes that they may take, in place of what the device has left. context, parallel: of each one's KV pools,
    see `cache_size`; what is left beside the weights of all is shared evenly. StrixhloError where one does not fit.
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
    room = None if amount is None else (amount - beside) // len(programs)
    plans = []
    for bundle, build in programs:
        size = cache_size(bundle, build, context, parallel, room)
        budget = memory_budget(bundle.manifest, build, kind, pool, limit=limit, context=size.rows)
        require_fit(budget, str(bundle.path))
        plans.append(LoadPlan(size, budget))
    return plans
