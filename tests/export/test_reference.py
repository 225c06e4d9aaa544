"""Bundles that refer to the checkpoint's files, dry runs, and source files that are cut short meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from strixhlo.build_inputs import interface_sha256
from strixhlo.bundle import Bundle, open_bundle
from strixhlo.cli import main
from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.export import export_checkpoint
from strixhlo.inspection import verify_bundle
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

QUIET = Stages(lambda _name, _total: None, lambda _n: None)


@pytest.fixture
def checkpoint(tiny: Bundle, tmp_path: Path) -> Path:
    """A private copy of the tiny checkpoint (bfloat16)."""
    return shutil.copytree(tiny.manifest.source, tmp_path / "checkpoint")


def refer(checkpoint: Path, out: Path) -> Bundle:
    opened = open_checkpoint(str(checkpoint))
    return export_checkpoint(opened, out, context=None, dtype="auto", kv_dtype="f16", progress=QUIET, reference=True)


def test_on_the_cpu_it_computes_the_same(tiny: Bundle, checkpoint: Path, tmp_path: Path) -> None:
    """Unaligned weights are copied by IREE; matrices are not in the bundle, norms (stored as float32) are."""
    bundle = refer(checkpoint, tmp_path / "out")
    referred = {n for n, p in bundle.manifest.parameters.items() if p.file is not None}
    assert "model.layers.1.mlp.up_proj.weight.dense" in referred and "model.norm.weight.dense" not in referred
    stored = set(load_file(bundle.weights)) if bundle.weights.stat().st_size else set()
    assert not referred & stored
    assert any(bundle.manifest.parameters[n].offset % 64 for n in referred)
    assert bundle.program_text() == tiny.program_text()
    shutil.copytree(tiny.target_dir("cpu"), bundle.target_dir("cpu"))
    built = bundle.target_dir("cpu") / "build.json"  # the same program, whose weights are elsewhere
    built.write_text(
        json.dumps(json.loads(built.read_text()) | {"interface_sha256": interface_sha256(bundle.manifest)})
    )
    rows = []
    for b in (tiny, bundle):
        with Program(b, "cpu", 1) as program, closing(Engine(program)) as engine:
            rows.append(engine.score([1, 2, 3, 4]))
    assert np.array_equal(*rows)


def test_a_file_that_has_changed_or_gone(checkpoint: Path, tmp_path: Path) -> None:
    bundle = refer(checkpoint, tmp_path / "out")
    file = checkpoint / "model.safetensors"
    verify_bundle(bundle)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StrixhloError, match="has changed since the export with --reference"):
        verify_bundle(bundle)
    file.write_bytes(data[:-1])
    with pytest.raises(StrixhloError, match="is missing or has changed; put it back"):
        open_bundle(bundle.path)
    file.unlink()
    with pytest.raises(StrixhloError, match="is missing or has changed; put it back"):
        open_bundle(bundle.path)


@pytest.mark.parametrize("change", [{"file": 7}, {"offset": 1 << 40}, {"offset": -2}, {"length": 6}, {"file": -1}])
def test_a_manifest_that_lies(checkpoint: Path, tmp_path: Path, change: dict) -> None:
    bundle = refer(checkpoint, tmp_path / "out")
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    manifest["parameters"]["model.embed_tokens.weight.dense"] |= change
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StrixhloError, match=r"lies outside of|has \d+ bytes where|greater than or equal"):
        open_bundle(bundle.path)


def big_checkpoint(folder: Path, layers: int) -> int:
    """A Llama of zeros in MLX's mxfp4, 28 MB a layer, most of its file a hole; returns the bytes of its weights."""
    folder.mkdir()
    hidden, feed_forward, vocabulary = 2048, 8192, 64
    shapes = {"model.embed_tokens": (vocabulary, hidden)}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {f"{p}self_attn.{n}_proj": (rows, hidden) for n, rows in (("q", 2048), ("k", 64), ("v", 64))}
        shapes |= {f"{p}self_attn.o_proj": (hidden, hidden), f"{p}mlp.down_proj": (hidden, feed_forward)}
        shapes |= {f"{p}mlp.{n}_proj": (feed_forward, hidden) for n in ("gate", "up")}
    entries: dict[str, tuple[str, tuple[int, ...], int]] = {"model.norm.weight": ("BF16", (hidden,), 2 * hidden)}
    for i in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            entries[f"model.layers.{i}.{norm}.weight"] = ("BF16", (hidden,), 2 * hidden)
    for name, (n, k) in shapes.items():
        entries[f"{name}.weight"] = ("U32", (n, k // 8), n * k // 2)
        entries[f"{name}.scales"] = ("U8", (n, k // 32), n * k // 32)
    header, position = {}, 0
    for name, (dtype, shape, nbytes) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        os.truncate(file.fileno(), 8 + len(text) + position)
    config = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0")
    Tokenizer(words).save(str(folder / "tokenizer.json"))
    return position


def test_it_writes_less_than_2_percent(tmp_path: Path) -> None:
    weights = big_checkpoint(tmp_path / "checkpoint", 2)
    bundle = refer(tmp_path / "checkpoint", tmp_path / "out")
    written = sum(f.stat().st_size for f in bundle.path.rglob("*") if f.is_file())
    assert weights > 50e6 and written < 0.02 * weights
    assert bundle.manifest.referenced_bytes > 0.99 * weights


@pytest.mark.parametrize("reference", [False, True])
def test_the_bar_counts_bytes_to_the_end(tmp_path: Path, reference: bool) -> None:
    """Each stage that says how many bytes it has comes to that many; the archive's header and padding come on top."""
    big_checkpoint(tmp_path / "checkpoint", 1)
    stages: list[tuple[int, list[int]]] = []
    export_checkpoint(
        open_checkpoint(str(tmp_path / "checkpoint")),
        tmp_path / "out",
        context=None,
        dtype="auto",
        kv_dtype="f16",
        progress=Stages(lambda _name, total: stages.append((total, [])), lambda n: stages[-1][1].append(n)),
        reference=reference,
    )
    measured = [(total, sum(done)) for total, done in stages if total]
    assert len(measured) == 2
    assert all(total <= done <= total + 8192 for total, done in measured), measured


EXPORT = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
sys.argv[1:2] = []
runpy.run_module("strixhlo.cli", run_name="__main__", alter_sys=True)
"""


def test_a_checkpoint_larger_than_the_limit_on_data_memory(tmp_path: Path) -> None:
    """700 MB of packed weights are exported under 512 MB of data memory: they are copied piece by piece."""
    weights = big_checkpoint(tmp_path / "checkpoint", 20)
    assert weights > 600e6
    command = [sys.executable, "-c", EXPORT, str(512 << 20), "export", tmp_path / "checkpoint", "-o", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert open_bundle(tmp_path / "out").weights.stat().st_size > weights


def test_dry_run(checkpoint: Path, tmp_path: Path) -> None:
    """Nothing is written, nothing read but headers; the sizes are those of the export."""
    run = CliRunner().invoke(main, ["export", str(checkpoint), "-o", str(tmp_path / "out"), "--dry-run", "--json"])
    assert run.exit_code == 0, run.output
    record = json.loads(run.stdout)
    assert not (tmp_path / "out").exists()
    bundle = refer(checkpoint, tmp_path / "out")
    total = sum(p.length for p in bundle.manifest.parameters.values())
    assert record["weights_bytes"] == total and record["kv_bytes"] == bundle.manifest.kv_cache.bytes
    assert record["referenced_bytes"] == bundle.manifest.referenced_bytes
    assert {n: e["tensors"] for n, e in record["formats"].items()} == bundle.manifest.weight_formats
    assert record["memory"]["rocm"] > total + record["kv_bytes"]
    text = CliRunner().invoke(main, ["export", str(checkpoint), "--dry-run"])
    assert text.exit_code == 0 and "with --reference" in text.stdout and "bf16" in text.stdout


@pytest.mark.parametrize("reference", [False, True])
def test_a_source_that_becomes_shorter_is_an_error(checkpoint: Path, tmp_path: Path, reference: bool) -> None:
    """It has been opened whole, and is cut before its weights are read."""
    opened = open_checkpoint(str(checkpoint))
    file = checkpoint / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StrixhloError, match=r"ends at byte \d+, in the middle of tensor"):
        export_checkpoint(
            opened,
            tmp_path / "out",
            context=None,
            dtype="auto",
            kv_dtype="f16",
            progress=QUIET,
            reference=reference,
        )
    assert not (tmp_path / "out").exists()
