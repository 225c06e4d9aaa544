"""The blocks of a KV pool: reference counts, and a prefix cache over full blocks, least recently used first out.

A span is `block_size` positions of a sequence that are full: one block for each group of layers. It is known by a
digest of all ids up to its end (its key), and found by a digest of what they stand for in bytes: a prompt that renders
the same text with other token boundaries finds it too, wherever a cached span ends at a token boundary of the prompt.
Blocks are shared, never written again once full; the part of a prompt behind the last full span is computed anew, so no
block is ever copied.

Layers with a window do not see all of a prompt: of their groups it needs only the blocks inside the window that ends
with it. Blocks that have left the window are released, stay findable, and are the first to be used again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

GONE = -1  # in the place of a block: nobody sees it any more


@dataclass(eq=False)
class CachedSpan:
    """Full blocks of the same positions: their ids, and what comes before them (parent None: nothing)."""

    blocks: list[int]  # one for each group of layers; GONE where it was used again
    ids: tuple[int, ...]
    parent: CachedSpan | None
    key: bytes
    state: Any  # hash state of the canonical bytes up to its end
    text: bytes  # its digest


@dataclass(frozen=True)
class Match:
    """A cached beginning of a prompt: of each group the blocks (retained, GONE before the window), its ids, and how
    many prompt ids they stand for."""

    blocks: tuple[tuple[int, ...], ...]
    ids: tuple[int, ...] = ()
    replaced: int = 0
    chain: CachedSpan | None = None


class BlockPool:
    """Which of `blocks` blocks are free, in use, or cached. Not thread-safe: one scheduler owns it."""

    def __init__(
        self, blocks: int, block_size: int, token_bytes: Sequence[bytes], windows: Sequence[int] = (0,)
    ) -> None:
        """windows: of each group of layers, the positions that they see, 0: all."""
        self.blocks, self.block_size, self.windows = blocks, block_size, tuple(windows)
        self._token_bytes = token_bytes
        self._free = list(range(blocks - 1, -1, -1))
        self._uses = [0] * blocks
        self._spans: dict[bytes, CachedSpan] = {}
        self._texts: dict[bytes, bytes] = {}  # digest of text -> key
        self._owner: dict[int, tuple[CachedSpan, int]] = {}  # block -> its span, its group
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks that nobody uses, oldest first

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or cached and unused."""
        return len(self._free) + len(self._idle)

    @property
    def in_use(self) -> int:
        """Blocks that sequences hold."""
        return self.blocks - self.available

    @property
    def cached(self) -> int:
        """Spans that a later prompt can find."""
        return len(self._spans)

    def first_seen(self, window: int, position: int) -> int:
        """The first block that a row at `position` sees, of layers with that window."""
        return max(0, (position - window + 1) // self.block_size) if window else 0

    def needed(self, length: int) -> int:
        """Blocks that a sequence of that length holds when its next token is computed."""
        return sum(length // self.block_size + 1 - self.first_seen(w, length) for w in self.windows)

    def allocate(self) -> int | None:
        """A block for one user, the oldest cached one if none is free; None when all are in use."""
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        else:
            return None
        self._uses[block] = 1
        return block

    def allocate_prefix(self, spans: int) -> list[list[int]]:
        """Of each group the blocks that a prefix of so many spans needs, GONE before a window; fewer spans where not so
        many are available, none at all where there are windows, for which a shorter prefix would need other blocks."""
        firsts = [self._first(w, spans) for w in self.windows]
        if any(self.windows):
            spans = spans if sum(spans - first for first in firsts) <= self.available else 0
        else:
            spans = min(spans, self.available // len(self.windows))
        blocks = [[GONE] * min(first, spans) for first in firsts]
        for own in blocks:
            while len(own) < spans and (block := self.allocate()) is not None:
                own.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each; later blocks become older in the cache, since they need the earlier ones."""
        for block in reversed(blocks):
            if block == GONE:
                continue
            self._uses[block] -= 1
            if self._uses[block] > 0:
                continue
            if block in self._owner:
                self._idle[block] = None
            else:
                self._free.append(block)

    def register(self, blocks: Sequence[int], ids: Sequence[int], parent: CachedSpan | None) -> CachedSpan:
        """Make positions known that are now full: of each group the block, their own ids, what is before them. Returns
        the span, the parent of the next."""
        chain = parent.key if parent else b""
        key = blake2b(b"".join(i.to_bytes(4, "little") for i in ids), key=chain, digest_size=32).digest()
        span = self._spans.get(key)
        if span is None:
            state = self._text_after(parent, ids)
            span = CachedSpan([GONE] * len(blocks), tuple(ids), parent, key, state, state.digest())
        for group, block in enumerate(blocks):
            if span.blocks[group] == GONE and block != GONE:
                span.blocks[group] = block
                self._owner[block] = span, group
                self._spans[key] = span
                self._texts[span.text] = key
        return span

    def match(self, prompt: Sequence[int], longest: int, digests: Sequence[bytes] | None = None) -> Match:
        """The cached chain that covers most of prompt[:-1] and has at most `longest` ids; its blocks are retained.
        digests: `text_digests(prompt[:-1])`, where they are known."""
        digests = self.text_digests(prompt[:-1]) if digests is None else digests
        for end in range(len(digests), 0, -1):
            key = self._texts.get(digests[end - 1])
            found = self._walk(self._spans[key]) if key is not None else []
            if found and len(found) * self.block_size + len(prompt) - end <= longest:
                blocks = self._seen_blocks(found)
                if any(GONE in own[self._first(w, len(found)) :] for own, w in zip(blocks, self.windows, strict=True)):
                    continue
                self._retain(blocks)
                return Match(blocks, tuple(i for span in found for i in span.ids), end, found[-1])
        return Match(((),) * len(self.windows))

    def _first(self, window: int, spans: int) -> int:
        return self.first_seen(window, spans * self.block_size)

    def _seen_blocks(self, spans: Sequence[CachedSpan]) -> tuple[tuple[int, ...], ...]:
        """Of each group the blocks, GONE for those before the window of the position behind the spans."""
        return tuple(
            tuple(span.blocks[g] if i >= self._first(w, len(spans)) else GONE for i, span in enumerate(spans))
            for g, w in enumerate(self.windows)
        )

    def _retain(self, blocks: Sequence[Sequence[int]]) -> None:
        for block in (b for own in blocks for b in own if b != GONE):
            self._uses[block] += 1
            self._idle.pop(block, None)

    def _walk(self, span: CachedSpan) -> list[CachedSpan]:
        """The spans from the first to this one, each as it is known now."""
        found: list[CachedSpan] = []
        at: CachedSpan | None = span
        while at is not None:
            found.append(self._spans.get(at.key, at))
            at = at.parent
        return found[::-1]

    def _text_after(self, parent: CachedSpan | None, ids: Sequence[int]) -> Any:
        """The hash state of all canonical bytes up to the end of a span; it does not see where tokens end."""
        state = parent.state.copy() if parent else blake2b(digest_size=32)
        state.update(b"".join(self._token_bytes[i] for i in ids))
        return state

    def text_digests(self, ids: Sequence[int]) -> list[bytes]:
        """The digest of the text up to each id."""
        state, result = blake2b(digest_size=32), []
        for i in ids:
            state.update(self._token_bytes[i])
            result.append(state.digest())
        return result

    def _forget(self, block: int) -> None:
        """A cached block is used again: without a window, or without any other block, its span is lost."""
        span, group = self._owner.pop(block)
        span.blocks[group] = GONE
        if self.windows[group] and any(b != GONE for b in span.blocks):
            return
        del self._spans[span.key]
        if self._texts.get(span.text) == span.key:
            del self._texts[span.text]
        for other in (b for b in span.blocks if b != GONE):
            del self._owner[other]
            if other in self._idle:
                del self._idle[other]
                self._free.append(other)
        span.blocks = [GONE] * len(span.blocks)
