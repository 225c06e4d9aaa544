"""A bundle's score entry with the operands and results of its custom ops as further outputs.

A custom op is a `stablehlo.composite` in the entry's body. Of each the small operands and the results are returned;
weights, KV pools and what is made of weights alone are not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from iree.compiler import ir

from ..bundle import DTYPE_BYTES, EntryPoint, TensorSpec
from ..compile.lower import PREFIX, composite_attributes, drop_unused_functions, operations
from ..errors import StrixhloError

PARAMETER, ALIASING = "strixhlo.parameter", "tf.aliasing_output"
LAYER = re.compile(r"\blayers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Operand:
    """output: its name among the further outputs, None where it is not one. reads: parameters between it and the custom
    ops before it. pool_from: where it is a KV pool, the op that made it (-1: the entry's own)."""

    output: str | None
    reads: tuple[str, ...]
    pool_from: int | None


@dataclass(frozen=True)
class ObservedOp:
    """One custom op of the entry: the `index`-th in order. layer: None before the first and after the last one."""

    index: int
    op: str
    attributes: Mapping[str, Any]
    layer: int | None
    weights: tuple[str, ...]
    operands: tuple[Operand, ...]
    results: tuple[str | None, ...]

    @property
    def label(self) -> str:
        """The op as a person knows it: its weights' module ("mlp.down_proj"), else its name."""
        if not self.weights or self.op == "rope_and_append":  # its weights are tables, and norms of q and k
            return self.op
        name = self.weights[0].rpartition(".weight")[0] or self.weights[0]
        found = LAYER.search(name)
        return found[2] if found else name


@dataclass(frozen=True)
class ObservedProgram:
    """The program's text, its entry point with the further outputs before the pools, its custom ops in order, and the
    bytes of all that could be observed."""

    text: str
    entry: EntryPoint
    ops: tuple[ObservedOp, ...]
    sizes: Mapping[str, int]


# The outputs of some ops that are observed, by name.
Choice = Callable[[Sequence[ObservedOp]], Set[str]]


def observed_program(text: str, name: str, entry: EntryPoint, choice: Choice) -> ObservedProgram:
    """Keep the one entry `name` of a bundle's program and return what its custom ops take and give, as chosen."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        for function in operations(module, "func.func"):
            symbol = ir.StringAttr(function.attributes["sym_name"]).value
            if symbol != name and "private" not in str(function.attributes.get("sym_visibility", "")):
                function.erase()
        drop_unused_functions(module)
        found = [f for f in operations(module, "func.func") if ir.StringAttr(f.attributes["sym_name"]).value == name]
        if not found:
            raise StrixhloError(f"the program has no function {name}; export the bundle again")
        body = _Body(found[0], entry)
        ops = _with_layers(body.ops())
        kept = choice(ops)
        specs = body.return_further_outputs(kept)
        module.operation.verify()
        outputs = (*entry.outputs[:2], *specs, *entry.outputs[2:])
        entry = entry.model_copy(update={"outputs": outputs})
        sizes = {s.name: math.prod(s.shape) * DTYPE_BYTES[s.dtype] for s in body.specs}
        return ObservedProgram(module.operation.get_asm(), entry, tuple(_only(op, kept) for op in ops), sizes)


class _Body:
    """The entry's body while it is read, and the values that become outputs."""

    def __init__(self, function: ir.Operation, entry: EntryPoint) -> None:
        self.function, self.block = function, function.regions[0].blocks[0]
        self.specs: list[TensorSpec] = []
        self._values: list[ir.Value] = []
        self._names: dict[ir.Value, str] = {}
        arguments = list(self.block.arguments)
        marks = [ir.DictAttr(d) for d in ir.ArrayAttr(function.attributes["arg_attrs"])]
        self._parameters = {
            a: ir.StringAttr(m[PARAMETER]).value for a, m in zip(arguments, marks, strict=True) if PARAMETER in m
        }
        inputs = [a for a in arguments if a not in self._parameters]
        if len(inputs) != len(entry.inputs):
            raise StrixhloError(f"the program's entry takes {len(inputs)} inputs where the manifest has others")
        self._inputs = set(inputs)
        self._pools: dict[ir.Value, int] = dict.fromkeys(inputs[-2:], -1)
        self._dynamic: set[ir.Value] = set(inputs)
        self._composites: set[ir.Value] = set()

    def ops(self) -> list[ObservedOp]:
        """Every custom op in order, without its layer where no weight names it: an attribute `layer` is the pools'."""
        found: list[ObservedOp] = []
        for op in self.block.operations:
            operation = op.operation
            operands = list(operation.operands)
            if operation.name == "stablehlo.composite":
                found.append(self._op(operation, operands, len(found)))
            if any(o in self._dynamic for o in operands):
                self._dynamic.update(operation.results)
        return found

    def _op(self, operation: ir.Operation, operands: list[ir.Value], index: int) -> ObservedOp:
        self._composites.update(operation.results)
        described = tuple(self._operand(o) for o in operands)
        pools = {str(o.type) for o in operands if o in self._pools}
        results = []
        for result in operation.results:
            if str(result.type) in pools:
                self._pools[result] = index
            results.append(None if result in self._pools else self._output(result))
        weights = tuple(self._parameters[o] for o in operands if o in self._parameters)
        attributes = composite_attributes(operation)
        named = [int(m[1]) for w in weights if (m := LAYER.search(w))]
        name = ir.StringAttr(operation.attributes["name"]).value.removeprefix(PREFIX)
        return ObservedOp(index, name, attributes, next(iter(named), None), weights, described, tuple(results))

    def _operand(self, value: ir.Value) -> Operand:
        if value in self._pools:
            return Operand(None, (), self._pools[value])
        if value in self._parameters or value not in self._dynamic:
            return Operand(None, (), None)
        return Operand(None if value in self._inputs else self._output(value), self._reads(value), None)

    def _reads(self, value: ir.Value) -> tuple[str, ...]:
        """Parameters that the value is made of, the nearest first, back to the results of custom ops."""
        pending, seen, names = [value], set(), []
        while pending:
            current = pending.pop(0)
            if current in seen or current in self._composites:
                continue
            seen.add(current)
            if current in self._parameters:
                names.append(self._parameters[current])
            elif current not in self._inputs:
                pending += list(ir.OpResult(current).owner.operands)
        return tuple(names)

    def _output(self, value: ir.Value) -> str | None:
        """The name of the output that the value becomes; None for types that a bundle's entries do not have."""
        tensor = ir.RankedTensorType(value.type)
        dtype, shape = str(tensor.element_type), tuple(tensor.shape)
        if dtype not in DTYPE_BYTES or not shape:
            return None
        if value not in self._names:
            self._names[value] = f"value_{len(self.specs)}"
            self.specs.append(TensorSpec(name=self._names[value], shape=shape, dtype=dtype))
            self._values.append(value)
        return self._names[value]

    def return_further_outputs(self, kept: Set[str]) -> list[TensorSpec]:
        """Put those between `tokens` and the pools, and say so in the function's type and the pools' aliasing."""
        chosen = [(s, v) for s, v in zip(self.specs, self._values, strict=True) if s.name in kept]
        old = self.block.operations[len(self.block.operations) - 1]
        values = [*old.operands]
        values[2:2] = [v for _, v in chosen]
        with ir.InsertionPoint(old):
            ir.Operation.create("func.return", operands=values)
        old.operation.erase()
        inputs = [a.type for a in self.block.arguments]
        self.function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(inputs, [v.type for v in values])
        )
        if "res_attrs" in self.function.attributes:
            del self.function.attributes["res_attrs"]
        marks = []
        for mark in ir.ArrayAttr(self.function.attributes["arg_attrs"]):
            entries = {a.name: a.attr for a in ir.DictAttr(mark)}
            if ALIASING in entries:
                index = ir.IntegerAttr(entries[ALIASING])
                entries[ALIASING] = ir.IntegerAttr.get(index.type, index.value + len(chosen))
            marks.append(ir.DictAttr.get(entries))
        self.function.attributes["arg_attrs"] = ir.ArrayAttr.get(marks)
        return [spec for spec, _ in chosen]


