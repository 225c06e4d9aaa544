"""A program of K-quants that differ within a layer, with float16 activations, run by IREE's HIP driver against the CPU
target: weights bound as one buffer each, several formats in one launch, and logits that a matmul makes float32."""

from __future__ import annotations

import gguf_models
import numpy as np
import pytest
from coverage_table import covers
from llama_cpp_quantizer import quantize

from gfx1151_sim.program_steps import Run, nothing_uninitialized_is_read, prefill_and_decode
from gfx1151_sim.simulator import start
from strixhlo.bundle import Bundle
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages

ENTRIES = {"prefill_16": ("prefill", 16), "score_16": ("score", 16), "decode_1": ("decode", 1)}
LAYERS, STEPS = 2, 3
# As llama.cpp's Q4_K_M has them in half of the layers, and one layer where gate and up differ.
TYPES = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "1.ffn_gate": "Q5_K", "blk": "Q4_K", "token_embd": "Q6_K"}
TOKENS = np.random.default_rng(1).integers(3, 200, 9 + STEPS).tolist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    start()
    folder = tmp_path_factory.mktemp("k_quants")
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": LAYERS, "tie_word_embeddings": True}
    model = gguf_models.random_model("llama", **shape)
    path = gguf_models.write_gguf(
        model, folder / "model.gguf", "llama", {"attention.layer_norm_rms_epsilon": 1e-6}, TYPES, quantize
    )
    quiet = Stages(lambda _name, _total: None, lambda _bytes: None)
    with pytest.MonkeyPatch.context() as patch:  # what is called, and no more: compiling takes the time
        patch.setattr(export, "ENTRIES", ENTRIES)
        made = export.export_checkpoint(
            open_checkpoint(str(path)),
            folder / "bundle",
            context=64,
            dtype="auto",
            kv_dtype="f16",
            progress=quiet,
            activations="f16",
        )
    for target in ("cpu", "rocm"):
        compile_bundle(made, parse_target(target), activations="f32", keep_intermediates=None, say=lambda _text: None)
    return made


@covers("Llama", "GGUF Q4_K", "rocm", "our cpu")
@covers("Llama", "GGUF Q5_K", "rocm", "our cpu")
@covers("Llama", "GGUF Q6_K", "rocm", "our cpu")
def test_logits_of_the_cpu_in_six_launches_a_layer(bundle: Bundle) -> None:
    got, want = (prefill_and_decode(bundle, t, TOKENS[:-STEPS], TOKENS[-STEPS:]) for t in ("rocm", "cpu"))
    for ours, theirs in zip(got.logits, want.logits, strict=True):
        assert np.linalg.norm(ours - theirs) < 4e-3 * np.linalg.norm(theirs)
    assert len(set(got.tokens)) > 1
    nothing_uninitialized_is_read(got)
    assert launches(got) == 6 * LAYERS + 3
    # Each weight of a decoded token once, and in the device's memory once.
    parameters = {n: p for n, p in bundle.manifest.parameters.items() if not n.startswith("rope.")}
    weights = sum(p.length for p in parameters.values())
    assert 0.95 * weights < got.accounts[-1].total("load_distinct") < 1.25 * weights


def launches(run: Run) -> int:
    """Of a decoded token."""
    return len(run.accounts[-1].launches)
