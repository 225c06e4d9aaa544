"""Linear layers and embeddings over weights of any format, and what a linear layer can do on its way in and out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import jax

from ...custom_kernels.ops.dense_matmul import dense_matmul
from ...custom_kernels.ops.embedding import embedding as embedding_rows
from ...custom_kernels.ops.formats import FORMATS
from ...custom_kernels.ops.fused_matmul import Matrix, Residual, fused_matmul
from ...custom_kernels.ops.quantized_matmul import quantized_matmul
from .norm import Input, Normed
from .weights import DENSE, Weight, Weights


def linear(x: Input, weight: Weight, result: str = "") -> jax.Array:
    """x [T, in] times the transpose of a weight [out, in] -> [T, out] of its type; of a normalized x also of the dtype
    `result` ("f32")."""
    if isinstance(x, Normed):
        return fused_matmul(x.x, [Matrix(weight.parts, weight.format)], norm=x.norm, result=result)
    if weight.format in FORMATS:
        return quantized_matmul(x, weight.parts, weight.format)
    return dense_matmul(x, weight.parts[DENSE])


def projection(
    x: Input, w: Weights, name: str, bias: bool = False, residual: Residual | None = None, activation: str = ""
) -> jax.Array:
    """x [T, in] through the linear layer `name`: name.weight [out, in] and, with `bias`, name.bias [out].

    activation: of the result, one of `moe_matmul.ACTIVATIONS`. residual: what the result is added to.
    """
    weight = w[f"{name}.weight"]
    if not bias and residual is None and not activation and weight.format not in FORMATS:
        return linear(x, weight)  # of a quantized one the input would be rounded in a dispatch of its own
    return _fused(x, w, [_matrix(w, name)], [name] if bias else [], activation, residual)


def joined_projections(x: Input, w: Weights, names: Sequence[str], bias: bool = False) -> jax.Array:
    """Linear layers of one input, their results side by side: [T, out of all]."""
    return _fused(x, w, [_matrix(w, name) for name in names], names if bias else ())


def projections(x: Input, w: Weights, names: Sequence[str], bias: bool = False) -> tuple[jax.Array, ...]:
    """Linear layers of one input: [T, out] of each."""
    joined, ends = joined_projections(x, w, names, bias), [0]
    for name in names:
        ends.append(ends[-1] + next(iter(w[f"{name}.weight"].parts.values())).shape[0])
    return tuple(joined[:, start:end] for start, end in pairwise(ends))


def gated_projection(
    x: Input, w: Weights, gate: str, up: str, activation: str, bias: bool = False, limit: float = 0.0
) -> jax.Array:
    """activation(gate, up) of two linear layers, [T, out]; activation: one of `moe_matmul.ACTIVATIONS`."""
    names = (gate, up)
    return _fused(x, w, [_matrix(w, name) for name in names], names if bias else (), activation, limit=limit)


def gated_halves(x: Input, w: Weights, name: str, activation: str) -> jax.Array:
    """activation(gate, up) where both are one linear layer, gate's rows first; [T, out / 2]."""
    weight = w[f"{name}.weight"]
    n = next(iter(weight.parts.values())).shape[0] // 2
    return _fused(x, w, [Matrix(weight.parts, weight.format, first, n) for first in (0, n)], (), activation)


def _matrix(w: Weights, name: str) -> Matrix:
    weight = w[f"{name}.weight"]
    return Matrix(weight.parts, weight.format)


def _fused(
    x: Input,
    w: Weights,
    matrices: Sequence[Matrix],
    biased: Sequence[str],
    activation: str = "",
    residual: Residual | None = None,
    limit: float = 0.0,
) -> jax.Array:
    biases = [w[f"{name}.bias"].dense for name in biased]
    x, norm = (x.x, x.norm) if isinstance(x, Normed) else (x, None)
    return fused_matmul(
        x,
        matrices,
        norm=norm,
        biases=biases,
        activation=activation,
        limit=limit,
        residual=residual,
    )


def projection_shapes(name: str, rows: int, columns: int, bias: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of the tensors of a linear layer."""
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def embedding(tokens: jax.Array, w: Weights, name: str, scale: float = 1.0) -> jax.Array:
    """Rows of the weight `name` [vocabulary, hidden] times `scale`: tokens int32 [T] -> [T, hidden], of the model's
    type of activations. Only they are dequantized."""
    weight = w[name]
    return embedding_rows(tokens, weight.parts, weight.format, weight.columns, scale, w.activations)