def _with_layers(ops: Sequence[ObservedOp]) -> list[ObservedOp]:
    """An op that nothing names belongs to the layer of both its neighbours."""
    result = []
    for i, op in enumerate(ops):
        layer = op.layer
        if layer is None:
            before = next((o.layer for o in reversed(ops[:i]) if o.layer is not None), None)
            after = next((o.layer for o in ops[i + 1 :] if o.layer is not None), None)
            layer = before if before == after else None
        result.append(replace(op, layer=layer))
    return result


def _only(op: ObservedOp, kept: Set[str]) -> ObservedOp:
    """The op without outputs that are not kept."""
    operands = tuple(o if o.output is None or o.output in kept else replace(o, output=None) for o in op.operands)
    return replace(op, operands=operands, results=tuple(r if r in kept else None for r in op.results))


def everything(ops: Iterable[ObservedOp]) -> set[str]:
    """A `Choice`: all operands and results."""
    names = {n for op in ops for n in (*(o.output for o in op.operands), *op.results)}
    return {n for n in names if n is not None}


def ends_of_layers(ops: Sequence[ObservedOp]) -> set[str]:
    """A `Choice`: what each layer adds to the hidden states, the results of its attention's and of its last matmul."""
    chosen: dict[tuple[int | None, bool], ObservedOp] = {}
    after_attention = False
    for op in ops:
        after_attention = op.op == "attention" or (after_attention and op.op != "rope_and_append")
        if op.weights and after_attention:
            chosen.setdefault((op.layer, False), op)  # the first
            chosen[op.layer, True] = op  # the last
    return {n for op in chosen.values() for n in op.results if n is not None}


def layer_and_the_ends_before(layer: int | None) -> Choice:
    """A `Choice`: all of a layer and of the one before it, and of all earlier layers the ends."""

    def choice(ops: Sequence[ObservedOp]) -> set[str]:
        first = min((op.index for op in ops if op.layer == layer), default=0)
        before = max((op.layer for op in ops[:first] if op.layer is not None), default=None)
        last = max((op.index for op in ops if op.layer == layer), default=len(ops) - 1)
        near = [op for op in ops if op.layer in (layer, before) and op.index <= last]
        return everything(near) | ends_of_layers(ops[: last + 1])

    return choice
