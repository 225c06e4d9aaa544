"""One small test for each compiler mechanism that the design rests on, so that an IREE upgrade fails where it must."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import iree.runtime as rt
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iree.compiler import ir

from strixhlo.compile.compile import lower_program
from strixhlo.compile.cpu_executable import CpuExecutable
from strixhlo.compile.iree_compile import executable_target, iree_compile, run
from strixhlo.compile.kv_pools import free_pools
from strixhlo.compile.lower import append, composites_to_custom_calls, custom_calls_to_dispatches
from strixhlo.compile.parameters import bind_parameters
from strixhlo.compile.targets import COMMON_FLAGS, parse_target
from strixhlo.custom_kernels.cpu.rules import cpu_rules
from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize_rows
from strixhlo.custom_kernels.ops.formats_gguf import GGUF_FORMATS, pack_codes
from strixhlo.custom_kernels.ops.quantized_matmul import quantized_matmul
from strixhlo.custom_kernels.ops.rope_and_append import rope_and_append
from strixhlo.custom_kernels.toolchain import build_cpu_object

FLAGS = parse_target("cpu").iree_flags
GPU_FLAGS = {
    "gfx1151": ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx1151", *COMMON_FLAGS),
    "vulkan": ("--iree-hal-target-device=vulkan", *COMMON_FLAGS),
}
FORMAT = GGUF_FORMATS["q4_1"]
N, K = 64, 96


def parts(rng: np.random.Generator) -> dict[str, np.ndarray]:
    codes = pack_codes(rng.integers(0, 16, (N, K)).astype(np.uint8), 4)
    f16 = {n: rng.standard_normal((N, K // 32)).astype(np.float16) for n in ("scale", "minimum")}
    return codes | f16


def matmul(x: jax.Array, codes: jax.Array, scale: jax.Array, minimum: jax.Array) -> jax.Array:
    return quantized_matmul(x, {"codes": codes, "scale": scale, "minimum": minimum}, "q4_1")


def matmul_text() -> str:
    shapes = [jax.ShapeDtypeStruct((2, K), jnp.float32)]
    shapes += [jax.ShapeDtypeStruct(s, d) for s, d in FORMAT.parts(N, K).values()]
    return jax.jit(matmul).lower(*shapes).as_text()


def lowered(text: str, fast: bool = False, free: bool = False) -> str:
    """With our kernels as dispatches, in generic form."""
    target = parse_target("cpu")
    rules = cpu_rules(fast)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        bind_parameters(module)
        assert composites_to_custom_calls(module, rules) > 0
        assert not free or free_pools(module, None)
        executable = CpuExecutable(
            build_cpu_object(target.cpu, target.cpu_features), executable_target(target.iree_flags)
        )
        custom_calls_to_dispatches(module, rules, executable.export)
        append(module, executable.text())
        module.operation.verify()
        return module.operation.get_asm(print_generic_op_form=True)


def load(vmfb: Path, index: Any = None) -> tuple[Any, Any]:
    """(invoke(name, *arrays or buffers), device)"""
    instance, device = rt.VmInstance(), rt.get_device("local-task")
    module = rt.VmModule.mmap(instance, str(vmfb))
    modules = [rt.create_hal_module(instance, device)]
    if index is not None:
        modules.append(rt.create_io_parameters_module(instance, index.create_provider(scope="model")))
    context = rt.VmContext(instance, [*modules, module])

    def invoke(name: str, *arguments: Any) -> Any:
        return rt.FunctionInvoker(context, device, module.lookup_function(name))(*arguments)

    return invoke, device


def test_composite_keeps_name_attributes_and_decomposition() -> None:
    text = matmul_text()
    assert re.search(r'stablehlo\.composite "strixhlo\.quantized_matmul" .*format = "q4_1".*decomposition = @', text)


@pytest.mark.parametrize("target", ["cpu", "gfx1151", "vulkan"])
def test_composite_left_alone_is_inlined(tmp_path: Path, target: str) -> None:
    flags = FLAGS if target == "cpu" else GPU_FLAGS[target]
    iree_compile(matmul_text(), flags, tmp_path / "m.vmfb")
    assert (tmp_path / "m.vmfb").stat().st_size > 0
    if target == "cpu":
        check_matmul(tmp_path / "m.vmfb")


def test_custom_call_runs_a_c_function_in_the_elf(tmp_path: Path) -> None:
    text = lowered(matmul_text())
    assert "flow.dispatch" in text and "stablehlo.composite" not in text and "stablehlo.custom_call" not in text
    iree_compile(text, FLAGS, tmp_path / "m.vmfb")
    check_matmul(tmp_path / "m.vmfb")


def check_matmul(vmfb: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, K)).astype(np.float32), parts(rng)
    invoke, _ = load(vmfb)
    y = np.asarray(invoke("main", x, *w.values()))
    np.testing.assert_allclose(y, np.asarray(matmul(x, *w.values())), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("name", "dispatches"), [("q8_0", 1), ("q4_1", 1), ("mxfp4", 2), ("q6_k", 3)])
def test_an_embedding_is_looked_up_in_few_dispatches(name: str, dispatches: int) -> None:
    """The compiler fuses a format's definition with the choice of rows, as long as that is elementwise."""
    specs = [jax.ShapeDtypeStruct(s, d) for s, d in FORMATS[name].parts(N, 256).values()]

    def rows(tokens: jax.Array, *parts: jax.Array) -> jax.Array:
        found = dict(zip(FORMATS[name].parts(N, 256), parts, strict=True))
        return dequantize_rows(FORMATS[name], found, tokens)

    text = jax.jit(rows).lower(jax.ShapeDtypeStruct((2,), jnp.int32), *specs).as_text()
    stream = run(text, ["--compile-to=stream", "-o", "-", *parse_target("rocm").iree_flags])
    assert stream.count("stream.cmd.dispatch @") == dispatches


