"""A Llama in plain torch with a static cache: a decode step is one CUDA graph, and tokens stay on the device.

Our runtime fetches every token to the host; this one fetches none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .shapes import Shape

KINDS = (None, "int4", "int8", "fp8")
GROUP = 64  # columns that share a scale in torch's int4 matmul
Matmul = Callable[[torch.Tensor], torch.Tensor]


def matmul(kind: str | None, n: int, k: int, device: str) -> Matmul:
    """x [T, k] -> [T, n] with random weights. None: bf16. Others: torch's own quantized matmuls, which raise where this
    device has none: int4 (tinygemm, groups of 64), int8 (a scale a row), fp8 (weights and activations, a scale a row).
    """
    if kind is None:
        w = torch.empty(n, k, dtype=torch.bfloat16, device=device).normal_(0, 0.02)
        return lambda x: F.linear(x, w)
    if kind == "int4":
        packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
        tiles = torch.ops.aten._convert_weight_to_int4pack(packed, 8)
        scales = torch.full((k // GROUP, n, 2), 0.004, dtype=torch.bfloat16, device=device)
        return lambda x: torch.ops.aten._weight_int4pack_mm(x, tiles, GROUP, scales)
    if kind == "int8":
        w8 = torch.randint(-127, 128, (n, k), dtype=torch.int8, device=device)
        scale = torch.full((n,), 2e-4, dtype=torch.bfloat16, device=device)
        return lambda x: torch.ops.aten._weight_int8pack_mm(x, w8, scale)
    wf = torch.empty(n, k, dtype=torch.bfloat16, device=device).normal_(0, 1).to(torch.float8_e4m3fn)
    rows = torch.full((1, n), 0.02, dtype=torch.float32, device=device)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        s = (x.abs().amax(dim=1, keepdim=True).float() / 448).clamp(min=1e-12)
        xf = (x / s).to(torch.float8_e4m3fn)
        y: torch.Tensor = torch._scaled_mm(xf, wf.t(), scale_a=s, scale_b=rows, out_dtype=torch.bfloat16)
        return y

    return scaled


@dataclass
class Layer:
    """One decoder layer; cache bf16 [kv_heads, positions, head_dim] for keys and for values."""

    shape: Shape
    matmuls: dict[str, Matmul]
    norms: tuple[torch.Tensor, torch.Tensor]
    keys: torch.Tensor
    values: torch.Tensor

    def __call__(self, x: torch.Tensor, where: torch.Tensor, turn: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        s, m, t = self.shape, self.matmuls, x.shape[0]
        y = F.rms_norm(x, (s.hidden_size,), self.norms[0], 1e-5)
        q = rotated(m["q"](y).view(t, s.num_attention_heads, s.head_dim), turn)
        k = rotated(m["k"](y).view(t, s.num_key_value_heads, s.head_dim), turn)
        self.keys.index_copy_(1, where, k.transpose(0, 1))
        self.values.index_copy_(1, where, m["v"](y).view(t, s.num_key_value_heads, s.head_dim).transpose(0, 1))
        mixed = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], self.keys[None], self.values[None], attn_mask=mask, enable_gqa=True
        )
        x = x + m["o"](mixed[0].transpose(0, 1).reshape(t, -1))
        y = F.rms_norm(x, (s.hidden_size,), self.norms[1], 1e-5)
        return x + m["down"](F.silu(m["gate"](y)) * m["up"](y))


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """x [T, heads, d], turn [2, T, 1, d / 2] of cosines and sines."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = turn[0], turn[1]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class TorchLlama:
    """The model and its cache of `positions`."""

    def __init__(self, shape: Shape, kind: str | None, positions: int, device: str) -> None:
        s, self.device, self.positions = shape, device, positions
        width, kv = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
        sizes = {"q": (width, s.hidden_size), "k": (kv, s.hidden_size), "v": (kv, s.hidden_size)}
        sizes |= {"o": (s.hidden_size, width), "down": (s.hidden_size, s.intermediate_size)}
        sizes |= {name: (s.intermediate_size, s.hidden_size) for name in ("gate", "up")}
        one = torch.ones(s.hidden_size, dtype=torch.bfloat16, device=device)

        def cache() -> torch.Tensor:
            shape_ = (s.num_key_value_heads, positions, s.head_dim)
            return torch.zeros(shape_, dtype=torch.bfloat16, device=device)

        self.layers = [
            Layer(s, {n: matmul(kind, *nk, device) for n, nk in sizes.items()}, (one, one), cache(), cache())
            for _ in range(s.num_hidden_layers)
        ]
        self.head, self.norm = matmul(kind, s.vocab_size, s.hidden_size, device), one
        self.embedding = torch.empty(s.vocab_size, s.hidden_size, dtype=torch.bfloat16, device=device).normal_(0, 0.02)
        angles = torch.outer(torch.arange(positions), 5e5 ** (-torch.arange(0, s.head_dim, 2) / s.head_dim))
        self.turns = torch.stack((angles.cos(), angles.sin()))[:, :, None].to(device, torch.bfloat16)

    def __call__(self, tokens: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """int64 [T] at positions int64 [T] -> the next token, int64 [1]."""
        x = F.embedding(tokens, self.embedding)
        mask = torch.arange(self.positions, device=self.device) <= where[:, None]
        turn = self.turns[:, where]
        for layer in self.layers:
            x = layer(x, where, turn, mask)
        logits = self.head(F.rms_norm(x[-1:], (x.shape[1],), self.norm, 1e-5))
        return logits.argmax(dim=-1)


def measure(shape: Shape, kind: str | None, prompt: int, decode: int, repeats: int, device: str) -> dict[str, Any]:
    """{"pp": tokens a second of each repetition, "tg": the same, "how"}; or {"error"} where torch cannot do it."""
    try:
        with torch.inference_mode():
            model = TorchLlama(shape, kind, max(prompt, decode), device)
            return {
                "pp": _prefill_rates(model, prompt, repeats),
                "tg": _decode_rates(model, decode, repeats, graph=device == "cuda"),
                "how": "CUDA graph" if device == "cuda" else "eager",
            }
    except (RuntimeError, NotImplementedError, ValueError, AttributeError, TypeError) as error:
        return {"error": " ".join(str(error).split())[:300]}


def _sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _prefill_rates(model: TorchLlama, prompt: int, repeats: int) -> list[float]:
    tokens = torch.randint(0, model.embedding.shape[0], (prompt,), device=model.device)
    where = torch.arange(prompt, device=model.device)
    rates = []
    for run in range(repeats + 1):
        began = time.perf_counter()
        model(tokens, where).cpu()
        if run:
            rates.append(prompt / (time.perf_counter() - began))
    return rates


def _decode_rates(model: TorchLlama, decode: int, repeats: int, graph: bool) -> list[float]:
    token = torch.zeros(1, dtype=torch.long, device=model.device)
    where = torch.zeros(1, dtype=torch.long, device=model.device)

    def step() -> None:
        token.copy_(model(token, where))
        where.add_(1).remainder_(model.positions)

    replay: Callable[[], None] = step
    if graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        replay = captured.replay
    rates = []
    for run in range(repeats + 1):
        where.zero_()
        _sync(model.device)
        began = time.perf_counter()
        for _ in range(decode if run else 1):
            replay()
        _sync(model.device)
        if run:
            rates.append(decode / (time.perf_counter() - began))
    return rates
