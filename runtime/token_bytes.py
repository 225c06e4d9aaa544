"""What each token id stands for in bytes, so that texts can be compared where token boundaries differ."""

from __future__ import annotations

from tokenizers import Tokenizer

from .detokenize import BYTE_TOKEN

OPAQUE = b"\xff\x01"  # before an id that stands for nothing but itself; a byte 0xff in a text is written ff 00


def canonical_bytes(tokenizer: Tokenizer | None, vocab_size: int) -> list[bytes]:
    """id -> bytes, [vocab_size]. Equal concatenations are equal texts with equal special tokens.

    Special tokens, and every token of a tokenizer whose decoder is neither byte-level nor SentencePiece-like, are
    opaque: written as their id, so that no text can pass for them.
    """
    opaque = [OPAQUE + i.to_bytes(4, "little") for i in range(vocab_size)]
    if tokenizer is None:
        return opaque
    decoder = repr(tokenizer.decoder)
    byte_level, byte_fallback = "ByteLevel" in decoder, "ByteFallback" in decoder
    if not byte_level and not byte_fallback:
        return opaque
    added = tokenizer.get_added_tokens_decoder()
    alphabet = _byte_level_alphabet()
    result = opaque
    for text, i in tokenizer.get_vocab(with_added_tokens=True).items():
        if i >= vocab_size or i in added:
            continue
        if byte_fallback:
            plain = bytes([int(text[3:5], 16)]) if BYTE_TOKEN.fullmatch(text) else text.replace("▁", " ").encode()
        elif all(c in alphabet for c in text):
            plain = bytes(alphabet[c] for c in text)
        else:
            continue
        result[i] = plain.replace(b"\xff", b"\xff\x00")
    return result


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
