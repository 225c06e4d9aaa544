"""Waiting for IREE's workers without taking the core from the one that is about to finish.

IREE 3.13 wakes the waiting thread before the worker has written that it is done, and the waiter then spins until it
has. Where every core has a worker, Linux lets the woken thread preempt that very worker, so that the spin lasts until
the scheduler's slice ends: a millisecond a token. A thread of the policy SCHED_BATCH does not preempt when it wakes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def patient_wait() -> Iterator[None]:
    """The calling thread preempts nobody when it wakes up in here; where the system has no such policy, nothing
    changes."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    unchanged = os.sched_param(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, unchanged)
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, unchanged)
