"""Greedy tokens that the device chooses, in every size of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from strixhlo.bundle import Bundle
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program


def test_greedy_steps_fetch_the_argmax_of_the_logits(tiny: Bundle) -> None:
    with Program(tiny, "cpu", 1) as program:
        engine = Engine(program)
        token, tokens = int(engine.prefill([3, 1, 4]).argmax()), []
        for _ in range(6):
            tokens.append(token)
            token = engine.decode_greedy(token)
        engine.reset()
        assert tokens[0] == engine.prefill([3, 1, 4]).argmax()
        assert [int(engine.decode(t).argmax()) for t in tokens] == [*tokens[1:], token]
        engine.close()


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_a_row_does_not_depend_on_the_size_of_its_batch(tiny: Bundle, rows: int) -> None:
    with Program(tiny, "cpu", 1) as program:
        point = tiny.manifest.entry_points[f"decode_{rows}"]
        blocks = tiny.manifest.kv_cache.blocks
        pools = [program.device.empty(s) for s in point.inputs[-2:]]
        tables = np.zeros((rows, blocks), np.int32)
        tables[:, 0] = np.arange(rows)
        tokens, positions = np.arange(5, 5 + rows, dtype=np.int32), np.zeros(rows, np.int32)
        together, pools = program.call(point_name := f"decode_{rows}", (tokens, positions, tables), pools)
        best, pools = program.call(point_name, (tokens, positions, tables), pools, fetch="tokens")
        np.testing.assert_array_equal(best, together.argmax(axis=1))
        for r in range(rows):
            alone, pools = program.call("decode_1", (tokens[r : r + 1], positions[:1], tables[r : r + 1]), pools)
            np.testing.assert_array_equal(alone[0], together[r])
        positions[1:] = -1  # padding
        partly, pools = program.call(point_name, (tokens, positions, tables), pools)
        np.testing.assert_array_equal(partly[0], together[0])
        del pools
