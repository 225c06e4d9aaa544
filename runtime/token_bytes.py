"""What each token id stands for in bytes, so that texts can be compared where token boundaries differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from tokenizers import Tokenizer

from .detokenize import BYTE_TOKEN

OPAQUE = b"\xff\x01"  # before an id that stands for nothing but itself; a byte 0xff in a text is written ff 00


class CanonicalBytes(Sequence[bytes]):
    """id -> bytes. Equal concatenations are equal texts with equal special tokens.

    Special tokens, and every token of a tokenizer whose decoder is neither byte-level nor SentencePiece-like, are
    opaque: written as their id, so that no text can pass for them. Each is worked out when it is first asked for.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self._tokenizer, self._size = tokenizer, vocab_size
        decoder = repr(tokenizer.decoder) if tokenizer else ""
        self._byte_level, self._byte_fallback = "ByteLevel" in decoder, "ByteFallback" in decoder
        self._added = set(tokenizer.get_added_tokens_decoder()) if tokenizer else set()
        self._alphabet = _byte_level_alphabet()
        self._known: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, i: int) -> bytes: ...
    @overload
    def __getitem__(self, i: slice) -> list[bytes]: ...
    def __getitem__(self, i: int | slice) -> bytes | list[bytes]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._size))]
        if not 0 <= i < self._size:
            raise IndexError(i)
        known = self._known.get(i)
        if known is None:
            known = self._known[i] = self._work_out(i)
        return known

    def _work_out(self, i: int) -> bytes:
        text = None if self._tokenizer is None or i in self._added else self._tokenizer.id_to_token(i)
        if text is not None and self._byte_fallback:
            is_byte = BYTE_TOKEN.fullmatch(text)
            plain = bytes([int(text[3:5], 16)]) if is_byte else text.replace("▁", " ").encode()
        elif text is not None and self._byte_level and all(c in self._alphabet for c in text):
            plain = bytes(self._alphabet[c] for c in text)
        else:
            return OPAQUE + i.to_bytes(4, "little")
        return plain.replace(b"\xff", b"\xff\x00")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
