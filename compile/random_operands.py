"""Random operands of the custom ops: values of ordinary size, so that nothing becomes infinite or NaN on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..custom_kernels.ops.formats import FORMATS
from ..tuning_plan import Operand

if TYPE_CHECKING:
    from .candidates import Call

# Middle of what a part of a weight is drawn from, 0.7 to 1.3 times it: weights come to about 0.02.
_MIDDLE = {"global_scale": 0.02, "super_scale": 1e-4, "super_minimum": -1e-4, "minimum": -0.03, "bias": -0.03}
_SCALE, _SCALE_OF_8_BITS = 4e-3, 2e-4
_WHOLE = {"i8": (-128, 127), "i32": (-(2**31), 2**31 - 1)}


def operand(call: Call, name: str, type_: tuple[tuple[int, ...], str]) -> Operand:
    """What stands for one operand of a call. name: as its lowering has it, such as "x", "codes" or "0.scale"."""
    shape, dtype = type_
    if call.op == "attention":
        return _of_attention(call, name, shape, dtype)
    if name == "positions":  # of the tokens that experts are chosen for: none is idle
        return Operand(shape=shape, dtype=dtype, fill="uniform")
    tensor, _, part = name.rpartition(".")
    format = _format(call, int(tensor) if tensor.isdigit() else 0)
    weight = part in FORMATS[format].parts(1, 256) if format in FORMATS else part in ("w", "dense")
    if not weight:
        if part in ("norm", "sum norm"):
            return Operand(shape=shape, dtype=dtype, fill="uniform", low=0.5, high=1.5)
        return Operand(shape=shape, dtype=dtype, fill="normal")
    low, high = _range(format, part, dtype)
    if part in ("w", "dense"):
        return Operand(shape=shape, dtype=dtype, fill="normal", rotates=True)
    return Operand(shape=shape, dtype=dtype, fill="uniform", low=low, high=high, rotates=True)


def _of_attention(call: Call, name: str, shape: tuple[int, ...], dtype: str) -> Operand:
    """Sequences as long as their block tables allow, their blocks anywhere in the pools."""
    if name == "block_table":
        rows = call.types[1][0][1]
        return Operand(shape=shape, dtype=dtype, fill="uniform", high=rows // call.attributes["block_size"] - 1)
    if name == "positions":  # of each token of a decoded step, else of a prompt's first
        (sequences, blocks), tokens = call.types[3][0], call.types[0][0][0]
        last = blocks * call.attributes["block_size"] - tokens // sequences
        return Operand(shape=shape, dtype=dtype, fill="uniform", low=last, high=last)
    if dtype == "i8":
        return Operand(shape=shape, dtype=dtype, fill="uniform", low=0, high=56)  # E4M3 up to 1
    return Operand(shape=shape, dtype=dtype, fill="normal")


def _format(call: Call, tensor: int) -> str:
    if call.op == "fused_matmul":
        return str(call.attributes["formats"]).split(",")[tensor]
    return str(call.attributes.get("format", "dense"))


def _range(format: str, part: str, dtype: str) -> tuple[float, float]:
    """Codes are any bits, but for E4M3, which must not be NaN."""
    if dtype in _WHOLE:
        if part == "scale" and format.startswith("mx"):
            return 119, 121  # E8M0: 2^-8 to 2^-6
        if part == "scale":
            return (40, 55) if format == "nvfp4" else (1, 31)  # E4M3; integers of K-quants
        return (0, 100) if format.startswith(("mxfp8", "fp8")) else _WHOLE[dtype]
    middle = _MIDDLE.get(part, _SCALE_OF_8_BITS if "8" in format and "fp8" not in format else _SCALE)
    low, high = sorted((0.7 * middle, 1.3 * middle))
    return low, high
