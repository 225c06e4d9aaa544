"""`strixhlo tune` on the CPU: candidates compile, run and agree, the table is written, and compile uses it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from strixhlo.bundle import BUILD, Bundle, open_bundle, read_record
from strixhlo.choice_table import ChoiceTable, read_table, table_path, write_table
from strixhlo.cli import main
from strixhlo.compile import candidates, table_choices
from strixhlo.compile.candidates import calls_of, questions
from strixhlo.compile.target_kernels import kernels_hash, lowering_rules, tuned_chip
from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.choices import Choices, Question
from strixhlo.custom_kernels.cpu import launches
from strixhlo.export.export import ENTRIES, planned
from strixhlo.export.trace import trace
from strixhlo.replacement import only_user
from strixhlo.runtime import tuning
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program
from strixhlo.runtime.tuned import best
from strixhlo.tuning_plan import MEASURED, PLAN, Candidate, Plan, Timing, Trial

CPU = parse_target("cpu")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def as_json(*arguments: object) -> dict[str, object]:
    """What is on standard output."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def bundle(tiny: Bundle, tmp_path: Path) -> Bundle:
    return open_bundle(shutil.copytree(tiny.path, tmp_path / "bundle", copy_function=os.link))


@pytest.fixture(scope="module")
def prepared(tiny: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The candidates of `tiny`, few and of one launch each."""
    folder = tmp_path_factory.mktemp("tune") / "work"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "LAUNCHES", {"cpu": 1})
        patch.setattr(launches, "SHARES", (2, 128))
        patch.setattr(candidates, "questions", lambda *arguments: questions(*arguments)[:6])
        run("tune", tiny.path, "--prepare", folder)
    return folder


@pytest.fixture
def work(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tuning, "ROTATING", 1 << 16)
    return Path(shutil.copytree(prepared, tmp_path / "work"))


def logits(bundle: Bundle) -> np.ndarray:
    with Program(bundle, "cpu", 1) as program:
        engine = Engine(program)
        engine.prefill([1, 2, 3])
        found = np.array(engine.decode(4))
        engine.close()
    return found


def test_what_is_measured_is_what_is_compiled(bundle: Bundle, work: Path, tmp_path: Path) -> None:
    before = logits(bundle)
    run("tune", bundle.path, "--measure", work, "--rounds", 1, "--threads", 2)
    plan = read_record(work / PLAN, Plan, "plan")
    path = table_path(bundle.path, tuned_chip(CPU))
    table = read_table(path)
    report = path.with_suffix(".md").read_text()
    assert str(tmp_path) not in report + path.read_text() and table.device in report
    # What is fastest here is chance, and so it is planted: the last candidate of each, which is never the rule's.
    answers = [t.candidates[-1].answer for t in plan.trials]
    planted = [e.model_copy(update={"answer": a}) for e, a in zip(table.entries, answers, strict=True)]
    assert all(e.answer != e.rule for e in planted)
    write_table(path, table.model_copy(update={"entries": tuple(planted)}))
    assert "choices: tuning/" in run("compile", bundle.path, "--keep-intermediates", tmp_path / "kept")
    build = json.loads((bundle.path / "cpu" / BUILD).read_text())
    chosen = build["report"]["choices"]
    assert (chosen["origin"], chosen["entries"]) == ("measured", len(table.entries))
    # 128 workgroups are more than a small weight has tiles of 16 rows: one for each of the head's 320.
    assert any(f"[%c{320 // 16}" in line for line in (tmp_path / "kept" / "lowered.mlir").read_text().splitlines())
    np.testing.assert_array_equal(logits(bundle), before)  # how the rows are shared out changes no sum


def test_an_interrupted_run_goes_on(work: Path) -> None:
    run("tune", "--measure", work, "--rounds", 1)
    whole = json.loads((work / MEASURED).read_text())
    assert len(whole["timings"]) == len(read_record(work / PLAN, Plan, "plan").trials)
    kept = {"0": whole["timings"]["0"]}
    damaged = {"1": [], "77": whole["timings"]["1"]}  # of another plan: no use
    (work / MEASURED).write_text(json.dumps(whole | {"timings": kept | damaged}))
    said = run("tune", "--measure", work, "--rounds", 1).splitlines()
    assert said[0].startswith("2 of ")
    assert json.loads((work / MEASURED).read_text())["timings"]["0"] == kept["0"]


def refused(*arguments: object) -> str:
    """The one line of an error."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    return result.output.splitlines()[-1]


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_candidates_of_something_else_are_not_measured(tiny: Bundle, work: Path) -> None:
    plan = json.loads((work / PLAN).read_text())
    change(work / PLAN, program_sha256="0" * 64)
    assert "was prepared from another bundle" in refused("tune", tiny.path, "--measure", work)
    change(work / PLAN, chip="another CPU x 4")
    assert "was prepared for another CPU x 4" in refused("tune", "--measure", work)
    trials = plan["trials"]
    change(work / PLAN, chip=plan["chip"], trials=[trials[0] | {"module": "../m0.vmfb"}])
    assert "trials.0.module" in refused("tune", "--measure", work)
    change(work / PLAN, trials=[trials[0] | {"results": [[[3, 3], "f32"]]}])
    assert "where plan.json says (3, 3)" in refused("tune", "--measure", work, "--rounds", 1)
    candidates_ = [c | {"function": "c9999"} for c in trials[0]["candidates"]]
    change(work / PLAN, trials=[trials[0] | {"candidates": candidates_}])
    assert "has not all functions" in refused("tune", "--measure", work)
    (work / "m0.vmfb").write_bytes(b"another module")
    assert "m0.vmfb: is not what plan.json was written for" in refused("tune", "--measure", work)
    (work / "m0.vmfb").unlink()
    assert "m0.vmfb: is missing" in refused("tune", "--measure", work)
    assert "no such folder" in refused("tune", "--measure", work / "none")
    assert "'foo' is not known" in refused("tune", tiny.path, "--target", "foo")


def test_a_kit_is_measured_as_it_was_prepared(work: Path) -> None:
    """Options that say something else are an error, and the same is none."""
    assert "was prepared for cpu, not for rocm; leave" in refused("tune", "--measure", work, "--target", "rocm")
    said = refused("tune", "--measure", work, "--activations", "f32")
    assert "was prepared for activations int8; leave" in said
    change(work / PLAN, trials=json.loads((work / PLAN).read_text())["trials"][:1])
    same = ("--target", "cpu", "--activations", "int8", "--rounds", 1, "--json")
    assert as_json("tune", "--measure", work, *same)["activations"] == "int8"


def test_what_was_prepared_as_json(tiny: Bundle, prepared: Path) -> None:
    """The plan is there already, so that nothing is compiled."""
    plan = read_record(prepared / PLAN, Plan, "plan")
    said = as_json("tune", tiny.path, "--prepare", prepared, "--json")
    assert (said["target"], said["activations"], said["choices"]) == ("cpu", "int8", len(plan.trials))
    assert said["candidates"] == sum(len(t.candidates) for t in plan.trials) and said["folder"] == str(prepared)


@pytest.mark.parametrize("wrong", [{"microseconds": float("nan")}, {"least": 0}, {"answer": {"workgroups": 7777}}])
def test_timings_that_nobody_measured_are_measured_again(work: Path, wrong: dict[str, object]) -> None:
    change(work / PLAN, trials=json.loads((work / PLAN).read_text())["trials"][:1])
    run("tune", "--measure", work, "--rounds", 1)
    timings = json.loads((work / MEASURED).read_text())["timings"]
    change(work / MEASURED, timings={"0": [timings["0"][0] | wrong, *timings["0"][1:]]})
    assert run("tune", "--measure", work, "--rounds", 1).startswith("1 of 1")


def test_what_cannot_be_written_is_one_line(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tuning, "write_record", full)
    said = refused("tune", "--measure", work, "--rounds", 1)
    assert f"{work / MEASURED}: cannot be written (No space left on device); make room there" in said


def test_two_do_not_work_in_one_folder(tiny: Bundle, work: Path) -> None:
    with only_user(work):
        assert "another strixhlo is at work there" in refused("tune", "--measure", work)
        assert "another strixhlo is at work there" in refused("tune", tiny.path, "--prepare", work)
    with only_user(work / "new"):
        pass
    assert work.is_dir() and not (work / "new").exists()
    (work / "theirs").mkdir()
    assert "plan.json is missing" in refused("tune", "--measure", work / "theirs")
    assert (work / "theirs").is_dir()


def test_a_table_that_does_not_fit_is_not_used(bundle: Bundle) -> None:
    table = ChoiceTable(
        schema_version=1,
        origin="measured",
        chip=tuned_chip(CPU),
        device="a CPU",
        driver="",
        activations="int8",
        kernels="0" * 64,
        versions={},
        entries=(),
    )
    path = table_path(bundle.path, table.chip)
    write_table(path, table)
    assert "was measured with other kernels than these" in run("compile", bundle.path, "--activations", "int8")
    path.write_text("{")
    result = CliRunner().invoke(main, ["compile", str(bundle.path)])
    assert result.exit_code == 2 and "cannot be read" in result.output and "Traceback" not in result.output
    path.write_text(table.model_copy(update={"device": "a\x1b[31m"}).model_dump_json())
    assert "cannot be printed" in refused("compile", bundle.path)
    os.truncate(path, 1 << 40)
    assert "more than 64 MiB" in refused("compile", bundle.path)


def test_gfx1151_ships_with_a_predicted_table(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = parse_target("rocm")
    table = read_table(table_choices.SHIPPED / "gfx1151.json")
    assert (table.origin, table.chip) == ("predicted", "gfx1151")
    assert table.kernels == kernels_hash(rocm), "it is of other kernels: `make predicted-table`"
    assert {e.choice for e in table.entries} >= {"gemv", "gated_gemv", "fused_gemm"}
    assert len({e.kernel for e in table.entries}) > 8
    monkeypatch.setattr(table_choices, "SHIPPED", tmp_path)
    write_table(tmp_path / "gfx1151.json", table)
    choices, record = table_choices.table_choices(bundle, rocm, "f32")
    assert len(choices.entries) == len(table.entries)
    (line,) = table_choices.table_lines(record)
    assert "predicted, not measured" in line
    write_table(tmp_path / "gfx1151.json", table.model_copy(update={"kernels": "0" * 64}))  # of other kernels
    choices, record = table_choices.table_choices(bundle, rocm, "f32")
    assert choices.entries == {} and record == {"source": "rules", "origin": "predicted"}


def test_a_folder_of_something_else_is_left_alone(tiny: Bundle, work: Path) -> None:
    (work / PLAN).unlink()
    (work / "letter").write_text("dear")
    assert "holds something else (letter); choose an empty" in refused("tune", tiny.path, "--prepare", work)
    for text in ("{}", "[", '{"key": 1}'):
        (work / PLAN).write_text(text)
        said = refused("tune", tiny.path, "--prepare", work)
        assert f"{work / PLAN}: was not written by `strixhlo tune`" in said
        assert (work / PLAN).read_text() == text


@pytest.mark.parametrize("command", ["tune", "compile"])
def test_8_bit_activations_are_for_the_cpu(tiny: Bundle, command: str) -> None:
    said = refused(command, tiny.path, "--target", "rocm", "--activations", "int8")
    assert "--activations int8 is for the CPU, rocm computes in floating point; leave it out" in said


def test_nothing_to_tune_is_one_line(bundle: Bundle) -> None:
    result = CliRunner().invoke(
        main, ["tune", str(bundle.path), "--target", "vulkan", "--prepare", str(bundle.path / "w")]
    )
    assert result.exit_code == 2
    assert "nothing to tune" in result.output


def timing(workgroups: int, microseconds: float, difference: float | None = 0.0) -> Timing:
    answer: dict[str, int | str] = {"workgroups": workgroups}
    return Timing(answer=answer, microseconds=microseconds, least=microseconds, difference=difference)


def test_the_fastest_candidate_that_is_right_wins() -> None:
    answers = tuple(Candidate(answer={"workgroups": n}, function=f"c{n}") for n in range(5))
    trial = Trial(
        choice="workgroups",
        kernel="q4_0",
        rows=1,
        shape=(64, 64),
        op="quantized_matmul",
        module="m0.vmfb",
        candidates=answers,
        operands=(),
        results=(((1, 64), "f32"),),
        repeats=1,
    )
    wrong = [timing(1, 1.0, None), timing(2, 2.0, 1e-3)]
    assert best(trial, (timing(0, 9.0), *wrong, timing(3, 7.0), timing(4, 6.0, 1e-6))).answer == {"workgroups": 4}
    assert best(trial, (timing(0, 9.0), *wrong, timing(3, 8.9))).answer == {"workgroups": 0}  # within the noise


def test_questions_are_those_of_the_program(bundle: Bundle) -> None:
    found = questions(bundle.program_text(), CPU, "int8")
    assert {q.question.rows for q in found} >= {1, 2, 4, 8, 16, 128}
    assert all(len(q.answers) > 1 and q.answers.count(q.answers[0]) == 1 for q in found)
    rocm = questions(bundle.program_text(), parse_target("rocm"), "f32")
    assert {"gemv", "gated_gemv", "fused_gemm", "attention"} <= {q.question.choice for q in rocm}
    few = [q for q in rocm if q.question.choice in ("gemv", "gated_gemv")]
    # One order of summation for any number of rows: one question, asked with one row.
    assert few and all(q.question.rows == 0 and q.call.types[0][0][0] == 1 for q in few)


SMALL = {
    "vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "hidden_act": "silu",
}  # fmt: skip
GEMMA = SMALL | {
    "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64,
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
}  # fmt: skip
MIXTURE = SMALL | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def decoding(config: dict[str, object], format: str, patch: pytest.MonkeyPatch) -> str:
    """The portable program of one decoded token."""
    patch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    from h200.shape_bundle import random_checkpoint

    model, kv, weights = planned(random_checkpoint(config, format), context=64, dtype="auto", kv_dtype="f16")
    entry = {"decode_1": ENTRIES["decode_1"]}
    return trace(model, {name: w.traced() for name, w in weights.items()}, kv, entry).program


def test_calls_are_those_that_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that `compile` makes one of are one here too: sums in matmuls, a mixture of experts of one token."""
    gemma = calls_of(decoding(GEMMA, "q4_0", monkeypatch), parse_target("rocm"), "f32")
    assert any(call.attributes.get("summed") for call in gemma) and "add_normed" not in {call.op for call in gemma}
    mixture = {call.op for call in calls_of(decoding(MIXTURE, "mxfp4", monkeypatch), parse_target("cuda:sm_89"), "f32")}
    assert "moe_one" in mixture and "moe_route" not in mixture


def test_experts_are_asked_about_and_an_answer_holds_for_any_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a launch chooses the experts itself: random numbers are no routing."""
    text = decoding(MIXTURE, "q6_k", monkeypatch)
    rocm = parse_target("rocm")
    (asking,) = (a for a in questions(text, rocm, "f32") if a.question.choice == "experts_gate_up")
    assert asking.call.op == "moe_chosen_gate_up" and asking.question.shape == (8, 512, 256, 2)
    operands = dict(zip(asking.lowering.operands, candidates._operands(asking.call, asking.lowering), strict=True))
    assert (operands["positions"].low, operands["positions"].high) == (0, 0) and operands["gate.codes"].rotates
    lanes = {}
    for answer in asking.answers:
        rules = lowering_rules(rocm, "f32", Choices({asking.question: answer}))
        lowering = rules[asking.call.op](asking.call.attributes, asking.call.types)
        assert lowering is not None
        lanes[answer["lanes"]] = lowering.launches[0].scalars[5]
    assert len(lanes) > 1 and all(told == of_launch for told, of_launch in lanes.items())
    assert "experts_gate_up" not in {a.question.choice for a in questions(text, CPU, "f32")}


def test_an_answer_of_other_kernels_gives_way_to_the_rule() -> None:
    question = Question("gemv", "q4_0", 0, (64, 64))
    rule, options = {"lanes": 4}, [{"lanes": 4}, {"lanes": 8}]
    assert Choices({question: {"lanes": 8}}).pick(question, rule, options) == {"lanes": 8}
    for wrong in (0, 3, 64, -1, 1 << 40, "8"):
        choices = Choices({question: {"lanes": wrong}})
        assert choices.pick(question, rule, options) == rule
        ignored = table_choices.refused_answers(choices)
        *_, line = table_choices.table_lines({"source": "shipped", "origin": "predicted", **ignored})
        assert f"1 answers that no kernel has, such as gemv q4_0 64x64: lanes {wrong}" in line
    assert table_choices.refused_answers(Choices()) == {}
    assert Choices().pick(question, rule, options) == rule
