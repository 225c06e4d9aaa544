"""Faults in kernels are found, and named so that one can find them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gfx1151_sim.assembler import assemble, compile_kernels
from gfx1151_sim.device import CodeObject, HipError
from gfx1151_sim.simulator import recording, set_options, using

SOURCE = """
#define GLOBAL __attribute__((address_space(1)))
#define LDS [[clang::loader_uninitialized]] static __attribute__((address_space(3)))
#define KERNEL(n) __attribute__((amdgpu_kernel, amdgpu_flat_work_group_size(n, n), visibility("default"))) void
#define TID __builtin_amdgcn_workitem_id_x()
#define GROUP __builtin_amdgcn_workgroup_id_x()
static inline void barrier(void) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
KERNEL(32) reads_past_end(const GLOBAL float* a, GLOBAL float* c) { c[TID] = a[TID + 1]; }
KERNEL(32) writes_before_start(const GLOBAL float* a, GLOBAL float* c) { c[(int)TID - 1] = a[TID]; }
KERNEL(32) misaligned(const GLOBAL char* a, GLOBAL float* c) { c[TID] = *(const GLOBAL float*)(a + 4 * TID + 2); }
KERNEL(64) reverses(const GLOBAL float* a, GLOBAL float* c) {
  LDS float s[64];
  s[TID] = a[TID];
  barrier();
  c[TID] = s[63 - TID];
}
KERNEL(64) reverses_without_barrier(const GLOBAL float* a, GLOBAL float* c) {
  LDS float s[64];
  s[TID] = a[TID];
  c[TID] = s[63 - TID];
}
KERNEL(64) overwrites_what_is_read(const GLOBAL float* a, GLOBAL float* c) {
  LDS float s[64];
  s[TID] = a[TID];
  barrier();
  c[TID] = s[63 - TID];
  s[TID] = c[TID];
}
KERNEL(32) leaves_lds(const GLOBAL float* a, GLOBAL float* c) {
  LDS float s[32];
  s[TID] = 0;
  volatile __attribute__((address_space(3))) float* p = s;
  p[TID + (int)a[0]] = 1;
  c[TID] = p[TID];
}
KERNEL(32) reads_other_group(const GLOBAL float* a, GLOBAL float* c) {
  if (GROUP == 0) c[TID] = a[TID];
  else c[32 + TID] = c[TID];
}
KERNEL(32) all_groups_write(const GLOBAL float* a, GLOBAL float* c) { c[TID] = a[TID] + GROUP; }
KERNEL(32) all_groups_write_the_same(const GLOBAL float* a, GLOBAL float* c) { c[TID] = a[TID]; }
KERNEL(64) waves_update_one_word(const GLOBAL float* a, GLOBAL float* c) {
  if ((TID & 31) == 0) c[0] = c[0] + a[TID];
}
KERNEL(64) waves_add_atomically(const GLOBAL int* a, GLOBAL int* c) {
  __scoped_atomic_fetch_add((GLOBAL int*)c, a[TID], __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
KERNEL(32) uninitialized_lds(const GLOBAL float* a, GLOBAL float* c) {
  LDS float s[32];
  if (a[TID] > 0) s[TID] = a[TID];
  c[TID] = s[TID];
}
KERNEL(32) endless(const GLOBAL float* a, GLOBAL float* c) {
  while (*(volatile GLOBAL float*)a >= 0) c[TID] = 1;
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> CodeObject:
    flags = ("-O2", "-std=c23")
    return CodeObject(compile_kernels(SOURCE, tmp_path_factory.mktemp("faults") / "faults.hsaco", flags))


def run(kernels: CodeObject, name: str, threads: int = 32, groups: int = 1, size: int = 32) -> np.ndarray:
    a = np.arange(size, dtype=np.float32)
    c = np.zeros(max(size, 32 * groups), np.float32)
    kernels.launch(name, [groups], [threads], [a, c])
    return c


FAULTS = {
    "reads_past_end": (32, 1, "loads 4 bytes .* outside every allocation; .* 128 bytes, the access is at byte 128"),
    "writes_before_start": (32, 1, "stores 4 bytes .* outside every allocation"),
    "misaligned": (32, 1, "misaligned: 4 bytes"),
    "reverses_without_barrier": (64, 1, "race: it stores LDS byte 128, which wave 0 used"),
    "overwrites_what_is_read": (64, 1, "race: it loads LDS byte 124, which wave 0 stored"),
    "reads_other_group": (32, 2, "race: it loads byte 0 .* wave 0 of workgroup 0 stored"),
    "all_groups_write": (32, 2, "race: it stores another value to byte 0"),
    "waves_update_one_word": (64, 1, "race: it loads byte 0 .* wave 0 of workgroup 0 stored"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named(name: str, kernels: CodeObject) -> None:
    threads, groups, message = FAULTS[name]
    with pytest.raises(HipError, match=f"kernel {name}, .* at code offset 0x.*{message}"):
        run(kernels, name, threads, groups, size=threads)


def test_lds_overrun(kernels: CodeObject) -> None:
    a, c = np.full(32, 200, np.float32), np.zeros(32, np.float32)
    with pytest.raises(HipError, match="LDS overrun: byte 800 of 128 in lane 0"):
        kernels.launch("leaves_lds", [1], [32], [a, c])


def test_correct_kernels_pass_in_every_order(kernels: CodeObject) -> None:
    for options in ({}, {"wave_order": 1}, {"turn": 3}, {"group_order": 2}):
        with using(**options):
            assert (run(kernels, "reverses", 64, size=64) == np.arange(64)[::-1]).all()
            assert (run(kernels, "all_groups_write_the_same", groups=5)[:32] == np.arange(32)).all()
            a, c = np.arange(64, dtype=np.int32), np.zeros(1, np.int32)
            kernels.launch("waves_add_atomically", [3], [64], [a, c])
            assert c[0] == 3 * a.sum()


def test_orders_show_what_races_do(kernels: CodeObject) -> None:
    """Without the detector, the order of waves decides the result."""
    results = []
    for order in (0, 1):
        with using(races=0, wave_order=order):
            results.append(run(kernels, "reverses_without_barrier", 64, size=64))
    assert results[0].tobytes() != results[1].tobytes()


def test_poison_shows_uninitialized_lds(kernels: CodeObject) -> None:
    results = []
    for poison in (0xFF, 0x5A):
        with using(poison=poison):
            results.append(run(kernels, "uninitialized_lds"))
    assert results[0].tobytes() != results[1].tobytes()


def test_endless_loop_ends(kernels: CodeObject) -> None:
    with using(most=10_000), pytest.raises(HipError, match="kernel endless: a wave ran 10000 instructions"):
        run(kernels, "endless")


def test_unknown_instruction(tmp_path: Path) -> None:
    code = CodeObject(assemble({"odd": "  .long 0xfedcba98\n  .long 0x12345678"}, tmp_path / "odd.hsaco"))
    a = np.zeros(32, np.float32)
    with pytest.raises(HipError, match=r"an unknown instruction at code offset 0x\d+, .*bytes fedcba98 12345678"):
        code.launch("odd", [1], [32], [a, a.copy()])


def test_errors_of_the_interface(kernels: CodeObject) -> None:
    a = np.zeros(32, np.float32)
    with pytest.raises(HipError, match="the code object has no kernel absent"):
        kernels.launch("absent", [1], [32], [a])
    with pytest.raises(HipError, match="reverses: grid 0x1x1"):
        kernels.launch("reverses", [0], [32], [a, a.copy()])
    with pytest.raises(HipError, match="needs 65792 bytes of LDS; there are 65536"):
        kernels.launch("reverses", [1], [64], [a, a.copy()], lds=65536)
    with pytest.raises(ValueError, match="no option speed"):
        set_options(speed=1)


def test_account(kernels: CodeObject) -> None:
    with recording() as account:
        run(kernels, "reverses", 64, size=64)
    (launch,) = account.launches
    assert (launch.kernel, launch.grid, launch.block, launch.lds_bytes) == ("reverses", (1, 1, 1), (64, 1, 1), 256)
    assert (launch.load_requested, launch.store_requested, launch.lds_moved) == (256, 256, 512)
    assert (launch.load_distinct, launch.store_distinct) == (256, 256)
    assert launch.instructions["barrier"] == 2 and launch.instructions["lds"] == 4
    assert launch.instructions["global_load"] == 2 and launch.instructions["global_store"] == 2
    assert account.copies == [256, 256]
