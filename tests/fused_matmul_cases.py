"""Calls of `fused_matmul`: each case's attributes and operands."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from strixhlo.bundle import ALIGNMENT
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.fused_matmul import Form

TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int8": "i8"}
NONE = {"normed": False, "epsilon": 0.0, "offset": 0.0, "biased": False, "activation": "", "limit": 0.0}
NONE |= {"added": False, "scale": 1.0}
SUM = {"summed": "sum", "sum_epsilon": 1e-4, "sum_offset": 1.0}
LAYER = {"normed": True, "layer_norm": "biased", "epsilon": 1e-3}
K, WIDE = 160, 1184  # the latter in local memory bit by bit, where there are 8 rows
# Case -> formats of the tensors, (tensor, first row, rows) of each weight, attributes
CASES = {
    "q, k, v": (("q4_1", "q4_1", "q4_1"), ((0, 0, 35), (1, 0, 3), (2, 0, 17)), {"normed": True, "epsilon": 1e-3}),
    "one of another format": (
        ("q8_0", "q4_0"),
        ((0, 0, 19), (0, 19, 5), (1, 0, 34)),
        SUM | {"normed": True, "biased": True},
    ),
    "q, k, v with biases": (("bf16", "bf16", "bf16"), ((0, 0, 35), (1, 0, 3), (2, 0, 17)), {"biased": True}),
    "different formats": (("q8_0", "f16"), ((0, 0, 19), (1, 0, 34)), {"normed": True, "epsilon": 1e-5, "offset": 1.0}),
    "residual": (("q8_0",), ((0, 0, 67),), {"added": True, "scale": 0.5, "biased": True}),
    "gated": (("q4_0", "q4_0"), ((0, 0, 35), (1, 0, 35)), {"normed": True, "epsilon": 1e-5, "activation": "silu"}),
    "gated halves": (("f32",), ((0, 0, 35), (0, 35, 35)), {"activation": "gelu"}),
    "gated, of two formats": (("q8_0", "f16"), ((0, 0, 9), (1, 0, 9)), {"normed": True, "activation": "silu"}),
    "gated, clamped": (("f32", "f32"), ((0, 0, 9), (1, 0, 9)), {"activation": "clamped", "limit": 1.0, "biased": True}),
    "a LayerNorm": (("f16",), ((0, 0, 33),), LAYER | {"layer_norm": "plain"}),
    "a LayerNorm with a bias": (("q4_1", "q4_1"), ((0, 0, 9), (1, 0, 9)), LAYER | {"activation": "silu"}),
    "a LayerNorm of wide rows": (("q8_0",), ((0, 0, 9),), LAYER),
    "a sum": (
        ("q4_1", "q4_1"),
        ((0, 0, 35), (1, 0, 35)),
        SUM | {"normed": True, "epsilon": 1e-3, "activation": "silu"},
    ),
    "a scaled sum": (("f16",), ((0, 0, 33),), SUM | {"summed": "scaled", "normed": True, "biased": True}),
    "a sum for two formats": (("q8_0", "f16"), ((0, 0, 9), (1, 0, 9)), SUM | {"normed": True}),
    "a sum of wide rows": (("q4_1", "q4_1", "q4_1"), ((0, 0, 5), (1, 0, 3), (2, 0, 7)), SUM),
    "plain MLP": (("f16",), ((0, 0, 33),), {"normed": True, "epsilon": 1e-5, "activation": "gelu", "biased": True}),
}
# With more parts than a launch has buffers, unless weights are one buffer each.
K_QUANTS = {
    "K-quants": (("q4_k", "q4_k", "q6_k"), ((0, 0, 35), (1, 0, 3), (2, 0, 17)), {"normed": True, "epsilon": 1e-3}),
    "gated K-quants": (("q5_k", "q4_k"), ((0, 0, 35), (1, 0, 35)), SUM | {"normed": True, "activation": "silu"}),
}
IN_STRIPES = {  # of NVIDIA's GPUs alone
    "three K-quants": (("q4_k", "q5_k", "q6_k"), ((0, 0, 35), (1, 0, 3), (2, 0, 17)), {"normed": True}),
}


def columns(case: str) -> int:
    return 512 if "K-quants" in case else WIDE if "wide" in case else K


def operands_of(case: str, m: int) -> tuple[dict, dict[str, np.ndarray]]:
    formats, rows, changes = (CASES | K_QUANTS | IN_STRIPES)[case]
    attributes, k = NONE | changes, columns(case)
    attributes |= {"formats": ",".join(formats), "rows": ",".join(":".join(map(str, r)) for r in rows)}
    rng = np.random.default_rng(len(case))
    operands = {"x": np.random.default_rng(0).standard_normal((8, k), np.float32)[:m]}
    if m > 8:
        operands["x"] = rng.standard_normal((m, k), np.float32)
    for t, format in enumerate(formats):
        n = max(first + count for tensor, first, count in rows if tensor == t)
        if format in FORMATS:
            for part, (shape, dtype) in FORMATS[format].parts(n, k).items():
                low, high = (-(2**31), 2**31) if dtype == np.int32 else (-128, 128)
                made = rng.integers(low, high, shape) if dtype.kind == "i" else rng.standard_normal(shape) / 20
                operands[f"{t}.{part}"] = made.astype(dtype)
        else:
            dtype = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}[format]
            operands[f"{t}.dense"] = np.asarray(jnp.asarray(rng.standard_normal((n, k)), dtype))
    if attributes["normed"]:
        operands["norm"] = rng.standard_normal(k).astype(np.float32)
    if attributes.get("layer_norm") == "biased":
        operands["norm bias"] = rng.standard_normal(k).astype(np.float32)
    if attributes["biased"]:
        operands |= {f"bias {i}": rng.standard_normal(r[2]).astype(np.float32) for i, r in enumerate(rows)}
    if attributes["added"]:
        operands["residual"] = np.random.default_rng(1).standard_normal((m, rows[0][2])).astype(np.float32)
    if attributes.get("summed"):
        operands["base"] = np.random.default_rng(2).standard_normal((max(m, 8), k)).astype(np.float32)[:m]
        operands["sum norm"] = rng.standard_normal(k).astype(np.float32)
    if attributes.get("summed") == "scaled":
        operands["factor"] = np.float32([0.75])
    assert tuple(operands) == Form.of(attributes).operands(k)
    return attributes, operands


def whole(attributes: dict, operands: dict[str, np.ndarray]) -> tuple[dict, dict[str, np.ndarray]]:
    """The same call with tensors of several parts as one buffer each, as the archive holds them."""
    k, places = operands["x"].shape[1], []
    form, left = Form.of(attributes), dict(operands)
    made = {"x": left.pop("x")}
    for t, parts in enumerate(form.parts(k)):
        arrays = [left.pop(f"{t}.{part}") for part in parts]
        if len(arrays) == 1:
            made[f"{t}.{parts[0]}"] = arrays[0]
            places.append("")
            continue
        buffer, at = bytearray(), []
        for array in arrays:
            buffer += bytes(-len(buffer) % ALIGNMENT)
            at.append(f"{len(buffer)}:{TYPES[str(array.dtype)]}")
            buffer += array.tobytes()
        made[f"{t}.whole"] = np.frombuffer(buffer, np.int8)
        places.append(",".join(at))
    return attributes | {"whole": ";".join(places)}, made | left
