"""What a program needs, held against what its device has left, before anything is loaded.

weights + KV cache + the largest call's temporaries and results + a reserve, against the pool of `device_pool`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..bundle import ALIGNMENT, DTYPE_BYTES, Build, KVCache, Manifest, built_cache
from ..errors import StrixhloError
from .pools import Pool
from .sizes import MIB, size

# Beside what is counted: the driver's context, code objects, page tables, staging buffers; measured in docs/memory.md.
RESERVE = {"cpu": 256 * MIB, "rocm": 512 * MIB, "cuda": 768 * MIB, "vulkan": 512 * MIB}
# KV types that export can write -> bytes an element, the narrowest last.
KV_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "fp8": 1}


@dataclass(frozen=True)
class Item:
    """One line of the sum."""

    name: str
    bytes: int
    note: str = ""


@dataclass(frozen=True)
class Budget:
    """The sum against the amount: `amount` is None where the pool's size could not be found out."""

    items: tuple[Item, ...]
    amount: int | None
    source: str  # where the amount is from
    pool: Pool | None
    fitting: tuple[str, ...] = ()  # what would fit, when this does not

    @property
    def needed(self) -> int:
        """Bytes of all items."""
        return sum(item.bytes for item in self.items)

    @property
    def left(self) -> int | None:
        """Bytes that stay free; negative when it does not fit, None when that is not known."""
        return None if self.amount is None else self.amount - self.needed

    @property
    def fits(self) -> bool:
        """False only where it is known not to fit."""
        return self.left is None or self.left >= 0


def memory_budget(
    manifest: Manifest,
    build: Build | None,
    kind: str,
    pool: Pool,
    *,
    limit: int | None = None,
    context: int | None = None,
    parallel: int = 1,
    rows: int | None = None,
) -> Budget:
    """The budget of a program on a device.

    build: None for a bundle that is not compiled, whose temporaries are then estimated. kind: cpu, rocm, cuda, vulkan.
    limit: bytes to use in place of what the pool has left. context: positions of each of `parallel` sequences; None:
    the pool of the bundle. rows: of the KV pools, where that is decided.
    """
    items = needed_items(manifest, build, kind, context, parallel, rows)
    amount = pool.usable if limit is None else limit
    source = f"{pool.name} of {pool.device}" if limit is None else "--memory-budget"
    budget = Budget(items, amount, source, pool)
    if budget.fits:
        return budget
    rest = (amount or 0) - sum(i.bytes for i in items if i.name != KV_CACHE)
    free = build.kv_rows_free if build else kind != "vulkan"
    kv = built_cache(manifest, build)
    return Budget(items, amount, source, pool, _what_would_fit(kv, rest, context, parallel, free))


KV_CACHE = "KV cache"


def needed_items(
    manifest: Manifest,
    build: Build | None,
    kind: str,
    context: int | None = None,
    parallel: int = 1,
    rows: int | None = None,
) -> tuple[Item, ...]:
    """The lines of the sum."""
    kv = built_cache(manifest, build)
    transients, results, how = call_bytes(manifest, build)
    return (
        Item("weights", manifest.weights_bytes + manifest.referenced_bytes, _weights_note(manifest, kind)),
        Item(KV_CACHE, kv_bytes(kv, context, parallel, rows=rows), _kv_note(kv, context, parallel, rows)),
        Item("temporaries", transients, how),
        Item("results", results, "of the largest call"),
        Item("reserve", RESERVE[kind], "for the driver, code and page tables"),
    )


def _weights_note(manifest: Manifest, kind: str) -> str:
    if kind != "cpu":
        return "copied to the device"
    copied = sum(p.length for p in manifest.parameters.values() if p.file is not None and p.offset % ALIGNMENT)
    return f"mapped, {size(copied)} of it copied: not aligned in the checkpoint" if copied else "mapped from the file"


def kv_bytes(
    kv: KVCache, context: int | None, parallel: int, element: float | None = None, rows: int | None = None
) -> int:
    """Bytes of both pools for `parallel` sequences of `context` positions, in whole blocks; or of `rows` rows."""
    if rows is None:
        rows = (kv.rows if context is None else kv.rows_for(context)) * parallel
    return int(2 * kv.layers * rows * kv.width * (kv.element_bytes if element is None else element))


def _kv_note(kv: KVCache, context: int | None, parallel: int, rows: int | None) -> str:
    if rows is not None:
        return f"{rows // kv.block_size} blocks of {kv.block_size} x {kv.layers} layers, {kv.dtype}"
    slots = f"{parallel} x " if parallel > 1 else ""
    return f"{slots}{kv.blocks * kv.block_size if context is None else context} positions, {kv.dtype}"


def call_bytes(manifest: Manifest, build: Build | None) -> tuple[int, int, str]:
    """Temporaries and results of the largest call, in bytes, and how that is known.

    IREE's own numbers are in build.json. Without them: results by their shapes, and 4 bytes x rows x (8 hidden + 4
    feed-forward) for temporaries, an estimate from above for programs whose matmuls and attention are our kernels.
    """
    entries: dict[str, Any] = build.report.get("entries", {}) if build else {}
    if entries and not any(e.get("unknown_sizes", 1) for e in entries.values()):
        largest = max(entries.values(), key=lambda e: e["transient_bytes"] + e["result_bytes"])
        return largest["transient_bytes"], largest["result_bytes"], "of the largest call, as compiled"
    rows = max(e.rows for e in manifest.entry_points.values())
    results = max(
        sum(
            _aligned(math.prod(o.shape) * DTYPE_BYTES[o.dtype]) for o in e.outputs[:-2]
        )  # the last two are the KV pools
        for e in manifest.entry_points.values()
    )
    temporaries, _ = estimated_call_bytes(manifest.config, rows, manifest.vocab_size, manifest.kv_cache.width)
    return temporaries, results, "estimated: not compiled for this target"


