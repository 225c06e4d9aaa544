"""Attention's kernels on an NVIDIA GPU, beside a copy and torch's scaled_dot_product_attention.

  python benchmarks/h200_attention.py prepare FOLDER   # needs this project and its compiler, no GPU
  python benchmarks/h200_attention.py run FOLDER       # needs torch and a GPU

Llama 3.1 8B's heads (32 of queries, 8 of keys, 128 wide) and DeepSeek's latent ones, over paged pools of random numbers
in a shuffled order, layers enough that no cache helps. `run` checks each kernel on a short context first. Decoding:
bytes of keys and values a second; chunks of a prompt: TFLOP/s. Times are a CUDA graph's, the merge of parts included.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))


def prepare(folder: Path) -> None:
    """Write kernels.ptx, plan.json and the small cases."""
    from h200.attention_plan import chunks, decoding, plan_of, positions_of, small_case, table_of

    from strixhlo.custom_kernels.gpu.kernels import build_ptx

    folder.mkdir(parents=True, exist_ok=True)
    plan: dict[str, Any] = {"shapes": [], "cases": []}
    checked: set[str] = set()
    for i, shape in enumerate((*decoding(), *chunks())):
        plan["shapes"].append(plan_of(shape))
        np.savez(
            folder / f"rows-{i}.npz", table=table_of(plan["shapes"][-1]), positions=positions_of(plan["shapes"][-1])
        )
        if not {step["symbol"] for step in plan["shapes"][-1]["steps"]} <= checked:
            plan["cases"].append(small_case(shape, folder / f"case-{i}.npz"))
            checked |= {step["symbol"] for step in plan["shapes"][-1]["steps"]}
    symbols = {step["symbol"] for which in plan.values() for one in which for step in one["steps"]}
    (folder / "kernels.ptx").write_text(build_ptx("sm_89", symbols).read_text())
    (folder / "plan.json").write_text(json.dumps(plan))
    print(f"{len(plan['shapes'])} shapes and {len(symbols)} kernels in {folder}")


def run(folder: Path) -> None:
    """Check and time everything in the folder; Markdown on stdout."""
    import torch
    from h200.attention_run import bytes_read, check, operations, seconds, torch_seconds
    from h200.cuda_kernels import CudaKernels, copy_bandwidth

    kernels = CudaKernels(folder / "kernels.ptx")
    plan = json.loads((folder / "plan.json").read_text())
    wrong = [text for case in plan["cases"] if (text := check(kernels, case, dict(np.load(folder / case["file"]))))]
    print("\n".join(wrong) if wrong else f"{len(plan['cases'])} small cases are right", flush=True)
    copy = copy_bandwidth()
    print(f"copy: {copy / 1e9:.0f} GB/s\n\n| | pool, queries | us | GB/s | of copy | TFLOP/s | torch us |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for i, shape in enumerate(plan["shapes"]):
        rows = np.load(folder / f"rows-{i}.npz")
        ours, theirs = seconds(kernels, shape, rows["table"], rows["positions"]), torch_seconds(shape)
        torch.cuda.empty_cache()
        rate = bytes_read(shape) / ours
        cells = [shape["name"], f"{shape['pool']}, {shape['x']}", f"{ours * 1e6:.1f}", f"{rate / 1e9:.0f}"]
        cells += [f"{rate / copy:.2f}", f"{operations(shape) / ours / 1e12:.1f}"]
        print("| " + " | ".join([*cells, "-" if theirs is None else f"{theirs * 1e6:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("prepare", "run"):
        raise SystemExit(__doc__)
    {"prepare": prepare, "run": run}[sys.argv[1]](Path(sys.argv[2]))
