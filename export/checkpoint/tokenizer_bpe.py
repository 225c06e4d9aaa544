"""A byte-level BPE vocabulary (tokenizer.ggml.model "gpt2") -> the parts of a tokenizer.json.

Text is cut by the pre-tokenizer's regular expressions, its bytes are written as printable characters, and merges are
applied by rank. The expressions are those of the models' own tokenizer.json files, named as llama.cpp names them.
"""

from __future__ import annotations

from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from ...errors import StrixhloError
from .gguf_vocabulary import Vocabulary


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _words(digits: str) -> dict[str, Any]:
    """The expression of Llama 3 and Qwen 2, which differ in how many digits make a word."""
    return _split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = [_byte_level(use_regex=True)]
_SINGLE_DIGITS = [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)]
_LLAMA3 = [_words(r"\p{N}{1,3}"), _byte_level(use_regex=False)]
_QWEN2 = [_words(r"\p{N}"), _byte_level(use_regex=False)]
# o200k of GPT-4o and gpt-oss: words are cut before a capital that follows small letters.
_SUFFIX, _ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{Lm}\p{Lo}\p{M}"
_GPT4O = [
    _split(
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_ANY_CASE}]*[\p{{Ll}}{_ANY_CASE}]+{_SUFFIX}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_ANY_CASE}]+[\p{{Ll}}{_ANY_CASE}]*{_SUFFIX}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    _byte_level(use_regex=False),
]
_DEFAULT = [
    _split(r"[\p{P}\$\+<=>\^~\|]+"),
    _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
    _split(r"\p{N}+"),
    _split(r"[0-9][0-9][0-9]"),
    _byte_level(use_regex=False),
]
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "gpt-4o": _GPT4O,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
# A word that is a token as a whole is not split and merged again.
_WHOLE_WORDS_FIRST = ("llama3", "llama-v3", "llama-bpe")


def bpe_parts(vocabulary: Vocabulary) -> dict[str, Any]:
    """`normalizer`, `pre_tokenizer`, `decoder` and `model` of tokenizer.json."""
    if vocabulary.pre not in PRE_TOKENIZERS:
        raise StrixhloError(
            f"{vocabulary.path}: tokenizer.ggml.pre {vocabulary.pre!r} is not supported "
            f"(supported: {', '.join(PRE_TOKENIZERS)}); use the model's safetensors directory"
        )
    steps = PRE_TOKENIZERS[vocabulary.pre] + _drop_unknown_bytes(vocabulary)
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "ignore_merges": vocabulary.pre in _WHOLE_WORDS_FIRST,
            "vocab": {token: i for i, token in enumerate(vocabulary.tokens)},
            "merges": vocabulary.merges,
        },
    }


def _drop_unknown_bytes(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Bytes that are no token (SmolLM2 lacks some control characters) say nothing, but keep their neighbours apart.

    `tokenizers` would drop them before the merges and so join what stood on their two sides; llama.cpp does not.
    """
    missing = sorted(set(ByteLevel.alphabet()) - set(vocabulary.tokens))
    if not missing:
        return []
    pattern = "[" + "".join(f"\\x{{{ord(char):x}}}" for char in missing) + "]"
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": False}]
