"""Checkpoints with bytes changed, cut, doubled and moved: read as they are, or refused in one line; nothing else.

The seeds are small whole files of each kind. STRIXHLO_FUZZ_EXAMPLES=1000000 makes a long run of it. fuzz_corpus.json
has changes that a long run found, one for each kind of refusal: they are refused in every run.
"""

from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load, save

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.safetensors_file import read_safetensors

EXAMPLES = int(os.environ.get("STRIXHLO_FUZZ_EXAMPLES", "150"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Numbers that lie: lengths and offsets at the borders of their types, and small ones.
NUMBERS = st.sampled_from([0, 1, 2, 7, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1])
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("number"), st.integers(0, 1 << 16), NUMBERS),
        st.tuples(st.just("byte"), st.integers(0, 1 << 16), st.integers(0, 255)),
        st.tuples(st.just("cut"), st.integers(0, 1 << 16), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 1 << 16), st.integers(1, 64)),
        st.tuples(st.just("double"), st.integers(0, 1 << 16), st.integers(1, 64)),
    ),
    min_size=1,
    max_size=4,
)
Changes = list[tuple[str, int, int]]


def changed(data: bytes, changes: Changes) -> bytes:
    out = bytearray(data)
    for kind, at, value in changes:
        at %= max(1, len(out))
        if kind == "number":
            out[at : at + 8] = value.to_bytes(8, "little")
        elif kind == "byte":
            out[at : at + 1] = bytes([value])
        elif kind == "cut":
            del out[at:]
        elif kind == "drop":
            del out[at : at + value]
        else:
            out[at:at] = out[at : at + value]
    return bytes(out)


def gguf_seed() -> bytes:
    """A one-layer Llama with a vocabulary, tensors of several types."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for add, value in (
            (writer.add_block_count, 1),
            (writer.add_context_length, 64),
            (writer.add_embedding_length, 32),
            (writer.add_feed_forward_length, 64),
            (writer.add_head_count, 4),
            (writer.add_head_count_kv, 2),
            (writer.add_layer_norm_rms_eps, 1e-5),
            (writer.add_tokenizer_model, "gpt2"),
            (writer.add_token_list, ["a", "b", "ab", "c"]),
            (writer.add_token_merges, ["a b"]),
            (writer.add_bos_token_id, 0),
            (writer.add_eos_token_id, 1),
        ):
            add(value)
        shapes = {"token_embd": (4, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
        shapes |= {f"blk.0.attn_{n}": (rows, 32) for n, rows in (("q", 32), ("k", 16), ("v", 16), ("output", 32))}
        shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
        for i, (name, shape) in enumerate(shapes.items()):
            array = rng.standard_normal(shape).astype(np.float32)
            kind = gguf.GGMLQuantizationType[("F32", "Q4_0", "Q8_0", "MXFP4")[i % 4 if len(shape) == 2 else 0]]
            data = array if kind.name == "F32" else gguf.quants.quantize(array, kind)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def safetensors_seed() -> bytes:
    rng = np.random.default_rng(0)
    arrays = {
        "model.embed_tokens.weight": rng.integers(0, 1 << 32, (8, 4), np.uint32),
        "model.embed_tokens.scales": rng.integers(0, 255, (8, 1), np.uint8),
        "model.norm.weight": rng.standard_normal(32).astype(np.float16),
    }
    return save(arrays, {"format": "mlx"})


GGUF_SEED, SAFETENSORS_SEED = gguf_seed(), safetensors_seed()
CONFIG = {"model_type": "llama", "quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}
# Python's objects take more than the bytes that they are read from; what a lying length asks for is far beyond.
ROOM = 40 * max(len(GGUF_SEED), len(SAFETENSORS_SEED)) + (4 << 20)


def read_all(source: Path) -> None:
    """Open a checkpoint and read every tensor, or be refused in one line, in bounded memory."""
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(str(source))
        for tensor in checkpoint.tensors.values():
            tensor.read()
    except StrixhloError as error:
        assert "\n" not in str(error) and len(str(error)) < 3000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < ROOM


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def to(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return to


def test_the_seeds_are_whole(write: Callable[[str, bytes], Path]) -> None:
    assert len(open_checkpoint(str(write("model.gguf", GGUF_SEED))).tensors) == 11
    write("config.json", json.dumps(CONFIG).encode())
    path = write("model.safetensors", SAFETENSORS_SEED)
    assert open_checkpoint(str(path.parent)).tensors["model.embed_tokens.weight"].format == "mxfp4"


@FUZZ
@example(changes=[("byte", 190, 10)])  # a line break in the name of a key
@given(changes=CHANGES)
def test_gguf(write: Callable[[str, bytes], Path], changes: Changes) -> None:
    read_all(write("model.gguf", changed(GGUF_SEED, changes)))


@FUZZ
@given(changes=CHANGES)
def test_safetensors(write: Callable[[str, bytes], Path], changes: Changes) -> None:
    data = changed(SAFETENSORS_SEED, changes)
    path = write("model.safetensors", data)
    write("config.json", json.dumps(CONFIG).encode())
    read_all(path.parent)
    try:  # what the format's own library refuses is refused
        load(data)
    except (SafetensorError, ValueError, KeyError):
        with pytest.raises(StrixhloError):
            read_safetensors(path)


CORPUS: dict[str, list[Changes]] = json.loads((Path(__file__).parent / "fuzz_corpus.json").read_text())


@pytest.mark.parametrize(("kind", "changes"), [(kind, changes) for kind, cases in CORPUS.items() for changes in cases])
def test_the_corpus_is_refused(write: Callable[[str, bytes], Path], kind: str, changes: Changes) -> None:
    seed = GGUF_SEED if kind == "gguf" else SAFETENSORS_SEED
    path = write(f"model.{kind}", changed(seed, changes))
    if kind == "safetensors":
        write("config.json", json.dumps(CONFIG).encode())
        path = path.parent
    read_all(path)
    with pytest.raises(StrixhloError):
        for tensor in open_checkpoint(str(path)).tensors.values():
            tensor.read()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["quant_method", "bits", "group_size", "mode", "weight_block_size", "quant_algo", "config_groups", "version"]
)
METHODS = st.sampled_from(["fp8", "awq", "gptq", "modelopt", "compressed-tensors", "mxfp4", "fbgemm_fp8"])
BLOCKS = st.builds(lambda block, method: block | {"quant_method": method}, st.dictionaries(KEYS, JSON), METHODS)


@FUZZ
@given(key=st.sampled_from(["quantization", "quantization_config"]), block=BLOCKS | st.dictionaries(KEYS, JSON) | JSON)
def test_quantization_blocks(write: Callable[[str, bytes], Path], key: str, block: object) -> None:
    path = write("model.safetensors", SAFETENSORS_SEED)
    write("config.json", json.dumps({"model_type": "llama", key: block}).encode())
    read_all(path.parent)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/x.safetensors", "a/../b.safetensors"])
def test_a_shard_index_that_leads_elsewhere_names_the_tensor(write: Callable[[str, bytes], Path], name: str) -> None:
    write("config.json", b"{}")
    path = write("model.safetensors.index.json", json.dumps({"weight_map": {"model.norm.weight": name}}).encode())
    with pytest.raises(StrixhloError, match=r"tensor 'model\.norm\.weight' is said to be in"):
        open_checkpoint(str(path.parent))
