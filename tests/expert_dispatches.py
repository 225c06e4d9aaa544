"""How many dispatches a layer's mixture of experts takes beyond its attention, in the compiler's own plan of a program.

Counted as the difference between a small model and the same one whose feed-forward layers do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import transformers
from archive_places import in_archive
from family_checkpoints import CASES, SHAPE
from jax.typing import DTypeLike

from strixhlo.bundle import Kind, KVCache
from strixhlo.compile.compile import lower_without_kernels
from strixhlo.compile.iree_compile import run
from strixhlo.compile.report import entry_report
from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.fused_matmul import Residual
from strixhlo.export.checkpoint.hugging_face_config import normalized_config
from strixhlo.export.layers.layer_groups import layer_groups
from strixhlo.export.layers.moe import Experts
from strixhlo.export.layers.norm import Input, Normed
from strixhlo.export.layers.weights import Weight, Weights
from strixhlo.export.models import model_from_config
from strixhlo.export.models.gemma4 import Gemma4
from strixhlo.export.trace import trace
from strixhlo.weight_spans import Span

CONTEXT = 64
ENTRIES: dict[str, tuple[Kind, int]] = {f"decode_{rows}": ("decode", rows) for rows in (1, 2, 8)}
MOST = 5  # dispatches of a layer of experts beyond its attention
# Columns that blocks of 256 divide.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
SIZES = ("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp")
LATENT = ("deepseek 2", "deepseek 3")
MIXTURES = tuple(
    case for case, (_, _, changes) in CASES.items() if any("experts" in key and value for key, value in changes.items())
)


@dataclass(frozen=True)
class Nothing:
    """In the place of a feed-forward layer."""

    def shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """It has no weights."""
        del prefix
        return iter(())

    def __call__(
        self,
        w: Weights,
        prefix: str,
        x: Input,
        positions: jax.Array | None = None,
        residual: Residual | None = None,
    ) -> jax.Array:
        """The residual, or x as it is before its norm."""
        del w, prefix, positions
        return residual.x if residual else x.x if isinstance(x, Normed) else x


def model_of(case: str, wide: bool) -> Any:
    """The model of a case of CASES, with sizes that are multiples of 256 where `wide`, else its experts' of 32."""
    _, kind, changes = CASES[case]
    changes = SHAPE | deepcopy(changes)
    changes |= {key: 64 for key in ("moe_intermediate_size",) if key in changes}
    if wide:
        changes |= {key: value for key, value in WIDE.items() if key != "head_dim" or case not in LATENT}
        changes |= {key: 256 for key in SIZES if key in changes}
        changes["num_key_value_heads"] = 4 if case in LATENT else 2
        if kind == "gemma4_text":
            changes |= {"head_dim": 16, "num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(kind, **changes).to_dict()
    return model_from_config(normalized_config(config, Path("config.json")))


def without_experts(model: Any) -> tuple[Any, int]:
    """The same whose feed-forward layers do nothing where they have experts, and how many do."""
    if isinstance(model, Gemma4):
        return replace(model, experts=None, mlp=(Nothing(),) * model.layers), model.layers
    mlp = tuple(Nothing() if isinstance(m, Experts) else m for m in model.mlp)
    return replace(model, mlp=mlp), sum(isinstance(m, Experts) for m in model.mlp)


def weights_of(model: Any, format: str) -> dict[str, Weight]:
    """Shapes of all weights: matrices in a format, all else, and routers, in float32."""
    weights = {}
    for name, shape in model.shapes():
        routes = name.endswith((".gate.weight", "shared_expert_gate.weight", "router.weight", "router.proj.weight"))
        if len(shape) < 2 or name.endswith("bias") or routes:
            weights[name] = _dense(shape, np.float32, "f32")
        elif format in FORMATS and shape[-1] % 256 == 0:
            parts = FORMATS[format].parts(*shape)
            experts = shape[0] // 256 if ".experts." in name else 1
            parts = {p: ((experts,) if p == "global_scale" else s, d) for p, (s, d) in parts.items()}
            made = {p: cast(jax.Array, jax.ShapeDtypeStruct(s, d)) for p, (s, d) in parts.items()}
            weights[name] = Weight(made, format, shape[1])
        else:
            weights[name] = _dense(shape, jnp.bfloat16, "bf16")
    for name, table in model.tables(CONTEXT).items():
        weights[name] = _dense(table.shape, np.float32, "f32")
    return weights


def _dense(shape: tuple[int, ...], dtype: DTypeLike, format: str) -> Weight:
    return Weight({"dense": cast(jax.Array, jax.ShapeDtypeStruct(shape, dtype))}, format, shape[-1] if shape else 1)


def program_of(model: Any, format: str) -> tuple[str, dict[str, Span]]:
    """The portable program of the model, and its weights in an archive."""
    groups, (layers, width) = layer_groups(model.windows, CONTEXT), model.pool
    layers = groups.layers if len(groups.windows) > 1 else layers
    kv = KVCache(
        dtype="f16", layers=layers, rows=1, width=width, block_size=16, blocks=CONTEXT // 16, windows=groups.windows
    )
    kv = kv.model_copy(update={"rows": kv.rows_for(CONTEXT)})
    weights = weights_of(model, format)
    return trace(model, weights, kv, ENTRIES).program, in_archive(weights)


def counted(program: str, spans: Mapping[str, Span], target: str) -> dict[str, int]:
    """Dispatches of each entry."""
    where = parse_target(target)
    activations = "int8" if where.kind == "cpu" else "f32"
    lowered = lower_without_kernels(program, where, activations, None, spans=spans)
    stream = run(lowered.program, ["--compile-to=stream", "-o", "-", *where.iree_flags])
    return {name: entry["dispatches"] for name, entry in entry_report(stream).items()}


def beyond_attention(case: str, format: str, target: str) -> dict[str, float]:
    """Of each entry, dispatches of a layer with experts beyond those of its attention."""
    model = model_of(case, wide=format in FORMATS)
    bare, layers = without_experts(model)
    full, rest = (counted(*program_of(m, format), target) for m in (model, bare))
    return {name: (full[name] - rest[name]) / layers for name in ENTRIES}
