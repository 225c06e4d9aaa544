"""Kernels of a mixture of experts on an NVIDIA GPU, beside a copy, MLX's gather_qmm and torch's grouped matmul.

  python benchmarks/h200_moe.py prepare FOLDER   # needs this project and its compiler, no GPU
  python benchmarks/h200_moe.py run FOLDER       # needs torch and a GPU; mlx[cuda] for its column

All layers of Qwen3-30B-A3B (128 experts, 8 of them a token, 2048/768, affine 4-bit) and of gpt-oss-20b (32, 4,
2880/2880, mxfp4) have random weights of their own, 15.4 and 10.2 GB. `run` checks small cases first. Decode: a CUDA
graph of one token through all layers (choice, gate and up, down), in bytes of the active experts a second. Prefill: 512
tokens through four layers, in TFLOP/s of the tokens' own experts, with activations of float32 and of bfloat16. The
others get the same order of rows; what they cannot do is said in its place.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

PREFILL, PREFILL_LAYERS = 512, 4
# Tokens and activations of the small cases: one launch, few rows, tiles of both types.
CHECKED = ((1, "f32"), (5, "f32"), (300, "f32"), (300, "bf16"))
PLANS = ("decode", "prefill", "prefill_bf16")


def prepare(folder: Path) -> None:
    """Write kernels.ptx, plan.json and the small cases."""
    from h200.moe_plan import plan_of, small_cases
    from h200.moe_shapes import SHAPES

    from strixhlo.custom_kernels.gpu.kernels import build_ptx

    folder.mkdir(parents=True, exist_ok=True)
    plan: dict[str, Any] = {"models": {}, "cases": []}
    for name, shape in SHAPES.items():
        about = {k: v for k, v in asdict(shape).items() if k != "config"}
        plan["models"][name] = about | {
            "decode": plan_of(shape, 1),
            "prefill": plan_of(shape, PREFILL),
            "prefill_bf16": plan_of(shape, PREFILL, "bf16"),
        }
        plan["cases"] += small_cases(shape, name, CHECKED, folder)
    launches = [s for model in plan["models"].values() for which in PLANS for s in model[which]["steps"]]
    launches += [s for case in plan["cases"] for s in case["steps"]]
    (folder / "kernels.ptx").write_text(build_ptx("sm_80", {s["symbol"] for s in launches}).read_text())
    (folder / "plan.json").write_text(json.dumps(plan))
    print(f"{len(plan['cases'])} small cases and {len(plan['models'])} models in {folder}")


def run(folder: Path) -> None:
    """Check and time everything in the folder; Markdown on stdout."""
    import torch
    from h200.cuda_kernels import CudaKernels, copy_bandwidth
    from h200.moe_beside import mlx_rates, torch_rate
    from h200.moe_run import check, decode_rate, prefill_rate

    kernels = CudaKernels(folder / "kernels.ptx")
    plan = json.loads((folder / "plan.json").read_text())
    for case in plan["cases"]:
        check(kernels, case, dict(np.load(folder / case["file"])))
    copy = copy_bandwidth()
    print(f"{len(plan['cases'])} small cases are right; copy on this device: {copy / 1e9:.0f} GB/s\n")
    ours, others = "decode GB/s | of copy | us a layer", "MLX us a layer | prefill TFLOP/s, f32 | bf16 | MLX | torch"
    print(f"| model | {ours} | {others} |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    notes = []
    for name, model in plan["models"].items():
        torch.cuda.reset_peak_memory_stats()
        decode = decode_rate(kernels, model)
        prefill = prefill_rate(kernels, model, "prefill", PREFILL_LAYERS)
        bf16 = prefill_rate(kernels, model, "prefill_bf16", PREFILL_LAYERS)
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        beside_torch = torch_rate(model, PREFILL)
        torch.cuda.empty_cache()
        beside_mlx = mlx_rates(model, PREFILL)
        cells = [name, f"{decode.rate / 1e9:.0f}", f"{decode.rate / copy:.2f}", f"{decode.seconds * 1e6:.1f}"]
        cells += [beside_mlx.decode_text, f"{prefill.rate / 1e12:.1f}", f"{bf16.rate / 1e12:.1f}"]
        cells += [beside_mlx.prefill_text, beside_torch.text]
        print("| " + " | ".join(cells) + " |", flush=True)
        notes.append(
            f"{name}: {decode.weights / 1e9:.2f} GB of experts in {model['layers']} layers, peak {peak / 1e9:.2f} GB;"
            f" beside the weights {decode.transient / 1e6:.2f} MB a decoded token, {prefill.transient / 1e6:.1f} MB for"
            f" {PREFILL} tokens. {beside_mlx.note} {beside_torch.note}"
        )
    print("\n" + "\n".join(f"- {note.strip()}" for note in notes))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("prepare", "run"):
        raise SystemExit(__doc__)
    {"prepare": prepare, "run": run}[sys.argv[1]](Path(sys.argv[2]))
