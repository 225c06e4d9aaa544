"""Runs CPU launches without a compiled program: tests and benchmarks call the kernels with it, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, MutableMapping
from concurrent.futures import Executor
from functools import partial

import numpy as np

from ..ops.launch import CounterSlot, Dimension, Launch

DTYPES = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "i32": np.int32}


def launch_arguments(launch: Launch, buffers: Mapping[str, np.ndarray]) -> list[ctypes.c_void_p | ctypes.c_int64]:
    """What a kernel takes before the number of a workgroup. ValueError for an array that is not contiguous."""
    written = [output.name for output in launch.outputs if not output.updates]
    arguments: list[ctypes.c_void_p | ctypes.c_int64] = []
    for name in (*launch.inputs, *written):
        array = buffers[name]
        if not array.flags.c_contiguous:
            raise ValueError(f"{launch.symbol}: {name} is not contiguous")
        arguments += [ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(0)]
    scalars = (
        buffers[s.input].shape[s.axis] if isinstance(s, Dimension) else s
        for s in launch.scalars
        if not isinstance(s, CounterSlot)
    )
    return [*arguments, *map(ctypes.c_int64, scalars)]


def run_launches(
    library: ctypes.CDLL,
    launches: Iterable[Launch],
    buffers: MutableMapping[str, np.ndarray],
    pool: Executor | None = None,
) -> None:
    """Calls every workgroup of every launch, one launch after the other; with a pool, workgroups in parallel.

    buffers: operand name -> C-contiguous array. Outputs that are not there yet are made (zeros) and added.
    Raises ValueError for an array that is not contiguous.
    """
    for launch in launches:
        for output in launch.outputs:
            if not output.updates and output.name not in buffers:
                buffers[output.name] = np.zeros(output.shape, DTYPES[output.dtype])
        function = getattr(library, launch.symbol)
        function.restype = None
        arguments = launch_arguments(launch, buffers)
        call = partial(function, *arguments)
        workgroups = map(ctypes.c_int64, range(launch.workgroups))
        list(map(call, workgroups) if pool is None else pool.map(call, workgroups))
