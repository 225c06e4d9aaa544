"""Bundles on disk: whole or refused, never half."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from strixhlo.bundle import BUILD, MANIFEST, PROGRAM, WEIGHTS, Build, Bundle, open_bundle, read_record
from strixhlo.cli import main
from strixhlo.errors import StrixhloError
from strixhlo.replacement import atomic_write, replaced_directory


@pytest.fixture
def bundle(tiny: Bundle, tmp_path: Path) -> Path:
    """A private copy (hard links; a test replaces files and never writes into one)."""
    return shutil.copytree(tiny.path, tmp_path / "bundle", copy_function=os.link)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    record = json.loads(path.read_text())
    change(record)
    atomic_write(path, json.dumps(record).encode())


def test_opens(bundle: Path) -> None:
    assert open_bundle(bundle).manifest.family == "llama"


@pytest.mark.parametrize("name", [MANIFEST, PROGRAM, WEIGHTS])
def test_missing_file(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    with pytest.raises(StrixhloError, match=f"{Path(name).name} is missing"):
        open_bundle(bundle)


def test_cut_short_weights(bundle: Path) -> None:
    whole = (bundle / WEIGHTS).read_bytes()
    atomic_write(bundle / WEIGHTS, whole[:-1])
    with pytest.raises(StrixhloError, match="bytes where the manifest says"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(schema_version=99), "schema version 99, this strixhlo reads 1; upgrade strixhlo"),
        (lambda m: m.pop("schema_version"), "schema version None"),
        (lambda m: m.pop("kv_cache"), "kv_cache: Field required"),
        (lambda m: m.update(surprise=1), "surprise: Extra inputs are not permitted"),
        (lambda m: next(iter(m["parameters"].values())).update(offset=1 << 40), "lies outside of"),
        (lambda m: next(iter(m["parameters"].values())).update(offset=-64), "offset: Input should be greater"),
        (lambda m: next(iter(m["parameters"].values())).update(offset=4097), "lies outside of"),
        (lambda m: next(iter(m["parameters"].values())).update(length=-5), "length: Input should be greater"),
        (lambda m: next(iter(m["parameters"].values())).update(length=6), "parameter .* has 6 bytes where"),
    ],
)
def test_bad_manifest(bundle: Path, change: Callable[[dict], object], message: str) -> None:
    edit(bundle / MANIFEST, change)
    with pytest.raises(StrixhloError, match=message):
        open_bundle(bundle)


def test_activations_are_those_of_the_program(bundle: Path) -> None:
    """How near results must come to others' depends on it."""
    edit(bundle / MANIFEST, lambda m: m.update(activations="bf16"))
    for command in (["inspect"], ["inspect", "--verify"], ["compare", "--native", "transformers"]):
        done = CliRunner().invoke(main, [*command, str(bundle)])
        assert done.exit_code == 2
        assert "says activations bf16, the program has f32; export the bundle again" in done.stderr


def test_manifest_that_is_no_json(bundle: Path) -> None:
    atomic_write(bundle / MANIFEST, b"{")
    with pytest.raises(StrixhloError, match="cannot be read"):
        open_bundle(bundle)


def test_export_says_which_programs_go_with_the_bundle_that_it_replaces(bundle: Path, tiny: Bundle) -> None:
    done = CliRunner().invoke(main, ["export", tiny.manifest.source, "-o", str(bundle)])
    assert done.exit_code == 0 and "replaces the bundle that was there, whose programs for cpu are gone" in done.stderr
    assert not (bundle / "cpu").exists()


def test_directory_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with replaced_directory(out, "mark") as folder:
        (folder / "mark").write_text("1")
    with pytest.raises(RuntimeError), replaced_directory(out, "mark") as folder:
        (folder / "mark").write_text("2")
        raise RuntimeError("stop")
    assert (out / "mark").read_text() == "1"
    with replaced_directory(out, "mark") as folder:
        (folder / "mark").write_text("3")
    assert (out / "mark").read_text() == "3"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with (
        pytest.raises(StrixhloError, match="exists and is not a strixhlo folder"),
        replaced_directory(tmp_path / "mine", MANIFEST),
    ):
        pass
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


@pytest.mark.parametrize(
    "report",
    [
        {"choices": 3},
        {"choices": {"source": "rules"}},
        {"choices": {"source": [], "origin": "measured"}},
        {"decode": {"dispatches_per_token": 1, "bytes_per_token": "x", "position": 1}},
        {"kernels": [1]},
        {"kernels": {"gemv": 1}},
    ],
)
def test_a_report_that_cannot_be_shown_is_refused(tiny: Bundle, tmp_path: Path, report: dict[str, object]) -> None:
    whole = json.loads((tiny.target_dir("cpu") / BUILD).read_text())
    path = tmp_path / BUILD
    path.write_text(json.dumps(whole | {"report": whole["report"] | report}))
    with pytest.raises(StrixhloError, match=r"build.json: report: Value error, (choices|decode|kernels) .*again"):
        read_record(path, Build, "build")
