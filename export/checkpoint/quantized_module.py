"""A quantized linear layer or embedding as its maker stores it, on its way to a Tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...custom_kernels.ops.formats import FORMATS
from ...errors import StrixhloError
from .contents import Tensor
from .place import Place
from .safetensors_file import StoredTensor

PART_DTYPES: dict[str, np.dtype] = {"f32": np.dtype(np.float32), "i8": np.dtype(np.int8), "i32": np.dtype(np.int32)}
DENSE = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True)
class Module:
    """name: e.g. "model.layers.0.mlp.up_proj". parts: leaf ("weight", "scales", ...) -> tensor."""

    name: str
    parts: Mapping[str, StoredTensor]

    def fail(self, what: str) -> StrixhloError:
        """An error that names the module's file and the module."""
        path = next(iter(self.parts.values())).place.path
        return StrixhloError(f"{path}: {self.name}: {what}")

    def part(self, leaf: str, dtypes: tuple[str, ...], dims: tuple[int, ...] = (2,)) -> StoredTensor:
        """A leaf that must be there, in one of these dtypes and numbers of dimensions."""
        stored = self.parts.get(leaf)
        if stored is None:
            raise self.fail(f"tensor {self.name}.{leaf} is missing; download the model again")
        if stored.dtype not in dtypes or len(stored.shape) not in dims:
            raise self.fail(
                f"{leaf} is {stored.dtype}{list(stored.shape)}, not {' or '.join(dtypes)} of"
                f" {' or '.join(map(str, dims))} dimensions; the quantization is not the one that config.json names"
            )
        return stored


@dataclass(frozen=True)
class Part:
    """One part of a weight: dtype ("i8", "i32", "f32", "f16", "bf16"), its values, and where they lie as they are."""

    dtype: str
    read: Callable[[], np.ndarray]
    place: Place | None = None


def bits_of(stored: StoredTensor, dtype: str, shape: tuple[int, ...]) -> Part:
    """A tensor's bytes as int8 or int32 of another shape, in place."""
    return Part(dtype, lambda: stored.place.read().view(PART_DTYPES[dtype]).reshape(shape), stored.place)


def floats_of(stored: StoredTensor) -> Part:
    """A float tensor in its own dtype, in place."""
    return Part(DENSE[stored.dtype], stored.array, stored.place)


def float32_of(stored: StoredTensor, shape: tuple[int, ...]) -> Part:
    """A small tensor converted to float32."""
    return Part("f32", lambda: stored.float32().reshape(shape), stored.place if stored.dtype == "F32" else None)


def factor_of(module: Module, leaf: str, count: int = 1, *, divides: bool = False, whole: float = 1.0) -> Part:
    """The float32 factors [count] that a leaf of up to three dimensions holds: its values, or one over them, over
    `whole`. StrixhloError where there are not so many, and where one is negative or not finite."""
    stored = module.part(leaf, ("F32",), (0, 1, 2, 3))
    if math.prod(stored.shape) != count:
        raise module.fail(f"{leaf} has shape {list(stored.shape)}, not {count} values; download the model again")

    def read() -> np.ndarray:
        value = stored.float32().reshape(count)
        with np.errstate(divide="ignore", over="ignore"):
            factor = (np.float32(1.0) / value if divides else value) / np.float32(whole)
        wrong = ~(np.isfinite(factor) & ~np.signbit(factor))
        if wrong.any():
            raise module.fail(f"{leaf} is {value[wrong][0]}, which is no scale; download the model again")
        return factor

    return Part("f32", read)


def constant(value: float, shape: tuple[int, ...]) -> Part:
    """A float32 part that is not in the file."""
    return Part("f32", lambda: np.full(shape, value, np.float32))


def weight(
    module: Module,
    name: str,
    format_name: str,
    shape: tuple[int, ...],
    parts: Mapping[str, Part],
    part_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Tensor:
    """The tensor `name` of a quantized module, shape [N, K] or [experts, N, K]; each part's size is checked when it is
    read by reshaping it, and K here. part_shapes: see `Tensor`."""
    fmt = FORMATS.get(format_name)
    if fmt is None:
        raise module.fail(f"quantized as {format_name}, which is not supported; quantize it with another group size")
    n, k = shape[-2:]
    try:
        specs = fmt.parts(n, k)
    except ValueError as error:
        raise module.fail(f"{error}, so that this quantization of it is not supported") from None
    shapes = {p: (*shape[:-2], *specs[p][0]) for p in parts} | dict(part_shapes or {})
    return Tensor(
        name,
        shape,
        format_name,
        lambda: {p: np.ascontiguousarray(part.read().reshape(shapes[p])) for p, part in parts.items()},
        {p: part.dtype for p, part in parts.items()},
        {p: part.place for p, part in parts.items() if part.place is not None},
        part_shapes or {},
    )


def require_shape(module: Module, stored: StoredTensor, shape: tuple[int, ...]) -> None:
    """StrixhloError where a part has another shape than the weight asks for."""
    if stored.shape != shape:
        raise module.fail(f"{stored.name} has shape {list(stored.shape)} where its weight asks for {list(shape)}")


def require_groups(module: Module, k: int, groups: int, widths: Set[int], path: Path) -> None:
    """StrixhloError where a row of k columns has another number of scales than one for each `width` columns, whichever
    of the widths (0: all columns). path: of the config that says them."""
    if all(groups != (-(-k // width) if width else 1) for width in widths):
        said = " or ".join("a row" if width == 0 else f"{width} columns" for width in sorted(widths)) or "nothing"
        raise module.fail(
            f"has {groups} scales for each row of {k} columns where {path.name} says groups of {said}; get the model's"
            f" {path.name} again"
        )
