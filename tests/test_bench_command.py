"""`strixhlo bench` on the tiny bundle: rows, counts, limits, forms of output, and the prediction for rocm."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from strixhlo.bundle import BUILD, Build, Bundle, open_bundle, read_record, write_record
from strixhlo.cli import main
from strixhlo.errors import StrixhloError
from strixhlo.runtime import selftest
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.bench import Test as BenchTest
from strixhlo.runtime.bench import plan_cache
from strixhlo.runtime.program import Program
from strixhlo.step_traffic import step_traffic


@pytest.fixture(autouse=True)
def small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(selftest.TIMED, "cpu", 1 << 20)


def bench(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_rows_and_counts(tiny: Bundle) -> None:
    output = bench(tiny.path, "-p", 20, "-n", 4, "-b", "1,3", "--depth", "0,40", "-r", 3, "--threads", 1, "-o", "json")
    record = json.loads(output.stdout)
    rows = {(r["test"], r["batch"]): r for r in record["rows"]}
    assert list(rows) == [
        (name, batch)
        for name, batch in (("pp20", 1), ("pp20 @ d40", 1), ("tg4", 1), ("tg4", 3), ("tg4 @ d40", 1), ("tg4 @ d40", 3))
    ]
    entries = read_record(tiny.path / "cpu" / BUILD, Build, "build").report["entries"]
    assert rows["tg4", 1]["dispatches_per_token"] == entries["decode_1"]["dispatches"]
    assert rows["tg4", 3]["dispatches_per_token"] == entries["decode_4"]["dispatches"] / 3
    assert rows["tg4", 1]["host_waits_per_token"] == entries["decode_1"]["host_waits"]
    chunks = entries["prefill_16"]["dispatches"] * 2  # 20 tokens: 16 and 4
    assert rows["pp20", 1]["dispatches_per_token"] == chunks / 20
    traffic = step_traffic(tiny)
    for (name, batch), row in rows.items():
        assert len(row["rates"]) == 3 and min(row["rates"]) > 0 and row["predicted"] is None
        if name.startswith("tg"):
            assert row["step_bytes"] == traffic.step_bytes(batch, row["depth"], 4)
            assert row["bandwidth"] == pytest.approx(row["step_bytes"] * row["mean"] / batch)
            assert row["of_copy"] == pytest.approx(row["bandwidth"] / record["copy_bandwidth"])
        else:
            assert row["bandwidth"] is None


def test_table_and_csv(tiny: Bundle) -> None:
    arguments = (tiny.path, "-p", 0, "-n", 3, "-r", 2)
    table = bench(*arguments).stdout.splitlines()
    assert table[0].startswith("| model | size | target |") and "±" in table[2] and table[2].count("|") == 13
    assert any(line.startswith("- of copy: of ") for line in table)
    (row,) = csv.DictReader(io.StringIO(bench(*arguments, "-o", "csv").stdout))
    assert row["test"] == "tg3" and float(row["mean"]) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--depth", "0,4096"), "pp512 needs 512 positions.*context of 256"),
        (("-p", "0", "--depth", "4096"), "tg128 @ d4096 needs 4224 positions.*context of 256.*--context 4224"),
        (("-p", "0", "-n", "0"), "nothing to do"),
        (("--target", "cpu", "--simulate"), "--simulate is for --target rocm"),
        (("--target", "rocm", "--simulate", "-n", "1,2"), "one -p and one -n"),
    ],
)
def test_what_cannot_be_done_is_one_line(tiny: Bundle, arguments: tuple[str, ...], words: str) -> None:
    result = bench(tiny.path, *arguments, code=2)
    assert len(result.stderr.splitlines()) == 1 and re.search(words, result.stderr)


def test_numbers_that_are_none(tiny: Bundle) -> None:
    assert "no list of whole numbers from 0 on" in bench(tiny.path, "-p", "a", code=2).stderr
    assert "no list of whole numbers from 1 on" in bench(tiny.path, "-b", "0", code=2).stderr


def test_without_the_simulator(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gfx1151_sim", None)
    error = bench(tiny.path, "--target", "rocm", "--simulate", code=2).stderr
    assert "simulator" in error and "PYTHONPATH=" in error


def test_prediction_for_rocm_without_a_device(tiny: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IREE_HIP_DYLIB_PATH", raising=False)
    bundle = open_bundle(Path(shutil.copytree(tiny.path, tmp_path / "bundle")))
    shutil.copytree(bundle.path / "cpu", bundle.path / "rocm")
    build = read_record(bundle.path / "rocm" / BUILD, Build, "build")
    write_record(bundle.path / "rocm" / BUILD, build.model_copy(update={"target": "rocm"}))
    arguments = (bundle.path, "--target", "rocm", "-p", 16, "-n", 8, "-b", "1,12")
    record = json.loads(bench(*arguments, "-o", "json").stdout)
    prompt, one, twelve = record["rows"]
    assert prompt["mean"] is None
    traffic = step_traffic(bundle)
    assert one["rates"] == [pytest.approx(212e9 / traffic.step_bytes(1, 0, 8))]
    both = traffic.step_bytes(8, 0, 8) + traffic.step_bytes(4, 0, 8)  # decode_8, then decode_4
    assert twelve["rates"] == [pytest.approx(12 * 212e9 / both)]
    assert all(row["predicted"] == "predicted from bytes and 212 GB/s" for row in record["rows"])
    table = bench(*arguments).stdout
    assert "(predicted from bytes and 212 GB/s)" in table and "no device" in table and "±" not in table


def test_entries_of_a_step(tiny: Bundle) -> None:
    with Program(tiny, "cpu", 1) as program:
        engine = BatchEngine(program)
        assert engine.decode_entries(5) == ["decode_8"] and engine.decode_entries(12) == ["decode_8", "decode_4"]
        engine.close()


def test_pools_that_are_fixed(tiny: Bundle) -> None:
    """With free pools a batch gets what it needs; with those of the export, the limit is named."""
    build = read_record(tiny.path / "cpu" / BUILD, Build, "build")
    tests = [BenchTest("pp", 30, 1, 0), BenchTest("tg", 40, 8, 0), BenchTest("tg", 8, 1, 100)]
    assert build.kv_rows_free
    size = plan_cache(tiny, build, tests).size
    assert size.rows >= 8 * 48 and size.context >= 108
    with pytest.raises(StrixhloError, match=r"tg40 with batch 8 needs 8 x 40 positions.*has 256, as it was exported"):
        plan_cache(tiny, build.model_copy(update={"kv_rows_free": False}), tests)
