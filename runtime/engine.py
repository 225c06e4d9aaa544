"""One sequence over a program's entry points: prefill in chunks, decode one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .block_table import own_table
from .program import Program
from .prompt_check import check_tokens
from .sampling import broken_logits


class Engine:
    """Holds the KV pools of one program, and how many positions of them one sequence has filled."""

    def __init__(self, program: Program) -> None:
        self.program = program
        manifest = program.bundle.manifest
        entries = manifest.entry_points
        self._pools: list[Any] = program.new_pools()
        self._chunks = sorted((e.rows, name) for name, e in entries.items() if e.kind == "prefill")
        self._score = next(name for name, e in entries.items() if e.kind == "score")
        self.context = program.context
        self.vocab_size = manifest.vocab_size
        self.length = 0
        self.block_table = own_table(program.kv_cache, self.context)  # sent to the device at the first call

    def close(self) -> None:
        """Let go of the device buffers."""
        self._pools.clear()

    def reset(self) -> None:
        """Forget the sequence."""
        self.length = 0

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens; returns the logits after the last one, float32 [vocabulary]."""
        self._check(tokens)
        logits = np.empty(0, np.float32)
        position = 0
        while position < len(tokens):
            rows, entry = self._chunk(len(tokens) - position)
            piece = tokens[position : position + rows]
            logits = self._call_chunk(entry, rows, piece)[0]
            position += len(piece)
        return logits

    def score(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens; returns the logits after every one, float32 [len(tokens), vocabulary]."""
        self._check(tokens)
        rows = self.program.bundle.manifest.entry_points[self._score].rows
        pieces = [tokens[i : i + rows] for i in range(0, len(tokens), rows)]
        return np.concatenate([self._call_chunk(self._score, rows, piece)[: len(piece)] for piece in pieces])

    def decode(self, token: int) -> np.ndarray:
        """Append one token; returns the logits after it, float32 [vocabulary]."""
        self._check([token])
        host = (np.array([token], np.int32), np.array([self.length], np.int32), self._table("decode_1"))
        logits, self._pools = self.program.call("decode_1", host, self._pools)
        self.length += 1
        return np.asarray(logits[0])

    def decode_greedy(self, token: int) -> int:
        """Append one token; returns the id of the largest logit after it, chosen on the device, so that 4 bytes come
        back. StrixhloError where there is none, as `sampling.sample` has it."""
        self._check([token])
        host = (np.array([token], np.int32), np.array([self.length], np.int32), self._table("decode_1"))
        best, self._pools = self.program.call("decode_1", host, self._pools, fetch="tokens")
        self.length += 1
        if best[0] < 0:
            raise broken_logits("the logits have no largest finite value")
        return int(best[0])

    def _chunk(self, left: int) -> tuple[int, str]:
        """The chunk to use for `left` tokens: a larger one as soon as it is filled to more than three eighths."""
        best = self._chunks[0]
        for rows, name in self._chunks:
            if left > rows * 3 // 8:
                best = (rows, name)
        return best

    def _call_chunk(self, entry: str, rows: int, piece: Sequence[int]) -> np.ndarray:
        tokens = np.zeros(rows, np.int32)
        tokens[: len(piece)] = piece
        start, count = np.array([self.length], np.int32), np.array([len(piece)], np.int32)
        logits, self._pools = self.program.call(entry, (tokens, start, count, self._table(entry)), self._pools)
        self.length += len(piece)
        return logits

    def _table(self, entry: str) -> Any:
        """The block table, on the device."""
        spec = self.program.bundle.manifest.entry_points[entry].inputs[-3]
        return self.program.tables.on_device(entry, spec, None, lambda: self.block_table)

    def _check(self, tokens: Sequence[int]) -> None:
        exported = self.program.bundle.manifest.context
        check_tokens(tokens, self.length, self.context, self.vocab_size, exported)
