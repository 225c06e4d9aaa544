"""Self-attention of one layer: projections, norms of q and k, rotary embedding, grouped-query attention, output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import jax

from ...custom_kernels.ops.fused_matmul import Residual
from ...custom_kernels.ops.rope_and_append import HeadNorm
from .cache import Cache
from .linear import joined_projections, projection, projection_shapes
from .norm import Input, Norm
from .query_scale import QueryScale
from .rope import Rope
from .weights import Weights


@dataclass(frozen=True)
class Attention:
    """What one layer's attention computes; names are relative to the layer.

    rope: None in layers without positions. window: positions that a row sees, itself included (0: all; below 0: those
    of its chunk of -window positions).
    query_scale: a factor on q that depends on the position.
    softcap: scores become softcap * tanh(scores / softcap) (0: not).
    sinks: a learned score of each head joins its softmax and takes its share of nothing (the tensor `sinks`).
    fused: q, k and v are one tensor qkv_proj, in that order of rows.
    norm: of q and k before the rotation, without a bias, over what `norm_over` says: each head with one weight
    [head_dim]; each head with a weight of its own [heads, head_dim]; or the projection as a whole [heads * head_dim].
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None = None
    query_scale: QueryScale | None = None
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    bias: bool = False
    output_bias: bool = False
    fused: bool = False
    norm: Norm | None = None
    norm_over: Literal["head", "each head", "projection"] = "head"
    norm_names: tuple[str, str] = ("q_norm", "k_norm")
    module: str = "self_attn"
    output: str = "o_proj"

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors; prefix: "model.layers.0."."""
        p = f"{prefix}{self.module}."
        rows = {"q": self.heads * self.head_dim, "k": self.kv_heads * self.head_dim, "v": self.kv_heads * self.head_dim}
        if self.fused:
            yield from projection_shapes(p + "qkv_proj", sum(rows.values()), self.hidden, self.bias)
        else:
            for name, n in rows.items():
                yield from projection_shapes(f"{p}{name}_proj", n, self.hidden, self.bias)
        if self.norm:
            for name, heads in zip(self.norm_names, (self.heads, self.kv_heads), strict=True):
                yield from self.norm.shapes(p + name, *self._norm_shape(heads))
        if self.sinks:
            yield p + "sinks", (self.heads,)
        yield from projection_shapes(p + self.output, self.hidden, rows["q"], self.output_bias)

    def _norm_shape(self, heads: int) -> tuple[int, ...]:
        return {
            "head": (self.head_dim,),
            "each head": (heads, self.head_dim),
            "projection": (heads * self.head_dim,),
        }[self.norm_over]

    def __call__(
        self, w: Weights, prefix: str, x: Input, cache: Cache, layer: int, residual: Residual | None = None
    ) -> tuple[jax.Array, Cache]:
        """x [T, hidden] -> [T, hidden] of its type, added to the residual where there is one, and the cache with
        this layer's new keys and values."""
        p = f"{prefix}{self.module}."
        projections, norm = self._qkv(w, p, x), None
        if self.norm:
            norm = head_norm(self.norm, w, p, self.norm_names)
            norm = replace(norm, kind="whole") if self.norm_over == "projection" else norm
        q, cache = cache.append(
            projections,
            heads=self.heads,
            kv_heads=self.kv_heads,
            layer=layer,
            norm=norm,
            table=w[self.rope.table].dense if self.rope else None,
            interleaved=self.rope is not None and self.rope.interleaved,
            query_scale=w[self.query_scale.table].dense if self.query_scale else None,
        )
        mixed = cache.read(
            q,
            kv_heads=self.kv_heads,
            layer=layer,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=w[p + "sinks"].dense if self.sinks else None,
        )
        return projection(mixed, w, p + self.output, self.output_bias, residual), cache

    def _qkv(self, w: Weights, p: str, x: Input) -> tuple[jax.Array, ...]:
        """q, k and v beside each other: [T, all heads * head_dim]."""
        if self.fused:
            return (projection(x, w, p + "qkv_proj", self.bias),)
        return (joined_projections(x, w, [f"{p}{name}_proj" for name in "qkv"], self.bias),)


def head_norm(norm: Norm, w: Weights, prefix: str, names: Sequence[str], values: bool = False) -> HeadNorm:
    """The norm of each head of q and k by the weights of these names; values: v's too, which has no weight."""
    q_weight, k_weight = (w[f"{prefix}{name}.weight"].dense for name in names)
    return HeadNorm(norm.kind, norm.epsilon, q_weight, k_weight, norm.offset, values)
