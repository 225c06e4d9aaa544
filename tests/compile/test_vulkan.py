"""SmolLM2 on Vulkan: Mesa's lavapipe, where there is no GPU. Without a driver this fails, and does not skip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coverage_table import covers

from strixhlo.bundle import Bundle
from strixhlo.compile import compile as compile_module
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.errors import StrixhloError
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

PROMPT = [6403, 1980, 253, 655]  # "Once upon a time"
GREEDY = [28, 260, 2240]  # of the float32 evaluation; gaps of 4.1, 0.35 and 0.50 to the second best
QUIET = Stages(lambda _name, _total: None, lambda _bytes: None)


@covers("Llama", "GGUF Q4_1", "vulkan", "transformers")
def test_smollm2_gives_the_reference_tokens(
    smollm2_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As few rows and positions as there may be: a software rasterizer takes its time.
    entries = {"prefill_16": ("prefill", 16), "score_16": ("score", 16), "decode_1": ("decode", 1)}
    monkeypatch.setattr(export, "ENTRIES", entries)
    checkpoint = open_checkpoint(str(smollm2_gguf))
    bundle = export.export_checkpoint(
        checkpoint, tmp_path / "smollm2", context=32, dtype="auto", kv_dtype="f16", progress=QUIET
    )
    target = parse_target("vulkan")
    build = compile_bundle(bundle, target, activations="f32", keep_intermediates=None, say=lambda _: None).build
    assert build.report["kernel_dispatches"] == 0  # the decompositions, compiled by IREE
    assert build.report["entries"]["decode_1"]["host_waits"] == 1
    with Program(bundle, "vulkan") as program:
        engine = Engine(program)
        tokens = [int(np.argmax(engine.prefill(PROMPT)))]
        while len(tokens) < len(GREEDY):
            tokens.append(int(np.argmax(engine.decode(tokens[-1]))))
        engine.close()
    assert tokens == GREEDY


def test_vulkan_has_no_variants() -> None:
    with pytest.raises(StrixhloError, match="write --target vulkan"):
        parse_target("vulkan:rdna3")


def test_bfloat16_is_refused_with_what_to_do(tiny: Bundle) -> None:
    vulkan, reason = parse_target("vulkan"), StrixhloError("iree-compile failed: vector<4xbf16>")
    said = str(compile_module._explained(reason, vulkan, "tensor<2xbf16>"))
    assert "vulkan: the compiler has no bfloat16 there; export the bundle with --dtype f16" in said
    assert compile_module._explained(reason, parse_target("cpu"), "tensor<2xbf16>") is reason
    with pytest.raises(StrixhloError, match=r"cannot become bf16 here.*take f16 there"):
        compile_module.lower_without_kernels(tiny.program_text(), vulkan, "f32", None, "bf16")
