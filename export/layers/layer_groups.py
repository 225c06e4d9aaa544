"""Which layers share blocks of the KV pools: those that see all positions apart from those with a window.

A block holds `block_size` positions of every layer of one group. All groups have the same number of layers, so that
one pool serves them all, and a sequence frees the blocks of a group with a window as they leave it (as vLLM's hybrid
KV cache manager does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_WASTE = 16  # of the layers, one in so many may be a place that no layer takes


@dataclass(frozen=True)
class LayerGroups:
    """layers: of a group; windows: of each group, 0 for all positions; places: of each layer, (group, index in it)."""

    layers: int
    windows: tuple[int, ...]
    places: tuple[tuple[int, int], ...]


def layer_groups(windows: Sequence[int], context: int) -> LayerGroups:
    """windows: of each layer, 0 for all positions. A window of the whole context is none."""
    kinds = [w if w < context else 0 for w in windows]
    full = [i for i, w in enumerate(kinds) if not w]
    sliding = [i for i, w in enumerate(kinds) if w]
    if not full or not sliding:
        return LayerGroups(len(kinds), (max(kinds),), tuple((0, i) for i in range(len(kinds))))
    size = next(
        n
        for n in range(min(len(full), len(sliding)), 0, -1)
        if (-len(full) % n + -len(sliding) % n) * MOST_WASTE <= len(kinds)
    )
    groups = [part[i : i + size] for part in (full, sliding) for i in range(0, len(part), size)]
    places = {layer: (g, index) for g, group in enumerate(groups) for index, layer in enumerate(group)}
    return LayerGroups(
        size, tuple(max(kinds[i] for i in group) for group in groups), tuple(places[i] for i in range(len(kinds)))
    )
