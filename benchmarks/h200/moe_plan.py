"""What to launch for a mixture of experts on an NVIDIA GPU, and small cases with their results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from strixhlo.custom_kernels.gpu.launches import SM_90
from strixhlo.custom_kernels.gpu.moe_kernels import OneForm
from strixhlo.custom_kernels.gpu.moe_launches import moe_down, moe_gate_up, moe_route
from strixhlo.custom_kernels.gpu.moe_one_launch import moe_one, operands_of
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.launch import COUNTER_WORDS, COUNTERS, SCRATCH_WORDS, CounterSlot, Lowering
from strixhlo.custom_kernels.ops.moe_matmul import reference_down, reference_gate_up
from strixhlo.custom_kernels.ops.moe_route import reference as route_reference
from strixhlo.custom_kernels.ops.moe_route import result_shapes

from .moe_shapes import MoeShape

NAMES = {"float32": "f32", "float16": "f16", "int8": "i8", "int32": "i32"}
X = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
SLOT = "slot"  # in the scalars of a step: the number of the layer
Types = dict[str, tuple[tuple[int, ...], str]]


def routing_attributes(shape: MoeShape) -> dict[str, Any]:
    """Of moe_route: as the families say it."""
    selected = shape.activation == "clamped"
    how = {"k": shape.chosen, "scoring": "selected" if selected else "softmax", "normalize": not selected, "scale": 1.0}
    return how | {"groups": 1, "group_k": 1, "group_top": 2, "biased": False}


def weight_types(shape: MoeShape) -> Types:
    """Parts of gate, up and down, and their biases."""
    types: Types = {}
    sizes = {"gate": (shape.intermediate, shape.hidden), "up": (shape.intermediate, shape.hidden)}
    for which, (n, k) in (sizes | {"down": (shape.hidden, shape.intermediate)}).items():
        for part, (dims, dtype) in FORMATS[shape.format].parts(shape.experts * n, k).items():
            types[f"{which}.{part}"] = (dims, shape.dtypes.get(part, NAMES[dtype.name]))
    if shape.biased:
        types |= {f"{which}_bias": ((shape.experts, shape.intermediate), "f32") for which in ("gate", "up")}
        types["bias"] = ((shape.experts, shape.hidden), "f32")
    return types


def plan_of(shape: MoeShape, tokens: int, x: str = "f32") -> dict[str, Any]:
    """Buffers (name -> shape, dtype), which of them are weights, and the launches of one layer. x: of activations."""
    weights = weight_types(shape)
    types: Types = {"logits": ((tokens, shape.experts), "f32"), "positions": ((tokens,), "i32")}
    types["x"] = ((tokens, shape.hidden), x)
    types |= result_shapes(tokens, shape.experts, shape.chosen)
    types |= weights | {"h": ((tokens * shape.chosen, shape.intermediate), x)}
    steps: list[dict[str, Any]] = []
    if one := _of_one(shape, types):
        types[COUNTERS] = ((SCRATCH_WORDS + shape.layers * COUNTER_WORDS,), "i32")
        steps = _steps(one, types)
        used = {name: types[name] for name in {n for s in steps for n in s["buffers"]}}
        return {"tokens": tokens, "types": used, "weights": sorted(weights), "steps": steps}
    for rule, attributes, names in _calls(shape, weights):
        lowering = rule(attributes, [types[name] for name in names])
        if lowering is None or lowering.operands != names:
            raise RuntimeError(f"{names}: no kernel")
        steps += _steps(lowering, types)
    used = {name: types[name] for name in {n for s in steps for n in s["buffers"]}}
    return {"tokens": tokens, "types": used, "weights": sorted(weights), "steps": steps}


def _of_one(shape: MoeShape, types: Types) -> Lowering | None:
    """Everything in one launch, where there is one token."""
    attributes = routing_attributes(shape) | {"corrected": False, "format": shape.format, "biased": shape.biased}
    attributes |= {"activation": shape.activation, "limit": shape.limit, "normed": False, "epsilon": 0.0, "offset": 0.0}
    attributes |= {"added": False, "added_scale": 1.0}
    form = OneForm(corrected=False, biased=shape.biased, normed=False, added=False)
    names = operands_of(shape.format, shape.hidden, form)
    return moe_one(SM_90, attributes, [types[name] for name in names])


def _calls(shape: MoeShape, weights: Types) -> list[tuple[Any, dict[str, Any], tuple[str, ...]]]:
    """(rule, attributes, operands) of the three ops."""
    own = {"format": shape.format, "k": shape.chosen, "biased": shape.biased}
    gate_up = own | {"activation": shape.activation, "limit": shape.limit}
    gate_up |= {"normed": False, "epsilon": 0.0, "offset": 0.0}
    parts = {w: tuple(n for n in weights if n.startswith(f"{w}.")) for w in ("gate", "up", "down")}
    routed = ("expert", "order", "offsets", "tiles")
    biases = (("gate_bias", "up_bias"), ("bias",)) if shape.biased else ((), ())
    return [
        (moe_route, routing_attributes(shape), ("logits", "positions")),
        (lambda a, t: moe_gate_up(SM_90, a, t), gate_up, ("x", *routed, *parts["gate"], *parts["up"], *biases[0])),
        (lambda a, t: moe_down(SM_90, a, t), own, ("h", "weights", "places", *routed, *parts["down"], *biases[1])),
    ]


def _steps(lowering: Lowering, types: Types) -> list[dict[str, Any]]:
    """The launches by the names of buffers; what is updated in place stays under its name."""
    steps, place = [], {name: name for name in types}
    for launch in lowering.launches:
        buffers = [place[name] for name in launch.inputs]
        for output in launch.outputs:
            if output.updates:
                place[output.name] = place[output.updates]
            else:
                place[output.name] = output.name
                types[output.name] = (output.shape, output.dtype)
                buffers.append(output.name)
        about = {"symbol": launch.symbol, "workgroups": launch.workgroups, "threads": launch.threads}
        about["local"] = launch.local_memory
        scalars = [SLOT if isinstance(s, CounterSlot) else s for s in launch.scalars]
        steps.append({**about, "scalars": scalars, "buffers": buffers})
    return steps


def random_parts(shape: MoeShape, seed: int) -> dict[str, np.ndarray]:
    """Weights of ordinary size; bfloat16 as ml_dtypes has it."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, (dims, dtype) in weight_types(shape).items():
        part = name.rpartition(".")[2]
        if dtype in ("f32", "f16", "bf16"):
            kind = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
            made[name] = (rng.standard_normal(dims) * 0.02).astype(kind)
        elif part == "scale":
            made[name] = rng.integers(118, 122, dims).astype(np.int8)  # E8M0
        else:
            limit = 2 ** (31 if dtype == "i32" else 7)
            made[name] = rng.integers(-limit, limit, dims, np.int64).astype(np.int32 if dtype == "i32" else np.int8)
    return made


