"""`strixhlo.moe_route`: which experts each token goes to, and the tokens sorted by expert.

Operands: logits [T, E] of the router, or [T, more], where columns from the attribute experts on are something else's
(activations.py); positions int32 [T] (-1: a padding row, which goes to no
expert); where
`biased`, bias float32 [E], added to the scores for the choice only (DeepSeek-V3's e_score_correction_bias), or where
`factored` too, by what the weights are multiplied (Gemma 4's per_expert_scale).

Attributes: k; scoring "softmax" (over all experts, then the choice), "selected" (the choice, then softmax over the
chosen), "sigmoid", "selected_sigmoid" (the choice, then the sigmoid of each: Llama 4), or "sparsemixer" (Phi-3.5-MoE,
arXiv:2409.12136: each of the chosen is weighted by a softmax over those not chosen before it whose logit is not
farther below its own than 2 * jitter, relative to the larger of the two); normalize (weights divided by their sum);
scale (of the weights); groups, group_k, group_top: when groups > 1, only experts of the `group_k` groups with the
highest sum of their `group_top` highest scores are chosen. Absent where they say nothing: factored, jitter, and
logit_scale, by which the logits are multiplied first.
Of equal scores the lower expert is chosen first, and a NaN last.

Results, with P = T * k pairs, pair p = t * k + j being the j-th expert of token t:
ids int32 [T, k] (E for padding), weights float32 [T, k] (0 for padding), places int32 [T, k]: the pair's sorted row,
order int32 [P]: the pair of each sorted row, expert int32 [P]: its expert, offsets int32 [E + 1]: the first sorted row
of each expert, and tiles int32 [most_tiles]: the first rows of tiles of at most 16 sorted rows of one expert, then -1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp

from .activations import alike, float32

NAME = "strixhlo.moe_route"
SCORINGS = ("softmax", "selected", "sigmoid", "selected_sigmoid", "sparsemixer")  # numbered so in kernels
TILE = 16  # sorted rows of one expert that a matmul takes together


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Routing:
    """The results of the op; see the module's text."""

    ids: jax.Array
    weights: jax.Array
    places: jax.Array
    order: jax.Array
    expert: jax.Array
    offsets: jax.Array
    tiles: jax.Array


RESULTS = tuple(f.name for f in fields(Routing))


def most_tiles(pairs: int, experts: int) -> int:
    """Tiles that the pairs can need at most: each expert's last one may be short."""
    return pairs // TILE + min(experts, pairs)


def result_shapes(t: int, experts: int, k: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> (shape, dtype) of every result."""
    pairs = t * k
    return {
        "ids": ((t, k), "i32"),
        "weights": ((t, k), "f32"),
        "places": ((t, k), "i32"),
        "order": ((pairs,), "i32"),
        "expert": ((pairs,), "i32"),
        "offsets": ((experts + 1,), "i32"),
        "tiles": ((most_tiles(pairs, experts),), "i32"),
    }


def _ranks(scores: jax.Array) -> jax.Array:
    """int32 like scores [..., n]: how many come before each. Not top_k: IREE's races between waves on gfx1151."""
    index = jnp.arange(scores.shape[-1], dtype=jnp.int32)
    mine, other = scores[..., :, None], scores[..., None, :]
    before = (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))
    return before.sum(axis=-1, dtype=jnp.int32)


def _choice(scores: jax.Array, groups: int, group_k: int, group_top: int) -> jax.Array:
    """The scores [T, E], -inf where the expert's group is not chosen."""
    if groups <= 1:
        return scores
    grouped = scores.reshape(len(scores), groups, -1)
    best = jnp.where(_ranks(grouped) < group_top, grouped, 0.0).sum(axis=-1)
    return jnp.where((_ranks(best) < group_k)[..., None], grouped, -jnp.inf).reshape(scores.shape)


def _sparse_mixer(logits: jax.Array, chosen: jax.Array, best: jax.Array, jitter: float) -> jax.Array:
    """float32 [T, k] for logits [T, E], the chosen experts [T, k, E], best first, and their logits [T, k]."""
    left, weights = logits, []
    for j in range(chosen.shape[1]):
        of = best[:, j : j + 1]
        far = (of - logits) / jnp.maximum(jnp.abs(logits), of) > 2 * jitter
        weights.append(1 / jnp.where(far, 0.0, jnp.exp(left - of)).sum(axis=-1))
        left = jnp.where(chosen[:, j], -jnp.inf, left)
    return jnp.stack(weights, axis=-1)


