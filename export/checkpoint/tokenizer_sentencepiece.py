"""A SentencePiece BPE vocabulary (tokenizer.ggml.model "llama") -> the parts of a tokenizer.json.

SentencePiece has scores where `tokenizers` has merges: of all neighbours whose join is a token, it joins those with the
highest score first, the leftmost of equals. A token comes about in one way only, whatever is around it: as long as
nothing joins across its borders, its characters are joined as if they stood alone. So one merge a token, the last one
of joining its characters, ranked by score, says the same as the scores; others could never apply. (Two different tokens
of equal score are ranked by id, not by place. Scores are ranks in practice: Gemma's are all distinct.)
"""

from __future__ import annotations

from typing import Any

from .gguf_vocabulary import BYTE, Vocabulary

SPACE = "▁"


def sentencepiece_parts(vocabulary: Vocabulary) -> dict[str, Any]:
    """`normalizer`, `pre_tokenizer`, `decoder` and `model` of tokenizer.json."""
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.add_space_prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = vocabulary.unknown
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": None if unknown is None else vocabulary.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: i for i, token in enumerate(vocabulary.tokens)},
            "merges": merges_of_scores(vocabulary),
        },
    }


def merges_of_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merge that makes each token, best score first (ids decide between equals)."""
    scores = vocabulary.scores.tolist()
    score_of = dict(zip(vocabulary.tokens, scores, strict=True))
    ranked: list[tuple[float, int, str, str]] = []
    for i, token in enumerate(vocabulary.tokens):
        if len(token) < 2 or " " in token or vocabulary.types[i] == BYTE:
            continue  # no join: a character, a byte, or text that the normalizer leaves no blanks in
        pair = _last_join(token, score_of)
        if pair is not None and pair[0] in score_of and pair[1] in score_of:
            ranked.append((-scores[i], i, *pair))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _last_join(token: str, score_of: dict[str, float]) -> tuple[str, str] | None:
    """The two parts that become `token` when its characters are joined by score; None if they end up otherwise."""
    symbols = list(token)
    while len(symbols) > 2:
        best, at = float("-inf"), -1
        for i in range(len(symbols) - 1):
            score = score_of.get(symbols[i] + symbols[i + 1])
            if score is not None and (score > best or at < 0):
                best, at = score, i
        if at < 0:
            return None
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return symbols[0], symbols[1]
