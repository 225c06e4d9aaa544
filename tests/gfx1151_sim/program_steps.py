"""A compiled program run for a prompt and some decode steps, and what must hold whatever the model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gfx1151_sim.simulator import Account, recording, using
from strixhlo.bundle import Bundle
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.program import Program


@dataclass(frozen=True)
class Run:
    """Prefill and decode steps: logits after each, and the account of each."""

    logits: list[np.ndarray]
    accounts: list[Account]

    @property
    def tokens(self) -> list[int]:
        return [int(x.argmax()) for x in self.logits]


def prefill_and_decode(bundle: Bundle, target: str, prompt: Sequence[int], following: Sequence[int]) -> Run:
    logits, accounts = [], []
    with Program(bundle, target, 1) as program:
        engine = Engine(program)
        for token in (None, *following):
            with recording() as account:
                logits.append(engine.prefill(list(prompt)) if token is None else engine.decode(token))
            accounts.append(account)
        engine.close()
    return Run(logits, accounts)


def same_logits_and_tokens(got: Run, want: Run) -> None:
    """As the CPU's, of a model that does not say one thing only."""
    for ours, theirs in zip(got.logits, want.logits, strict=True):
        assert np.linalg.norm(ours - theirs) < 2e-3 * np.linalg.norm(theirs)
    assert got.tokens == want.tokens
    assert len(set(got.tokens)) > 1, "a model that says one thing proves little"


def other_orders_and_poison_change_nothing(
    bundle: Bundle, simulated: Run, prompt: Sequence[int], following: Sequence[int]
) -> None:
    for options in ({"wave_order": 1, "group_order": 2, "poison": 0x5A}, {"turn": 7, "group_order": 1, "poison": 0}):
        with using(**options):
            again = prefill_and_decode(bundle, "rocm", prompt, following)
        for got, want in zip(again.logits, simulated.logits, strict=True):
            assert got.tobytes() == want.tobytes(), options


def nothing_uninitialized_is_read(simulated: Run) -> None:
    launches = [launch for account in simulated.accounts for launch in account.launches]
    assert not {launch.uninitialized for launch in launches if launch.uninitialized_bytes}


def kv_cache_is_updated_in_place(bundle: Bundle, simulated: Run, q: int, vocabulary: int) -> None:
    """A decoded token copies its inputs and logits, and never a pool; appended rows are all that is written there.

    Two layers and float16 pools; q: bytes of a layer's queries.
    """
    pools = [spec for spec in next(iter(bundle.manifest.entry_points.values())).inputs if "pool" in spec.name]
    assert len(pools) == 2
    row = 2 * pools[0].shape[-1]
    for account in simulated.accounts[1:]:
        assert sum(account.copies) < 8 * vocabulary + 4096
        appends = [launch for launch in account.launches if "rope_and_append" in launch.kernel]
        assert sum(launch.store_requested for launch in appends) == 2 * (q + 2 * row)  # q, keys, values of two layers
