"""export of a directory: impossible configurations, tensors that disagree with them, broken files."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

Refused = Callable[..., str]
Edit = Callable[[Path, Callable[[dict], object]], None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"intermediate_size": None}, "lacks intermediate_size"),
        ({"model_type": None}, "lacks model_type"),
        ({"hidden_size": 0}, "hidden_size = 0 is not a whole number"),
        ({"hidden_size": "64"}, "hidden_size = '64' is not a whole number"),
        ({"hidden_size": True}, "hidden_size = True is not a whole number"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5 is not a whole number"),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers = 1000000000 is not a whole number from 1 to 4096",
        ),
        ({"num_attention_heads": -4}, "num_attention_heads = -4 is not a whole number"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads = 5 is not a divisor of hidden"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3 is not a divisor of num_attention_heads = 4"),
        ({"num_key_value_heads": [2]}, "num_key_value_heads = [2] is not a whole number"),
        ({"head_dim": 63}, "head_dim = 63 is not even"),
        ({"head_dim": 10**9}, "q_proj.weight has shape [64, 64] where the configuration makes it [4000000000, 64]"),
        ({"vocab_size": 10**9}, "tokens.weight has shape [320, 64] where the configuration makes it [1000000000, 64]"),
        ({"intermediate_size": 97}, "gate_proj.weight has shape [96, 64] where the configuration makes it [97, 64]"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings = 1000000000000 is not a whole number"),
        ({"max_position_embeddings": 8}, "max_position_embeddings = 8 is not at least 16"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan is not a number above 0"),
        ({"rope_theta": 1e300}, "rope_theta = 1e+300 is not a number above 0"),
        ({"rope_scaling": "yes"}, "rope_scaling = 'yes' is not an object"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor = 0 is not a number above 0"),
        ({"rope_parameters": [1]}, "rope_parameters is not an object"),
        ({"tie_word_embeddings": "maybe"}, "tie_word_embeddings = 'maybe' is not true or false"),
        ({"model_type": "mamba"}, "model type 'mamba' is not supported; the nearest that is: "),
        ({"model_type": ["llama"]}, "model type ['llama'] is not supported"),
        ({"hidden_act": "tanh"}, "hidden_act = 'tanh' is not supported"),
        ({"model_type": "gemma3_text"}, "pre_feedforward_layernorm.weight is missing"),
        ({"model_type": "gemma3_text", "layer_types": [{}, "full_attention"]}, "layer_types = "),
    ],
)
def test_config(checkpoint: Path, out: Path, refused: Refused, changes: dict, message: str) -> None:
    config = json.loads((checkpoint / "config.json").read_text()) | changes
    (checkpoint / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = refused("export", checkpoint, "-o", out)
    assert message in line and str(checkpoint) in line
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB: nothing was allocated for it


def test_context(checkpoint: Path, out: Path, refused: Refused, edit: Edit) -> None:
    edit(checkpoint / "config.json", lambda c: c.update(max_position_embeddings=2**31 - 1))
    for context in (15, 2**20 + 1, 10**30):
        assert "takes 16 to 1048576 positions" in refused("export", checkpoint, "-o", out, "--context", context)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.norm.weight", np.ones(63, np.float16), "model.norm.weight has shape [63] where"),
        ("model.norm.weight", np.ones((), np.float16), "model.norm.weight has shape [] where"),
        ("model.norm.weight", np.ones(0, np.float16), "model.norm.weight has shape [0] where"),
        ("model.norm.weight", np.ones(64, np.int64), "'model.norm.weight' has dtype I64, which is not supported"),
        ("model.layers.1.mlp.up_proj.weight", None, "tensor model.layers.1.mlp.up_proj.weight is missing"),
        ("model.extra", np.zeros((), np.float32), "1 tensors have no place in a llama model, the first is model.extra"),
    ],
)
def test_tensors(
    checkpoint: Path, out: Path, refused: Refused, name: str, value: np.ndarray | None, message: str
) -> None:
    tensors = load_file(checkpoint / "model.safetensors") | {name: value}
    save_file({k: v for k, v in tensors.items() if v is not None}, checkpoint / "model.safetensors")
    assert message in refused("export", checkpoint, "-o", out)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 0, 7])
def test_header_of_an_absurd_size(checkpoint: Path, out: Path, refused: Refused, length: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    assert "not a usable safetensors file" in refused("export", checkpoint, "-o", out)


@pytest.mark.parametrize("offsets", [[0, 2**62], [-2, 126], [128, 0], [64, 192], ["0", "128"], [0]])
def test_offsets_that_lie(checkpoint: Path, out: Path, refused: Refused, offsets: list) -> None:
    header = json.dumps({"model.norm.weight": {"dtype": "F16", "shape": [64], "data_offsets": offsets}}).encode()
    (checkpoint / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(128))
    assert "not a usable safetensors file" in refused("export", checkpoint, "-o", out)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/secret.safetensors", "a/../x.safetensors", ".."])
def test_an_index_cannot_lead_out_of_the_directory(checkpoint: Path, out: Path, refused: Refused, name: str) -> None:
    shutil.move(checkpoint / "model.safetensors", checkpoint.parent / "checkpoint" / "secret.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "which is not a plain file name" in refused("export", checkpoint, "-o", out)


def test_links(checkpoint: Path, tmp_path: Path, refused: Refused, accepted: Callable[..., str]) -> None:
    """The hub's cache is made of links, so links are followed; one to nowhere is a missing file."""
    blob = tmp_path / "blob"
    (checkpoint / "model.safetensors").rename(blob)
    (checkpoint / "model.safetensors").symlink_to(blob)
    accepted("export", checkpoint, "-o", tmp_path / "bundle")
    blob.unlink()
    assert "model.safetensors: not a usable safetensors file ([Errno 2] No such file" in refused(
        "export", checkpoint, "-o", tmp_path / "other"
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"[" * 100_000, b'{"model_type": "llama", "x": "\\ud800"}'])
def test_text_that_is_broken(checkpoint: Path, out: Path, refused: Refused, name: str, content: bytes) -> None:
    (checkpoint / name).write_bytes(content)
    assert name in refused("export", checkpoint, "-o", out)


def test_chat_template_that_is_broken(checkpoint: Path, out: Path, refused: Refused) -> None:
    (checkpoint / "chat_template.jinja").write_bytes(b"\xff")
    assert "chat_template.jinja: not UTF-8 text" in refused("export", checkpoint, "-o", out)


def test_a_directory_without_a_tokenizer(checkpoint: Path, out: Path, refused: Refused) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert "tokenizer.json is missing; save the tokenizer" in refused("export", checkpoint, "-o", out)
