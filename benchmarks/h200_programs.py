"""Whole programs of small random models on an NVIDIA GPU, through IREE's CUDA driver, beside the CPU's logits.

  python benchmarks/h200_programs.py prepare FOLDER [NAME...]  # needs this project and its compiler, no GPU
  python benchmarks/h200_programs.py run FOLDER                # needs iree-base-runtime, pydantic, numpy and a GPU

Models of h200/small_models.py (NAME: some of them): dense, norms after attention and MLP, latent attention, mixtures
of experts, in formats and types of activations that take different kernels: a prompt of 140 tokens (the kernels of many
rows and attention of chunks), six decoded one by one, then eight and two at once. `run` prints the relative L2 error of
each step's logits and fails where one is beyond the limit or a token differs; with bfloat16 activations the two best
logits of a random model may be closer than that error, so tokens are told but do not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from h200.small_models import CASES, CONTEXT, VOCABULARY

TARGET = "cuda:sm_90"
TOGETHER = (1, 1, 1, 1, 1, 1, 8, 2)  # decoded tokens of each call
ROW_COUNTS = {"prefill": (16, 128), "score": (16,), "decode": (1, 2, 8)}
LIMITS = {"f32": 2e-3, "f16": 2e-2, "bf16": 6e-2}  # float32 sums in other orders, and float16 keys and values
AT_ONCE = 5  # processes; the driver compiles each one's kernels on one core


def prepare(folder: Path, names: list[str]) -> None:
    """Programs for both targets, and the CPU's logits; no weights."""
    from h200.shape_bundle import random_checkpoint, uncompiled_bundle

    from strixhlo.compile.compile import compile_bundle
    from strixhlo.compile.targets import parse_target

    cases = [case for case in CASES if not names or case.name in names]
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    prompt, following = (random.integers(0, VOCABULARY, count).tolist() for count in (140, sum(TOGETHER)))
    for case in cases:
        entries = {f"{kind}_{rows}": (kind, rows) for kind, counts in ROW_COUNTS.items() for rows in counts}
        checkpoint = random_checkpoint(case.config(), case.formats)
        bundle = uncompiled_bundle(checkpoint, folder / case.name, CONTEXT, entries, case.activations)
        for target in ("cpu", TARGET):
            compile_bundle(bundle, parse_target(target), activations="f32", keep_intermediates=None, say=print)
        np.save(folder / case.name / "logits.npy", steps(folder / case.name, "cpu", prompt, following))
    plan = {"prompt": prompt, "following": following, "cases": [[c.name, c.activations] for c in cases]}
    (folder / "plan.json").write_text(json.dumps(plan))
    print(f"{len(cases)} programs in {folder}")


def steps(folder: Path, target: str, prompt: list[int], following: list[int]) -> np.ndarray:
    """Logits after the prompt and after each token that follows, float32 [1 + len(following), VOCABULARY]."""
    from h200.random_weights import write_weights

    from strixhlo.bundle import MANIFEST, Manifest, open_bundle, read_record
    from strixhlo.runtime.batch_engine import BatchEngine
    from strixhlo.runtime.block_table import own_table
    from strixhlo.runtime.program import Program

    write_weights(folder, read_record(folder / MANIFEST, Manifest, "bundle"), folder)
    with Program(open_bundle(folder), target, 1) as program, closing(BatchEngine(program)) as engine:
        table, logits, length = own_table(program.kv_cache, program.context), list[np.ndarray](), 0
        blocks = [own.tolist() for own in table.reshape(-1, table.shape[-1])]
        while length < len(prompt):
            piece = prompt[length : length + engine.chunk_rows(len(prompt) - length)]
            logits, length = [engine.prefill(piece, length, blocks)], length + len(piece)
        for count in TOGETHER:
            tokens, following = following[:count], following[count:]
            logits += engine.decode(tokens, range(length, length + count), [blocks] * count)
            length += count
    return np.stack(logits)


def run(folder: Path) -> None:
    """Compare, each program in a process of its own; a Markdown table on stdout."""
    plan = json.loads((folder / "plan.json").read_text())
    print("| model, format, activations | largest relative L2 of a step | tokens |\n|---|---|---|")
    wrong = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = pool.map(lambda case: _in_process(folder, case[0]), plan["cases"])
        for (name, activations), found in zip(plan["cases"], said, strict=True):
            error, same = found if isinstance(found, tuple) else (float("inf"), False)
            tokens = found if isinstance(found, str) else "the same" if same else "differ"
            print(f"| {name} | {error:.1e} | {tokens} |", flush=True)
            if not (error < LIMITS[activations] and (same or activations == "bf16")):
                wrong.append(name)
    if wrong:
        raise SystemExit(f"not the CPU's: {', '.join(wrong)}")


def _in_process(folder: Path, name: str) -> tuple[float, bool] | str:
    """What `one` finds, or the end of what it says where it cannot."""
    command = [sys.executable, __file__, "one", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return " ".join((done.stderr or done.stdout).split())[-300:]
    error, same = done.stdout.split()[-2:]
    return float(error), same == "True"


def one(folder: Path, name: str) -> None:
    """Prints the largest relative L2 of a step, and whether all tokens are the CPU's."""
    plan = json.loads((folder / "plan.json").read_text())
    want = np.load(folder / name / "logits.npy")
    got = steps(folder / name, TARGET, plan["prompt"], plan["following"])
    error = float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())
    print(error, bool((got.argmax(1) == want.argmax(1)).all()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prepare", where, *names]:
            prepare(Path(where), names)
        case ["run", where]:
            run(Path(where))
        case ["one", where, name]:
            one(Path(where), name)
        case _:
            raise SystemExit(__doc__)