def reference(
    logits: jax.Array,
    positions: jax.Array,
    *bias: jax.Array,
    k: int,
    scoring: str,
    normalize: bool,
    scale: float,
    groups: int,
    group_k: int,
    group_top: int,
    biased: bool,
    experts: int = 0,
    factored: bool = False,
    jitter: float = 0.0,
    logit_scale: float = 1.0,
) -> tuple[jax.Array, ...]:
    """The semantics in plain jnp: ranks by comparing all with all."""
    experts = experts or logits.shape[1]
    logits = float32(logits[:, :experts]) * logit_scale
    if scoring == "sigmoid":
        scores = jax.nn.sigmoid(logits)
    else:
        scores = jax.nn.softmax(logits, axis=-1) if scoring == "softmax" else logits
    choice = scores + bias[0] if biased and not factored else scores
    choice = jnp.where(jnp.isnan(choice), -jnp.inf, choice)
    rank = _ranks(_choice(choice, groups, group_k, group_top))
    chosen = rank[:, None, :] == jnp.arange(k, dtype=jnp.int32)[:, None]  # [T, k, E]
    number = jnp.arange(experts, dtype=jnp.int32)
    ids = jnp.where(chosen, number, 0).sum(axis=-1, dtype=jnp.int32)
    weights = jnp.where(chosen, scores[:, None, :], 0.0).sum(axis=-1)
    if scoring == "selected":
        weights = jax.nn.softmax(weights, axis=-1)
    elif scoring == "selected_sigmoid":
        weights = jax.nn.sigmoid(weights)
    elif scoring == "sparsemixer":
        weights = _sparse_mixer(logits, chosen, weights, jitter)
    if normalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
    if factored:
        weights = weights * jnp.where(chosen, bias[0], 0.0).sum(axis=-1)
    padding = positions[:, None] < 0
    ids = jnp.where(padding, experts, ids)
    weights = jnp.where(padding, 0.0, weights * scale)
    return (ids, weights, *_sorted(ids, experts))


def _sorted(ids: jax.Array, experts: int) -> tuple[jax.Array, ...]:
    """places, order, expert, offsets, tiles."""
    of_pair = ids.reshape(-1)
    pair = jnp.arange(len(of_pair), dtype=jnp.int32)
    before = (of_pair[None, :] < of_pair[:, None]) | (
        (of_pair[None, :] == of_pair[:, None]) & (pair[None, :] < pair[:, None])
    )
    place = before.sum(axis=1, dtype=jnp.int32)
    is_at = place[None, :] == pair[:, None]
    order = jnp.where(is_at, pair, 0).sum(axis=1, dtype=jnp.int32)
    expert = jnp.where(is_at, of_pair, 0).sum(axis=1, dtype=jnp.int32)
    offsets = (of_pair[None, :] < jnp.arange(experts + 1, dtype=jnp.int32)[:, None]).sum(axis=1, dtype=jnp.int32)
    starts = jnp.take(offsets, expert, mode="clip")
    is_tile = (expert < experts) & ((pair - starts) % TILE == 0)
    number = (is_tile[None, :] & (pair[None, :] < pair[:, None])).sum(axis=1, dtype=jnp.int32)
    tile = jnp.arange(most_tiles(len(pair), experts), dtype=jnp.int32)
    here = is_tile[None, :] & (number[None, :] == tile[:, None])
    tiles = jnp.where(here, pair + 1, 0).sum(axis=1, dtype=jnp.int32) - 1
    return place.reshape(ids.shape), order, expert, offsets, tiles


_composite = jax.lax.composite(reference, name=NAME)


def moe_route(
    logits: jax.Array,
    positions: jax.Array,
    bias: jax.Array | None = None,
    *,
    k: int,
    scoring: str = "softmax",
    normalize: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    group_k: int = 1,
    group_top: int = 2,
    experts: int = 0,
    jitter: float = 0.0,
    factors: jax.Array | None = None,
    logit_scale: float = 1.0,
) -> Routing:
    """logits [T, E], positions int32 [T] (-1: padding), bias float32 [E], or factors float32 [E] of the weights; see
    the module's text. experts: E, where logits have more columns."""
    alike(logits)
    assert bias is None or factors is None
    operands = (logits, positions, *(of for of in (bias, factors) if of is not None))
    further: dict[str, Any] = {"factored": True} if factors is not None else {}
    further |= {"jitter": jitter} if scoring == "sparsemixer" else {}
    further |= {"logit_scale": logit_scale} if logit_scale != 1 else {}
    return Routing(
        *_composite(
            *operands,
            k=k,
            scoring=scoring,
            normalize=normalize,
            scale=scale,
            groups=groups,
            group_k=group_k,
            group_top=group_top,
            biased=len(operands) > 2,
            experts=experts or logits.shape[1],
            **further,
        )
    )
