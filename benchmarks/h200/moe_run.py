"""Launches of a plan of moe_plan.py: checked against stored results, then timed over the layers of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .cuda_kernels import CudaKernels, graph_seconds

BYTES = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i8": 1}
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
MOST_ERROR = {"f32": 2e-5, "bf16": 2e-2}  # relative L2 of a small case
Buffers = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Rate:
    """What a second does (bytes or operations), seconds of a layer, bytes of all experts, bytes beside the weights."""

    rate: float
    seconds: float
    weights: int
    transient: int


def size_of(types: dict[str, Any], name: str) -> int:
    """Bytes of a buffer."""
    shape, dtype = types[name]
    return int(np.prod(shape)) * BYTES[dtype]


def launch_all(kernels: CudaKernels, steps: list[dict[str, Any]], buffers: Buffers, layer: int = 0) -> None:
    """The launches of one layer."""
    for step in steps:
        pointers = [buffers[name].data_ptr() for name in step["buffers"]]
        scalars = [layer if s == "slot" else s for s in step["scalars"]]
        kernels.launch(step["symbol"], step["workgroups"], step["threads"], pointers, scalars, step["local"])


def check(kernels: CudaKernels, case: dict[str, Any], stored: dict[str, np.ndarray]) -> None:
    """SystemExit where a small case differs from its reference."""
    want, want_ids = stored.pop("want"), stored.pop("want_ids")
    buffers = {name: torch.from_numpy(a.copy()).cuda() for name, a in stored.items()}
    for name in case["types"]:
        if name not in buffers:
            buffers[name] = torch.full((size_of(case["types"], name),), 255, dtype=torch.uint8, device="cuda")
    if "counters" in buffers:
        buffers["counters"].zero_()
    torch.cuda.synchronize()
    launch_all(kernels, case["steps"], buffers)
    torch.cuda.synchronize()
    ids = buffers["ids"].cpu().numpy().view(np.int32).reshape(want_ids.shape) if "ids" in buffers else want_ids
    y = buffers["y"].cpu().view(TORCH[case["x"]]).float().numpy().reshape(want.shape)
    error = float(np.linalg.norm(y - want) / np.linalg.norm(want))
    if not (ids == want_ids).all() or not error < MOST_ERROR[case["x"]]:
        raise SystemExit(f"{case['name']}: relative L2 {error:.1e}, experts equal: {bool((ids == want_ids).all())}")


def random_buffer(types: dict[str, Any], name: str) -> torch.Tensor:
    """Values of ordinary size."""
    shape, dtype = types[name]
    if dtype in ("f32", "f16", "bf16"):
        return torch.randn(shape, dtype=TORCH[dtype], device="cuda") * (0.02 if "." in name or "bias" in name else 1.0)
    if name.endswith(".scale"):
        return torch.randint(118, 122, shape, dtype=torch.int8, device="cuda")
    if name == "positions":
        return torch.arange(shape[0], dtype=torch.int32, device="cuda")
    return torch.randint(0, 256, (size_of(types, name),), dtype=torch.uint8, device="cuda")


def layers_of(plan: dict[str, Any], layers: int) -> list[Buffers]:
    """Weights and router logits of each layer; everything else is shared."""
    types = plan["types"]
    own = {*plan["weights"], "logits"}
    shared = {name: random_buffer(types, name) for name in types if name not in own}
    return [shared | {name: random_buffer(types, name) for name in own if name in types} for _ in range(layers)]


def _rate(kernels: CudaKernels, plan: dict[str, Any], layers: int, work: float) -> Rate:
    """work: of one layer."""
    buffers = layers_of(plan, layers)

    def token() -> None:
        if "counters" in buffers[0]:
            buffers[0]["counters"].zero_()
        for layer, own in enumerate(buffers):
            launch_all(kernels, plan["steps"], own, layer)

    seconds = graph_seconds(kernels.stream, token)
    sizes = {name: size_of(plan["types"], name) for name in plan["types"]}
    weights = sum(sizes[name] for name in plan["weights"]) * layers
    transient = sum(size for name, size in sizes.items() if name not in plan["weights"])
    return Rate(work * layers / seconds, seconds / layers, weights, transient)


def decode_rate(kernels: CudaKernels, model: dict[str, Any]) -> Rate:
    """One token through all layers: bytes of the active experts a second."""
    plan = model["decode"]
    active = sum(size_of(plan["types"], name) for name in plan["weights"]) * model["chosen"] / model["experts"]
    return _rate(kernels, plan, model["layers"], active)


def prefill_rate(kernels: CudaKernels, model: dict[str, Any], which: str, layers: int) -> Rate:
    """Many tokens through some layers: operations of the tokens' own experts a second. which: of the model's plans."""
    plan = model[which]
    work = 2.0 * plan["tokens"] * model["chosen"] * 3 * model["hidden"] * model["intermediate"]
    return _rate(kernels, plan, layers, work)
