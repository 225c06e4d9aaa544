"""The tokenizer files of a bundle: text to ids, special tokens, the chat template, which ids end a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import StrixhloError
from .chat import render_chat


@dataclass(frozen=True)
class BundleTokenizer:
    """A `tokenizers.Tokenizer` and what stands beside it in the bundle."""

    tokenizer: Tokenizer
    bos_token: str | None
    eos_token: str | None
    eos_ids: frozenset[int]
    chat_template: str | None

    @cached_property
    def longest_token(self) -> int:
        """The most characters of text that one id can stand for."""
        return max(map(len, self.tokenizer.get_vocab()))

    def encode(self, text: str) -> list[int]:
        """A plain prompt: the model's special tokens (BOS) are added where it wants them."""
        return self._ids(text, add_special_tokens=True)

    def chat_text(self, messages: Sequence[Mapping[str, Any]], answer: bool = True) -> str:
        """A conversation, by the chat template, which writes all special tokens itself. answer: up to where the next
        answer begins."""
        return render_chat(
            self.chat_template,
            messages,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
            add_generation_prompt=answer,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of a conversation."""
        return self.encode_rendered(self.chat_text(messages))

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of what a chat template wrote."""
        return self._ids(text, add_special_tokens=False)

    def id_of_text(self, text: str) -> int | None:
        """The one id whose text, alone, is this; None where there is none or more than one."""
        return self._ids_by_text.get(text)

    @cached_property
    def _ids_by_text(self) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for i in range(self.tokenizer.get_vocab_size()):
            text = self.tokenizer.decode([i], skip_special_tokens=False)
            found[text] = None if text in found else i
        return found

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise StrixhloError(f"the model's tokenizer cannot encode this text: {error}") from None

    def token(self, token_id: int) -> str:
        """How one id is written in the vocabulary."""
        return self.tokenizer.id_to_token(token_id) or f"<{token_id}>"


def load_tokenizer(folder: Path) -> BundleTokenizer:
    """Read a bundle's tokenizer files; StrixhloError names one that is missing or cannot be read."""
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise StrixhloError(f"{folder / 'tokenizer.json'}: cannot be read ({error}); export the bundle again") from None
    config = _json(folder / "tokenizer_config.json")
    eos = _json(folder / "generation_config.json").get("eos_token_id")
    template = folder / "chat_template.jinja"
    return BundleTokenizer(
        tokenizer,
        bos_token=_text(config.get("bos_token")),
        eos_token=_text(config.get("eos_token")),
        eos_ids=frozenset(i for i in (eos if isinstance(eos, list) else [eos]) if isinstance(i, int)),
        chat_template=_read(template) if template.is_file() else None,
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise StrixhloError(f"{path}: is not JSON ({error}); export the bundle again") from None
    if not isinstance(value, dict):
        raise StrixhloError(f"{path}: holds no JSON object; export the bundle again")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise StrixhloError(f"{path}: is not UTF-8 text; export the bundle again") from None


def _text(token: Any) -> str | None:
    """A token as tokenizer_config.json writes it: a string, or an object with its content."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
