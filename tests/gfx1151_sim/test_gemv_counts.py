"""What one row's matmul asks for and spends, by the simulator's counts: each weight byte once, few operations."""

from __future__ import annotations

import numpy as np
import pytest

from gfx1151_sim.device import CodeObject
from gfx1151_sim.kernel_machine import AFFINE, FUSED, kernels_of, relatives
from gfx1151_sim.simulator import Launch as Done
from gfx1151_sim.simulator import recording
from strixhlo.compile.hsaco import code_objects, kernels
from strixhlo.custom_kernels.gpu.fused_launches import fused_matmul
from strixhlo.custom_kernels.gpu.kernels import DENSE, GEMV_ROWS, build_hsaco
from strixhlo.custom_kernels.gpu.launches import GFX1151, dense_matmul_launches, quantized_matmul_launches
from strixhlo.custom_kernels.gpu.moe_pairs_launches import moe_gate_up
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.custom_kernels.ops.formats_affine import AFFINE_FORMATS
from strixhlo.custom_kernels.ops.fused_matmul import Form
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
    assert operations(done, N * K) > 1  # a multiplication and an addition cannot be less
    assert operations(done, N * K) <= MOST_OPERATIONS or name not in FOUR_BITS


def operations(done: Done, weights: int) -> float:
    """Of a lane for a weight."""
    count = done.instructions
    return 32 * (count["vector"] + 2 * count["pair"] + count["dot"] + count["transcendental"]) / weights


def launched(launch: Launch, sizes: dict[str, int]) -> Done:
    """A launch whose buffers hold zeros, but for lists of experts, which are counted up."""
    buffers = [np.zeros(sizes[name], np.uint8) for name in launch.inputs]
    for name, buffer in zip(launch.inputs, buffers, strict=True):
        if name == "expert":
            buffer.view(np.int32)[:] = np.arange(buffer.size // 4)
    fresh = [np.zeros(4 * int(np.prod(o.shape)), np.uint8) for o in launch.outputs if not o.updates]
    code = CodeObject(build_hsaco("gfx1151", [launch.symbol]))
    with recording() as account:
        code.launch(launch.symbol, [launch.workgroups], [launch.threads], [*buffers, *fresh, *launch.scalars])
    code.close()
    (done,) = account.launches
    return done


# As a decode step of a dense model has them: weights of one format and their rows, and what is around them.
STEP = {
    "norm, q, k, v": ((256, 32, 32), {"normed": True}),
    "output with the residual": ((320,), {"added": True}),
    "norm, gate, up and the activation": ((320, 320), {"normed": True, "activation": "silu"}),
    "q, k, v with biases": ((256, 32, 32), {"normed": True, "biased": True}),
    "a norm after attention too": ((320, 320), {"normed": True, "activation": "gelu", "summed": "sum"}),
}
PLAIN = {"normed": False, "epsilon": 1e-6, "offset": 0.0, "biased": False, "activation": "", "limit": 0.0}
PLAIN |= {"added": False, "scale": 1.0, "summed": "", "sum_epsilon": 1e-6, "sum_offset": 0.0}


@pytest.mark.parametrize("form", STEP)
@pytest.mark.parametrize("name", ["q4_1", "mxfp4"])
def test_fused_gemv(name: str, form: str) -> None:
    widths, changes = STEP[form]
    rows = ",".join(f"{t}:0:{n}" for t, n in enumerate(widths))
    attributes = PLAIN | changes | {"formats": ",".join([name] * len(widths)), "rows": rows}
    call = Form.of(attributes)
    types, sizes = {"x": ((1, K), "f32"), "norm": ((K,), "f32"), "residual": ((1, widths[0]), "f32")}, {}
    types |= {"base": ((1, K), "f32"), "sum norm": ((K,), "f32")}
    types |= {f"bias {t}": ((n,), "f32") for t, n in enumerate(widths)}
    for t, n in enumerate(widths):
        for part, (shape, dtype) in FORMATS[name].parts(n, K).items():
            types[f"{t}.{part}"] = (shape, {"float16": "f16", "int32": "i32", "int8": "i8"}[dtype.name])
            sizes[f"{t}.{part}"] = int(np.prod(shape)) * dtype.itemsize
    weights, bytes_of = sum(widths) * K, {"f32": 4, "f16": 2}
    sizes |= {n: int(np.prod(s)) * bytes_of[d] for n, (s, d) in types.items() if n not in sizes}
    lowering = fused_matmul(GFX1151, attributes, [types[operand] for operand in call.operands(K)])
    assert lowering
    (launch,) = lowering.launches
    done = launched(launch, sizes)
    of_weights = sum(size for operand, size in sizes.items() if operand[0].isdigit())
    # Each workgroup asks for x and the norm's weight once, and with a sum for x again, the stream and its norm.
    of_input = launch.workgroups * 4 * K * (1 + call.normed + 3 * bool(call.summed))
    others = sum(4 * n for n in widths) * (call.biased + call.added)
    assert of_weights <= done.load_requested - of_input - others <= 1.05 * of_weights
    assert operations(done, weights) <= MOST_OPERATIONS


EXPERTS, CHOSEN, WIDTH = 8, 2, 320


@pytest.mark.parametrize("name", ["mxfp4", "q4_k"])
def test_gemv_of_experts(name: str) -> None:
    """One token: gate and up with the activation, of the experts that were chosen."""
    kinds, parts = {"float16": "f16", "int32": "i32", "int8": "i8"}, FORMATS[name].parts(EXPERTS * WIDTH, K)
    types: dict[str, tuple[tuple[int, ...], str]] = {"x": ((1, K), "f32"), "expert": ((CHOSEN,), "i32")}
    types |= {"order": ((CHOSEN,), "i32"), "offsets": ((EXPERTS + 1,), "i32"), "tiles": ((2 * EXPERTS + 4,), "i32")}
    types |= {f"{which}.{part}": (s, kinds[d.name]) for which in ("gate", "up") for part, (s, d) in parts.items()}
    sizes = {n: int(np.prod(s)) * {"f32": 4, "i32": 4, "f16": 2, "i8": 1}[d] for n, (s, d) in types.items()}
    attributes = {"format": name, "k": CHOSEN, "biased": False, "activation": "silu", "limit": 0.0}
    attributes |= {"normed": False, "epsilon": 0.0, "offset": 0.0}
    lowering = moe_gate_up(GFX1151, attributes, list(types.values()))
    assert lowering
    (launch,) = lowering.launches
    done = launched(launch, sizes)
    read = CHOSEN / EXPERTS * sum(size for operand, size in sizes.items() if "." in operand)
    of_x = 4 * K * launch.workgroups  # each workgroup asks for it once
    assert read <= done.load_requested - of_x <= 1.05 * read
    assert operations(done, 2 * CHOSEN * WIDTH * K) <= MOST_OPERATIONS


def test_fused_kernels_need_no_more_registers_than_there_are() -> None:
    """Of every form that tests build: SmolLM2's, and of families with biases, gates, norms after and sums."""
    codes = code_objects(build_hsaco("gfx1151", kernels_of("fused")).read_bytes())
    built = {k[".name"]: k for code in codes for k in kernels(code)}
    assert {f"strixhlo_fused_{form}_m{m}" for form in FUSED for m in GEMV_ROWS} <= set(built)
    for name, kernel in built.items():
        assert kernel[".vgpr_spill_count"] == kernel[".private_segment_fixed_size"] == 0, name
        assert kernel[".vgpr_count"] <= 128, name
