"""What IREE itself generates for gfx1151, from JAX programs: results as JAX computes them, in two orders of waves."""

from __future__ import annotations

from collections.abc import Callable

import iree.compiler as ireec
import iree.runtime as rt
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gfx1151_sim.simulator import Account, recording, start, using

FLAGS = ["--iree-hal-target-device=hip", "--iree-rocm-target=gfx1151", "--iree-opt-const-expr-hoisting=false"]
RNG = np.random.default_rng(0)


def floats(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def integers(*shape: int, dtype: type = np.int32, low: int = -1000, high: int = 1000) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


# name -> (program, inputs, relative tolerance)
PROGRAMS: dict[str, tuple[Callable[..., jax.Array], list[np.ndarray], float]] = {
    "matmul f32": (lambda a, b: a @ b, [floats(65, 96), floats(96, 130)], 1e-5),
    "matmul f16 by WMMA": (
        lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32),
        [floats(128, 128, dtype=np.float16), floats(128, 128, dtype=np.float16)],
        1e-3,
    ),
    "matmul int8 by WMMA": (
        lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.int32),
        [integers(128, 128, dtype=np.int8, low=-128, high=128), integers(128, 128, dtype=np.int8, low=-128, high=128)],
        0,
    ),
    "matrix by vector": (lambda a, b: a @ b, [floats(300, 500), floats(500)], 1e-5),
    "softmax": (lambda a: jax.nn.softmax(a * 5), [floats(7, 1000)], 1e-5),
    "normalization": (lambda a: a * jax.lax.rsqrt(jnp.mean(a * a, -1, keepdims=True) + 1e-6), [floats(5, 777)], 1e-5),
    "transcendental": (
        lambda a: jnp.stack(
            [jnp.exp(a), jnp.log(jnp.abs(a)), jnp.sin(a), jnp.tanh(a), jax.lax.erf(a), jnp.sqrt(a * a)]
        ),
        [floats(333)],
        1e-4,
    ),
    "division": (lambda a, b: a / b, [floats(500) * np.float32(1e30), floats(500)], 1e-6),
    "integer division": (
        lambda a, b: jnp.stack([a // b, a % b, jax.lax.shift_right_logical(a, b & 31)]),
        [integers(400), integers(400, low=1, high=60)],
        0,
    ),
    "gather": (lambda a, i: a[i] * 2, [floats(50, 33), integers(17, low=0, high=50)], 0),
    "scatter": (
        lambda a, i, u: a.at[i].set(u),
        [floats(50, 33), RNG.permutation(50)[:17].astype(np.int32), floats(17, 33)],
        0,
    ),
    "transpose and pad": (lambda a: jnp.pad(a.T, ((1, 2), (3, 0))), [floats(40, 70)], 0),
    "argmax": (lambda a: jnp.argmax(a, axis=-1), [floats(9, 1500)], 0),
    "prefix sum": (lambda a: jnp.cumsum(a, axis=-1), [integers(3, 100)], 0),
    "bfloat16": (
        lambda a, b: (a.astype(jnp.bfloat16) + b.astype(jnp.bfloat16)).astype(jnp.float32),
        [floats(300), floats(300)],
        0,
    ),
    "float16 to float32": (
        lambda a: jnp.maximum(a.astype(jnp.float32), 0).sum(-1),
        [floats(6, 512, dtype=np.float16)],
        1e-5,
    ),
    "top k": (lambda a: jax.lax.top_k(a, 8)[0], [floats(4, 64)], 0),
    "convolution": (
        lambda a, w: jax.lax.conv_general_dilated(a, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        [floats(1, 12, 12, 8), floats(3, 3, 8, 16)],
        1e-4,
    ),
}


def compiled(program: Callable[..., jax.Array], inputs: list[np.ndarray]) -> bytes:
    text = jax.jit(program).lower(*inputs).as_text()
    return ireec.compile_str(text, input_type="stablehlo", extra_args=FLAGS)


@pytest.fixture(scope="module")
def device() -> rt.HalDevice:
    start()
    return rt.get_driver("hip").create_default_device()


def call(vmfb: bytes, device: rt.HalDevice, inputs: list[np.ndarray]) -> tuple[np.ndarray, Account]:
    config = rt.Config(device=device)
    module = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, vmfb), config)
    with recording() as account:
        result = np.array(module.main(*inputs).to_host())
    return result, account


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, device: rt.HalDevice) -> None:
    program, inputs, relative = PROGRAMS[name]
    vmfb = compiled(program, inputs)
    expected = np.asarray(program(*map(jnp.asarray, inputs)))
    result, account = call(vmfb, device, inputs)
    np.testing.assert_allclose(result, expected, rtol=relative, atol=relative)
    assert account.launches
    if "WMMA" in name:
        assert account.instructions()["wmma"] > 0
    for options in ({"wave_order": 1, "group_order": 1, "poison": 0x5A}, {"turn": 5}):
        with using(**options):
            assert call(vmfb, device, inputs)[0].tobytes() == result.tobytes(), options


def test_fault_becomes_an_error_of_iree() -> None:
    program, inputs, _ = PROGRAMS["matmul f32"]
    vmfb = compiled(program, inputs)
    start()
    failing = rt.get_driver("hip").create_default_device()  # a device stays failed
    with using(most=10), pytest.raises(Exception, match="a wave ran 10 instructions without an end or barrier"):
        call(vmfb, failing, inputs)
