"""Gemma 4's attention: norms of queries, keys and values, values that may be the keys, keys and values of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax

from ...custom_kernels.ops.fused_matmul import Residual
from ...errors import StrixhloError
from ..config_keys import Config
from ..config_values import attention_heads, count, flag, positive, refuse, shown, wrong
from ..layers.attention import Attention, head_norm
from ..layers.cache import Cache
from ..layers.linear import joined_projections, projection, projection_shapes, projections
from ..layers.norm import Input, Norm
from ..layers.rope import Rope
from ..layers.weights import Weights
from .pre_norm import FULL, SLIDING

OWN = -1


@dataclass(frozen=True)
class Gemma4Attention(Attention):
    """source: the layer whose keys and values this one reads (OWN: it has its own). values_are_keys: there is no
    v_proj; values are the keys before their norm and rotation."""

    source: int = OWN
    values_are_keys: bool = False

    @property
    def reads_others(self) -> bool:
        """Whether it has no keys and values of its own."""
        return self.source != OWN

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of its tensors."""
        p, q, kv = f"{prefix}{self.module}.", self.heads * self.head_dim, self.kv_heads * self.head_dim
        assert self.norm
        yield from projection_shapes(f"{p}q_proj", q, self.hidden, self.bias)
        yield from self.norm.shapes(f"{p}q_norm", self.head_dim)
        if not self.reads_others:
            for name in ("k_proj",) if self.values_are_keys else ("k_proj", "v_proj"):
                yield from projection_shapes(p + name, kv, self.hidden, self.bias)
            yield from self.norm.shapes(f"{p}k_norm", self.head_dim)
        yield from projection_shapes(p + self.output, self.hidden, q, self.output_bias)

    def __call__(
        self, w: Weights, prefix: str, x: Input, cache: Cache, layer: int, residual: Residual | None = None
    ) -> tuple[jax.Array, Cache]:
        """As `Attention` does it. layer: the place in the pools."""
        p = f"{prefix}{self.module}."
        assert self.norm and self.rope

        if self.reads_others:
            q = projection(x, w, f"{p}q_proj", self.bias)
            q = self.norm(q.reshape(len(x), -1, self.head_dim), w, f"{p}q_norm")
            q = self.rope(q, w, cache.positions)
        else:
            q, cache = cache.append(
                self._projections(w, p, x),
                heads=self.heads,
                kv_heads=self.kv_heads,
                layer=layer,
                norm=head_norm(self.norm, w, p, self.norm_names, values=True),
                table=w[self.rope.table].dense,
            )
        mixed = cache.read(q, kv_heads=self.kv_heads, layer=layer, scale=self.scale, window=self.window)
        return projection(mixed, w, p + self.output, self.output_bias, residual), cache

    def _projections(self, w: Weights, p: str, x: Input) -> tuple[jax.Array, ...]:
        """q, k, v, or the three beside each other."""
        if self.values_are_keys:
            q, k = projections(x, w, (f"{p}q_proj", f"{p}k_proj"), self.bias)
            return q, k, k
        return (joined_projections(x, w, [f"{p}{name}_proj" for name in "qkv"], self.bias),)


def attention_layers(config: Config, kinds: Sequence[str], hidden: int, norm: Norm) -> tuple[Gemma4Attention, ...]:
    """One a layer, as layer_types, per_layer_config and num_kv_shared_layers say."""
    if kinds[-1] != FULL:
        raise wrong("layer_types", kinds, f"a list whose last layer is {FULL}")
    heads, kv_heads, head_dim = attention_heads({"head_dim": 256} | config, hidden)
    bias = flag(config, "attention_bias", False)
    local = Rope(head_dim, positive(config, "rope_local_base_freq", 10000.0), table="rope.local")
    sliding = Gemma4Attention(
        hidden, heads, kv_heads, head_dim, 1.0, local, bias=bias, output_bias=bias, norm=norm,
        window=count(config, "sliding_window", 512),
    )  # fmt: skip
    full_kv, full_dim = _full_heads(config, kinds, kv_heads)
    if heads % full_kv or full_dim % 2:
        raise wrong("per_layer_config", (full_kv, full_dim), f"key and value heads that divide {heads}, of even size")
    if "rope_scaling" not in config:
        config = {"partial_rotary_factor": 0.25} | config | {"rope_scaling": {"rope_type": "proportional"}}
    elif config.get("rope_scaling") is None:
        refuse(config, {"partial_rotary_factor": (1.0, None)})
    rope = replace(Rope.from_config(config, full_dim, 1000000.0), table="rope.global")
    equal = flag(config, "attention_k_eq_v", False)
    full = replace(
        sliding, kv_heads=full_kv, head_dim=full_dim, rope=rope, window=0, values_are_keys=equal,
    )  # fmt: skip
    return _with_sources([sliding if kind == SLIDING else full for kind in kinds], kinds, config)


def _full_heads(config: Config, kinds: Sequence[str], kv_heads: int) -> tuple[int, int]:
    """(key and value heads, head size) of the full layers: per layer as transformers 5 writes it, or in keys."""
    overrides = config.get("per_layer_config")
    config.unused("global_head_dim", "num_global_key_value_heads")  # unless they are read below
    if overrides is None:
        equal = flag(config, "attention_k_eq_v", False) and config.get("num_global_key_value_heads") is not None
        return count(config, "num_global_key_value_heads") if equal else kv_heads, count(config, "global_head_dim", 512)
    if not isinstance(overrides, Mapping) or not all(isinstance(v, Mapping) for v in overrides.values()):
        raise wrong("per_layer_config", overrides, "an object of objects")
    expected = {i for i, kind in enumerate(kinds) if kind == FULL}
    layers = {int(k) if str(k).isdecimal() else k for k in overrides}
    settings = [dict(v) for v in overrides.values()]
    known = {"head_dim", "num_key_value_heads"}
    if layers != expected or any(s != settings[0] or not s.keys() <= known for s in settings):
        raise StrixhloError(
            f"config.json: per_layer_config = {shown(overrides)} is not supported: it must give all full-attention"
            f" layers, and no others, the same head_dim and num_key_value_heads"
        )
    return count(settings[0], "num_key_value_heads", kv_heads), count(settings[0], "head_dim", 256)


def _with_sources(layers: list[Gemma4Attention], kinds: Sequence[str], config: Config) -> tuple[Gemma4Attention, ...]:
    """The last num_kv_shared_layers read the last layer of their kind before them."""
    shared = config.get("num_kv_shared_layers") or 0
    first = len(layers) - shared
    if type(shared) is not int or shared < 0 or {*kinds[: max(first, 0)]} != {*kinds}:
        raise wrong("num_kv_shared_layers", shared, "a number that leaves a layer of each kind with keys of its own")
    last = {kind: max(i for i in range(first) if kinds[i] == kind) for kind in kinds}
    return tuple(a if i < first else replace(a, source=last[kinds[i]]) for i, a in enumerate(layers))
