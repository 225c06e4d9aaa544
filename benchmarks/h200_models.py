"""An 8B-shaped random model in every weight format: our runtime, torch and MLX on one GPU, prefill and decode.

  python benchmarks/h200_models.py prepare FOLDER                where the compiler is: programs without weights
  python benchmarks/h200_models.py run FOLDER -o results.json    where the GPU is: makes weights, measures every engine
  python benchmarks/h200_models.py table results.json...         the table of docs/performance.md

`run` needs iree-base-runtime, pydantic, numpy and, for each engine that is to be measured, torch or mlx[cuda] and
mlx-lm. Every engine and format runs in a process of its own, one after the other; where one cannot do it, the reason is
recorded in place of numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from h200.shapes import FORMATS, SHAPES

PROMPT, DECODE = 512, 128
ENGINES = ("strixhlo", "torch", "torch own", "mlx")


def prepare(arguments: argparse.Namespace) -> None:
    from h200.shape_bundle import make_bundle

    shape = SHAPES[arguments.shape]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.formats:
        began = time.monotonic()
        out, rest = arguments.folder / name, (arguments.context, arguments.target, arguments.activations)
        bundle = make_bundle(shape, name, out, *rest)
        size = bundle.manifest.weights_bytes / 1e9
        print(f"{name}: {size:.2f} GB of weights to be made, {time.monotonic() - began:.0f} s", flush=True)
    about = {"shape": arguments.shape, "target": arguments.target, "formats": arguments.formats}
    about["activations"] = arguments.activations
    (arguments.folder / "kit.json").write_text(json.dumps(about))


def run(arguments: argparse.Namespace) -> None:
    about = json.loads((arguments.folder / "kit.json").read_text())
    formats = arguments.formats or about["formats"]
    rows: list[dict[str, Any]] = []
    for name in formats:
        for engine in arguments.engines:
            if engine == "torch own" and FORMATS[name].torch is None:
                continue
            if any(done["engine"] == engine and done["same_as"] == _same(engine, name) for done in rows):
                continue  # torch in bfloat16 is the same beside every format
            if time.monotonic() - START > arguments.seconds:
                rows.append({"format": name, "engine": engine, "same_as": _same(engine, name), "error": "out of time"})
                continue
            print(f"{name}, {engine} ...", flush=True)
            rows.append(
                {"format": name, "engine": engine, "same_as": _same(engine, name), **_child(arguments, name, engine)}
            )
            print(f"  {_said(rows[-1])}", flush=True)
            arguments.output.write_text(json.dumps({**about, "rows": rows}, indent=1))


START = time.monotonic()


def _same(engine: str, name: str) -> str:
    """What an engine runs for a format: rows that would repeat another are left out."""
    if engine == "torch":
        return "bf16"
    return str(FORMATS[name].torch) if engine == "torch own" else name


def _child(arguments: argparse.Namespace, name: str, engine: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "one", str(arguments.folder), "--formats", name, "--engines", engine]
    command += ["--scratch", str(arguments.scratch), "-r", str(arguments.repeats), "--device", arguments.device]
    command += ["-p", str(arguments.prompt), "-n", str(arguments.decode)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.each, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {arguments.each} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": " ".join((done.stderr or done.stdout).split())[-300:]}
    return found


def one(arguments: argparse.Namespace) -> None:
    """One engine and format, in this process; prints JSON."""
    about = json.loads((arguments.folder / "kit.json").read_text())
    shape, name, engine = SHAPES[about["shape"]], arguments.formats[0], arguments.engines[0]
    work = (arguments.prompt, arguments.decode, arguments.repeats)
    if engine == "mlx":
        from h200 import mlx_llama

        found = mlx_llama.measure(shape, FORMATS[name], *work) if FORMATS[name].has_mlx else {"error": "no such format"}
    elif engine.startswith("torch"):
        from h200 import torch_llama

        kind = FORMATS[name].torch if engine == "torch own" else None
        found = torch_llama.measure(shape, kind, *work, arguments.device)
        if engine == "torch own":
            found["how"] = f"{kind}, {found.get('how', '')}"
    else:
        found = _ours(arguments, about["target"])
    print(json.dumps(found))


def _ours(arguments: argparse.Namespace, target: str) -> dict[str, Any]:
    """By `strixhlo bench`'s own functions."""
    from h200.random_weights import write_weights

    from strixhlo.bundle import MANIFEST, Manifest, open_bundle, read_record
    from strixhlo.runtime.bench import plan, plan_cache, run_tests
    from strixhlo.runtime.device import Device
    from strixhlo.runtime.program import Program, read_build
    from strixhlo.runtime.selftest import TIMED, copy_bandwidth
    from strixhlo.step_traffic import step_traffic

    folder = arguments.folder / arguments.formats[0]
    write_weights(folder, read_record(folder / MANIFEST, Manifest, "bundle"), arguments.scratch)
    try:
        bundle = open_bundle(folder)
        traffic = step_traffic(bundle)
        kind = target.partition(":")[0]
        device = Device(kind, None)
        copy = copy_bandwidth(device, TIMED[kind] if kind != "cpu" else 1 << 20)
        device.close()
        tests = plan((arguments.prompt,), (arguments.decode,), (1, 8), (0,))
        cache = plan_cache(bundle, read_build(bundle, target), tests)
        with Program(bundle, target, plan=cache) as program:
            results = run_tests(program, tests, traffic, repeats=arguments.repeats, sources=(), say=lambda _text: None)
    finally:
        (folder / "weights" / "model.safetensors").resolve().unlink(missing_ok=True)
    prefill, one_row, eight = results
    return {
        "pp": list(prefill.rates),
        "tg": list(one_row.rates),
        "tg8": list(eight.rates),
        "bandwidth": one_row.bandwidth,
        "copy_bandwidth": copy,
        "dispatches_per_token": one_row.dispatches,
        "weights_bytes": bundle.manifest.weights_bytes,
        "how": "every token fetched to the host",
    }


