"""Peaks stay flat: weights are never held twice, and a longer run holds no more than a short one."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig

from strixhlo.bundle import Bundle
from strixhlo.runtime.memory import KV_CACHE, needed_items
from strixhlo.runtime.program import read_build

MIB = 1 << 20
LIMIT = 3 << 30


def write_checkpoint(folder: Path, *, hidden: int, feed_forward: int, layers: int, vocabulary: int = 320) -> int:
    """A Llama of zeros in bfloat16, whose safetensors file is one long hole; returns the bytes of its weights."""
    folder.mkdir()
    LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for i in range(layers):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (64, hidden),
            "self_attn.v_proj": (64, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (feed_forward, hidden),
            "mlp.up_proj": (feed_forward, hidden),
            "mlp.down_proj": (hidden, feed_forward),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    header, position = {}, 0
    for name, shape in shapes.items():
        end = position + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        os.truncate(file.fileno(), 8 + len(text) + position)
    Tokenizer(WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return position


def strixhlo(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with at most `limit` bytes of data memory: all that it may write to, mapped files excluded."""
    code = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_DATA, ({limit},) * 2);"
        " runpy.run_module('strixhlo.cli', run_name='__main__', alter_sys=True)"
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def export_and_run(folder: Path, limit: int, hidden: int, feed_forward: int, layers: int) -> tuple[int, int]:
    """Export and run under the limit; returns bytes of weights, and of what the run has held in RAM."""
    weights = write_checkpoint(folder / "checkpoint", hidden=hidden, feed_forward=feed_forward, layers=layers)
    bundle = str(folder / "bundle")
    done = strixhlo(limit, "export", str(folder / "checkpoint"), "-o", bundle)
    assert done.returncode == 0, done.stderr
    done = strixhlo(8 << 30, "compile", bundle)
    assert done.returncode == 0, done.stderr
    done = strixhlo(limit, "run", bundle, "--raw", "-p", "w1", "-n", "3", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert len(record["token_ids"]) == 3
    return weights, record["memory"]["peak"]["resident"]


def test_4_gb_of_weights_under_3_gb_of_data_memory(tmp_path: Path) -> None:
    try:
        weights, resident = export_and_run(tmp_path, LIMIT, hidden=4096, feed_forward=32768, layers=5)
    finally:
        shutil.rmtree(tmp_path / "bundle", ignore_errors=True)  # pytest would keep 4 GB for three runs
    assert weights > 4 << 30
    assert resident < weights + 256 * MIB  # mapped once, and little beside


def test_the_limit_would_catch_a_copy(tmp_path: Path) -> None:
    """The limit of the test above does bind: a file of that size cannot be read into memory under it."""
    file = tmp_path / "hole"
    file.touch()
    os.truncate(file, 4 << 30)
    code = f"import resource as r; r.setrlimit(r.RLIMIT_DATA, ({LIMIT},) * 2); open({str(file)!r}, 'rb').read()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "MemoryError" in done.stderr


# In a process of its own, which has held nothing before. The kernel's count has all that IREE allocates; IREE's own
# statistics leave out the temporaries and results of calls on the CPU.
LONG_RUN = """
import json, sys
from pathlib import Path
from strixhlo.bundle import open_bundle
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program

def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

bundle, before = open_bundle(Path(sys.argv[1])), resident("VmRSS")
with Program(bundle, "cpu", 1) as program:
    engine = Engine(program)
    engine.score([1] * 128)
    engine.decode(2)
    short = program.peak().resident - before
    for _ in range(6):
        engine.reset()
        engine.score([1] * 128)
        for _ in range(5):
            engine.decode(3)
    print(json.dumps([short, program.peak().resident - before]))
    engine.close()
"""


def test_the_peak_does_not_grow_and_is_what_was_planned(smollm2: Callable[[str], Bundle]) -> None:
    bundle = smollm2("int8")
    command = [sys.executable, "-c", LONG_RUN, str(bundle.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    short, long = json.loads(done.stdout)
    planned = {i.name: i.bytes for i in needed_items(bundle.manifest, read_build(bundle, "cpu"), "cpu")}
    reserve = planned.pop("reserve")
    copy = planned["results"]  # the logits that the caller gets
    assert planned["results"] > 20 * MIB and planned["temporaries"] > MIB and planned[KV_CACHE] > 20 * MIB
    assert short < sum(planned.values()) + copy + 32 * MIB < sum(planned.values()) + reserve
    assert long < short + 8 * MIB  # six more calls with results of 24 MiB each
