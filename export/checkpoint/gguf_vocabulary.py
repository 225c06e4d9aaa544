"""The vocabulary of a GGUF file (tokenizer.ggml.*), checked, with llama.cpp's defaults for what is missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ...errors import StrixhloError
from .gguf import GgufFile
from .gguf_metadata import boolean, integer, numbers, strings, text

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Tokens that end a turn, a message or a text, by the names that model makers gave them. llama.cpp stops at these too.
END_TOKENS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
    "<eos>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
)
# Llama 1 and 2 files may lack these keys.
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}
# Pre-tokenizers whose models begin every text with <bos> although the key is missing.
_BOS_BY_DEFAULT = ("llama3", "llama-v3", "llama-bpe")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and the rules around them. Ids of special tokens are None where the model has none.

    model: "gpt2" (byte-level BPE) or "llama" (SentencePiece); pre: the pre-tokenizer's name, "gpt2" only.
    types: int per token (NORMAL ... BYTE). scores: float32 per token, "llama" only. merges: pairs, "gpt2" only.
    """

    path: str
    model: str
    pre: str
    tokens: list[str]
    types: np.ndarray
    scores: np.ndarray
    merges: list[tuple[str, str]]
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    end_ids: list[int]


def vocabulary_of(file: GgufFile) -> Vocabulary:
    """Read and check tokenizer.ggml.*; StrixhloError names the key that is wrong."""
    model = text(file, "tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise StrixhloError(
            f"{file.path}: tokenizer.ggml.model {model!r} is not supported (supported: 'gpt2', 'llama'); "
            f"use the model's safetensors directory, which carries its own tokenizer"
        )
    tokens = _tokens(file)
    count = len(tokens)
    types = numbers(file, "tokenizer.ggml.token_type", count)
    scores = numbers(file, "tokenizer.ggml.scores", count)
    if model == "llama" and (scores is None or not np.isfinite(scores).all()):
        raise StrixhloError(f"{file.path}: tokenizer.ggml.scores is missing or not finite; convert the model again")
    types = np.full(count, NORMAL) if types is None else types
    pre = text(file, "tokenizer.ggml.pre", "default")
    ids = {key: _special_id(file, key, model, count) for key in ("bos", "eos", "unknown", "padding")}
    add_bos = boolean(file, "tokenizer.ggml.add_bos_token", model == "llama" or pre in _BOS_BY_DEFAULT)
    add_eos = boolean(file, "tokenizer.ggml.add_eos_token", False)
    for wanted, key in ((add_bos, "bos"), (add_eos, "eos")):
        if wanted and ids[key] is None:
            raise StrixhloError(f"{file.path}: tokenizer.ggml.{key}_token_id is missing; convert the model again")
    return Vocabulary(
        path=str(file.path),
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=np.zeros(count, np.float32) if scores is None else scores,
        merges=_merges(file, tokens) if model == "gpt2" else [],
        **ids,
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=boolean(file, "tokenizer.ggml.add_space_prefix", model == "llama"),
        end_ids=_end_ids(file, tokens, types, ids["eos"]),
    )


def _tokens(file: GgufFile) -> list[str]:
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(strings(file, "tokenizer.ggml.tokens"))]
    rows = file.tensors["token_embd.weight"].shape[0]
    if not tokens or len(tokens) > rows:
        raise StrixhloError(f"{file.path}: tokenizer.ggml.tokens has {len(tokens)} tokens for {rows} embedding rows")
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise StrixhloError(f"{file.path}: tokenizer.ggml.tokens holds {twice!r} twice; convert the model again")
    return tokens


def _special_id(file: GgufFile, key: str, model: str, count: int) -> int | None:
    name = f"tokenizer.ggml.{key}_token_id"
    if name not in file.metadata:
        return _SENTENCEPIECE_IDS.get(key) if model == "llama" and count > 2 else None
    token_id = integer(file, name)
    if token_id >= count:
        raise StrixhloError(f"{file.path}: {name} is {token_id} in a vocabulary of {count}; convert the model again")
    return token_id


def _merges(file: GgufFile, tokens: list[str]) -> list[tuple[str, str]]:
    known = set(tokens)
    pairs: list[tuple[str, str]] = []
    for merge in strings(file, "tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            raise StrixhloError(
                f"{file.path}: tokenizer.ggml.merges: {merge!r} does not join two tokens of the vocabulary"
            )
        pairs.append((left, right))
    return pairs


def _end_ids(file: GgufFile, tokens: list[str], types: np.ndarray, eos: int | None) -> list[int]:
    """eos first, then the control tokens that end generation by their key or their name."""
    ids = [] if eos is None else [eos]
    for key in ("eot", "eom"):
        if f"tokenizer.ggml.{key}_token_id" in file.metadata:
            ids.append(integer(file, f"tokenizer.ggml.{key}_token_id"))
    id_of = {tokens[i]: int(i) for i in np.flatnonzero(types == CONTROL)}
    ids += [id_of[name] for name in END_TOKENS if name in id_of]
    return [i for i in dict.fromkeys(ids) if i < len(tokens)]
