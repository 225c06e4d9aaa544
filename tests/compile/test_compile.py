"""compile: what it writes, when it does nothing, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from strixhlo.build_inputs import lowering_sha256
from strixhlo.bundle import BUILD, MANIFEST, VMFB, Build, Bundle, open_bundle, read_record, write_record
from strixhlo.compile.compile import Result, compile_bundle, lower_without_kernels
from strixhlo.compile.targets import parse_target
from strixhlo.cpu_features import host_cpu, required_flags
from strixhlo.errors import StrixhloError
from strixhlo.replacement import atomic_write
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program, read_build, version_line


@pytest.fixture
def bundle(tiny: Bundle, tmp_path: Path) -> Bundle:
    return open_bundle(shutil.copytree(tiny.path, tmp_path / "bundle", copy_function=os.link))


def compile_(bundle: Bundle, target: str = "cpu", activations: str = "int8", keep: Path | None = None) -> Result:
    return compile_bundle(
        bundle, parse_target(target), activations=activations, keep_intermediates=keep, say=lambda _: None
    )


def test_second_call_does_nothing(bundle: Bundle) -> None:
    before = (bundle.target_dir("cpu") / VMFB).stat().st_mtime_ns
    assert not compile_(bundle).fresh
    assert (bundle.target_dir("cpu") / VMFB).stat().st_mtime_ns == before


def test_damaged_or_other_build_is_made_again(bundle: Bundle) -> None:
    vmfb = bundle.target_dir("cpu") / VMFB
    whole = vmfb.read_bytes()
    atomic_write(vmfb, whole[:1000])
    with pytest.raises(StrixhloError, match=r"is not the file that build\.json describes"):
        read_build(bundle, "cpu")
    result = compile_(bundle)
    assert result.fresh and vmfb.read_bytes() == whole  # the compiler is deterministic
    assert compile_(bundle, activations="f32").fresh


def _float32_cache(manifest: dict) -> None:
    manifest["kv_cache"]["dtype"] = "f32"
    for entry in manifest["entry_points"].values():
        for spec in (*entry["inputs"][-2:], *entry["outputs"][-2:]):
            spec["dtype"] = "f32"


def _other_weight(manifest: dict) -> None:
    name = next(n for n in manifest["parameters"] if "q_proj" in n)
    manifest["parameters"][name]["shape"].reverse()
    manifest["parameters"][name]["shape"][0:0] = [1]


def _one_weight_less(manifest: dict) -> None:
    manifest["parameters"].popitem()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_float32_cache, r"k_pool of \w+ is 2x256x32xf32, in the program 2x256x32xf16; export the bundle again"),
        (_other_weight, r"the weight .*q_proj.* is 1x64x64x\w+, in the program 64x64x\w+; export"),
        (_one_weight_less, r"the weight .* is missing, the program takes it; export"),
    ],
)
def test_an_edited_manifest_is_refused_before_the_run(
    bundle: Bundle, change: Callable[[dict], None], message: str
) -> None:
    manifest = json.loads((bundle.path / MANIFEST).read_text())
    change(manifest)
    atomic_write(bundle.path / MANIFEST, json.dumps(manifest).encode())
    edited = open_bundle(bundle.path)
    with pytest.raises(StrixhloError, match=f"{MANIFEST}: {message}"):
        compile_(edited)
    with pytest.raises(StrixhloError, match=rf"{MANIFEST} says other weights, .*; run `strixhlo compile .*` again"):
        read_build(edited, "cpu")


def test_a_build_of_other_sources_is_made_again(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    build = read_build(bundle, "cpu")
    assert version_line(bundle, build) == ""
    older = build.model_copy(update={"lowering_sha256": ""})  # as builds were before this was kept
    write_record(bundle.target_dir("cpu") / BUILD, older)
    said = version_line(bundle, read_build(bundle, "cpu"))
    assert "built by another version of strixhlo" in said and said.endswith("--target cpu` again")
    stop = RuntimeError("compiles")
    monkeypatch.setattr("strixhlo.compile.compile.lowering_sha256", lambda _kind: "0" * 64)
    monkeypatch.setattr("strixhlo.compile.compile.replaced_directory", lambda *_: (_ for _ in ()).throw(stop))
    with pytest.raises(RuntimeError, match="compiles"):
        compile_(bundle)


def test_what_sources_say_in_words_makes_no_build_old(tmp_path: Path) -> None:
    lower = tmp_path / "compile" / "lower.py"
    (tmp_path / "custom_kernels" / "gpu").mkdir(parents=True)
    lower.parent.mkdir()
    (tmp_path / "weight_spans.py").touch()
    code = '"""What."""\n\ndef f():\n    """Why."""\n    # So.\n    return f"""\n# map\n#map = {x}\n"""\n'
    lower.write_text(code)
    before = lowering_sha256("cpu", tmp_path)
    lower.write_text(code.replace("What", "This").replace("Why", "That\n\n    too").replace("So.", "Thus."))
    (tmp_path / "custom_kernels" / "gpu" / "gemv.h").write_text("int x;")
    assert lowering_sha256("cpu", tmp_path) == before != lowering_sha256("rocm", tmp_path)
    for change in (("return", "yield"), ("#map", "#mop"), ("{x}", "{y}")):
        lower.write_text(code.replace(*change))
        assert lowering_sha256("cpu", tmp_path) != before


