"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over the compressed cache.

Keys and values of all heads are linear functions of one latent vector a token, so that their matrices move to the other
side: queries are brought into the latent space (`embed_q`), attention runs over [latent, rotated part] as over a single
key head whose values are its keys, and what it mixes is brought out of that space (`unembed_out`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ...custom_kernels.ops.fused_matmul import Residual
from .attention import Attention
from .cache import Cache
from .decoder import Decoder
from .head_linear import head_linear
from .linear import projection, projection_shapes
from .norm import Input, Norm
from .weights import Weights

LATENT_NORM = Norm(1e-6)  # whatever the other norms' epsilon is


@dataclass(frozen=True)
class LatentAttention(Attention):
    """One key head of kv_rank + rope.dims values. A query has `plain` values that are not rotated, then the rotated
    ones; a head gives `value` values. q_rank: the width of queries between their two matrices (0: there is one)."""

    q_rank: int = 0
    kv_rank: int = 0
    plain: int = 0
    value: int = 0

    @property
    def rotated(self) -> int:
        """Values of a head that are rotated."""
        return self.head_dim - self.kv_rank

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors; prefix: "model.layers.0."."""
        p, query = f"{prefix}{self.module}.", self.heads * (self.plain + self.rotated)
        if self.q_rank:
            yield from projection_shapes(p + "q_a_proj", self.q_rank, self.hidden, self.bias)
            yield from LATENT_NORM.shapes(p + "q_a_layernorm", self.q_rank)
            yield from projection_shapes(p + "q_b_proj", query, self.q_rank)
        else:
            yield from projection_shapes(p + "q_proj", query, self.hidden)
        yield from projection_shapes(p + "kv_a_proj_with_mqa", self.head_dim, self.hidden, self.bias)
        yield from LATENT_NORM.shapes(p + "kv_a_layernorm", self.kv_rank)
        yield from projection_shapes(p + "embed_q", self.heads * self.kv_rank, self.plain)
        yield from projection_shapes(p + "unembed_out", self.heads * self.value, self.kv_rank)
        yield from projection_shapes(p + self.output, self.hidden, self.heads * self.value, self.bias)

    def __call__(
        self, w: Weights, prefix: str, x: Input, cache: Cache, layer: int, residual: Residual | None = None
    ) -> tuple[jax.Array, Cache]:
        """x [T, hidden] -> [T, hidden], added to the residual where there is one, and the cache with
        this layer's new latents."""
        p = f"{prefix}{self.module}."
        assert self.rope
        q = self._queries(w, p, x)
        compressed = projection(x, w, p + "kv_a_proj_with_mqa", self.bias)
        latent = LATENT_NORM(compressed[:, : self.kv_rank], w, p + "kv_a_layernorm")
        key = self.rope(compressed[:, None, self.kv_rank :], w, cache.positions)[:, 0]
        turned = self.rope(q[:, :, self.plain :], w, cache.positions)
        within = head_linear(q[:, :, : self.plain], w[p + "embed_q.weight"])
        mixed, cache = cache.attend_keys(
            jnp.concatenate([within, turned], axis=-1),
            jnp.concatenate([latent, key], axis=-1),
            layer=layer,
            scale=self.scale,
            value_dim=self.kv_rank,
        )
        values = head_linear(mixed, w[p + "unembed_out.weight"])
        return projection(values.reshape(len(x), -1), w, p + self.output, self.bias, residual), cache

    def _queries(self, w: Weights, p: str, x: Input) -> jax.Array:
        """[T, heads, plain + rotated]."""
        if self.q_rank:
            narrow = LATENT_NORM(projection(x, w, p + "q_a_proj", self.bias), w, p + "q_a_layernorm")
            q = projection(narrow, w, p + "q_b_proj")
        else:
            q = projection(x, w, p + "q_proj")
        return q.reshape(len(x), self.heads, -1)


@dataclass(frozen=True)
class LatentDecoder(Decoder):
    """Layers of `LatentAttention`: the two pools hold the latents of the even and of the odd layers."""

    @property
    def pool(self) -> tuple[int, int]:
        """(layers, width) of each of the two pools."""
        return -(-self.layers // 2), self.head_dim
