"""Writes the table that ships for gfx1151, whose answers are predicted: custom_kernels/gpu/tables/gfx1151.json.

  python benchmarks/predicted_table.py [--check]

The questions are those of released shapes in common formats, the answers the rules', and the microseconds what the
weights' bytes take at 212 GB/s, which is a bound. --check only says whether the file is what would be written.
An owner's `strixhlo tune` measures the same questions, and more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import strixhlo.custom_kernels
from strixhlo.bundle import DTYPE_BYTES, SCHEMA_VERSION
from strixhlo.choice_table import ChoiceTable, Entry
from strixhlo.compile.candidates import Asking, questions
from strixhlo.compile.random_operands import operand
from strixhlo.compile.target_kernels import kernels_hash
from strixhlo.compile.targets import parse_target
from strixhlo.export.checkpoint.contents import Checkpoint
from strixhlo.export.export import ENTRIES, planned
from strixhlo.export.trace import trace
from strixhlo.replacement import atomic_write
from strixhlo.step_traffic import STRIX_HALO_BANDWIDTH

sys.path.insert(0, str(Path(__file__).parent))

from h200.moe_shapes import SHAPES as MIXTURES
from h200.moe_shapes import moe_checkpoint
from h200.shape_bundle import random_checkpoint
from h200.shapes import FORMATS, Shape

TABLE = Path(strixhlo.custom_kernels.__file__).parent / "gpu" / "tables" / "gfx1151.json"
CONTEXT = 4096
DENSE = (
    Shape(4096, 14336, 1, 32, 8, 128, 128256),  # Llama 3.1 8B
    Shape(2560, 9728, 1, 32, 8, 128, 151936),  # Qwen3 4B
    Shape(5120, 25600, 1, 64, 8, 128, 151936),  # Qwen3 32B
)


def checkpoints() -> Iterator[Checkpoint]:
    """Of one layer each: every layer asks the same."""
    for shape in DENSE:
        for name in FORMATS:
            yield random_checkpoint(shape.config(CONTEXT), name)
    for mixture in MIXTURES.values():
        config = mixture.config | {"num_hidden_layers": 1}
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:1]
        yield moe_checkpoint(replace(mixture, layers=1, config=config))


def entry(asking: Asking) -> Entry:
    question, call = asking.question, asking.call
    operands = [operand(call, name, type_) for name, type_ in zip(asking.lowering.operands, call.types, strict=True)]
    nbytes = 0
    for o in operands:
        count = DTYPE_BYTES[o.dtype] * o.rotates
        for n in o.shape:
            count *= n
        nbytes += count
    own = dict(asking.answers[0])
    return Entry(
        choice=question.choice,
        kernel=question.kernel,
        rows=question.rows,
        shape=question.shape,
        answer=own,
        rule=own,
        microseconds=round(nbytes / STRIX_HALO_BANDWIDTH * 1e6, 1) or None,
    )


def predicted() -> ChoiceTable:
    """The table, its entries in order."""
    target = parse_target("rocm:gfx1151")
    entries: dict[tuple[object, ...], Entry] = {}
    for checkpoint in checkpoints():
        model, kv, weights = planned(checkpoint, context=CONTEXT, dtype="auto", kv_dtype="f16")
        program = trace(model, {name: w.traced() for name, w in weights.items()}, kv, ENTRIES).program
        for asking in questions(program, target, "f32"):
            made = entry(asking)
            entries[made.choice, made.kernel, made.rows, made.shape] = made
    return ChoiceTable(
        schema_version=SCHEMA_VERSION,
        origin="predicted",
        chip="gfx1151",
        device="none: nobody has measured these answers",
        driver="none",
        activations="f32",
        kernels=kernels_hash(target),
        versions={},
        entries=tuple(made for _, made in sorted(entries.items(), key=lambda item: tuple(map(str, item[0])))),
    )


def main() -> None:
    made = predicted()
    if sys.argv[1:] != ["--check"]:
        head, entries = made.model_dump(mode="json", exclude={"entries"}), made.model_dump(mode="json")["entries"]
        lines = ",\n".join(json.dumps(e) for e in entries)  # one a line, so that a change of a rule can be read
        TABLE.parent.mkdir(exist_ok=True)
        atomic_write(TABLE, f'{json.dumps(head)[:-1]}, "entries": [\n{lines}\n]}}\n'.encode())
        print(f"{TABLE}: {len(made.entries)} predicted answers")
        return
    there = ChoiceTable.model_validate_json(TABLE.read_text())
    if there.entries != made.entries:
        raise SystemExit(f"{TABLE}: is not what the rules give now; run `make predicted-table`")


if __name__ == "__main__":
    main()
