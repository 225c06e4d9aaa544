"""Does the device copy and compute rightly, and how fast does it copy? Prints JSON; in a process of its own.

    python -m strixhlo.runtime.selftest cpu|rocm|cuda|vulkan FOLDER [BYTES OF THE TIMED COPY]

FOLDER holds what was compiled for it: matmul.vmfb and, where the target has kernels, kernel.vmfb, each with a function
`main` (see PROGRAMS). What is missing is not run.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np

from ..bundle import TensorSpec
from ..errors import StrixhloError, one_line
from .device import Device
from .matrix_unit import modules_without_weights
from .sizes import MIB

# name of the file -> x float32 [M, K], w [K, N] (matmul) or [N, K] (kernel), and the dtype of w
PROGRAMS: dict[str, tuple[tuple[int, int], tuple[int, int], str]] = {
    "matmul": ((64, 256), (256, 48), "f32"),
    "kernel": ((16, 512), (96, 512), "f16"),
}
COPIES = (4096, MIB + 12, 64 * MIB)  # bytes
TIMED = {"cpu": 256 * MIB, "rocm": 1024 * MIB, "cuda": 1024 * MIB, "vulkan": 256 * MIB}  # bytes, beyond any cache
REPEATS = 5


def run(kind: str, folder: Path, timed: int | None = None) -> dict[str, Any]:
    """copies: bytes and whether they came out intact; bandwidth: bytes read and written a second, the best of five;
    programs: the largest error, relative to the largest value expected; error: what ended the test before its end."""
    generator = np.random.default_rng(7)
    found: dict[str, Any] = {"copies": [], "programs": {}}
    try:
        device = Device(kind, None)
        for nbytes in COPIES:
            found["copies"].append({"bytes": nbytes, "intact": _copies(device, nbytes, generator)})
        found["bandwidth"] = copy_bandwidth(device, timed or TIMED[kind])
        for name in PROGRAMS:
            if (folder / f"{name}.vmfb").is_file():
                found["programs"][name] = _program_error(device, folder / f"{name}.vmfb", name, generator)
    except (StrixhloError, RuntimeError, ValueError, LookupError, MemoryError) as error:  # IREE raises all of these
        found["error"] = one_line(error)
    return found


def _copies(device: Device, nbytes: int, generator: np.random.Generator) -> bool:
    """Host to device, device to device, device to host: the same checksum at the end."""
    sent = generator.integers(0, 255, nbytes, dtype=np.uint8, endpoint=True).view(np.int8)
    spec = TensorSpec(name="bytes", shape=(nbytes,), dtype="i8")
    source = device.upload(spec, sent)
    target = device.upload(spec, np.zeros_like(sent))
    _copy(device, source, target)
    return zlib.crc32(device.download(spec, target).tobytes()) == zlib.crc32(sent.tobytes())


def copy_bandwidth(device: Device, nbytes: int) -> float:
    """Bytes read and written a second by the device's own copy of `nbytes` bytes: the best of five, after one more."""
    spec = TensorSpec(name="bytes", shape=(nbytes,), dtype="i8")
    source, target = device.empty(spec), device.empty(spec)
    _copy(device, source, target)  # the first one also makes the pages
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        _copy(device, source, target)
        best = min(best, time.perf_counter() - began)
    return 2 * nbytes / best


def _copy(device: Device, source: Any, target: Any) -> None:
    """Device to device, finished when it returns."""
    done = device.hal.create_semaphore(0)
    device.hal.queue_copy(source.get_buffer(), target.get_buffer(), [], [(done, 1)])
    done.wait(1)


def _program_error(device: Device, vmfb: Path, name: str, generator: np.random.Generator) -> float:
    x_shape, w_shape, w_dtype = PROGRAMS[name]
    x = generator.standard_normal(x_shape).astype(np.float32)
    w = generator.standard_normal(w_shape).astype(np.float16 if w_dtype == "f16" else np.float32)
    w32 = w.astype(np.float32)
    expected = x @ (w32 if name == "matmul" else w32.T)
    result = _call(device, vmfb, ((x, "f32"), (w, w_dtype)), expected.shape)
    return float(np.abs(result - expected).max() / np.abs(expected).max())


def _call(device: Device, vmfb: Path, arrays: Sequence[tuple[np.ndarray, str]], shape: tuple[int, ...]) -> np.ndarray:
    instance = rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(vmfb))
    context = rt.VmContext(instance, [*modules_without_weights(instance, device), module])
    arguments, results = rt.VmVariantList(len(arrays)), rt.VmVariantList(1)
    for array, dtype in arrays:
        arguments.push_ref(device.upload(TensorSpec(name="argument", shape=array.shape, dtype=dtype), array))
    context.invoke(module.lookup_function("main"), arguments, results)
    spec = TensorSpec(name="result", shape=shape, dtype="f32")
    return device.download(spec, results.get_as_object(0, rt.HalBufferView))


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
