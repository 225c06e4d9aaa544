"""Machines that run one GPU kernel: the CPU and the simulated gfx1151 always, a real NVIDIA GPU when it is there.

- host: the kernels' own x86-64 build, threads in two orders, which must agree bit for bit;
- gfx1151: the HSACO in the simulator of tests/gfx1151_sim, waves in several orders;
- cuda: an NVIDIA GPU, in two steps (tests/cuda_kit): where STRIXHLO_CUDA_KIT names a folder, launches are run on the
  host and written there; where STRIXHLO_TEST_CUDA names one, its results from the GPU are what the tests get.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from cuda_kit.recording import NVIDIA, RECORD, REPLAY, recording, replaying
from gfx1151_sim.kernel_machine import gfx1151
from host_kernels import ITEM, Machine, RunLaunches, host, runner

MACHINES = [*NVIDIA, "gfx1151"]


@cache
def gfx1151_machine() -> Machine:
    """The simulator."""
    return gfx1151()


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    """Where the kernels run."""
    return str(request.param)


def on_machine(name: str, test: str) -> RunLaunches:
    """`runner` on a machine; on an NVIDIA GPU what a test's kit says of it."""
    if name == "gfx1151":
        return runner(gfx1151_machine())
    if name == "cuda" and REPLAY:
        return replaying(Path(REPLAY), test, ITEM)
    return recording(Path(str(RECORD)), test, runner(host())) if name == "cuda" else runner(host())


@pytest.fixture
def run_launches(request: pytest.FixtureRequest, machine: str) -> RunLaunches:
    """`runner` on each machine."""
    return on_machine(machine, request.node.nodeid)


@pytest.fixture(params=["host", "gfx1151"])
def run_amd_launches(request: pytest.FixtureRequest) -> RunLaunches:
    """`runner` on those that have kernels which no NVIDIA GPU's local memory holds."""
    return on_machine(request.param, request.node.nodeid)


@pytest.fixture(params=NVIDIA)
def run_nvidia_launches(request: pytest.FixtureRequest) -> RunLaunches:
    """`runner` on those that have NVIDIA's kernels."""
    return on_machine(request.param, request.node.nodeid)
