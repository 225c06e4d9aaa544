"""What `strixhlo tune` compiles for gfx1151 runs, and all candidates give the same results; times mean nothing here."""

from __future__ import annotations

from pathlib import Path

import pytest

from strixhlo.compile import candidates
from strixhlo.compile.candidates import write_candidates
from strixhlo.compile.targets import parse_target
from strixhlo.runtime import tuning
from strixhlo.runtime.device import Device
from strixhlo.runtime.tuned import agrees, choice_table, report
from strixhlo.tuning_plan import Plan

# One weight [96, 1024] in q4_0, for one row and for 20; the decompositions are not used.
PROGRAM = "".join(
    f"""
func.func public @rows_{m}(%x: tensor<{m}x1024xf32>, %c: tensor<96x512xi8>, %s: tensor<96x32xf16>)
    -> tensor<{m}x96xf32> {{
  %y = stablehlo.composite "strixhlo.quantized_matmul" %x, %c, %s
      {{composite_attributes = {{format = "q4_0"}}, decomposition = @reference_{m}}}
      : (tensor<{m}x1024xf32>, tensor<96x512xi8>, tensor<96x32xf16>) -> tensor<{m}x96xf32>
  return %y : tensor<{m}x96xf32>
}}
func.func private @reference_{m}(%x: tensor<{m}x1024xf32>, %c: tensor<96x512xi8>, %s: tensor<96x32xf16>)
    -> tensor<{m}x96xf32> {{
  %y = stablehlo.constant dense<0.0> : tensor<{m}x96xf32>
  return %y : tensor<{m}x96xf32>
}}"""
    for m in (1, 20)
)


def test_candidates_run_and_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "LAUNCHES", {"gpu": 2})
    monkeypatch.setattr(tuning, "ROTATING", 0)
    plan = write_candidates(PROGRAM, "a key", parse_target("rocm"), "f32", {}, tmp_path, lambda _: None)
    assert plan.chip == "gfx1151"
    choices = [t.choice for t in plan.trials]
    assert "gemv" in choices and "gemm" in choices
    device = Device("rocm", None)
    try:
        measured = tuning.measure(plan, tmp_path, device, ("simulated", "none"), 1, lambda _: None)
    finally:
        device.close()
    assert_all_agree(plan, measured.timings)
    table = choice_table(plan, measured)
    assert {e.choice for e in table.entries} == set(choices)
    assert "| gemv | q4_0 | any | 96x1024 |" in report(plan, measured)


def assert_all_agree(plan: Plan, timings: dict[int, tuple[tuning.Timing, ...]]) -> None:
    for i, trial in enumerate(plan.trials):
        assert len(timings[i]) == len(trial.candidates) > 1
        for timing in timings[i]:
            assert agrees(trial, timing), timing
            assert timing.microseconds > 0
