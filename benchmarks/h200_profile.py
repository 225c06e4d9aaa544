"""Where the time of a decoded token goes on an NVIDIA GPU: kernels by name, gaps between them and between steps.

  python benchmarks/h200_profile.py FOLDER FORMAT [-o FILE]     # FOLDER: of `h200_models.py prepare`

torch.profiler records the kernels of every CUDA context of its process, so also IREE's. Needs what `h200_models.py run`
needs, and torch. Times are of the device's clock, the host's parts of a step of a second measurement without profiler.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

WARM_UP, STEPS, TRACED = 24, 64, 8
Row = tuple[str, float, float]  # name, start and duration in us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("format")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--depth", type=int, default=512, help="position of the first step")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"), help="where weights have room")
    parser.add_argument("--flags", nargs="*", default=[], help="of IREE's runtime, without the leading --")
    parser.add_argument("-o", "--output", type=Path, help="of the trace's rows, JSON")
    arguments = parser.parse_args()
    import iree.runtime as rt

    for flag in arguments.flags:
        rt.flags.parse_flags(f"--{flag}")
    from h200.random_weights import write_weights

    from strixhlo.bundle import MANIFEST, Manifest, open_bundle, read_record
    from strixhlo.runtime.batch_engine import BatchEngine
    from strixhlo.runtime.bench import Test, plan_cache
    from strixhlo.runtime.program import Program, read_build

    target = json.loads((arguments.folder / "kit.json").read_text())["target"]
    folder = arguments.folder / arguments.format
    began = time.monotonic()
    write_weights(folder, read_record(folder / MANIFEST, Manifest, "bundle"), arguments.scratch)
    made = time.monotonic()
    try:
        bundle = open_bundle(folder)
        tests = [Test("tg", WARM_UP + 2 * STEPS, arguments.batch, arguments.depth)]
        cache = plan_cache(bundle, read_build(bundle, target), tests)
        with Program(bundle, target, plan=cache) as program:
            print(f"weights made in {made - began:.1f} s, loaded in {time.monotonic() - made:.1f} s", flush=True)
            (folder / "weights" / "model.safetensors").resolve().unlink()  # they are on the device
            engine = BatchEngine(program)
            try:
                measure(engine, arguments)
            finally:
                engine.close()
    finally:
        (folder / "weights" / "model.safetensors").resolve().unlink(missing_ok=True)


def measure(engine: Any, arguments: argparse.Namespace) -> None:
    """Steps without and with the profiler."""
    batch, depth = arguments.batch, arguments.depth
    blocks = [engine.program.kv_cache.own_table(depth + WARM_UP + 2 * STEPS, i) for i in range(batch)]
    state: dict[str, Any] = {"at": depth, "row": [1] * batch, "step": None}

    def step() -> None:
        fetched = engine.decode(state["row"], [state["at"]] * batch, blocks, "tokens")
        state["row"], state["at"] = [max(int(t), 0) for t in fetched], state["at"] + 1

    def ahead() -> None:
        following = engine.start(state["step"] or state["row"], [state["at"]] * batch, blocks, "tokens")
        if state["step"]:
            state["step"].read()
        state["step"], state["at"] = following, state["at"] + 1

    for name, one in {"each read before the next": step, "the next started before": ahead}.items():
        if one is ahead and not getattr(engine, "queues", False):
            continue
        state["at"] = depth
        for _ in range(WARM_UP):
            one()
        began = time.perf_counter()
        for _ in range(STEPS):
            one()
        alone = (time.perf_counter() - began) / STEPS * 1e6
        rate = 1e6 * batch / alone
        print(
            f"{arguments.format}, {batch} rows at {depth}, {name}: {alone:.0f} us a step, {rate:.1f} tok/s", flush=True
        )
        for part, spent in host_parts(engine, one).items():
            print(
                f"  host, {part}: {median(spent):.0f} us (median; {mean(spent):.0f} mean, {len(spent)} calls)",
                flush=True,
            )
        rows, host, wall = traced(one, TRACED)
        print(f"  with profiler {wall:.0f} us a step", flush=True)
        report(rows, TRACED)
        calls = ", ".join(f"{n} {c / TRACED:.1f} x {t / c:.1f} us" for n, (c, t) in host.items())
        print(f"  calls of the driver: {calls}", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows))


def host_parts(engine: Any, step: Callable[[], None]) -> dict[str, list[float]]:
    """us of each part of a step on the host."""
    program, spent = engine.program, defaultdict(list)

    def timed(owner: Any, name: str) -> Callable[..., Any]:
        inner = getattr(owner, name)

        def outer(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*given, **named)
            finally:
                spent[name].append((time.perf_counter() - began) * 1e6)

        return outer

    places = [(program.device, "upload"), (program.device, "download"), (program, "_call"), (program, "call")]
    places += [(program, name) for name in ("send", "start") if hasattr(program, name)]
    if queue := getattr(program, "_queue", None):
        places += [(queue, "fetch"), (queue, "wait")]
    for owner, name in places:
        setattr(owner, name, timed(owner, name))
    began = time.perf_counter()
    for _ in range(STEPS - TRACED):
        step()
    spent["step"].append((time.perf_counter() - began) / (STEPS - TRACED) * 1e6)
    for owner, name in places:
        delattr(owner, name)
    return dict(spent)


def traced(step: Callable[[], None], steps: int) -> tuple[list[Row], dict[str, tuple[int, float]], float]:
    """What the device did in these steps in order; calls of the driver's: count and us; us of a step."""
    import torch

    torch.cuda.init()
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profiler:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wall = (time.perf_counter() - began) / steps * 1e6
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    done = [e for e in events if e.get("ph") == "X"]
    on_device = [e for e in done if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    host: dict[str, tuple[int, float]] = {}
    for event in done:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            count, spent = host.get(event["name"], (0, 0.0))
            host[event["name"]] = count + 1, spent + event["dur"]
    return sorted(((e["name"], e["ts"], e["dur"]) for e in on_device), key=lambda row: row[1]), host, wall


def report(rows: list[Row], steps: int) -> None:
    """By kernel: count and time a step, its mean time, the gap before it; a step's first kernel has the host's gap."""
    kernels = [row for row in rows if not row[0].startswith("Mem")]
    if not kernels:
        print("  the profiler has seen no kernel")
        return
    times: dict[str, list[float]] = defaultdict(list)
    before: dict[str, list[float]] = defaultdict(list)
    end = kernels[0][1]
    for name, start, duration in kernels:
        times[name].append(duration)
        before[name].append(start - end)
        end = max(end, start + duration)
    print("  | kernel | a step | us a step | mean us | min us | gap before, mean us |\n  |---|---|---|---|---|---|")
    for name, spent in sorted(times.items(), key=lambda item: -sum(item[1])):
        print(
            f"  | {name} | {len(spent) / steps:.2f} | {sum(spent) / steps:.1f} | {mean(spent):.2f} | {min(spent):.2f}"
            f" | {mean(before[name]):.2f} |"
        )
    first = before.pop(kernels[0][0])[1:]
    inside = sum(map(sum, before.values()))
    print(
        f"  {len(kernels) / steps:.1f} kernels, {sum(map(sum, times.values())) / steps:.0f} us a step; gaps between"
        f" them {inside / steps:.0f} us, between steps {mean(first):.0f} us: "
        + " ".join(f"{gap:.0f}" for gap in first),
        flush=True,
    )
    copies = [row for row in rows if row[0].startswith("Mem")]
    print(f"  copies a step: {len(copies) / steps:.1f}, {sum(row[2] for row in copies) / steps:.1f} us", flush=True)


if __name__ == "__main__":
    main()