def estimated_call_bytes(config: dict[str, Any], rows: int, vocab_size: int, width: int) -> tuple[int, int]:
    """(temporaries, results) of a call with that many rows, before anything is compiled. width: of the KV cache."""
    hidden = _largest_config(config, "hidden_size", default=width)
    feed_forward = _largest_config(config, "intermediate_size", default=4 * hidden)
    return 4 * rows * (8 * hidden + 4 * feed_forward), _aligned(4 * rows * vocab_size) + _aligned(4 * rows)


def _aligned(nbytes: int) -> int:
    """IREE lays the results of a call out at multiples of 64 bytes."""
    return math.ceil(nbytes / 64) * 64


def _largest_config(config: dict[str, Any], key: str, default: int) -> int:
    """The largest number of that name in a config, also in a text_config inside of it; absurd ones do not count."""
    values = [c.get(key) for c in (config, config.get("text_config") or {}) if isinstance(c, dict)]
    numbers = [n for v in values for n in (v if isinstance(v, list) else [v]) if type(n) is int and 0 < n < 1 << 31]
    return max(numbers, default=default)


def _what_would_fit(kv: KVCache, rest: int, context: int | None, parallel: int, free: bool) -> tuple[str, ...]:
    """What would fit into `rest` bytes of KV cache: a smaller context, fewer slots, a narrower type. free: the program
    takes pools of any size and type."""
    if rest <= 0:
        return ()
    fitting = []
    wanted = kv.blocks * kv.block_size if context is None else context
    positions = kv.positions_in(rest // kv_bytes(kv, None, 1, rows=1) // parallel)
    if positions:
        fitting.append(f"a context of {positions} ({'--ctx' if free else 'export --context'})")
    slots = rest // kv_bytes(kv, wanted, 1)
    if 1 <= slots < parallel:
        fitting.append(f"{slots} slots of {wanted} positions")
    for name, element in KV_BYTES.items():
        if name == "bf16":  # as large as f16, which keeps more digits
            continue
        if element < kv.element_bytes and kv_bytes(kv, wanted, parallel, element) <= rest:
            fitting.append(
                f"a KV cache in {name} ({'compile --kv-cache-dtype' if free else 'export --kv-dtype'} {name})"
            )
    return tuple(fitting)


def require_fit(budget: Budget, what: str) -> None:
    """StrixhloError with the sum, item by item, and with what would fit, where it does not fit."""
    if budget.fits or budget.amount is None:
        return
    remedies = "; ".join(budget.fitting) or "not even without a KV cache: take smaller weights"
    raise StrixhloError(
        f"{what}: needs {size(budget.needed)} ({item_line(budget)}) where {budget.source} leaves {size(budget.amount)};"
        f" what would fit: {remedies}; --memory-budget overrides this"
    )


def require_fit_together(budgets: Sequence[Budget]) -> None:
    """StrixhloError when programs of one device, each of which fits, do not fit beside each other."""
    amount, needed = budgets[0].amount, sum(budget.needed for budget in budgets)
    if amount is not None and needed > amount:
        parts = "; ".join(f"{size(budget.needed)}: {item_line(budget)}" for budget in budgets)
        raise StrixhloError(
            f"{len(budgets)} models need {size(needed)} together ({parts}) where {budgets[0].source} leaves"
            f" {size(amount)}; serve fewer of them, or with a smaller --ctx or --parallel, or a KV cache in a narrower"
            f" type; --memory-budget overrides this"
        )


def budget_line(budgets: Sequence[Budget]) -> str:
    """What programs of one device need together, and what is left: said before they are loaded."""
    first, needed = budgets[0], sum(budget.needed for budget in budgets)
    if first.amount is None:
        why = "; ".join(first.pool.warnings) if first.pool else ""
        return f"memory: {size(needed)} needed; what the device has left is not known ({why})"
    return f"memory: {size(needed)} needed of {size(first.amount)} ({first.source}), {size(first.amount - needed)} left"


def item_line(budget: Budget) -> str:
    """The sum of one program: weights 80.1 MiB, KV cache 11.2 MiB, ..."""
    return ", ".join(f"{item.name} {size(item.bytes)}" for item in budget.items)


def budget_record(budget: Budget) -> dict[str, Any]:
    """The budget as JSON."""
    pool = budget.pool
    return {
        "items": [{"name": i.name, "bytes": i.bytes, "note": i.note} for i in budget.items],
        "needed": budget.needed,
        "amount": budget.amount,
        "source": budget.source,
        "left": budget.left,
        "fits": budget.fits,
        "would_fit": list(budget.fitting),
        "pool": None
        if pool is None
        else {
            "device": pool.device,
            "name": pool.name,
            "limit": pool.limit,
            "used": pool.used,
            "usable": pool.usable,
            "reasons": list(pool.reasons),
            "warnings": list(pool.warnings),
        },
    }
