"""The blocks of a KV pool: reference counts, and a prefix cache over full blocks, least recently used first out.

A full block is known by a digest of all ids up to its end (its chain), and found by a digest of what they stand for
in bytes: a prompt that renders the same text with other token boundaries finds the blocks too, wherever a block of the
cached chain ends at a token boundary of the prompt. Blocks are shared, never written again once full; the part of a
prompt behind the last full block is computed anew, so no block is ever copied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any


@dataclass(frozen=True)
class CachedBlock:
    """A full block: its ids, and where it hangs in its chain (parent None: the first block)."""

    block: int
    ids: tuple[int, ...]
    parent: bytes | None
    state: Any  # hash state of the canonical bytes up to its end
    text: bytes  # its digest


@dataclass(frozen=True)
class Match:
    """A cached beginning of a prompt: its blocks (retained), its ids, and how many prompt ids they stand for."""

    blocks: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    replaced: int = 0
    chain: bytes | None = None


class BlockPool:
    """Which of `blocks` blocks are free, in use, or cached. Not thread-safe: one scheduler owns it."""

    def __init__(self, blocks: int, block_size: int, token_bytes: Sequence[bytes]) -> None:
        self.blocks, self.block_size = blocks, block_size
        self._token_bytes = token_bytes
        self._free = list(range(blocks - 1, -1, -1))
        self._uses = [0] * blocks
        self._chains: dict[bytes, CachedBlock] = {}
        self._texts: dict[bytes, bytes] = {}  # digest of text -> chain
        self._chain_of: dict[int, bytes] = {}  # block -> chain
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
        """Full blocks that a later prompt can find."""
        return len(self._chains)

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

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each; later blocks become older in the cache, since they need the earlier ones."""
        for block in reversed(blocks):
            self._uses[block] -= 1
            if self._uses[block] > 0:
                continue
            if block in self._chain_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def register(self, block: int, ids: Sequence[int], parent: bytes | None) -> bytes:
        """Make a block that is now full (`ids`: its own) known; returns its chain, the parent of the next."""
        chain = blake2b(b"".join(i.to_bytes(4, "little") for i in ids), key=parent or b"", digest_size=32).digest()
        before = self._chains.get(parent) if parent else None
        if chain not in self._chains and (parent is None or before is not None):
            state = self._text_after(before, ids)
            text = state.digest()
            self._chains[chain] = CachedBlock(block, tuple(ids), parent, state, text)
            self._texts[text] = chain
            self._chain_of[block] = chain
        return chain

    def match(self, prompt: Sequence[int], longest: int) -> Match:
        """The cached chain that covers most of prompt[:-1] and has at most `longest` ids; its blocks are retained."""
        best = Match()
        digests = self._text_digests(prompt[:-1])
        for end in range(len(digests), 0, -1):
            chain = self._texts.get(digests[end - 1])
            found = self._walk(chain) if chain is not None else None
            if found and len(found) * self.block_size + len(prompt) - end <= longest:
                ids = tuple(i for cached in found for i in cached.ids)
                best = Match(tuple(c.block for c in found), ids, end, chain)
                break
        for block in best.blocks:
            self._uses[block] += 1
            self._idle.pop(block, None)
        return best

    def _walk(self, chain: bytes | None) -> list[CachedBlock] | None:
        """The blocks from the first to `chain`; None where one is gone."""
        found: list[CachedBlock] = []
        while chain is not None:
            cached = self._chains.get(chain)
            if cached is None:
                return None
            found.append(cached)
            chain = cached.parent
        return found[::-1]

    def _text_after(self, parent: CachedBlock | None, ids: Sequence[int]) -> Any:
        """The hash state of all canonical bytes up to the end of a block; it does not see where tokens end."""
        state = parent.state.copy() if parent else blake2b(digest_size=32)
        state.update(b"".join(self._token_bytes[i] for i in ids))
        return state

    def _text_digests(self, ids: Sequence[int]) -> list[bytes]:
        """The digest of the text up to each id."""
        state, result = blake2b(digest_size=32), []
        for i in ids:
            state.update(self._token_bytes[i])
            result.append(state.digest())
        return result

    def _forget(self, block: int) -> None:
        chain = self._chain_of.pop(block)
        cached = self._chains.pop(chain)
        if self._texts.get(cached.text) == chain:
            del self._texts[cached.text]