def two_appends(k_pool: Any, v_pool: Any, k: Any, rows: Any) -> Any:
    """The rows stand in a block table of blocks of one row."""
    table, first = rows[:, None], rows - rows
    for layer in range(2):
        _, k_pool, v_pool = rope_and_append(
            k_pool, v_pool, table, first, (k, k + layer, -k), layer=layer, block_size=1, heads=1, kv_heads=1
        )
    return k_pool, v_pool


def test_tied_and_donated_buffers_are_updated_in_place(tmp_path: Path) -> None:
    pool, k, rows = jax.ShapeDtypeStruct((2, 8, 32), jnp.float16), jax.ShapeDtypeStruct((3, 32), jnp.float32), None
    rows = jax.ShapeDtypeStruct((3,), jnp.int32)
    text = jax.jit(two_appends, donate_argnums=(0, 1)).lower(pool, pool, k, rows).as_text()
    assert text.count("tf.aliasing_output") == 2
    text = lowered(text)
    stream = run(text, ["--compile-to=stream", "-o", "-", *FLAGS])
    assert stream.count("stream.cmd.dispatch @strixhlo_kernels") == 2
    assert not re.search(r"stream\.(cmd\.copy|async\.clone|tensor\.clone|async\.copy)", stream)
    iree_compile(text, FLAGS, tmp_path / "m.vmfb")
    invoke, device = load(tmp_path / "m.vmfb")
    k_pool = rt.asdevicearray(device, np.full((2, 8, 32), 7, np.float16))
    v_pool = rt.asdevicearray(device, np.full((2, 8, 32), 7, np.float16))
    new = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    k_out, v_out = invoke("main", k_pool, v_pool, new, np.array([5, -1, 0], np.int32))
    expected = np.full((2, 8, 32), 7, np.float16)
    expected[:, [5, 0]] = np.stack([new[[0, 2]], new[[0, 2]] + 1]).astype(np.float16)
    np.testing.assert_array_equal(np.asarray(k_out), expected)
    np.testing.assert_array_equal(k_pool.to_host(), expected)  # the donated buffer itself was written
    np.testing.assert_array_equal(np.asarray(v_out)[:, 5], np.stack([-new[0], -new[0]]).astype(np.float16))


def test_the_rows_of_a_pool_are_known_at_run_time(tmp_path: Path) -> None:
    """One program, two sizes of the pools, both updated in place, without a copy and without waiting on the host."""
    pool, k = jax.ShapeDtypeStruct((2, 8, 32), jnp.float16), jax.ShapeDtypeStruct((3, 32), jnp.float32)
    rows = jax.ShapeDtypeStruct((3,), jnp.int32)
    text = jax.jit(two_appends, donate_argnums=(0, 1)).lower(pool, pool, k, rows).as_text()
    text = lowered(text, free=True)
    assert "tensor<2x?x32xf16>" in text
    stream = run(text, ["--compile-to=stream", "-o", "-", *FLAGS])
    assert stream.count("stream.cmd.dispatch @strixhlo_kernels") == 2
    assert not re.search(r"stream\.(cmd\.copy|async\.clone|tensor\.clone|async\.copy)", stream)
    assert stream.count("stream.timepoint.await") == 1
    iree_compile(text, FLAGS, tmp_path / "m.vmfb")
    invoke, device = load(tmp_path / "m.vmfb")
    new = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    for size in (4, 100):
        pools = [rt.asdevicearray(device, np.full((2, size, 32), 7, np.float16)) for _ in range(2)]
        out, _ = invoke("main", *pools, new, np.array([size - 1, -1, size], np.int32))
        expected = np.full((2, size, 32), 7, np.float16)
        expected[:, size - 1] = np.stack([new[0], new[0] + 1]).astype(np.float16)
        np.testing.assert_array_equal(np.asarray(out), expected)
        np.testing.assert_array_equal(pools[0].to_host(), expected)


