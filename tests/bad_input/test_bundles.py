"""Bundles that are damaged, newer, edited, or not meant for this target: refused by what reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from strixhlo.bundle import BUILD, MANIFEST, PROGRAM, VMFB, WEIGHTS, KVCache, entry_point, sha256_file
from strixhlo.replacement import atomic_write

Refused = Callable[..., str]
Edit = Callable[[Path, Callable[[dict], object]], None]


@pytest.mark.parametrize("command", [("inspect",), ("compile",), ("run", "-p", "x")])
def test_newer_schema(bundle: Path, refused: Refused, edit: Edit, command: tuple[str, ...]) -> None:
    edit(bundle / MANIFEST, lambda m: m.update(schema_version=2, something_new=True))
    assert "schema version 2, this strixhlo reads 1; upgrade strixhlo" in refused(*command, bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["kv_cache"].update(rows=-1), "kv_cache.rows: Input should be greater than 0"),
        (lambda m: m["kv_cache"].update(layers=10**12), "kv_cache.layers: Input should be less than 2147483648"),
        (lambda m: m["kv_cache"].update(dtype="f64"), "kv_cache.dtype: String should match"),
        (lambda m: m.update(vocab_size=0), "vocab_size: Input should be greater than 0"),
        (lambda m: m["entry_points"].pop("decode_1"), "entry points are missing"),
        (lambda m: m["entry_points"].pop("score_128"), "entry points are missing"),
        (lambda m: m["entry_points"]["decode_1"]["inputs"][0].update(dtype="f64"), "inputs.0.dtype: String should"),
        (lambda m: m["entry_points"]["decode_1"]["inputs"].pop(), "decode_1 has other inputs or outputs than export"),
        (lambda m: m["entry_points"]["decode_2"].update(rows=3), "decode_2 has other inputs or outputs than export"),
        (lambda m: m["entry_points"]["prefill_16"]["inputs"][3].update(shape=[1, 15]), "prefill_16 has other inputs"),
        (lambda m: m["entry_points"]["score_128"]["outputs"].append({}), "outputs.4.name: Field required"),
        (lambda m: m["entry_points"].update(decode_3=m["entry_points"]["decode_2"]), "decode_3 has other inputs or"),
        (lambda m: m["kv_cache"].update(blocks=2147483647), "2147483647 blocks of 16 positions do not go with a KV"),
        (lambda m: m.update(context=257), "a context of 257 and 16 blocks of 16 positions do not go with a KV"),
        (lambda m: m.update(weights_bytes=10**400), "weights_bytes: Input should be less than"),
    ],
)
def test_manifest(bundle: Path, refused: Refused, edit: Edit, change: Callable[[dict], object], message: str) -> None:
    edit(bundle / MANIFEST, change)
    line = refused("run", bundle, "-p", "x")
    assert message in line and ("make the bundle again" in line or "export the bundle again" in line)


def respecify(manifest: dict) -> None:
    """Entry points that go with the rest of the manifest again."""
    kv = KVCache.model_validate(manifest["kv_cache"])
    for name, entry in manifest["entry_points"].items():
        whole = entry_point(entry["kind"], entry["rows"], kv, manifest["vocab_size"])
        manifest["entry_points"][name] = whole.model_dump(mode="json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["kv_cache"].update(blocks=32, rows=512), "has the input 1x16xi32 for block_table, not 1x32xi32"),
        (lambda m: m["kv_cache"].update(width=64), "xf16 for k_pool, not 2x256x64xf16"),
        (lambda m: m["kv_cache"].update(dtype="f32"), "xf16 for k_pool, not 2x256x32xf32"),
        (lambda m: m.update(vocab_size=321), "has the output 1x320xf32 for logits, not 1x321xf32"),
    ],
)
def test_manifest_of_another_program(
    bundle: Path, refused: Refused, edit: Edit, change: Callable[[dict], object], message: str
) -> None:
    """A manifest that is right in itself, but not what was compiled."""

    def both(manifest: dict) -> None:
        change(manifest)
        respecify(manifest)

    edit(bundle / MANIFEST, both)
    assert "manifest.json says other weights, KV cache or entry points" in refused("run", bundle, "--raw", "-p", "w1")
    edit(bundle / "cpu" / BUILD, lambda build: build.pop("interface_sha256"))  # of a version that did not keep it
    line = refused("run", bundle, "--raw", "-p", "w1")
    assert "program.vmfb: prefill_16 has the " in line and message in line and "as manifest.json has it; run" in line


def test_absurd_numbers_in_the_config(bundle: Path, edit: Edit, accepted: Callable[..., str]) -> None:
    for config in ({"intermediate_size": 10**400, "hidden_size": -(10**400)}, {"text_config": {"hidden_size": True}}):
        edit(bundle / MANIFEST, lambda m, config=config: m["config"].update(config))
        edit(bundle / "cpu" / BUILD, lambda b: b["report"].pop("entries", None))
        for machine in ((), ("--machine", "all")):
            accepted("inspect", bundle, "--memory", *machine)


def test_names_are_no_markup(bundle: Path, edit: Edit, accepted: Callable[..., str]) -> None:
    edit(bundle / MANIFEST, lambda m: m.update(name="[/x]", container="[red]"))
    assert "[/x]" in accepted("inspect", bundle) and "[red]" in accepted("inspect", bundle)


def test_inspect_options(bundle: Path, refused: Refused, accepted: Callable[..., str]) -> None:
    assert "CPU 'bogus' is not known" in refused("inspect", bundle, "--memory", "--target", "cpu:bogus")
    assert "'gfx9999'" in refused("inspect", bundle, "--memory", "--target", "rocm:gfx9999")
    assert "weights" in accepted("inspect", bundle, "--memory", "--verify")
    atomic_write(bundle / "cpu" / VMFB, b"x")
    assert "program.vmfb: damaged or missing" in refused("inspect", bundle, "--memory", "--verify")


def test_program_that_was_edited(bundle: Path, refused: Refused) -> None:
    text = (bundle / PROGRAM).read_bytes()
    atomic_write(bundle / PROGRAM, text.replace(b"stablehlo.multiply", b"stablehlo.add", 1))
    for command in (["compile", bundle], ["inspect", bundle, "--verify"]):
        assert "program.mlir: was changed after the export; export the bundle again" in refused(*command)


def test_verify(bundle: Path, refused: Refused, accepted: Callable[..., str]) -> None:
    assert json.loads(accepted("inspect", bundle, "--verify", "--json"))["verified"] is True
    damaged = bytearray((bundle / WEIGHTS).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    atomic_write(bundle / WEIGHTS, bytes(damaged))
    assert "verified" not in json.loads(accepted("inspect", bundle, "--json"))
    assert "model.safetensors: damaged (its SHA-256 is not the manifest's)" in refused("inspect", bundle, "--verify")


def test_verify_reads_the_builds(bundle: Path, refused: Refused) -> None:
    atomic_write(bundle / "cpu" / VMFB, b"x")
    assert "program.vmfb: damaged or missing; compile for cpu again" in refused("inspect", bundle, "--verify")


@pytest.mark.parametrize("cut", [0, 1, 15, 1000, 200_000])
@pytest.mark.parametrize("record", ["old", "new"])
def test_program_file_that_is_cut(bundle: Path, refused: Refused, edit: Edit, cut: int, record: str) -> None:
    vmfb = bundle / "cpu" / VMFB
    atomic_write(vmfb, vmfb.read_bytes()[:cut])
    if record == "new":  # a record that agrees with the damaged file: IREE itself has to refuse it
        edit(bundle / "cpu" / BUILD, lambda b: b.update(vmfb_sha256=sha256_file(vmfb), vmfb_bytes=cut))
    line = refused("run", bundle, "--raw", "-p", "w1")
    assert {"old": "is not the file that build.json describes", "new": "cannot be loaded: "}[record] in line
    assert line.endswith(f"run `strixhlo compile {bundle} --target cpu` again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(target="cpu:x86-64-v3"), "built for cpu:x86-64-v3, not for cpu; run `strixhlo compile"),
        (lambda b: b.update(program_sha256="0" * 64), "compiled from another program than this bundle's; run"),
        (lambda b: b.update(cpu_features=["avx1024"]), "needs the CPU features avx1024, which this machine lacks"),
        (lambda b: b.update(schema_version=7), "schema version 7, this strixhlo reads 1; upgrade strixhlo"),
        (lambda b: b.pop("vmfb_sha256"), "vmfb_sha256: Field required; make the build again"),
        (lambda b: b.clear(), "schema version None"),
        (lambda b: b.update(kv_dtype="fp8"), "has the input 2x?x32xf16 for k_pool, not 2x256x32xi8"),
        (lambda b: b["report"].update(entries=[1]), "report: Value error, entries is no object; make the build again"),
        (lambda b: b["report"]["entries"].update(x=3), "entries.x is no object; make the build again"),
        (lambda b: b["report"]["entries"]["decode_1"].pop("result_bytes"), "decode_1.result_bytes is None, no number"),
        (lambda b: b["report"]["entries"]["decode_1"].update(transient_bytes=10**400), "transient_bytes is 1000"),
    ],
)
def test_build_that_does_not_fit(
    bundle: Path, refused: Refused, edit: Edit, change: Callable[[dict], object], message: str
) -> None:
    edit(bundle / "cpu" / BUILD, change)
    assert message in refused("run", bundle, "--raw", "-p", "w1")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"[" * 100_000])
def test_damaged_build(bundle: Path, refused: Refused, content: bytes) -> None:
    atomic_write(bundle / "cpu" / BUILD, content)
    line = refused("run", bundle, "--raw", "-p", "w1")
    assert "build.json" in line and "make the build again" in line


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_damaged_build_is_made_again(bundle: Path, refused: Refused, accepted: Callable[..., str], damage: str) -> None:
    (bundle / "cpu" / BUILD).unlink()
    if damage == "cut":
        (bundle / "cpu" / BUILD).write_text('{"schema_version": 1')
    refused("run", bundle, "--raw", "-p", "w1")
    assert "compiled" in accepted("compile", bundle)
    accepted("run", bundle, "--raw", "-p", "w1", "-n", "1")


@pytest.mark.parametrize("target", ["", "..", "../cpu", "/", "cpu/../cpu", "CPU", "cpu\n"])
def test_target_is_a_name(bundle: Path, refused: Refused, target: str) -> None:
    assert "is no target" in refused("run", bundle, "--raw", "-p", "w1", "--target", target)
    assert "is not known" in refused("compile", bundle, "--target", target)
