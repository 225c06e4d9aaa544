"""What `strixhlo inspect` shows of a bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from .bundle import BUILD, MANIFEST, VMFB, Build, Bundle, read_record, sha256_file
from .errors import StrixhloError
from .runtime.sizes import size

# A call of a matmul, and the type of its first operand.
_MATMUL = re.compile(
    rb'stablehlo\.composite "strixhlo\.(?:dense|quantized|fused)_matmul" [^\n]*? : \(tensor<[0-9x]+x(f32|f16|bf16)>'
)


def bundle_record(bundle: Bundle) -> dict[str, Any]:
    """The manifest without its long lists, and the builds that are there."""
    check_activations(bundle)
    m = bundle.manifest
    record = m.model_dump(mode="json", exclude={"parameters", "entry_points", "config"})
    record["parameters"] = len(m.parameters)
    record["referenced_bytes"] = m.referenced_bytes
    record["kv_cache"]["bytes"] = m.kv_cache.bytes
    record["entry_points"] = {n: f"{e.kind}, {e.rows} rows" for n, e in m.entry_points.items()}
    builds = _builds(bundle)
    record["builds"] = {
        b.target: {
            "bytes": b.vmfb_bytes,
            "activations": b.activations,
            "whole": (bundle.target_dir(b.target) / VMFB).is_file(),
            "versions": b.versions,
            "report": b.report,
        }
        for b in builds
    }
    return record


def compiled_targets(folder: Path) -> list[str]:
    """The names of the targets that a bundle is compiled for, as its folders have them; empty where it is none."""
    return [p.parent.name for p in sorted(folder.glob(f"*/{BUILD}")) if not p.parent.name.startswith(".")]


def _builds(bundle: Bundle) -> list[Build]:
    """The builds that are there; folders with a dot are still being written, or left over."""
    paths = [p for p in sorted(bundle.path.glob(f"*/{BUILD}")) if not p.parent.name.startswith(".")]
    return [read_record(path, Build, "build") for path in paths]


def check_activations(bundle: Bundle) -> None:
    """StrixhloError where the manifest names another type of activations than the first matmul of the program takes:
    how near a result must come to others' depends on it."""
    found = _MATMUL.search(bundle.program.read_bytes())
    if found and found[1].decode() != bundle.manifest.activations:
        raise StrixhloError(
            f"{bundle.path / MANIFEST}: says activations {bundle.manifest.activations}, the program has"
            f" {found[1].decode()}; export the bundle again"
        )


def verify_bundle(bundle: Bundle) -> None:
    """Read program, weights and builds whole; StrixhloError for the first one that is not what was written."""
    bundle.program_text()
    if sha256_file(bundle.weights) != bundle.manifest.weights_sha256:
        raise StrixhloError(f"{bundle.weights}: damaged (its SHA-256 is not the manifest's); export the bundle again")
    for reference in bundle.manifest.references:
        if sha256_file(Path(reference.path)) != reference.sha256:
            raise StrixhloError(f"{reference.path}: has changed since the export with --reference; export again")
    for build in _builds(bundle):
        vmfb = bundle.target_dir(build.target) / VMFB
        if not vmfb.is_file() or sha256_file(vmfb) != build.vmfb_sha256:
            raise StrixhloError(f"{vmfb}: damaged or missing; compile for {build.target} again")


def bundle_table(record: dict[str, Any]) -> Table:
    """The record for a person."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))

    def counts(values: dict[str, Any]) -> str:
        return ", ".join(f"{name} {count}" for name, count in values.items())

    def row(name: str, text: str) -> None:
        table.add_row(Text(name), Text(text))

    kv = record["kv_cache"]
    row("name", record["name"])
    row("family", record["family"])
    row("source", f"{record['source']} ({record['container']})")
    row("weights", f"{size(record['weights_bytes'])} in {record['parameters']} arrays")
    if record["referenced_bytes"]:
        files = ", ".join(r["path"] for r in record["references"])
        row("in the checkpoint", f"{size(record['referenced_bytes'])} more of weights, in {files}")
    row("formats", counts(record["weight_formats"]))
    row("context", f"{record['context']} positions")
    row("KV cache", f"{size(kv['bytes'])}: 2 x {kv['layers']} x {kv['rows']} x {kv['width']} {kv['dtype']}")
    row("activations", record["activations"])
    row("entry points", counts(record["entry_points"]))
    row("custom ops", counts(record["custom_ops"]))
    row("made with", counts(record["versions"]))
    for target, build in record["builds"].items():
        state = "" if build["whole"] else ", not whole: compile again"
        row(target, f"{size(build['bytes'])}, {build['activations']} activations{state}")
    if record.get("verified"):
        row("verified", "program, weights and builds are as they were written")
    if not record["builds"]:
        row("targets", "none compiled yet")
    return table
