"""WMMA and dot products in kernels compiled from C, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from gfx1151_sim.assembler import compile_kernels
from gfx1151_sim.device import CodeObject, HipError

SOURCE = """
typedef _Float16 half16 __attribute__((ext_vector_type(16)));
typedef short short16 __attribute__((ext_vector_type(16)));
typedef float float8 __attribute__((ext_vector_type(8)));
typedef int int4_ __attribute__((ext_vector_type(4)));
typedef int int8_ __attribute__((ext_vector_type(8)));
typedef _Float16 half2_ __attribute__((ext_vector_type(2)));
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL __attribute__((amdgpu_kernel, amdgpu_flat_work_group_size(32, 32), visibility("default"))) void
#define TID __builtin_amdgcn_workitem_id_x()
#define STORE(D) for (int v = 0; v < 8; v++) c[(2 * v + (TID >> 4)) * 16 + (TID & 15)] = D[v]
KERNEL f16(const GLOBAL half16* a, const GLOBAL half16* b, GLOBAL float* c) {
  float8 D;
  for (int v = 0; v < 8; v++) D[v] = c[(2 * v + (TID >> 4)) * 16 + (TID & 15)];
  D = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a[TID & 15], b[TID & 15], D);
  STORE(D);
}
KERNEL not_replicated(const GLOBAL half16* a, const GLOBAL half16* b, GLOBAL float* c) {
  float8 D = {0};
  half16 A = a[TID & 15];
  A[3] += (_Float16)(TID >> 4);
  D = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(A, b[TID & 15], D);
  STORE(D);
}
KERNEL bf16(const GLOBAL short16* a, const GLOBAL short16* b, GLOBAL float* c) {
  float8 D = {0};
  D = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a[TID & 15], b[TID & 15], D);
  STORE(D);
}
KERNEL signed_unsigned(const GLOBAL int4_* a, const GLOBAL int4_* b, GLOBAL int* c) {
  int8_ D = {0};
  D = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(1, a[TID & 15], 0, b[TID & 15], D, 0);
  STORE(D);
}
KERNEL dot2(const GLOBAL half2_* a, const GLOBAL half2_* b, GLOBAL float* c) {
  c[TID] = __builtin_amdgcn_fdot2(a[TID], b[TID], c[TID], 0);
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> CodeObject:
    return CodeObject(compile_kernels(SOURCE, tmp_path_factory.mktemp("matrices") / "matrices.hsaco"))


def run(kernels: CodeObject, name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    out = c.copy()
    kernels.launch(name, [1], [32], [a, b, out])
    return out


def test_f16_accumulates(kernels: CodeObject) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    c = rng.standard_normal((16, 16)).astype(np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64).T + c
    np.testing.assert_allclose(run(kernels, "f16", a, b, c), expected, rtol=1e-6, atol=1e-6)


def test_bf16(kernels: CodeObject) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32).view(np.uint32) & 0xFFFF0000 for _ in range(2))
    expected = a.view(np.float32).astype(np.float64) @ b.view(np.float32).astype(np.float64).T
    packed = [(x >> 16).astype(np.uint16) for x in (a, b)]
    got = run(kernels, "bf16", packed[0], packed[1], np.zeros((16, 16), np.float32))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_signed_by_unsigned_bytes(kernels: CodeObject) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(-128, 128, (16, 16), np.int8), rng.integers(0, 256, (16, 16), np.uint8)
    got = run(kernels, "signed_unsigned", a, b, np.zeros((16, 16), np.int32))
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32).T)


def test_dot2(kernels: CodeObject) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((32, 2)).astype(np.float16) for _ in range(2))
    c = rng.standard_normal(32).astype(np.float32)
    expected = (a.astype(np.float64) * b).sum(axis=1) + c
    np.testing.assert_allclose(run(kernels, "dot2", a, b, c), expected, rtol=1e-6, atol=1e-6)


def test_factors_must_be_replicated(kernels: CodeObject) -> None:
    ones = np.ones((16, 16), np.float16)
    with pytest.raises(HipError, match="lanes 16 to 31 of factor A do not repeat"):
        run(kernels, "not_replicated", ones, ones, np.zeros((16, 16), np.float32))
