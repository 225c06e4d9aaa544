"""Launches of a plan of attention_plan.py: checked against stored results, then timed; beside torch's attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .cuda_kernels import CudaKernels, graph_seconds

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "fp8": 1}
MOST = {"f32": 2e-5, "f16": 4e-3, "bf16": 2e-2}  # relative L2, by the type of queries
BLOCK_SIZE = 16
Buffers = dict[str, torch.Tensor]


def _outputs(plan: dict[str, Any]) -> Buffers:
    made = {
        name: torch.empty(shape, dtype=DTYPES[dtype], device="cuda") for name, (shape, dtype) in plan["outputs"].items()
    }
    for buffer in made.values():
        buffer.view(torch.uint8).fill_(255)
    return made


def _launch(kernels: CudaKernels, plan: dict[str, Any], buffers: Buffers, layer: int) -> None:
    for i, step in enumerate(plan["steps"]):
        scalars = [layer, *step["scalars"][1:]] if i == 0 else step["scalars"]
        pointers = [buffers[name].data_ptr() for name in step["buffers"]]
        kernels.launch(step["symbol"], step["workgroups"], step["threads"], pointers, scalars, step["local"])


def check(kernels: CudaKernels, case: dict[str, Any], stored: dict[str, np.ndarray]) -> str:
    """What is wrong with a small case, "" if nothing is."""
    want = stored.pop("want")
    buffers = {name: torch.from_numpy(a.copy()).cuda() for name, a in stored.items()} | _outputs(case)
    if case["value_dim"]:
        buffers["v_pool"] = buffers["k_pool"]  # as in a model: values begin their keys
    torch.cuda.synchronize()
    _launch(kernels, case, buffers, 0)
    torch.cuda.synchronize()
    y = buffers["y"].float().cpu().numpy()
    error = float(np.linalg.norm(y - want) / np.linalg.norm(want))
    most = 2e-5 if case["x"] == "f32" else MOST[case["x"]]
    return "" if error < most else f"{case['name']} {case['pool']} {case['x']}: relative L2 {error:.1e}"


def seconds(kernels: CudaKernels, plan: dict[str, Any], table: np.ndarray, positions: np.ndarray) -> float:
    """Of one layer, over all layers of random pools in turn."""
    width, layers = plan["kv_heads"] * plan["head_dim"], plan["layers"]
    shape = (layers, plan["rows"], width)
    if plan["pool"] == "fp8":
        pools = [torch.randint(0, 0x50, shape, dtype=torch.uint8, device="cuda") for _ in "kv"]
    else:
        pools = [torch.randn(shape, dtype=DTYPES[plan["pool"]], device="cuda") for _ in "kv"]
    if plan["value_dim"]:
        pools[1] = pools[0]
    tokens = len(positions)
    q = torch.randn((tokens, plan["q_heads"], plan["head_dim"]), device="cuda").to(DTYPES[plan["x"]])
    buffers = {"q": q, "k_pool": pools[0], "v_pool": pools[1]} | _outputs(plan)
    buffers |= {"block_table": torch.from_numpy(table).cuda(), "positions": torch.from_numpy(positions).cuda()}

    def all_layers() -> None:
        for layer in range(layers):
            _launch(kernels, plan, buffers, layer)

    graph_seconds(kernels.stream, all_layers, 20)  # until the clock is up: the first ones are 15% slower
    return graph_seconds(kernels.stream, all_layers, 9) / layers


def bytes_read(plan: dict[str, Any]) -> int:
    """Keys and values that the rows of a layer see, each once."""
    pools = 1 if plan["value_dim"] else 2
    return sum(plan["lengths"]) * plan["kv_heads"] * plan["head_dim"] * pools * BYTES[plan["pool"]]


def operations(plan: dict[str, Any]) -> float:
    """Multiplications and additions of what the rows see."""
    seen = sum(plan["tokens"] * n - plan["tokens"] * (plan["tokens"] - 1) / 2 for n in plan["lengths"])
    return 2.0 * seen * plan["q_heads"] * (plan["head_dim"] + (plan["value_dim"] or plan["head_dim"]))


def torch_seconds(plan: dict[str, Any]) -> float | None:
    """torch's scaled_dot_product_attention of one sequence's shapes, keys and values beside each other; without a mask,
    so that a chunk does a little more. None where it has nothing of that type."""
    if plan["pool"] == "fp8" or plan["value_dim"] or len(set(plan["lengths"])) > 1:
        return None
    dtype, sequences = DTYPES[plan["pool"]], len(plan["lengths"])
    keys = [
        torch.randn((sequences, plan["kv_heads"], plan["lengths"][0], plan["head_dim"]), dtype=dtype, device="cuda")
        for _ in range(2 * plan["layers"])
    ]
    q = torch.randn((sequences, plan["q_heads"], plan["tokens"], plan["head_dim"]), dtype=dtype, device="cuda")

    def all_layers() -> None:
        for layer in range(plan["layers"]):
            torch.nn.functional.scaled_dot_product_attention(q, keys[2 * layer], keys[2 * layer + 1], enable_gqa=True)

    return graph_seconds(torch.cuda.Stream(), all_layers, 9) / plan["layers"]
