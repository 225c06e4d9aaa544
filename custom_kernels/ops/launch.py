"""How a custom op becomes kernel dispatches on one target: plain data that `compile.lower` turns into dialects."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Output:
    """A buffer that a launch writes: a result of the op, or a temporary that a later launch of the op reads."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # f32, f16, bf16, i8, i32
    updates: str = ""  # the input that is updated in place and becomes this output


# An input that the kernel updates: int32, and zero for each launch in its own COUNTER_WORDS words, of which the scalar
# CounterSlot is the number. It is no operand of an op: the program has one for all its launches. Before the counters it
# has SCRATCH_WORDS for what a launch's workgroups tell each other: a half for launches of even numbers, one for odd
# ones, zero when a launch starts, since the one before it clears it.
COUNTERS, COUNTER_WORDS, SCRATCH_WORDS = "counters", 32, 2 * 364 * 32


@dataclass(frozen=True)
class CounterSlot:  # GPU kernels only
    """A scalar: which of the program's counters are the launch's own."""


@dataclass(frozen=True)
class Dimension:
    """A scalar that is the length of one axis of an input; known when the program runs, where that axis is dynamic."""

    input: str
    axis: int


MACHINE = "machine"  # an input that no op has: what the machine allows, see bundle.MACHINE_PARAMETER
DYNAMIC = -1  # in a shape: the length is known when the program runs


@dataclass(frozen=True)
class Launch:
    """One dispatch of one kernel.

    CPU kernels are C functions `void symbol(base, offset, base, offset, ..., scalar, ..., workgroup)`: for each input
    in order, then for each output that does not update an input, the base pointer and the offset in elements (int64);
    then the scalars (int64) and the workgroup's index (int64), which runs from 0 to `workgroups` - 1. With `bytes` all
    buffers are of bytes, and so are their offsets.
    GPU kernels take the same buffers, one pointer each, then the scalars (int32), and run `workgroups` workgroups of
    `threads` threads, each with `local_memory` bytes of local memory beside what the kernel itself names.
    """

    symbol: str
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    scalars: tuple[int | Dimension | CounterSlot, ...]
    workgroups: int
    threads: int = 1
    bytes: bool = False
    local_memory: int = 0


@dataclass(frozen=True)
class Lowering:
    """One call of a custom op on one target: names for its operands and results, and the launches between them."""

    operands: tuple[str, ...]
    launches: tuple[Launch, ...]
    results: tuple[str, ...]


# Shape (with DYNAMIC in it where a pool's rows are) and dtype (f32, f16, bf16, i8, i32) of each operand of a call.
OperandTypes = Sequence[tuple[tuple[int, ...], str]]
# (the call's attributes, its operands) -> how it is done on the target; None: no kernel for this shape.
LoweringRule = Callable[[Mapping[str, Any], OperandTypes], "Lowering | None"]


def with_input(launches: Sequence[Launch], old: str, new: str) -> tuple[Launch, ...]:
    """The launches, reading one buffer in place of another."""
    return tuple(replace(one, inputs=tuple(new if i == old else i for i in one.inputs)) for one in launches)


def ceil_div(a: int, b: int) -> int:
    """How many b hold a."""
    return -(-a // b)


def float_bits(value: float) -> int:
    """A float32 number as the int32 scalar that carries its bits to a kernel."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
