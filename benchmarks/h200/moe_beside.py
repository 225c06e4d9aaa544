"""The same experts in MLX (gather_qmm, as mlx-lm's SwitchGLU calls it) and in torch (grouped matmuls of bfloat16)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .cuda_kernels import graph_seconds


@dataclass(frozen=True)
class Beside:
    """What somebody else's kernels reach: cells of the table, and a note where they cannot."""

    text: str = "-"
    decode_text: str = "-"
    prefill_text: str = "-"
    note: str = ""


def _reason(who: str, error: Exception) -> str:
    return f"{who}: {type(error).__name__}: {' '.join(str(error).split())[:200]}."


def torch_rate(model: dict[str, Any], tokens: int) -> Beside:
    """Prefill with bfloat16 weights, the dequantized model's, sorted rows given."""
    import torch

    experts, hidden, inner = model["experts"], model["hidden"], model["intermediate"]
    try:
        pairs = tokens * model["chosen"]
        x = torch.randn(pairs, hidden, dtype=torch.bfloat16, device="cuda")
        up = torch.randn(experts, hidden, 2 * inner, dtype=torch.bfloat16, device="cuda") * 0.02
        down = torch.randn(experts, inner, hidden, dtype=torch.bfloat16, device="cuda") * 0.02
        chosen = torch.randn(tokens, experts, device="cuda").topk(model["chosen"], dim=1).indices.flatten()
        ends = torch.bincount(chosen, minlength=experts).cumsum(0).to(torch.int32)

        def work() -> None:
            gate_up = torch._grouped_mm(x, up, offs=ends)
            gate, other = gate_up.chunk(2, dim=1)
            torch._grouped_mm(torch.nn.functional.silu(gate) * other, down, offs=ends)

        seconds = graph_seconds(torch.cuda.Stream(), work)
    except (RuntimeError, AttributeError, TypeError, ValueError, NotImplementedError) as error:
        return Beside(note=_reason("torch", error))
    return Beside(text=f"{2 * pairs * 3 * hidden * inner / seconds / 1e12:.1f}")


def mlx_rates(model: dict[str, Any], tokens: int) -> Beside:
    """Decode of one row and prefill, over four layers of weights in turn."""
    try:
        import mlx.core as mx

        mode = {"mode": "mxfp4", "bits": 4, "group_size": 32}
        if model["format"].startswith("affine"):
            mode = {"mode": "affine", "bits": 4, "group_size": int(model["format"].rpartition("_g")[2])}
        layers = [_mlx_layer(mx, model, mode) for _ in range(4)]
        one, many = (_mlx_seconds(mx, layers, model, mode, t) for t in (1, tokens))
    except (ImportError, RuntimeError, ValueError, TypeError, AttributeError, OSError) as error:
        return Beside(note=_reason("MLX", error))
    work = 2 * tokens * model["chosen"] * 3 * model["hidden"] * model["intermediate"]
    return Beside(decode_text=f"{one * 1e6:.1f}", prefill_text=f"{work / many / 1e12:.1f}")


def _mlx_layer(mx: Any, model: dict[str, Any], mode: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Quantized gate, up and down of all experts."""
    inner, hidden = model["intermediate"], model["hidden"]
    layer = []
    for n, k in ((inner, hidden), (inner, hidden), (hidden, inner)):
        packed = mx.random.randint(0, 2**31, (model["experts"], n, k // 8)).astype(mx.uint32)
        groups = (model["experts"], n, k // mode["group_size"])
        if mode["mode"] == "affine":
            layer.append((packed, mx.full(groups, 0.004, mx.bfloat16), mx.full(groups, -0.03, mx.bfloat16)))
        else:
            layer.append((packed, mx.full(groups, 120, mx.uint8), None))
    mx.eval(layer)
    return layer


def _mlx_seconds(mx: Any, layers: list[Any], model: dict[str, Any], mode: dict[str, Any], tokens: int) -> float:
    """The median time of one layer; rows are sorted by expert where there are many, as in SwitchGLU."""
    scores = mx.random.normal((tokens, model["experts"]))
    chosen = mx.argpartition(-scores, kth=model["chosen"] - 1, axis=-1)[:, : model["chosen"]]
    x = mx.random.normal((tokens, model["hidden"])).astype(mx.bfloat16)
    order = mx.argsort(chosen.flatten())
    rows = x[order // model["chosen"]][:, None, :]
    ids = chosen.flatten()[order].astype(mx.uint32)
    mx.eval(rows, ids)

    def matmul(a: Any, weight: tuple[Any, ...]) -> Any:
        packed, scales, biases = weight
        how = {"rhs_indices": ids, "transpose": True, "sorted_indices": tokens > 1}
        return mx.gather_qmm(a, packed, scales, biases, **how, **mode)

    def layer(weights: Any) -> Any:
        gate, up, down = weights
        g = matmul(rows, gate)
        return matmul(g * mx.sigmoid(g) * matmul(rows, up), down)

    times = []
    for _ in range(8):
        began = time.perf_counter()
        mx.eval([layer(weights) for weights in layers])
        times.append((time.perf_counter() - began) / len(layers))
    return sorted(times[1:])[3]
