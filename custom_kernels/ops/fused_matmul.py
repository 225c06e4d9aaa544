"""`strixhlo.fused_matmul`: one to three matmuls of one input, with the norm before and the elementwise part after them.

  h = norm(x);  y_i[m, n] = sum over k of h[m, k] * weight_i[first_i + n, k] + bias_i[n]
and of these, with an activation: of two activation(y_0, y_1), of one activation(y_0); with a residual:
residual + scale * y_0; with neither: all y_i side by side, [M, N_0 + N_1 + ...]. With a sum, x is first taken through
`add_normed`, and what it becomes, x = (base + rms_norm(x)) * factor, is a second result.

Operands, those in brackets where the attributes ask for them: x [M, K] (activations.py); the parts of each tensor in
the order of `WeightFormat.parts` (of one that is not quantized its array); [norm float32 [K]]; [bias float32 [N_i] of
each weight]; [residual [M, N]]; [base [M, K], sum norm float32 [K]]; [factor float32 [1]]; residual and base of the
type of x. Attributes:
formats, of each tensor a key of FORMATS or its dtype ("q4_1,q6_k"); rows, of each weight its tensor, its first row in
it and the number of its rows ("0:0:576,0:576:192,1:0:192"); normed, epsilon, offset (added to the norm's weight);
biased; activation ("", or one of `moe_matmul.ACTIVATIONS`), limit (of "clamped"); added, scale (of the residual); and,
absent where there is no sum, summed ("sum", or "scaled" with a factor), sum_epsilon, sum_offset (added to its norm).
layer_norm: "", or of a LayerNorm in place of an RMSNorm "plain" or "biased": it has a norm bias [K] after its norm.
result: the dtype of the result, absent where it is that of x; there is no residual then.
Result: [M, N] of that type, rounded once, after everything; with a sum also [M, K] of the type of x.

Of a call that is being compiled a tensor's parts may be one operand int8 [bytes], its place in the archive: `whole`
says of each tensor (";" between them) where in it each part begins and its dtype ("0:i8,4096:f16"), nothing of one
that is given part by part; absent where all are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .activations import DTYPES, alike, float32
from .add_normed import reference as add_normed
from .formats import FORMATS
from .moe_matmul import activate, part_names
from .norm import layer_norm, rms_norm

NAME = "strixhlo.fused_matmul"
SUMS = {"": (), "sum": ("base", "sum norm"), "scaled": ("base", "sum norm", "factor")}  # operands by `summed`
LAYERS = ("", "plain", "biased")  # layer_norm


@dataclass(frozen=True)
class Matrix:
    """A weight: a tensor's parts by name, its format or dtype ("f32", "f16", "bf16"), and which of its rows (all from
    the first on where count is 0)."""

    parts: Mapping[str, jax.Array]
    format: str
    first: int = 0
    count: int = 0


@dataclass(frozen=True)
class InputNorm:
    """A norm of the input: weight float32 [K], to which `offset` is added. layer: it is a LayerNorm, and no RMSNorm,
    that may have a bias float32 [K]."""

    weight: jax.Array
    epsilon: float
    offset: float = 0.0
    layer: bool = False
    bias: jax.Array | None = None

    @property
    def operands(self) -> tuple[jax.Array, ...]:
        """Its weight and its bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True)
class Residual:
    """What `scale` times the result is added to: x [M, N], activations."""

    x: jax.Array
    scale: float = 1.0


@dataclass(frozen=True)
class Rows:
    """A weight: rows [first, first + count) of a tensor, which is counted from 0."""

    tensor: int
    first: int
    count: int


@dataclass(frozen=True)
class Place:
    """Where a part begins in its whole tensor, in bytes, and its dtype."""

    offset: int
    dtype: str


@dataclass(frozen=True)
class Form:
    """The attributes of a call that say which operands it has."""

    formats: tuple[str, ...]
    rows: tuple[Rows, ...]
    normed: bool
    biased: bool
    added: bool
    summed: str = ""
    layer: str = ""
    whole: tuple[tuple[Place, ...], ...] = ()  # of each tensor; (): all are given part by part

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Form:
        """From a call's attributes."""
        rows = tuple(Rows(*map(int, part.split(":"))) for part in attributes["rows"].split(","))
        flags = (attributes["normed"], attributes["biased"], attributes["added"])
        return cls(
            tuple(attributes["formats"].split(",")),
            rows,
            *flags,
            attributes.get("summed", ""),
            attributes.get("layer_norm", ""),
            tuple(map(places, whole.split(";"))) if (whole := attributes.get("whole", "")) else (),
        )

    def parts(self, k: int) -> tuple[tuple[str, ...], ...]:
        """Names of each tensor's parts, in operand order."""
        return tuple(part_names(format, 1, k) for format in self.formats)

    def names(self, tensor: int, k: int) -> tuple[str, ...]:
        """Names of the operands of one tensor: "0.codes", ..., or "0.whole"."""
        if self.whole and self.whole[tensor]:
            return (f"{tensor}.whole",)
        return tuple(f"{tensor}.{part}" for part in self.parts(k)[tensor])

    def operands(self, k: int) -> tuple[str, ...]:
        """Names of all operands: "x", "0.codes", ..., "norm", "bias 0", ..., "residual", "base", "sum norm", ..."""
        tensors = tuple(name for t in range(len(self.formats)) for name in self.names(t, k))
        biases = tuple(f"bias {i}" for i in range(len(self.rows))) if self.biased else ()
        norm = ("norm", *(("norm bias",) * (self.layer == "biased"))) if self.normed else ()
        added = (*norm, *biases, *(("residual",) * self.added))
        return ("x", *tensors, *added, *SUMS[self.summed])

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the results."""
        return ("y", "sum") if self.summed else ("y",)


def places(text: str) -> tuple[Place, ...]:
    """ "0:i8,4096:f16" -> where a tensor's parts begin."""
    pairs = (part.split(":") for part in text.split(",") if part)
    return tuple(Place(int(offset), dtype) for offset, dtype in pairs)


