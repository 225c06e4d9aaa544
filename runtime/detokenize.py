"""Token ids -> text while they come: no broken characters, and stop strings over token boundaries.

`tokenizers`' own DecodeStream is not used: it has no end, so that text held back is lost, and with a byte-fallback
decoder it raises "Invalid prefix" or shows other text than the full decode when a later byte makes a run invalid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import Tokenizer

BROKEN = "\ufffd"  # how decoders render bytes that are not (yet) UTF-8
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class StreamingDetokenizer:
    """Emits text such that the pieces of `push` and `finish` together equal `tokenizer.decode` of all ids.

    Held back are bytes that do not end a character yet, and with a byte-fallback decoder the whole run of byte tokens:
    that decoder renders a run as characters only if all of it is valid UTF-8, which is known when the run has ended.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._skipped = {i for i, token in added.items() if token.special} if skip_special_tokens else set()
        self._byte_fallback = "ByteFallback" in repr(tokenizer.decoder)
        self._context: list[int] = []  # the tokens emitted last: they tell the decoder that the text has begun
        self._context_text = ""
        self._pending: list[int] = []  # tokens after them
        self._emitted = 0  # characters of the pending tokens' text that are out already

    def push(self, token: int) -> str:
        """The text that is certain after one more token; may be empty."""
        if token in self._skipped:
            return ""
        self._pending.append(token)
        if self._byte_fallback and BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token) or ""):
            return ""
        text = self._pending_text()
        certain = text.rstrip(BROKEN)
        piece = certain[self._emitted :]
        self._emitted = max(self._emitted, len(certain))
        if certain and len(certain) == len(text):
            self._settle()
        return piece

    def finish(self) -> str:
        """The rest, broken characters included. The detokenizer is then as new."""
        piece = self._pending_text()[self._emitted :] if self._pending else ""
        self._context, self._context_text, self._pending, self._emitted = [], "", [], 0
        return piece

    def _pending_text(self) -> str:
        window = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=False)
        return window[len(self._context_text) :]

    def _settle(self) -> None:
        """All pending text is out: the pending tokens become the context of the next."""
        self._context = self._pending
        self._context_text = self._tokenizer.decode(self._context, skip_special_tokens=False)
        self._pending, self._emitted = [], 0


class StopMatcher:
    """Passes text on until the first stop string, which it swallows together with all that follows.

    Of several the one that ends first counts (at a tie the longest), so that the result does not depend on how the
    text was cut into pieces. Held back is the longest end of the text that may be the beginning of a stop string.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> str:
        """The text that can be shown now; nothing after a match."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return text[:at]
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The held-back text, once no more comes."""
        held, self._held = self._held, ""
        return held

    def _possible_beginning(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
