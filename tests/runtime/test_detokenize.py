"""Streaming detokenization against the full decode, and stop strings against a naive search."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from strixhlo.runtime.detokenize import StopMatcher, StreamingDetokenizer

TEXT = [
    "It was the best of times, it was the worst of times; the café was naïve.",
    "def f(x):\n    return x ** 2  # 数学 😀 👩‍👩‍👧 и так далее",
    "    runs   of    blanks\t\tand tabs\r\n",
]


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE, as SmolLM2, Llama 3 and GPT-2 have: any bytes can come in any order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"]
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def byte_fallback_tokenizer(strip_first_blank: bool) -> Tokenizer:
    """SentencePiece-like BPE, as Llama 2 (strips the first blank) and Gemma (does not): unknown characters as bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += sorted({c for line in TEXT for c in line if c.isascii() and c != " "} | {"▁", "é"})
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "n"), ("▁", "▁"), ("▁▁", "▁▁")]
    pieces += [a + b for a, b in merges]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*chain, decoders.Strip(" ", 1, 0)] if strip_first_blank else chain)
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    return tokenizer


TOKENIZERS = {
    "byte-level": byte_level_tokenizer(),
    "byte-fallback": byte_fallback_tokenizer(strip_first_blank=False),
    "byte-fallback, first blank stripped": byte_fallback_tokenizer(strip_first_blank=True),
}


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    stream = StreamingDetokenizer(tokenizer, skip_special_tokens)
    return [*(stream.push(i) for i in ids), stream.finish()]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=400, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_pieces_add_up_to_the_full_decode(name: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]
    size = tokenizer.get_vocab_size()
    high_bytes = [i for i in range(size) if (tokenizer.id_to_token(i) or "")[:4] in ("<0xE", "<0xF", "<0x9", "â", "ð")]
    token = st.integers(0, size - 1) | st.sampled_from(high_bytes or [0])
    ids = data.draw(st.lists(token, max_size=40))
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_encoded_text_never_shows_broken_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_is_shown_as_soon_as_it_is_certain(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("the time, the times", add_special_tokens=False).ids
    pieces = streamed(tokenizer, ids)
    assert pieces[-1] == ""
    assert all(pieces[1:-1])


def test_a_character_comes_out_with_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("a\u4e00", add_special_tokens=False).ids  # not in the training text: three byte tokens
    assert streamed(tokenizer, ids) == ["a", "", "", "\u4e00", ""]


def test_text_before_broken_bytes_is_not_held_back() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    broken = tokenizer.token_to_id("ÿ")  # byte 0xFF, never part of UTF-8
    assert streamed(tokenizer, [broken, tokenizer.token_to_id("a"), broken]) == ["", "\ufffda", "", "\ufffd"]


def test_a_byte_run_is_judged_as_a_whole() -> None:
    tokenizer = TOKENIZERS["byte-fallback"]
    ids = [tokenizer.token_to_id(f"<0x{b:02X}>") for b in (0xE6, 0x95, 0xB0)]
    t = tokenizer.token_to_id("t")
    assert streamed(tokenizer, [*ids, t]) == ["", "", "", "数t", ""]
    assert streamed(tokenizer, [*ids, ids[0], t]) == ["", "", "", "", "\ufffd\ufffd\ufffd\ufffdt", ""]


def test_a_detokenizer_can_be_used_again() -> None:
    tokenizer = TOKENIZERS["byte-fallback, first blank stripped"]
    ids = tokenizer.encode(" the time", add_special_tokens=False).ids
    stream = StreamingDetokenizer(tokenizer)
    texts = ["".join([*map(stream.push, ids), stream.finish()]) for _ in range(2)]
    assert texts == ["the time", "the time"]


def naive_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """(text before the stop string that ends first, that string)."""
    for end in range(len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


letters = st.text("ab\n", max_size=4)


@settings(max_examples=1000, deadline=None)
@given(pieces=st.lists(letters, max_size=12), stops=st.lists(letters.filter(bool), max_size=4))
def test_stop_matcher_equals_a_naive_search(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    text, shown = "".join(pieces), ""
    expected, matched = naive_stop(text, stops)
    seen = ""
    for piece in pieces:
        seen += piece
        shown += matcher.push(piece)
        assert expected.startswith(shown)
        if matcher.matched is None:  # what is held back could indeed become a stop string
            held = seen[len(shown) :]
            assert not held or any(s.startswith(held) and s != held for s in stops)
    shown += matcher.finish()
    assert (shown, matcher.matched) == (expected, matched)


def test_stop_matcher_over_token_boundaries() -> None:
    matcher = StopMatcher(["<|end|>", "\n\n"])
    assert [matcher.push(piece) for piece in ["Hi<", "b", "\n", "x<|e", "nd|> gone", "gone"]] == [
        "Hi", "<b", "", "\nx", "", "",
    ]  # fmt: skip
    assert matcher.matched == "<|end|>"
    assert matcher.finish() == ""