def reference(x: jax.Array, *operands: jax.Array, **attributes: Any) -> jax.Array | tuple[jax.Array, ...]:
    """The semantics in plain jnp."""
    y, *total = evaluate(lambda _format, h: h, x, *operands, **attributes)
    return (y, *total) if total else y


def evaluate(
    taken: Callable[[str, jax.Array], jax.Array], x: jax.Array, *operands: jax.Array, **attributes: Any
) -> tuple[jax.Array, ...]:
    """The results, where a weight of a format takes `taken(format, h)` for the input h."""
    form, k, dtype, x = Form.of(attributes), x.shape[1], x.dtype, float32(x)
    given = dict(zip(form.operands(k)[1:], operands, strict=True))
    if form.summed:
        how = {"epsilon": attributes["sum_epsilon"], "offset": attributes["sum_offset"]}
        base, *further = (given[name] for name in SUMS[form.summed])
        x = total = add_normed(float32(base), x, *further, **how, scaled=form.summed == "scaled")
    if form.layer:
        x = layer_norm(x, given["norm"] + attributes["offset"], attributes["epsilon"]) + given.get("norm bias", 0.0)
    elif form.normed:
        x = rms_norm(x, given["norm"] + attributes["offset"], attributes["epsilon"])
    results = []
    for i, rows in enumerate(form.rows):
        format = form.formats[rows.tensor]
        parts = {name: given[f"{rows.tensor}.{name}"] for name in form.parts(k)[rows.tensor]}
        weight = _rows_of(format, parts, rows)
        y = jnp.einsum("mk,nk->mn", taken(format, x), weight, precision=jax.lax.Precision.HIGHEST)
        results.append(y + given[f"bias {i}"] if form.biased else y)
    if activation := attributes["activation"]:
        gate, up = results if len(results) == 2 else (results[0], jnp.float32(1))
        results = [activate(gate, up, activation, attributes["limit"])]
    y = jnp.concatenate(results, axis=1) if len(results) > 1 else results[0]
    result = DTYPES[attributes["result"]] if attributes.get("result") else dtype
    y = (float32(given["residual"]) + attributes["scale"] * y if form.added else y).astype(result)
    return (y, total.astype(dtype)) if form.summed else (y,)


def _rows_of(format: str, parts: Mapping[str, jax.Array], rows: Rows) -> jax.Array:
    """Rows of a tensor in float32 [count, K]."""
    if format not in FORMATS:
        (dense,) = parts.values()
        return dense[rows.first : rows.first + rows.count].astype(jnp.float32)
    fmt = FORMATS[format]
    if rows.count < next(iter(parts.values())).shape[0]:
        parts = fmt.take_rows(parts, jnp.arange(rows.first, rows.first + rows.count, dtype=jnp.int32))
    return fmt.dequantize(parts)


_composite = jax.lax.composite(reference, name=NAME)


def fused_matmul(
    x: jax.Array,
    weights: Sequence[Matrix],
    *,
    norm: InputNorm | None = None,
    biases: Sequence[jax.Array] = (),
    activation: str = "",
    limit: float = 0.0,
    residual: Residual | None = None,
    result: str = "",
) -> jax.Array:
    """x [M, K] times 1 to 3 weights -> [M, N] of its type, or of the dtype `result` ("f32"). biases: none, or float32
    [N_i] of each. See above."""
    alike(x, *((residual.x,) if residual else ()))
    tensors: list[Matrix] = []
    rows = []
    for weight in weights:
        known = (t for t, other in enumerate(tensors) if other.parts is weight.parts)
        tensor = next(known, len(tensors))
        tensors += [weight] if tensor == len(tensors) else []
        count = weight.count or next(iter(weight.parts.values())).shape[0] - weight.first
        rows.append(f"{tensor}:{weight.first}:{count}")
    parts = [t.parts[name] for t in tensors for name in part_names(t.format, 1, x.shape[1])]
    further = (*(norm.operands if norm else ()), *biases, *((residual.x,) if residual else ()))
    return _composite(
        x,
        *parts,
        *further,
        formats=",".join(t.format for t in tensors),
        rows=",".join(rows),
        normed=norm is not None,
        layer_norm="" if not norm or not norm.layer else "biased" if norm.bias is not None else "plain",
        epsilon=norm.epsilon if norm else 0.0,
        offset=norm.offset if norm else 0.0,
        biased=bool(biases),
        activation=activation,
        limit=limit,
        added=residual is not None,
        scale=residual.scale if residual else 1.0,
        **({"result": result} if result and DTYPES[result] != x.dtype else {}),
    )
