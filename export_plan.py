"""What `strixhlo export --dry-run` shows: sizes, formats, and the memory that a run will need."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click
from rich.table import Table

from .command_group import Output
from .export.checkpoint.contents import Checkpoint
from .export.export import ENTRIES, planned
from .runtime.memory import RESERVE, estimated_call_bytes
from .runtime.sizes import size


def plan(checkpoint: Checkpoint, *, context: int | None, dtype: str, kv_dtype: str, activations: str) -> dict[str, Any]:
    """Sizes in bytes. `referenced`: what --reference would leave in the checkpoint's files. `memory`: of a run by
    target, weights + KV cache + an estimate of temporaries and results + the reserve for the driver."""
    model, kv, weights = planned(checkpoint, context=context, dtype=dtype, kv_dtype=kv_dtype, activations=activations)
    groups = {name: w.group(name) for name, w in weights.items()}
    weights_bytes = sum(g.nbytes for g in groups.values())
    formats: dict[str, dict[str, int]] = {}
    for name, w in weights.items():
        entry = formats.setdefault(w.format, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += groups[name].nbytes
    rows = max(rows for _, rows in ENTRIES.values())
    temporaries, results = estimated_call_bytes(checkpoint.config, rows, model.vocab_size, kv.width)
    return {
        "source": checkpoint.source,
        "container": checkpoint.container,
        "family": checkpoint.config["model_type"],
        "files": {f.name: f.stat().st_size for f in checkpoint.files},
        "source_formats": dict(sorted(Counter(t.format for t in checkpoint.tensors.values()).items())),
        "formats": dict(sorted(formats.items())),
        "weights_bytes": weights_bytes,
        "referenced_bytes": sum(p.nbytes for g in groups.values() for p in g.places.values()),
        "context": kv.blocks * kv.block_size,
        "kv_bytes": kv.bytes,
        "activations": activations,
        "temporaries_bytes": temporaries + results,
        "memory": {kind: weights_bytes + kv.bytes + temporaries + results + r for kind, r in RESERVE.items()},
    }


def show_plan(
    checkpoint: Checkpoint, *, context: int | None, dtype: str, kv_dtype: str, activations: str, as_json: bool
) -> None:
    """Print the plan."""
    record = plan(checkpoint, context=context, dtype=dtype, kv_dtype=kv_dtype, activations=activations)
    if as_json:
        click.echo(json.dumps(record, indent=1))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    files = record["files"]
    table.add_row("source", f"{record['source']} ({record['container']}, {record['family']})")
    table.add_row("files", f"{len(files)}, {size(sum(files.values()))}")
    for name, entry in record["formats"].items():
        table.add_row(f"  {name}", f"{entry['tensors']} tensors, {size(entry['bytes'])}")
    table.add_row("would write", f"{size(record['weights_bytes'])} of weights")
    left = record["weights_bytes"] - record["referenced_bytes"]
    table.add_row("with --reference", f"{size(left)} of weights, the rest stays in the checkpoint's files")
    table.add_row("KV cache", f"{size(record['kv_bytes'])} for {record['context']} positions")
    table.add_row("activations", record["activations"])
    table.add_row("temporaries", f"{size(record['temporaries_bytes'])}, estimated")
    for kind, needed in record["memory"].items():
        table.add_row(f"memory, {kind}", size(needed))
    Output().print(table)
