"""The block pool: counts, the prefix cache, and matches by text where token boundaries differ."""

from __future__ import annotations

import random

from strixhlo.runtime.kv_cache import BlockPool
from strixhlo.runtime.token_bytes import CanonicalBytes

WORDS = [b"a", b"b", b"ab", b"ba", b"aa", b"\xff\x01\x05\x00\x00\x00"]


def fill(pool: BlockPool, ids: list[int]) -> list[int]:
    """Blocks of a sequence that holds these ids, all full ones registered."""
    size, chain, blocks = pool.block_size, None, []
    for start in range(0, len(ids), size):
        block = pool.allocate()
        assert block is not None
        blocks.append(block)
        piece = ids[start : start + size]
        if len(piece) == size:
            chain = pool.register([block], piece, chain)
    return blocks


def test_a_prompt_finds_its_full_blocks_and_never_its_last_token() -> None:
    pool = BlockPool(8, 2, WORDS)
    blocks = fill(pool, [0, 1, 0, 0, 1])
    pool.release(blocks)
    assert (pool.in_use, pool.cached, pool.available) == (0, 2, 8)
    match = pool.match([0, 1, 0, 0, 1], 100)
    assert (match.blocks, match.ids, match.replaced) == ((tuple(blocks[:2]),), (0, 1, 0, 0), 4)
    assert pool.in_use == 2
    assert pool.match([0, 1, 0, 0], 100).ids == (0, 1)
    assert pool.match([1, 1, 0, 0, 1], 100).ids == ()


def test_the_same_text_in_other_tokens_is_found() -> None:
    pool = BlockPool(8, 2, WORDS)
    pool.release(fill(pool, [2, 0, 1, 3]))  # ab a | b ba
    match = pool.match([0, 1, 2, 3, 4], 100)  # a b ab ba aa: the cached text ends before aa
    assert (match.ids, match.replaced) == ((2, 0, 1, 3), 4)
    assert pool.match([0, 1, 2, 3, 4], 4).ids == ()  # too long for the context


def test_special_tokens_are_not_text() -> None:
    pool = BlockPool(8, 1, WORDS)
    pool.release(fill(pool, [5]))
    assert pool.match([5, 0], 100).ids == (5,)
    plain = CanonicalBytes(None, 3)
    assert len(set(plain)) == 3


def test_the_oldest_unused_block_goes_first_and_children_before_parents() -> None:
    pool = BlockPool(3, 1, WORDS)
    pool.release(fill(pool, [0, 1]))
    pool.release(fill(pool, [3]))
    assert pool.allocate() is not None  # the block of [0, 1]'s end
    assert pool.match([0, 1, 0], 100).ids == (0,)
    assert pool.match([3, 0], 100).ids == (3,)
    assert pool.allocate() is None  # all three are in use


def test_accounts_balance_over_random_use() -> None:
    choose = random.Random(0)
    pool, held = BlockPool(16, 2, WORDS), []
    for _ in range(3000):
        if held and choose.random() < 0.5:
            pool.release(held.pop(choose.randrange(len(held))))
            continue
        ids = [choose.randrange(5) for _ in range(choose.randrange(1, 9))]
        match = pool.match(ids, 100)
        rest = -(-(len(match.ids) + len(ids) - match.replaced) // 2) - len(match.blocks[0])
        if pool.available < rest:
            pool.release(match.blocks[0])
            continue
        blocks, chain = list(match.blocks[0]), match.chain
        for _ in range(rest):
            block = pool.allocate()
            assert block is not None
            assert block not in blocks
            blocks.append(block)
            if choose.random() < 0.8:
                chain = pool.register([block], [choose.randrange(5), choose.randrange(5)], chain)
        held.append(blocks)
        assert pool.in_use == len({b for blocks in held for b in blocks})
    for blocks in held:
        pool.release(blocks)
    assert (pool.in_use, pool.available) == (0, 16)
