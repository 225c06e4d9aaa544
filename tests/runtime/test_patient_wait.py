"""The policy of a thread that waits for IREE's workers."""

from __future__ import annotations

import os

import pytest

from strixhlo.runtime.patient_wait import patient_wait


def test_a_waiting_thread_preempts_nobody_and_is_as_before_afterwards() -> None:
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    with pytest.raises(KeyError), patient_wait():
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        with patient_wait():
            assert os.sched_getscheduler(0) == os.SCHED_BATCH
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        raise KeyError
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_system_without_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "SCHED_BATCH")
    with patient_wait():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
