"""How each weight of a checkpoint is stored in the bundle: its parts, their shapes and dtypes, and how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import jax
import numpy as np

from ..custom_kernels.ops.formats import FORMATS
from ..errors import StrixhloError
from .archive import DTYPES, ArchiveGroup, dtype_name
from .checkpoint.contents import Tensor
from .checkpoint.place import Place
from .layers.weights import DENSE, Weight

DENSE_DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class StoredWeight:
    """One weight: its format, the number of logical columns, shape and dtype of each part, and the parts' values."""

    format: str
    columns: int
    parts: Mapping[str, tuple[tuple[int, ...], str]]
    read: Callable[[], Mapping[str, np.ndarray]]
    places: Mapping[str, Place] = field(default_factory=dict)  # of parts whose bytes lie in the checkpoint as they are

    def traced(self) -> Weight:
        """Shapes in place of arrays, for tracing."""
        shapes = {n: jax.ShapeDtypeStruct(shape, DTYPES[dtype][1]) for n, (shape, dtype) in self.parts.items()}
        return Weight(cast(Mapping[str, jax.Array], shapes), self.format, self.columns)

    def group(self, name: str) -> ArchiveGroup:
        """The parts under their names in the archive: <weight>.<part>."""
        return ArchiveGroup(
            {f"{name}.{part}": spec for part, spec in self.parts.items()},
            lambda: {f"{name}.{part}": array for part, array in self.read().items()},
            {f"{name}.{part}": place for part, place in self.places.items()},
        )


def stored_weights(
    tensors: Mapping[str, Tensor], tables: Mapping[str, np.ndarray], dtype: str
) -> dict[str, StoredWeight]:
    """The model's tensors, and the tables that it computes.

    dtype: how matrices that are not quantized are stored: "auto" (as they are) or one of `DENSE_DTYPES`. Norms and
    biases are small and stored in float32.
    """
    if dtype not in ("auto", *DENSE_DTYPES):
        raise StrixhloError(f"dtype {dtype!r} is not known; choose auto, {', '.join(DENSE_DTYPES)}")
    weights = {name: _stored(tensor, dtype) for name, tensor in tensors.items()}
    for name, table in tables.items():
        weights[name] = StoredWeight("f32", table.shape[-1], {DENSE: (table.shape, "f32")}, _constant(table))
    return weights


def _stored(tensor: Tensor, dtype: str) -> StoredWeight:
    if tensor.format in FORMATS:
        *lead, rows, columns = tensor.shape  # stacked experts have a leading dimension
        parts = FORMATS[tensor.format].parts(rows, columns)
        specs = {
            name: (tensor.part_shapes.get(name, (*lead, *shape)), tensor.part_dtypes.get(name, dtype_name(d)))
            for name, (shape, d) in parts.items()
        }
        return StoredWeight(tensor.format, columns, specs, tensor.read, tensor.places)
    small = len(tensor.shape) < 2 or tensor.name.endswith(".bias")
    stored = "f32" if small else tensor.format if dtype == "auto" else dtype

    def read() -> dict[str, np.ndarray]:
        with np.errstate(over="ignore"):  # beyond float16's range: infinity, as every converter does
            return {DENSE: tensor.read()[DENSE].astype(DTYPES[stored][1])}

    places = tensor.places if stored == tensor.format else {}
    columns = tensor.shape[-1] if tensor.shape else 1
    return StoredWeight(stored, columns, {DENSE: (tensor.shape, stored)}, read, places)


def _constant(table: np.ndarray) -> Callable[[], Mapping[str, np.ndarray]]:
    return lambda: {DENSE: table}
