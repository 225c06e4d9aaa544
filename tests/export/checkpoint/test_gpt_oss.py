"""gpt-oss as OpenAI stores it (MXFP4 blocks and scales) and as mlx_lm converts that, against transformers with the
weights that its own decoder of MXFP4 makes, and against mlx_lm's model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils as mlx_lm
import numpy as np
import pytest
import torch
import transformers
from checkpoint_logits import IDS, VOCAB, distance, logits_of, with_tokenizer
from compiled_checkpoints import ENTRIES, QUIET, CompiledOnce
from coverage_table import covers
from family_checkpoints import CASES, logits, random_checkpoint
from mlx.utils import tree_map
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from strixhlo.errors import StrixhloError
from strixhlo.export import export
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.runtime.detokenize import StreamingDetokenizer
from strixhlo.runtime.tokenizer import load_tokenizer
from strixhlo.runtime.tool_calls.choose import output_parser
from strixhlo.runtime.tool_calls.pieces import CallArguments, CallBegin, Content, Reasoning

EXPERTS, WIDTH = 8, 64
SHAPE = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 4, "vocab_size": VOCAB}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint as OpenAI released theirs, and transformers' model with the same weights."""
    folder = tmp_path_factory.mktemp("openai")
    random_checkpoint("gpt_oss", CASES["gpt-oss"][2] | SHAPE, folder, torch.bfloat16)
    tensors, rng = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    packed = {}
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        rows = tensors[name].shape[2]
        blocks = torch.from_numpy(rng.integers(0, 256, (EXPERTS, rows, WIDTH // 32, 16), np.uint8))
        scales = torch.from_numpy(rng.integers(120, 125, (EXPERTS, rows, WIDTH // 32), np.uint8))
        tensors[name] = convert_moe_packed_tensors(blocks, scales)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    eager = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **eager).eval()
    kept = {name: tensor for name, tensor in tensors.items() if f"{name}_blocks" not in packed}
    save_file(kept | packed, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return with_tokenizer(folder), model


@covers("gpt-oss", "safetensors mxfp4", "cpu", "transformers")
def test_as_released(released: tuple[Path, Any], tmp_path: Path, compiled_once: CompiledOnce) -> None:
    folder, model = released
    experts = {n: t for n, t in open_checkpoint(str(folder)).tensors.items() if ".experts." in n}
    assert {t.format for n, t in experts.items() if n.endswith("_proj.weight")} == {"mxfp4"}
    assert distance(logits_of(folder), logits(model, IDS.tolist())) < 1e-4
    bundle = compiled_once.hold(folder, tmp_path / "bundle", lambda ids: logits(model, ids))
    assert "mxfp4" in bundle.manifest.weight_formats


@covers("gpt-oss", "MLX mxfp4", "jax", "transformers")
@covers("gpt-oss", "MLX mxfp4", "jax", "mlx_lm")
def test_as_mlx_converts_it(released: tuple[Path, Any], tmp_path: Path) -> None:
    """mlx_lm takes gate and up apart, keeps MXFP4, and names the biases otherwise."""
    folder, model = released
    config_text = json.loads((folder / "config.json").read_text())
    rope = config_text.pop("rope_parameters")  # as transformers 4 wrote it, which mlx_lm reads
    config_text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (folder / "config.json").write_text(json.dumps(config_text))
    mlx, config = mlx_lm.load_model(folder)
    mlx_lm.save_model(tmp_path, mlx)
    mlx_lm.save_config(config, tmp_path / "config.json")
    assert distance(logits_of(with_tokenizer(tmp_path)), logits(model, IDS.tolist())) < 1e-4
    del config["rope_scaling"]["truncate"]  # mlx_lm rounds YaRN's bounds, whatever the model says
    mlx_lm.save_config(config, tmp_path / "config.json")
    mlx.update(tree_map(lambda a: a.astype(mx.float32) if a.dtype == mx.bfloat16 else a, mlx.parameters()))
    assert distance(logits_of(tmp_path), np.array(mlx(mx.array(IDS)[None]).astype(mx.float32))[0]) < 1e-3


def test_rows_that_cannot_be_gate_and_up(released: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = released
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.gate_up_proj_bias"
    for changed, message in (
        (tensors[name][:, 1:], "gate and up in one tensor of 127 rows"),
        (tensors[name][0], "not"),
    ):
        save_file(tensors | {name: changed.contiguous()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        with pytest.raises(StrixhloError, match=message):
            open_checkpoint(str(tmp_path))


MARKERS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
# In the shape of gpt-oss's own: tools are TypeScript in the developer's message.
TEMPLATE = """<|start|>system<|message|>Valid channels: analysis, commentary, final.<|end|>
{%- if tools %}<|start|>developer<|message|>namespace functions {
{%- for tool in tools %} type {{ tool.function.name }} = () => any;{% endfor %} }<|end|>{% endif %}
{%- for message in messages %}
{%- if message.role == "assistant" %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
ANSWER = (
    "<|channel|>analysis<|message|>They ask for rain.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"at": "Ulm"}<|call|>'
    "<|start|>assistant<|channel|>final<|message|>It rains.<|return|>"
)


def test_chat_and_its_answer(released: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkpoint's template and tokenizer, by way of the bundle, to reasoning, a tool call and an answer."""
    folder = shutil.copytree(released[0], tmp_path / "checkpoint")
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet())[:VOCAB])}
    tokenizer = Tokenizer(models.BPE({c: i for c, i in letters.items() if i < VOCAB - len(MARKERS)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(marker, special=True) for marker in MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    monkeypatch.setattr(export, "ENTRIES", ENTRIES)
    bundle = export.export_checkpoint(
        open_checkpoint(str(folder)), tmp_path / "bundle", context=96, dtype="auto", kv_dtype="f32", progress=QUIET
    )
    loaded = load_tokenizer(bundle.path)
    prompt = loaded.chat_text([{"role": "user", "content": "Rain?"}])
    assert prompt.endswith("<|start|>user<|message|>Rain?<|end|><|start|>assistant")
    assert loaded.tokenizer.decode(loaded.encode_rendered(prompt), skip_special_tokens=False) == prompt
    parser, text = output_parser(loaded.chat_template, prompt, []), StreamingDetokenizer(loaded.tokenizer, False)
    pieces = [piece for token in loaded.encode_rendered(ANSWER) for piece in parser.push(text.push(token))]
    pieces += parser.push(text.finish()) + parser.finish()

    def said(kind: type) -> str:
        return "".join(piece.text for piece in pieces if isinstance(piece, kind))

    assert (said(Reasoning), said(Content)) == ("They ask for rain.", "It rains.")
    assert [piece.name for piece in pieces if isinstance(piece, CallBegin)] == ["weather"]
    assert json.loads(said(CallArguments)) == {"at": "Ulm"}
