"""The benchmark of random models at a tiny shape on the CPU: no weights in the kit, weights made there, all engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "h200_models.py"


def h200(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_every_engine_runs_and_what_cannot_run_says_why(tmp_path: Path) -> None:
    kit, results = tmp_path / "kit", tmp_path / "results.json"
    h200("prepare", kit, "--shape", "tiny", "--target", "cpu", "--context", 64, "--formats", "q4_0")
    assert not (kit / "q4_0/weights/model.safetensors").exists()
    size = ("-p", 24, "-n", 3, "-r", 2, "--device", "cpu", "--scratch", tmp_path)
    h200("run", kit, *size, "-o", results)
    rows = {row["engine"]: row for row in json.loads(results.read_text())["rows"]}
    ours = rows["strixhlo"]
    assert len(ours["pp"]) == len(ours["tg"]) == len(ours["tg8"]) == 2 and ours["bandwidth"] > 0
    assert len(rows["torch"]["tg"]) == 2 and min(rows["torch"]["pp"]) > 0
    assert "int4pack" in rows["torch own"]["error"]  # torch has that matmul on GPUs only
    assert rows["mlx"]["error"] == "no such format"
    assert not list(tmp_path.glob("*.weights")), "weights are removed again"
    table = h200("table", results).splitlines()
    assert table[2].startswith("| q4_0 | 0.00 | ") and "torch own, q4_0: " in "\n".join(table)


@pytest.mark.parametrize("name", ["bf16", "mxfp4", "nvfp4", "mxfp8", "fp8_channel", "affine4_g64", "q4_k", "q8_0"])
def test_random_weights_are_ordinary_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import ml_dtypes
    import numpy as np
    from h200 import random_weights

    from strixhlo.custom_kernels.ops.formats import FORMATS

    monkeypatch.setattr(random_weights, "BLOCK", 1 << 16)
    rng = np.random.default_rng(0)
    if name == "bf16":
        w = random_weights._values("bf16 dense", rng).view(ml_dtypes.bfloat16).astype(np.float32)
    else:
        names = {"float32": "f32", "float16": "f16", "int8": "i8", "int32": "i32"}
        parts = {}
        for part, (shape, dtype) in FORMATS[name].parts(16, 512).items():
            data = random_weights._values(f"{name} {names[dtype.name]} {part}", rng)
            parts[part] = data[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
        w = np.asarray(FORMATS[name].dequantize(parts))
    assert np.isfinite(w).all() and 1e-3 < w.std() < 0.3


def test_a_mixture_of_two_formats_has_weights_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts in nvfp4 have a global_scale each; an i8 scale is E4M3 there and an E8M0 exponent in mxfp8."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import numpy as np
    from h200 import random_weights
    from h200.shape_bundle import random_checkpoint, uncompiled_bundle
    from h200.small_models import Case

    from strixhlo.bundle import WEIGHTS
    from strixhlo.custom_kernels.ops.formats import FORMATS

    monkeypatch.setattr(random_weights, "BLOCK", 1 << 20)
    formats = {"_proj.weight": "nvfp4", "": "mxfp8"}
    config = Case("qwen3_moe", "").config()
    manifest = uncompiled_bundle(
        random_checkpoint(config, formats), tmp_path / "mixture", 64, {"decode_1": ("decode", 1)}
    ).manifest
    random_weights.write_weights(tmp_path / "mixture", manifest, tmp_path)
    archive = np.memmap(tmp_path / "mixture" / WEIGHTS, np.uint8, "r")
    experts = "model.layers.1.mlp.experts.down_proj.weight"
    for weight, name in {experts: "nvfp4", "lm_head.weight": "mxfp8"}.items():
        parts = {}
        for part, (_, dtype) in FORMATS[name].parts(16, 512).items():
            at = manifest.parameters[f"{weight}.{part}"]
            data = archive[at.offset : at.offset + at.length].view(dtype)
            parts[part] = data[:1] if part == "global_scale" else data.reshape(at.shape)
        values = np.asarray(FORMATS[name].dequantize(parts))
        assert np.isfinite(values).all() and 1e-3 < values.std() < 0.3, weight
    assert manifest.parameters[f"{experts}.global_scale"].shape == (8,)


def test_a_profile_has_times_of_kernels_and_gaps_of_both_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import h200_profile

    step = [("embedding", 0.0, 2.0), ("gemv", 3.0, 5.0), ("gemv", 10.0, 7.0)]
    rows = [*step, ("Memcpy DtoH", 18.0, 1.0), *((name, 30.0 + start, duration) for name, start, duration in step)]
    h200_profile.report(rows, 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "  | gemv | 2.00 | 12.0 | 6.00 | 5.00 | 1.50 |",
        "  | embedding | 1.00 | 2.0 | 2.00 | 2.00 | 6.50 |",
    ]
    assert lines[4] == "  3.0 kernels, 14 us a step; gaps between them 3 us, between steps 13 us: 13"
    assert lines[5] == "  copies a step: 0.5, 0.5 us"
    h200_profile.report(rows[3:4], 1)
    assert "no kernel" in capsys.readouterr().out
