"""What a decoded token takes of every family, counted in the compiler's own plan of small models with bfloat16 weights
(tests/family_checkpoints.py): `python benchmarks/family_dispatches.py [FAMILY ...]`. Nothing is run."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import transformers
from jax.typing import DTypeLike

from strixhlo.bundle import Kind, KVCache
from strixhlo.compile.compile import lower_without_kernels
from strixhlo.compile.iree_compile import run
from strixhlo.compile.report import entry_report
from strixhlo.compile.targets import parse_target
from strixhlo.export.checkpoint.hugging_face_config import normalized_config
from strixhlo.export.layers.layer_groups import layer_groups
from strixhlo.export.layers.weights import Weight
from strixhlo.export.models import Model, model_from_config
from strixhlo.export.trace import trace

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from family_checkpoints import CASES, SHAPE

CONTEXT = 256
ENTRIES: dict[str, tuple[Kind, int]] = {f"decode_{rows}": ("decode", rows) for rows in (1, 8)}
COUNTED = ("copies", "fills", "submissions", "host_waits")


def weights_of(model: Model) -> dict[str, Weight]:
    """Shapes of all weights: matrices in bfloat16, all else in float32."""
    weights = {}
    for name, shape in model.shapes():
        wide = len(shape) < 2 or name.endswith("bias")
        dtype, format = (np.float32, "f32") if wide else (jnp.bfloat16, "bf16")
        columns = shape[-1] if shape else 1
        weights[name] = _weight(shape, dtype, format, columns)
    for name, table in model.tables(CONTEXT).items():
        weights[name] = _weight(table.shape, np.float32, "f32", table.shape[-1])
    return weights


def _weight(shape: tuple[int, ...], dtype: DTypeLike, format: str, columns: int) -> Weight:
    return Weight({"dense": cast(jax.Array, jax.ShapeDtypeStruct(shape, dtype))}, format, columns)


def counted(case: str, target: str) -> tuple[int, dict[str, dict[str, int]]]:
    """The number of layers, and of each entry what one call does."""
    _, kind, changes = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **deepcopy(SHAPE | changes)).to_dict()
    model = model_from_config(normalized_config(config, Path("config.json")))
    groups, (layers, width) = layer_groups(model.windows, CONTEXT), model.pool
    layers = groups.layers if len(groups.windows) > 1 else layers
    kv = KVCache(
        dtype="f16", layers=layers, rows=1, width=width, block_size=16, blocks=CONTEXT // 16, windows=groups.windows
    )
    kv = kv.model_copy(update={"rows": kv.rows_for(CONTEXT)})
    where = parse_target(target)
    program = trace(model, weights_of(model), kv, ENTRIES).program
    lowered = lower_without_kernels(program, where, "int8" if where.kind == "cpu" else "f32", None)
    return model.layers, entry_report(run(lowered.program, ["--compile-to=stream", "-o", "-", *where.iree_flags]))


def main(cases: list[str]) -> None:
    """Print a line as soon as it is known."""
    print(f"| family | target | layers | dispatches of 1 | of 8 | 6 a layer + 4 | {', '.join(COUNTED)} of 8 |")
    print("|---|---|---:|---:|---:|---:|---|")
    for case in cases or CASES:
        for target in ("cpu", "rocm"):
            layers, found = counted(case, target)
            one, eight = (found[entry]["dispatches"] for entry in ENTRIES)
            others = ", ".join(str(found["decode_8"][name]) for name in COUNTED)
            print(f"| {case} | {target} | {layers} | {one} | {eight} | {6 * layers + 4} | {others} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