def test_intermediates(bundle: Bundle, tmp_path: Path) -> None:
    compile_(bundle, keep=tmp_path / "kept")
    names = {p.name for p in (tmp_path / "kept").iterdir()}
    assert {"custom_calls.mlir", "lowered.mlir"} <= names and any("stream" in n for n in names)
    calls = (tmp_path / "kept" / "custom_calls.mlir").read_text()
    assert "stablehlo.custom_call @strixhlo.fused_matmul" in calls
    assert "stablehlo.composite" not in calls


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_lower_level_gives_the_same_logits(bundle: Bundle, level: str) -> None:
    target = f"cpu:{level}"
    build = compile_(bundle, target).build
    assert build.cpu_features == required_flags(level, ())
    logits = {}
    for name in ("cpu", target):
        with Program(bundle, name, 2) as program:
            engine = Engine(program)
            logits[name] = engine.prefill(list(range(100, 120)))
            engine.close()
    error = np.linalg.norm(logits["cpu"] - logits[target]) / np.linalg.norm(logits["cpu"])
    assert error < 1e-3


def test_features_are_checked_before_loading(bundle: Bundle) -> None:
    path = bundle.target_dir("cpu") / BUILD
    build = read_record(path, Build, "build")
    write_record(path, build.model_copy(update={"cpu_features": (*build.cpu_features, "amx_tile_of_tomorrow")}))
    with pytest.raises(StrixhloError, match="needs the CPU features amx_tile_of_tomorrow"):
        Program(bundle, "cpu")


def test_build_for_another_target_is_refused(bundle: Bundle) -> None:
    shutil.copytree(bundle.target_dir("cpu"), bundle.path / "cpu-x86-64-v3")
    with pytest.raises(StrixhloError, match="built for cpu, not for cpu:x86-64-v3"):
        read_build(bundle, "cpu:x86-64-v3")
    with pytest.raises(StrixhloError, match="not compiled for cpu:x86-64"):
        read_build(bundle, "cpu:x86-64")


@pytest.mark.parametrize(("text", "message"), [("tpu", "not known; choose one of cpu"), ("cpu:znver9", "x86-64-v4")])
def test_unknown_target(text: str, message: str) -> None:
    with pytest.raises(StrixhloError, match=message):
        parse_target(text)


def test_host_level() -> None:
    v3 = frozenset(required_flags("x86-64-v3", ()))
    assert host_cpu(v3) == ("x86-64-v3", ())
    assert host_cpu(v3 - {"fma"}) == ("x86-64-v2", ())
    v4 = frozenset(required_flags("x86-64-v4", ())) | {"avx512_vnni", "avx512vbmi"}
    assert host_cpu(v4) == ("x86-64-v4", ("avx512vnni", "avx512vbmi"))
    assert host_cpu(frozenset()) == ("x86-64", ())


@pytest.mark.parametrize("target", ["cpu", "rocm", "vulkan"])
def test_an_op_of_an_older_version_is_refused(target: str) -> None:
    """A program that calls kv_append, compiled from its decomposition, corrupted the heap when it ran."""
    text = """
    func.func public @f(%x: tensor<1xf32>) -> tensor<1xf32> {
      %y = stablehlo.composite "strixhlo.kv_append" %x {decomposition = @d} : (tensor<1xf32>) -> tensor<1xf32>
      return %y : tensor<1xf32>
    }
    func.func private @d(%x: tensor<1xf32>) -> tensor<1xf32> { return %x : tensor<1xf32> }"""
    with pytest.raises(
        StrixhloError, match=r"calls strixhlo\.kv_append, which this version .*; export the bundle again"
    ):
        lower_without_kernels(text, parse_target(target), "f32", None)