def _said(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"error: {row['error']}"
    return f"pp {_spread(row['pp'])}, tg {_spread(row['tg'])}" + (
        f", tg x 8 {_spread(row['tg8'])}" if "tg8" in row else ""
    )


def _spread(rates: list[float]) -> str:
    return f"{mean(rates):.1f} ± {stdev(rates):.1f}" if len(rates) > 1 else f"{rates[0]:.1f}"


def table(arguments: argparse.Namespace) -> None:
    """Markdown: a line for each format, then what could not be measured; of one type of activations."""
    files = [json.loads(file.read_text()) for file in arguments.results]
    rows = [row for file in files for row in file["rows"]]
    found = {(row["engine"], row["same_as"]): row for row in rows if "error" not in row}
    print("| format | GB | tg128 | GB/s | of copy | tg128 x 8 | pp512 | torch bf16 tg, pp | torch's own | MLX tg, pp |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in FORMATS:
        ours = found.get(("strixhlo", name))
        if ours is None:
            continue
        cells = [name, f"{ours['weights_bytes'] / 1e9:.2f}", _spread(ours["tg"]), f"{ours['bandwidth'] / 1e9:.0f}"]
        cells += [f"{ours['bandwidth'] / ours['copy_bandwidth']:.0%}", _spread(ours["tg8"]), _spread(ours["pp"])]
        for engine in ENGINES[1:]:
            row = found.get((engine, _same(engine, name)))
            label = f" ({FORMATS[name].torch})" if engine == "torch own" else ""
            cells.append(f"{mean(row['tg']):.1f}, {mean(row['pp']):.0f}{label}" if row else "-")
        print("| " + " | ".join(cells) + " |")
    print(f"\nactivations: {', '.join(sorted({file.get('activations', 'f32') for file in files}))}")
    for row in rows:
        if "error" in row:
            print(f"\n{row['engine']}, {row['format']}: {row['error']}")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("prepare", prepare), ("run", run), ("one", one)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("folder", type=Path)
        command.add_argument(
            "--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS) if name == "prepare" else None
        )
        if name == "prepare":
            command.add_argument("--shape", choices=list(SHAPES), default="8b")
            command.add_argument("--target", default="cuda:sm_90")
            command.add_argument("--context", type=int, default=1152)
            command.add_argument("--activations", choices=("f32", "f16", "bf16"), default="f32")
            continue
        command.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
        command.add_argument("--scratch", type=Path, default=Path("/dev/shm"), help="where weights have room")
        command.add_argument("--device", default="cuda", help="torch's")
        command.add_argument("-p", "--prompt", type=int, default=PROMPT)
        command.add_argument("-n", "--decode", type=int, default=DECODE)
        command.add_argument("-r", "--repeats", type=int, default=3)
        command.add_argument("--each", type=int, default=150, help="seconds for one engine and format")
        command.add_argument("--seconds", type=int, default=540, help="begin nothing new after this")
        command.add_argument("-o", "--output", type=Path, default=Path("h200.json"))
    command = commands.add_parser("table")
    command.set_defaults(function=table)
    command.add_argument("results", nargs="+", type=Path)
    arguments = parser.parse_args(words)
    arguments.function(arguments)


if __name__ == "__main__":
    main()
