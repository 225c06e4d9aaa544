"""The tokenizer files of a bundle, made from a GGUF file's vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .gguf import GgufFile
from .gguf_metadata import integer, real, text
from .gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary, vocabulary_of
from .text_files import write_json, write_text
from .tokenizer_bpe import bpe_parts
from .tokenizer_sentencepiece import sentencepiece_parts


def write_gguf_tokenizer(file: GgufFile, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and, where the file has a template,
    chat_template.jinja into an existing directory. StrixhloError for a vocabulary that cannot be expressed."""
    vocabulary = vocabulary_of(file)
    write_json(directory / "tokenizer.json", tokenizer_json(vocabulary), indent=None)
    write_json(directory / "tokenizer_config.json", _tokenizer_config(file, vocabulary))
    write_json(directory / "generation_config.json", _generation_config(file, vocabulary))
    if "tokenizer.chat_template" in file.metadata:
        write_text(directory / "chat_template.jinja", text(file, "tokenizer.chat_template"))


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of a `tokenizers` tokenizer.json that gives the ids that llama.cpp gives.

    Control, unknown and user-defined tokens are found in the text before anything else; the first two are "special", so
    that `encode_special_tokens` turns them into plain text and `skip_special_tokens` drops them.
    """
    parts = bpe_parts(vocabulary) if vocabulary.model == "gpt2" else sentencepiece_parts(vocabulary)
    parts["model"]["merges"] = compact_merges(parts["model"]["merges"])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": _post_processor(vocabulary),
        "decoder": parts["decoder"],
        "model": parts["model"],
    }


def compact_merges(merges: list[tuple[str, str]]) -> list[str] | list[tuple[str, str]]:
    """Merges as "left right" where that can be read back: `tokenizers` loads them in a third less memory than pairs."""
    joined = [f"{left} {right}" for left, right in merges]
    return joined if all(m.count(" ") == 1 and not m.startswith("#version") for m in joined) else merges


def _added_tokens(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    return [
        {
            "id": int(i),
            "content": vocabulary.tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": bool(vocabulary.types[i] != USER_DEFINED),
        }
        for i in np.flatnonzero(np.isin(vocabulary.types, (CONTROL, UNKNOWN, USER_DEFINED)))
    ]


def _post_processor(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """Adds <bos> and <eos> where the model wants them."""
    if not vocabulary.add_bos and not vocabulary.add_eos:
        return None
    bos, eos = (
        [] if token_id is None or not wanted else [vocabulary.tokens[token_id]]
        for token_id, wanted in ((vocabulary.bos, vocabulary.add_bos), (vocabulary.eos, vocabulary.add_eos))
    )

    def template(*sequences: str) -> list[dict[str, Any]]:
        pieces: list[dict[str, Any]] = []
        for type_id, sequence in enumerate(sequences):
            pieces += [{"SpecialToken": {"id": token, "type_id": type_id}} for token in bos]
            pieces += [{"Sequence": {"id": sequence, "type_id": type_id}}]
            pieces += [{"SpecialToken": {"id": token, "type_id": type_id}} for token in eos]
        return pieces

    ids = {vocabulary.tokens[i]: i for i in (vocabulary.bos, vocabulary.eos) if i is not None}
    return {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("A", "B"),
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in dict.fromkeys(bos + eos)},
    }


def _tokenizer_config(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    named = {
        "bos_token": vocabulary.bos,
        "eos_token": vocabulary.eos,
        "unk_token": vocabulary.unknown,
        "pad_token": vocabulary.padding,
    }
    architecture = text(file, "general.architecture")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: vocabulary.tokens[i] for name, i in named.items() if i is not None},
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": integer(file, f"{architecture}.context_length"),
    }


def _generation_config(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    """Ids of the special tokens, and the sampling that the model's maker recommends where the file says so."""
    config: dict[str, Any] = {"eos_token_id": vocabulary.end_ids}
    if vocabulary.bos is not None:
        config["bos_token_id"] = vocabulary.bos
    if vocabulary.padding is not None:
        config["pad_token_id"] = vocabulary.padding
    for key, name in (("temp", "temperature"), ("top_p", "top_p"), ("min_p", "min_p")):
        if f"general.sampling.{key}" in file.metadata:
            config[name] = real(file, f"general.sampling.{key}")
    if "general.sampling.top_k" in file.metadata:
        config["top_k"] = integer(file, "general.sampling.top_k")
    return config
