"""Many sequences over a program's entry points: one chunk of one sequence, or one token of each of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .block_table import Blocks, batch_table
from .program import Program, Started
from .prompt_check import check_tokens


@dataclass(frozen=True)
class Step:
    """A decode call that the device may still be busy with. entry: what it calls; count: its rows that are used."""

    entry: str
    count: int
    started: Started

    def read(self) -> list[np.ndarray]:
        """What `BatchEngine.decode` gives."""
        return list(self.started.read()[: self.count])


class BatchEngine:
    """Holds the KV pools of one program. Which blocks belong to whom is the caller's matter."""

    def __init__(self, program: Program) -> None:
        self.program = program
        manifest = program.bundle.manifest
        entries = manifest.entry_points
        self._pools: list[Any] = program.new_pools()
        self._chunks = sorted((e.rows, name) for name, e in entries.items() if e.kind == "prefill")
        self._decodes = sorted((e.rows, name) for name, e in entries.items() if e.kind == "decode")
        self.decode_sizes = [rows for rows, _ in self._decodes]
        self.score_rows, self._score = next((e.rows, name) for name, e in entries.items() if e.kind == "score")
        self._embeds = [(e.rows, name) for name, e in entries.items() if e.kind == "embed"]
        self.block_size = program.kv_cache.block_size
        self.blocks = program.kv_cache.rows // self.block_size
        self.windows = program.kv_cache.windows
        self._table_width = program.kv_cache.blocks
        self.context = program.context
        self.vocab_size = manifest.vocab_size

    def close(self) -> None:
        """Let go of the device buffers."""
        self._pools.clear()

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """StrixhloError when these tokens cannot be a whole prompt; any thread may ask."""
        check_tokens(tokens, 0, self.context, self.vocab_size, self.program.bundle.manifest.context)

    def chunk_rows(self, left: int) -> int:
        """Rows of the chunk to use for `left` tokens: a larger one as soon as it is filled to more than 3/8."""
        best = self._chunks[0][0]
        for rows, _ in self._chunks:
            if left > rows * 3 // 8:
                best = rows
        return best

    def chunk_entry(self, tokens: int) -> str:
        """The entry that `prefill` calls for that many tokens."""
        rows = self.chunk_rows(tokens)
        return next(name for size, name in self._chunks if size == rows)

    def prefill(self, tokens: Sequence[int], start: int, blocks: Blocks, fetch: str | None = "logits") -> np.ndarray:
        """One chunk of a sequence, of at most chunk_rows tokens. blocks: of the sequence, for each group of layers; a
        negative one where a window has left it. fetch: what comes back of its last row, "logits"
        (float32 [vocabulary]) or "tokens" (int32 scalar, the largest logit's index; -1: none is finite); None of a
        chunk that is not the last: float32 [0], and the device may still be busy with it."""
        rows, name = self.chunk_rows(len(tokens)), self.chunk_entry(len(tokens))
        started = self._chunk(name, rows, tokens, start, blocks, fetch)
        return np.empty(0, np.float32) if fetch is None else np.asarray(started.read()[-1])

    def score(self, tokens: Sequence[int], start: int, blocks: Blocks) -> np.ndarray:
        """As `prefill`, of at most score_rows tokens; the logits of every row, float32 [len(tokens), vocabulary]."""
        return self._chunk(self._score, self.score_rows, tokens, start, blocks, "logits").read()[: len(tokens)]

    @property
    def embed_rows(self) -> int:
        """Tokens that `embed` takes at most; 0 where the model gives no embeddings."""
        return self._embeds[0][0] if self._embeds else 0

    def embed(self, tokens: Sequence[int], start: int, blocks: Blocks) -> np.ndarray:
        """As `prefill`, of at most embed_rows tokens; of the hidden states that the manifest's `pooling` is made of:
        the last, or the sum, float32 [hidden]."""
        rows, name = self._embeds[0]
        return self._chunk(name, rows, tokens, start, blocks, "embedding").read()[0]

    def _chunk(
        self, name: str, rows: int, tokens: Sequence[int], start: int, blocks: Blocks, fetch: str | None
    ) -> Started:
        padded = np.zeros(rows, np.int32)
        padded[: len(tokens)] = tokens
        where = (np.array([start], np.int32), np.array([len(tokens)], np.int32))
        arguments = (padded, *where, self._table(name, [blocks]))
        started = self.program.start(name, arguments, self._pools, fetch)
        self._pools = started.pools
        return started

    def decode(
        self, tokens: Sequence[int], positions: Sequence[int], blocks: Sequence[Blocks], fetch: str = "logits"
    ) -> list[np.ndarray]:
        """One token a row; for each what `prefill` gives. Larger batches go in several calls.

        Rows may be of one sequence, at its next positions in order: each sees those before it.
        """
        result: list[np.ndarray] = []
        while len(result) < len(tokens):
            part = slice(len(result), len(result) + self._decode_entry(len(tokens) - len(result))[0])
            result += self.start(tokens[part], positions[part], blocks[part], fetch).read()
        return result

    @property
    def queues(self) -> bool:
        """A step may be started before the last one is done: see `start`."""
        return self.program.queues

    def start(
        self, tokens: Sequence[int] | Step, positions: Sequence[int], blocks: Sequence[Blocks], fetch: str = "logits"
    ) -> Step:
        """One call of `decode`, of rows that one entry takes. tokens: also the step before, the last that was started:
        each row's token is then what the device has chosen in it, and nobody has to know it here."""
        rows, name = self._decode_entry(len(positions))
        where = np.full(rows, -1, np.int32)
        where[: len(positions)] = positions
        if isinstance(tokens, Step):
            if tokens.entry != name:
                raise ValueError(f"{tokens.entry} chose the tokens of another number of rows than {name} takes")
            ids = tokens.started.tokens
        else:
            ids = np.zeros(rows, np.int32)
            ids[: len(tokens)] = tokens
        arguments = (ids, where, self._table(name, blocks))
        started = self.program.start(name, arguments, self._pools, fetch)
        self._pools = started.pools
        return Step(name, len(positions), started)

    def decode_entries(self, sequences: int) -> list[str]:
        """The entries that one step of that many sequences calls."""
        names: list[str] = []
        while sequences > 0:
            rows, name = self._decode_entry(sequences)
            names.append(name)
            sequences -= rows
        return names

    def _decode_entry(self, left: int) -> tuple[int, str]:
        return next((d for d in self._decodes if d[0] >= left), self._decodes[-1])

    def read_blocks(self, blocks: Blocks) -> list[np.ndarray]:
        """A copy of these blocks of both pools, [groups * layers, positions, width] each; zeros where a block is gone,
        which only the first of a group are."""
        self.program.settle()
        found = []
        for spec, view in zip(self.program.kv_cache.pools(), self._pools, strict=True):
            groups = [self.program.device.read_rows(spec, view, self._rows(own)) for own in blocks]
            most = max(len(own) for own in blocks) * self.block_size
            found.append(np.concatenate([np.pad(g, ((0, 0), (most - g.shape[1], 0), (0, 0))) for g in groups]))
        return found

    def write_blocks(self, blocks: Blocks, values: Sequence[np.ndarray]) -> None:
        """Put back what `read_blocks` gave, but for what is gone now."""
        self.program.settle()
        layers = self.program.kv_cache.layers
        for i, spec in enumerate(self.program.kv_cache.pools()):
            for g, own in enumerate(blocks):
                rows = self._rows(own)
                group = values[i][g * layers : (g + 1) * layers]
                if rows.size:
                    self.program.device.write_rows(spec, self._pools, i, rows, group[:, group.shape[1] - rows.size :])

    def _rows(self, blocks: Sequence[int]) -> np.ndarray:
        first = np.array([b for b in blocks if b >= 0], np.int64)[:, None] * self.block_size
        return (first + np.arange(self.block_size)).reshape(-1)

    def _table(self, entry: str, blocks: Sequence[Blocks]) -> Any:
        """The block tables of a call, on the device."""
        spec = self.program.bundle.manifest.entry_points[entry].inputs[-3]
        key = tuple(tuple(own) for groups in blocks for own in groups)
        make = partial(batch_table, blocks, spec.shape[-2], len(self.windows), self._table_width)
        return self.program.tables.on_device(entry, spec, key, make)
