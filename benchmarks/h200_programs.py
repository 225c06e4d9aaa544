"""Whole programs of small random models on an NVIDIA GPU, through IREE's CUDA driver, beside the CPU's logits.

  python benchmarks/h200_programs.py prepare FOLDER   # needs this project and its compiler, no GPU
  python benchmarks/h200_programs.py run FOLDER       # needs iree-base-runtime, pydantic, numpy and a GPU

Dense models, one with norms after attention and MLP, and mixtures of experts, in formats and types of activations that
take different kernels: a prompt of 140 tokens (the kernels of many rows and attention of chunks) and six decoded ones.
`run` prints the relative L2 error of each step's logits and fails where one is beyond the limit or a token differs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

TARGET, CONTEXT, VOCABULARY = "cuda:sm_89", 256, 320
ROW_COUNTS = {"prefill": (16, 128), "score": (16,), "decode": (1, 2, 8)}
LIMITS = {"f32": 2e-3, "f16": 2e-2, "bf16": 6e-2}  # float32 sums in other orders, and float16 keys and values
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA = SMALL | {"model_type": "llama"}
QWEN = SMALL | {"model_type": "qwen3"}
GEMMA = SMALL | {
    "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 128,
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "rope_local_base_freq": 10000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
WINDOWS = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}
GPT_OSS = SMALL | WINDOWS | {
    "model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 256,
    "attention_bias": True, "swiglu_limit": 7.0,
}  # fmt: skip
QWEN_MOE = SMALL | {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, its matrices' format and the type of its activations."""

    config: dict[str, Any]
    format: str
    activations: str = "f32"

    @property
    def name(self) -> str:
        return f"{self.config['model_type']}-{self.format}-{self.activations}"


CASES = (
    Case(LLAMA, "mxfp4"), Case(LLAMA, "mxfp4", "bf16"), Case(LLAMA, "q4_k"), Case(LLAMA, "q6_k"), Case(LLAMA, "q8_0"),
    Case(LLAMA, "fp8_block128", "bf16"), Case(QWEN, "affine4_g64", "f16"), Case(GEMMA, "q4_0"), Case(GPT_OSS, "mxfp4"),
    Case(QWEN_MOE, "affine4_g64"), Case(QWEN_MOE, "affine4_g64", "bf16"),
)  # fmt: skip


def prepare(folder: Path) -> None:
    """Programs for both targets, and the CPU's logits; no weights."""
    from h200.shape_bundle import random_checkpoint, uncompiled_bundle

    from strixhlo.compile.compile import compile_bundle
    from strixhlo.compile.targets import parse_target

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    prompt, following = random.integers(0, VOCABULARY, 140).tolist(), random.integers(0, VOCABULARY, 6).tolist()
    for case in CASES:
        entries = {f"{kind}_{rows}": (kind, rows) for kind, counts in ROW_COUNTS.items() for rows in counts}
        checkpoint = random_checkpoint(case.config, case.format)
        bundle = uncompiled_bundle(checkpoint, folder / case.name, CONTEXT, entries, case.activations)
        for target in ("cpu", TARGET):
            compile_bundle(bundle, parse_target(target), activations="f32", keep_intermediates=None, say=print)
        logits = steps(folder / case.name, "cpu", prompt, following)
        np.save(folder / case.name / "logits.npy", logits)
    plan = {"prompt": prompt, "following": following, "cases": [[c.name, c.activations] for c in CASES]}
    (folder / "plan.json").write_text(json.dumps(plan))
    print(f"{len(CASES)} programs in {folder}")


def steps(folder: Path, target: str, prompt: list[int], following: list[int]) -> np.ndarray:
    """Logits after the prompt and after each token that follows, float32 [1 + len(following), VOCABULARY]."""
    from h200.random_weights import write_weights

    from strixhlo.bundle import MANIFEST, Manifest, open_bundle, read_record
    from strixhlo.runtime.engine import Engine
    from strixhlo.runtime.program import Program

    write_weights(folder, read_record(folder / MANIFEST, Manifest, "bundle"), folder)
    with Program(open_bundle(folder), target, 1) as program:
        engine = Engine(program)
        logits = [engine.prefill(prompt), *(engine.decode(token) for token in following)]
        engine.close()
    return np.stack(logits)


def run(folder: Path) -> None:
    """Compare; a Markdown table on stdout."""
    plan = json.loads((folder / "plan.json").read_text())
    print("| model, format, activations | largest relative L2 of a step | tokens |\n|---|---|---|")
    wrong = []
    for name, activations in plan["cases"]:
        want = np.load(folder / name / "logits.npy")
        got = steps(folder / name, TARGET, plan["prompt"], plan["following"])
        error = float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())
        same = bool((got.argmax(1) == want.argmax(1)).all())
        print(f"| {name} | {error:.1e} | {'the same' if same else 'differ'} |", flush=True)
        if not (same and error < LIMITS[activations]):
            wrong.append(name)
    if wrong:
        raise SystemExit(f"not the CPU's: {', '.join(wrong)}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("prepare", "run"):
        raise SystemExit(__doc__)
    {"prepare": prepare, "run": run}[sys.argv[1]](Path(sys.argv[2]))
