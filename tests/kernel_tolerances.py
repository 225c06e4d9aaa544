"""How far a kernel's result may be from its reference, by the type of the result: for the kernel tests of every target.

It follows from the arithmetic. Everything is summed in float32, in whatever order: sums of numbers of 24 bits stay well
under 1e-5. A result of 11 or 8 bits is off by half of its last one, 2^-12 or 2^-9 of its size at most, and an op of
several launches rounds what lies between them too.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

RELATIVE_L2 = {"f32": 1e-5, "f16": 4e-3, "bf16": 2e-2}
ARRAYS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def assert_near(got: np.ndarray, want: np.ndarray, dtype: str = "f32") -> None:
    """Of got, elements of `dtype`: infinity and NaN are where they are in want, and the rest is near it. want: exact,
    or float32."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(over="ignore"):
        finite = np.isfinite(want.astype(ARRAYS[dtype]))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isfinite(got), finite)
    error, size = np.linalg.norm(got[finite] - want[finite]), np.linalg.norm(want[finite])
    assert error <= RELATIVE_L2[dtype] * size, f"relative L2 {error / size:.2e}"
