"""Whole programs of two mixtures of experts compiled for a target, without weights: what the report says of them.

  python benchmarks/moe_models.py [--target rocm] [--bandwidth 212] [--position 1023]

Seconds are of `compile` (tracing apart), wall clock and processor time of it and the compiler. The speed is what the
memory's bandwidth would allow if a token's weights, keys and values were read once and nothing else took time: a bound,
which no machine here can measure.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from h200.moe_shapes import SHAPES, MoeShape, moe_checkpoint
from h200.shape_bundle import uncompiled_bundle

from strixhlo.bundle import VMFB
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export.export import ENTRIES
from strixhlo.step_traffic import step_traffic

CONTEXT = 4096


def processor_seconds() -> float:
    """Of this process and its children so far."""
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def row(name: str, shape: MoeShape, folder: Path, arguments: argparse.Namespace) -> str:
    """One line of the table."""
    bundle = uncompiled_bundle(moe_checkpoint(shape), folder, CONTEXT, ENTRIES)
    target = parse_target(arguments.target)
    began, before = time.monotonic(), processor_seconds()
    built = compile_bundle(bundle, target, activations="f32", keep_intermediates=None, say=lambda _text: None).build
    wall, processor = time.monotonic() - began, processor_seconds() - before
    entry = built.report["entries"]["decode_1"]
    step = step_traffic(bundle).step_bytes(1, arguments.position, 1)
    size = (bundle.target_dir(target.name) / VMFB).stat().st_size
    cells = [name, shape.format, f"{bundle.manifest.weights_bytes / 1e9:.2f}", f"{step / 1e9:.3f}", entry["dispatches"]]
    cells += [f"{(entry['dispatches'] / shape.layers):.1f}", f"{arguments.bandwidth * 1e9 / step:.0f}"]
    cells += [f"{wall:.0f}", f"{processor:.0f}", f"{size / 1e6:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="rocm")
    parser.add_argument("--bandwidth", type=float, default=212.0, help="GB/s")
    parser.add_argument("--position", type=int, default=1023, help="of the token: what it sees of keys and values")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    arguments = parser.parse_args()
    print(
        "| model | experts | GB of weights | GB a token | dispatches a token | a layer"
        f" | tok/s at {arguments.bandwidth:.0f} GB/s | compile s | processor s | program MB |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in arguments.shapes:
        with tempfile.TemporaryDirectory() as scratch:
            print(row(name, SHAPES[name], Path(scratch) / "bundle", arguments), flush=True)


if __name__ == "__main__":
    main()
