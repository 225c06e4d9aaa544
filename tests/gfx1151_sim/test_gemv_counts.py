"""What one row's matmul asks for and spends, by the simulator's counts: each weight byte once, few operations."""

from __future__ import annotations

import numpy as np
import pytest

from gfx1151_sim.device import CodeObject
from gfx1151_sim.kernel_machine import AFFINE, kernels_of, relatives
from gfx1151_sim.simulator import recording
from strixhlo.custom_kernels.gpu.kernels import DENSE, build_hsaco
from strixhlo.custom_kernels.gpu.launches import dense_matmul_launches, quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.formats_affine import AFFINE_FORMATS
from strixhlo.custom_kernels.ops.launch import Launch

N, K = 320, 2048
NAMES = (*(name for name in FORMATS if name not in AFFINE_FORMATS), *AFFINE, *DENSE)
FOUR_BITS = {"mxfp4", "nvfp4", "q4_0", "q4_1", "q4_k", *(name for name in AFFINE if name.startswith("affine4"))}
BYTES = {"f32": 4, "f16": 2, "bf16": 2}
# At 212 GB/s the chip has about 17 for a weight of 4 bits.
MOST_OPERATIONS = 8


def launch_and_sizes(name: str) -> tuple[Launch, dict[str, int]]:
    """The launch for one row of x, and the bytes of each input."""
    if name in DENSE:
        (launch,) = dense_matmul_launches(name, 1, N, K) or ()
        return launch, {"w": N * K * BYTES[name]}
    fmt, _, dtypes = name.partition("_g") if name.startswith("affine") else (name, "", "")
    group, *kinds = dtypes.split("_")
    found = FORMATS[f"{fmt}_g{group}" if group else fmt]
    (launch,) = quantized_matmul_launches(found, 1, N, K, tuple(kinds))
    sizes = {part: int(np.prod(shape)) * dtype.itemsize for part, (shape, dtype) in found.parts(N, K).items()}
    if kinds:  # `parts` says the shape of these, the checkpoint their type
        shapes = found.parts(N, K)
        sizes |= {p: int(np.prod(shapes[p][0])) * BYTES[kind] for p, kind in zip(("scale", "bias"), kinds, strict=True)}
    return launch, sizes


@pytest.mark.parametrize("name", NAMES)
def test_gemv(name: str) -> None:
    launch, sizes = launch_and_sizes(name)
    assert relatives(launch.symbol) == name
    arrays = [np.zeros(sizes.get(part, 4 * K), np.uint8) for part in launch.inputs]
    code = CodeObject(build_hsaco("gfx1151", kernels_of(name)))
    with recording() as account:
        y = np.full(N, np.nan, np.float32)
        code.launch(launch.symbol, [launch.workgroups], [launch.threads], [*arrays, y, *launch.scalars])
    code.close()
    assert not y.any()
    (done,) = account.launches
    weights, x = sum(sizes.values()), launch.workgroups * 4 * K  # each workgroup asks for x once
    assert weights <= done.load_requested - x <= 1.05 * weights
    assert done.load_distinct <= weights + 4 * K + 64 * len(arrays)
    count = done.instructions
    operations = 32 * (count["vector"] + 2 * count["pair"] + count["dot"] + count["transcendental"]) / (N * K)
    assert operations > 1  # a multiplication and an addition cannot be less
    assert operations <= MOST_OPERATIONS or name not in FOUR_BITS