@pytest.mark.parametrize("target", ["rocm", "cuda"])
def test_the_rows_of_a_pool_are_free_on_gpus(target: str) -> None:
    pool, k = jax.ShapeDtypeStruct((2, 8, 32), jnp.float16), jax.ShapeDtypeStruct((3, 32), jnp.float32)
    rows = jax.ShapeDtypeStruct((3,), jnp.int32)
    text = jax.jit(two_appends, donate_argnums=(0, 1)).lower(pool, pool, k, rows).as_text()
    program = lower_program(text, parse_target(target), "f32", None, "fp8")
    assert program.kv_rows_free and "tensor<2x?x32xi8>" in program.program
    stream = run(program.program, ["--compile-to=stream", "-o", "-", *parse_target(target).iree_flags])
    assert not re.search(r"stream\.(cmd\.copy|async\.clone|tensor\.clone|async\.copy)", stream)


PARAMETER_PROGRAM = """
module @m {
  func.func public @a(%x: tensor<64xf32>, %w: tensor<64xf32> {strixhlo.parameter = "w"}) -> tensor<64xf32> {
    %0 = stablehlo.add %x, %w : tensor<64xf32>
    return %0 : tensor<64xf32>
  }
  func.func public @b(%w: tensor<64xf32> {strixhlo.parameter = "w"}, %x: tensor<64xf32>) -> tensor<64xf32> {
    %0 = stablehlo.multiply %x, %w : tensor<64xf32>
    return %0 : tensor<64xf32>
  }
}
"""


def test_entries_share_a_parameter_that_is_mapped_in_place(tmp_path: Path) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(PARAMETER_PROGRAM)
        bind_parameters(module)
        text = module.operation.get_asm()
    assert text.count("#flow.parameter.named") == 1
    iree_compile(text, FLAGS, tmp_path / "m.vmfb")
    file = np.zeros(64 + 64 * 4 + 64, np.uint8)  # 64-byte aligned offset 64
    weights = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    file[64 : 64 + 256] = weights.view(np.uint8)
    index = rt.ParameterIndex()
    index.add_from_file_handle("w", rt.FileHandle.wrap_memory(file, readable=True, writable=True), 256, 64)
    invoke, _ = load(tmp_path / "m.vmfb", index)
    x = np.ones(64, np.float32)
    np.testing.assert_array_equal(np.asarray(invoke("a", x)), x + weights)
    np.testing.assert_array_equal(np.asarray(invoke("b", x * 2)), 2 * weights)


def mapped_bytes(vmfb: Path, offset: int, nbytes: int, folder: Path) -> int:
    """Anonymous memory that loading a program with one parameter of `nbytes` at `offset` of a file costs."""
    import subprocess
    import sys

    script = folder / "load.py"
    script.write_text(
        "import mmap, sys, iree.runtime as rt\n"
        "vmfb, path, offset, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])\n"
        "def anonymous():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(l.split()[1]) for l in lines if l.startswith('RssAnon')) * 1024\n"
        "file = open(path, 'rb')\n"
        "m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "instance, device = rt.VmInstance(), rt.get_device('local-task')\n"
        "index = rt.ParameterIndex()\n"
        "handle = rt.FileHandle.wrap_memory(m, readable=True, writable=False)\n"
        "index.add_from_file_handle('w', handle, nbytes, offset)\n"
        "before = anonymous()\n"
        "module = rt.VmModule.mmap(instance, vmfb)\n"
        "parameters = rt.create_io_parameters_module(instance, index.create_provider(scope='model'))\n"
        "context = rt.VmContext(instance, [rt.create_hal_module(instance, device), parameters, module])\n"
        "print(anonymous() - before)\n"
        "del context, parameters, module, index, handle, instance, device\n"
    )
    with (folder / "w.bin").open("wb") as file:
        file.write(np.ones(offset + nbytes, np.uint8).tobytes())
    command = [sys.executable, str(script), str(vmfb), str(folder / "w.bin"), str(offset), str(nbytes)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_parameter_is_mapped_at_a_multiple_of_64_and_copied_elsewhere(tmp_path: Path) -> None:
    elements = 8 << 20
    text = PARAMETER_PROGRAM.replace("64xf32", f"{elements}xf32")
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        bind_parameters(module)
        iree_compile(module.operation.get_asm(), FLAGS, tmp_path / "m.vmfb")
    assert mapped_bytes(tmp_path / "m.vmfb", 64, 4 * elements, tmp_path) < 8 << 20
    # Not a wish but the reason for the aligned archive: if this fails, IREE has learned to map any offset.
    assert mapped_bytes(tmp_path / "m.vmfb", 4, 4 * elements, tmp_path) > 24 << 20


def test_equal_quantizations_of_an_activation_are_one_dispatch() -> None:
    def two(x: jax.Array, *w: jax.Array) -> Sequence[jax.Array]:
        return matmul(x, *w), matmul(x, *w)

    shapes = [jax.ShapeDtypeStruct((2, K), jnp.float32)]
    shapes += [jax.ShapeDtypeStruct(s, d) for s, d in FORMAT.parts(N, K).values()]
    text = lowered(jax.jit(two).lower(*shapes).as_text(), fast=True)
    assert len(re.findall(r'"flow.dispatch".*@strixhlo_quantize_rows', text)) == 1