def small_cases(shape: MoeShape, name: str, checked: Iterable[tuple[int, str]], folder: Path) -> list[dict[str, Any]]:
    """The model's formats at a small shape, with what the references give. checked: tokens, dtype of activations."""
    small = replace(shape, hidden=320 if shape.biased else 256, intermediate=192, experts=8, chosen=3)
    cases = []
    for t, dtype in checked:
        rng = np.random.default_rng(t)
        logits = rng.standard_normal((t, small.experts), np.float32)
        logits[:, 2] += 2.0  # an expert with many rows
        positions = np.arange(t, dtype=np.int32)
        x = rng.standard_normal((t, small.hidden), np.float32).astype(X[dtype])
        parts = random_parts(small, t)
        routing = tuple(map(np.asarray, route_reference(logits, positions, **routing_attributes(small))))
        ids, weights, places, order, expert, offsets, tiles = routing
        own = {"format": small.format, "k": small.chosen, "biased": small.biased}

        def of(*which: str, parts: dict[str, np.ndarray] = parts) -> list[np.ndarray]:
            return [a for w in which for n, a in parts.items() if n.startswith(f"{w}.") or n == w]

        how = {"activation": small.activation, "limit": small.limit}
        biases = of("gate_bias", "up_bias")
        h = reference_gate_up(x, expert, order, offsets, tiles, *of("gate", "up"), *biases, **own, **how)
        y = reference_down(h, weights, places, expert, order, offsets, tiles, *of("down"), *of("bias"), **own)
        given = {"logits": logits, "positions": positions, "x": x, **parts}
        file = f"{name}-{t}-{dtype}.npz"
        raw = {n: np.frombuffer(np.ascontiguousarray(a).tobytes(), np.uint8) for n, a in given.items()}
        np.savez(folder / file, **raw, want=np.asarray(y).astype(np.float32), want_ids=ids)
        about = {"name": f"{name}, {t} tokens, {dtype}", "file": file, "x": dtype}
        cases.append(about | plan_of(small, t, dtype))
    return cases
