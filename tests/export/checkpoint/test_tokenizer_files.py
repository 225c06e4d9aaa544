"""What is written beside the weights: tokenizer and generation settings, from GGUF and from Hugging Face files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.gguf import read_gguf
from strixhlo.export.checkpoint.gguf_vocabulary import Vocabulary
from strixhlo.export.checkpoint.tokenizer_files import write_copied_tokenizer
from strixhlo.export.checkpoint.tokenizer_sentencepiece import merges_of_scores


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_files_of_smollm2(smollm2_gguf: Path, tmp_path: Path) -> None:
    open_checkpoint(str(smollm2_gguf)).write_tokenizer(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    template = (tmp_path / "chat_template.jinja").read_text(encoding="utf-8")
    assert template == read_gguf(smollm2_gguf).metadata["tokenizer.chat_template"]
    assert read(tmp_path / "generation_config.json") == {"eos_token_id": [2, 0], "bos_token_id": 1, "pad_token_id": 2}
    assert read(tmp_path / "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }


def test_the_files_of_gemma3(gemma3_gguf: Path, tmp_path: Path) -> None:
    open_checkpoint(str(gemma3_gguf)).write_tokenizer(tmp_path)
    assert not (tmp_path / "chat_template.jinja").exists()  # this file has none
    assert read(tmp_path / "generation_config.json") == {"eos_token_id": [1, 106], "bos_token_id": 2, "pad_token_id": 0}
    config = read(tmp_path / "tokenizer_config.json")
    assert (config["bos_token"], config["add_bos_token"]) == ("<bos>", True)


def generation(path: Path) -> dict:
    open_checkpoint(str(path)).write_tokenizer(path.parent)
    return read(path.parent / "generation_config.json")


def test_tokens_that_end_generation(tiny_llama: Callable[..., Path]) -> None:
    assert generation(tiny_llama())["eos_token_id"] == [0, 1]
    assert generation(tiny_llama({"tokenizer.ggml.eot_token_id": 5}))["eos_token_id"] == [0, 5, 1]
    plain = np.array([3, 1] + [1] * 259)  # <|im_end|> is ordinary text here
    assert generation(tiny_llama({"tokenizer.ggml.token_type": plain}))["eos_token_id"] == [0]


def test_recommended_sampling_is_kept(tiny_llama: Callable[..., Path]) -> None:
    sampling = {"general.sampling.temp": 0.7, "general.sampling.top_k": 20, "general.sampling.top_p": 0.8}
    found = generation(tiny_llama(sampling))
    assert {k: found[k] for k in ("temperature", "top_k", "top_p")} == {"temperature": 0.7, "top_k": 20, "top_p": 0.8}


def test_bos_and_eos_are_added_where_the_model_wants_them(tiny_llama: Callable[..., Path]) -> None:
    path = tiny_llama(
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": 1}
    )
    open_checkpoint(str(path)).write_tokenizer(path.parent)
    tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))
    assert tokenizer.encode("hell").tokens == ["<|endoftext|>", "hell", "<|im_end|>"]
    assert tokenizer.encode("hell", add_special_tokens=False).tokens == ["hell"]
    assert tokenizer.encode("h", "e").tokens == ["<|endoftext|>", "h", "<|im_end|>", "<|endoftext|>", "e", "<|im_end|>"]


def test_llama3_begins_with_bos_by_default(tiny_llama: Callable[..., Path]) -> None:
    path = tiny_llama({"tokenizer.ggml.pre": "llama-bpe"})
    open_checkpoint(str(path)).write_tokenizer(path.parent)
    assert Tokenizer.from_file(str(path.parent / "tokenizer.json")).encode("hell").tokens == ["<|endoftext|>", "hell"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model 'bert' is not supported (supported: 'gpt2', 'llama')"),
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre 'tekken' is not supported (supported: default, gpt-2"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, "holds 'a' twice"),
        ({"tokens": []}, "has 0 tokens for"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens is not a list of strings"),
        ({"tokens": [str(i) for i in range(300)], "token_type": None}, "has 300 tokens for 261 embedding rows"),
        ({"token_type": np.array([1, 1])}, "tokenizer.ggml.token_type is not an array of 261 numbers"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["h e", "nospace"]}, "'nospace' does not join two tokens"),
        ({"merges": ["h x"]}, "'h x' does not join two tokens"),
        ({"eos_token_id": 261}, "tokenizer.ggml.eos_token_id is 261 in a vocabulary of 261"),
        ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id is 'x', not a count"),
        ({"bos_token_id": None, "add_bos_token": True}, "tokenizer.ggml.bos_token_id is missing"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1, not a bool"),
        ({"model": "llama"}, "tokenizer.ggml.scores is missing"),
        ({"model": "llama", "scores": np.full(261, np.nan)}, "tokenizer.ggml.scores is missing or not finite"),
    ],
)
def test_a_wrong_vocabulary_is_named(
    tiny_llama: Callable[..., Path], gguf_builder: dict, changes: dict, message: str, tmp_path: Path
) -> None:
    keys = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    path = tiny_llama(keys, tensors=gguf_builder["tensors"](261))
    with pytest.raises(StrixhloError) as error:
        open_checkpoint(str(path)).write_tokenizer(tmp_path)
    assert message in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_directory_that_cannot_be_written(tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(StrixhloError, match="cannot be written"):
        open_checkpoint(str(tiny_llama())).write_tokenizer(tmp_path / "absent")


def test_empty_tokens_get_a_name(tiny_llama: Callable[..., Path], gguf_builder: dict) -> None:
    tokens = gguf_builder["vocabulary"]()["tokenizer.ggml.tokens"]
    path = tiny_llama(
        {"tokenizer.ggml.tokens": [*tokens, ""], "tokenizer.ggml.token_type": np.array([1] * (len(tokens) + 1))}
    )
    open_checkpoint(str(path)).write_tokenizer(path.parent)
    assert Tokenizer.from_file(str(path.parent / "tokenizer.json")).id_to_token(261) == "[EMPTY_261]"


def sentencepiece(scores: dict[str, float]) -> Vocabulary:
    return Vocabulary(
        path="test",
        model="llama",
        pre="default",
        tokens=list(scores),
        types=np.ones(len(scores), int),
        scores=np.array(list(scores.values()), np.float32),
        merges=[],
        bos=None,
        eos=None,
        unknown=None,
        padding=None,
        add_bos=False,
        add_eos=False,
        add_space_prefix=False,
        end_ids=[],
    )


def test_merges_of_scores() -> None:
    scores = {"a": 0.0, "b": 0.0, "c": 0.0, "ab": -2.0, "bc": -1.0, "abc": -3.0, "ca": -4.0, "cab": -5.0, "xyz": -6.0}
    # abc: bc joins before ab, so abc is a + bc and ab + c never meets; cab: ab joins first; xyz: x and y are no tokens
    assert merges_of_scores(sentencepiece(scores)) == [("b", "c"), ("a", "b"), ("a", "bc"), ("c", "a"), ("c", "ab")]


def hugging_face_tokenizer(directory: Path) -> dict:
    """A small tokenizer.json, merges as pairs, in `directory`."""
    content = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "é": 3}, "merges": [["a", "b"]]},
    }
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return content


def test_copying_a_hugging_face_tokenizer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    content = hugging_face_tokenizer(source)
    settings = {"bos_token": "a", "chat_template": "{{ messages }} é"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (source / "generation_config.json").write_text('{"eos_token_id": 2, "temperature": 0.6}', encoding="utf-8")
    write_copied_tokenizer(source, {"bos_token_id": 0, "eos_token_id": [1], "pad_token_id": None}, tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8") == "{{ messages }} é"
    assert read(tmp_path / "tokenizer_config.json") == {"bos_token": "a"}
    expected = {"eos_token_id": [2], "temperature": 0.6, "bos_token_id": 0}
    assert read(tmp_path / "generation_config.json") == expected
    assert read(tmp_path / "tokenizer.json")["model"] == content["model"] | {"merges": ["a b"]}
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("abé").ids == [2, 3]


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"chat_template.jinja": "file", "tokenizer_config.json": '{"chat_template": "inline"}'}, "file"),
        ({"chat_template.json": '{"chat_template": "processor"}'}, "processor"),
        (
            {
                "tokenizer_config.json": '{"chat_template": [{"name": "tools", "template": "t"},'
                ' {"name": "default", "template": "d"}]}'
            },
            "d",
        ),
    ],
)
def test_where_the_chat_template_is_found(tmp_path: Path, files: dict, template: str | None) -> None:
    source = tmp_path / "source"
    hugging_face_tokenizer(source)
    for name, text in files.items():
        (source / name).write_text(text, encoding="utf-8")
    write_copied_tokenizer(source, {"eos_token_id": 1}, tmp_path)
    written = tmp_path / "chat_template.jinja"
    assert (written.read_text(encoding="utf-8") if written.exists() else None) == template
    assert read(tmp_path / "generation_config.json") == {"eos_token_id": [1]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{", "not valid JSON"),
        ("tokenizer.json", "[]", "not a JSON object"),
        ("tokenizer.json", '{"model": {}}', "not a usable tokenizer"),
        ("tokenizer_config.json", "nope", "not valid JSON"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template is not text"),
        ("generation_config.json", "1", "not a JSON object"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    source = tmp_path / "source"
    hugging_face_tokenizer(source)
    (source / name).unlink() if text is None else (source / name).write_text(text)
    with pytest.raises(StrixhloError, match=message) as error:
        write_copied_tokenizer(source, {}, tmp_path)
    assert str(source) in str(error.value)
