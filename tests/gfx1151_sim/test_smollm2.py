"""SmolLM2-135M whole: a prompt and eight greedy tokens in the simulator are the CPU's."""

from __future__ import annotations

from pathlib import Path

import pytest
from coverage_table import covers
from tokenizers import Tokenizer

from gfx1151_sim.simulator import recording, report, start
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program, read_build
from strixhlo.step_traffic import step_traffic

STEPS = 8


@pytest.mark.slow
@covers("Llama", "GGUF Q4_1", "rocm", "our cpu")
def test_greedy_tokens(smollm2_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    # What is called, and no more: compiling takes the time.
    entries = {"prefill_16": ("prefill", 16), "score_16": ("score", 16), "decode_1": ("decode", 1)}
    monkeypatch.setattr(export, "ENTRIES", entries)
    quiet = Stages(lambda _name, _total: None, lambda _bytes: None)
    checkpoint = open_checkpoint(str(smollm2_gguf))
    bundle = export.export_checkpoint(
        checkpoint, tmp_path / "b", context=256, dtype="auto", kv_dtype="f32", progress=quiet
    )
    prompt = Tokenizer.from_file(str(bundle.path / "tokenizer.json")).encode("Once upon a time").ids
    tokens: dict[str, list[int]] = {}
    for target in ("cpu", "rocm"):
        compile_bundle(bundle, parse_target(target), activations="f32", keep_intermediates=None, say=lambda _text: None)
        with Program(bundle, target, 1) as program:
            engine = Engine(program)
            made = [int(engine.prefill(prompt).argmax())]
            while len(made) < STEPS:
                with recording() as account:
                    made.append(int(engine.decode(made[-1]).argmax()))
            engine.close()
        tokens[target] = made
        traffic = step_traffic(bundle, read_build(bundle, target))
    floor = traffic.weight_bytes(1) + traffic.kv_bytes(len(prompt) + STEPS - 2)
    requested, distinct = (account.total(name) / floor for name in ("load_requested", "load_distinct"))
    print(report(account))
    print(f"{len(account.launches)} launches; {floor:,.0f} bytes: {distinct:.3f}x in lines, {requested:.3f}x requested")
    assert tokens["rocm"] == tokens["cpu"]
    assert 0.95 < distinct < 1.10 and requested < 1.25
    assert not [launch for launch in account.launches if launch.uninitialized_bytes]
