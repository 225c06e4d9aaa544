"""Matmuls that take their weights whole: one buffer for all parts of a weight, where that saves launches.

A dispatch has at most 16 buffers (IREE's HIP and CUDA drivers), and the parts of three K-quant weights are more. In the
archive a weight's parts lie one after the other (weight_spans.py), so such a call gets the weight as one parameter, and
the kernel where in it the parts begin. What is bound whole is never bound by its parts too: it would lie in the
device's memory twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir

from ..custom_kernels.ops import fused_matmul
from ..custom_kernels.ops.fused_matmul import Form
from ..custom_kernels.ops.launch import LoweringRule, OperandTypes
from ..weight_spans import Span
from .lower import CALL, call_attributes, operand_types, operations, target_of, with_attributes
from .parameters import add_parameter

LOAD = "util.global.load"


@dataclass(frozen=True)
class Tensor:
    """Operands [begin, end) of a call, and the weight whose parts they are (None: they stay as they are)."""

    begin: int
    end: int
    weight: str
    span: Span | None


@dataclass(frozen=True)
class Whole:
    """What can be taken whole: names of parameters by the symbol of their global, and weights by name."""

    names: Mapping[str, str]
    spans: Mapping[str, Span]

    def tensors(self, attributes: Mapping[str, Any], operands: Sequence[ir.Value]) -> tuple[Tensor, ...]:
        """The tensors of a call of fused_matmul; () where one of several parts cannot be taken whole."""
        form, k = Form.of(attributes), ir.RankedTensorType(operands[0].type).shape[1]
        found, end = [], 1
        for parts in form.parts(k):
            begin, end = end, end + len(parts)
            of = [self.parameter(value) for value in list(operands)[begin:end]]
            weight = of[0].rpartition(".")[0]
            span = self.spans.get(weight) if len(parts) > 1 else None
            if len(parts) > 1 and (
                span is None or [*span.parts] != [*parts] or of != [f"{weight}.{part}" for part in parts]
            ):
                return ()
            found.append(Tensor(begin, end, weight, span))
        return tuple(found)

    def parameter(self, value: ir.Value) -> str:
        """The parameter that a value is; "" for others."""
        if isinstance(value.owner, ir.Block) or value.owner.operation.name != LOAD:
            return ""
        return self.names.get(ir.FlatSymbolRefAttr(value.owner.operation.attributes["global"]).value, "")


NO_WEIGHTS = Whole({}, {})


def taken_whole(
    attributes: Mapping[str, Any], types: OperandTypes, tensors: Sequence[Tensor]
) -> tuple[Mapping[str, Any], OperandTypes] | None:
    """A call's attributes and operands' types, once it takes these tensors whole; None where there are none."""
    if not any(t.span for t in tensors):
        return None
    whole = [((t.span.length,), "i8") if t.span else types[t.begin] for t in tensors]
    return {**attributes, "whole": _places(tensors)}, [types[0], *whole, *types[tensors[-1].end :]]


def _places(tensors: Sequence[Tensor]) -> str:
    """The attribute `whole` of ops/fused_matmul.py."""
    each = (t.span.parts.values() if t.span else () for t in tensors)
    return ";".join(",".join(f"{offset}:{dtype}" for offset, dtype in parts) for parts in each)


@dataclass(frozen=True)
class _Matmul:
    call: ir.Operation
    tensors: tuple[Tensor, ...]

    @property
    def spans(self) -> dict[str, Span]:
        return {t.weight: t.span for t in self.tensors if t.span}


def bind_whole_weights(module: ir.Module, rules: Mapping[str, LoweringRule], whole: Whole) -> None:
    """Let calls take weights whole where that saves launches."""
    calls = [call for call in operations(module, CALL) if whole.spans and target_of(call) == fused_matmul.NAME]
    matmuls = [_Matmul(call, whole.tensors(call_attributes(call), call.operands)) for call in calls]
    matmuls = [m for m in matmuls if m.spans]
    shared = _used_otherwise(module, matmuls, whole)
    symbols: dict[str, str] = {}
    for group in _with_common_weights(matmuls):
        spans = {weight: span for m in group for weight, span in m.spans.items()}
        if spans.keys() & shared or not _saves_launches(group, rules["fused_matmul"]):
            continue
        for weight, span in spans.items():
            symbols[weight] = f"whole_{len(symbols)}"
            add_parameter(module, symbols[weight], weight, _bytes(span))
        for m in group:
            _bind(m, symbols)


def _used_otherwise(module: ir.Module, matmuls: Sequence[_Matmul], whole: Whole) -> set[str]:
    """The weights with a part that something else than a tensor of these matmuls reads."""
    places = {
        (m.call, operand): t.weight for m in matmuls for t in m.tensors if t.span for operand in range(t.begin, t.end)
    }
    found = set()
    for load in operations(module, LOAD) if matmuls else ():
        weight = whole.parameter(load.results[0]).rpartition(".")[0]
        if any(places.get((use.owner.operation, use.operand_number)) != weight for use in load.results[0].uses):
            found.add(weight)
    return found


def _with_common_weights(matmuls: Sequence[_Matmul]) -> list[list[_Matmul]]:
    """The matmuls in groups, so that no two groups have a weight in common."""
    groups: list[tuple[set[str], list[_Matmul]]] = []
    for m in matmuls:
        own = set(m.spans)
        touched = [group for group in groups if group[0] & own]
        groups = [group for group in groups if not group[0] & own]
        together = [other for group in touched for other in group[1]]
        groups.append((own.union(*(group[0] for group in touched)), [*together, m]))
    return [group for _, group in groups]


def _saves_launches(group: Sequence[_Matmul], rule: LoweringRule) -> bool:
    """Whether some take fewer launches, and none more."""
    saved = []
    for m in group:
        given = call_attributes(m.call), operand_types(m.call)
        taken = taken_whole(*given, m.tensors)
        apart, together = rule(*given), rule(*taken) if taken else None
        if apart is None or together is None:
            return False
        saved.append(len(apart.launches) - len(together.launches))
    return min(saved) >= 0 and max(saved) > 0


def _bytes(span: Span) -> ir.Type:
    return ir.RankedTensorType.get([span.length], ir.IntegerType.get_signless(8))


def _bind(m: _Matmul, symbols: Mapping[str, str]) -> None:
    """Put a call with whole weights in the place of the call."""
    call = m.call
    with ir.InsertionPoint(call):
        tensors = []
        for t in m.tensors:
            value = call.operands[t.begin]
            if t.span:
                of = {"global": ir.FlatSymbolRefAttr.get(symbols[t.weight])}
                value = ir.Operation.create(LOAD, results=[_bytes(t.span)], attributes=of).result
            tensors.append(value)
        config = ir.DictAttr(call.attributes["backend_config"])
        made = ir.Operation.create(
            CALL,
            results=[r.type for r in call.results],
            operands=[call.operands[0], *tensors, *list(call.operands)[m.tensors[-1].end :]],
            attributes={name: call.attributes[name] for name in ("call_target_name", "api_version")}
            | {"backend_config": with_attributes(config, {"whole": _places(m.tensors)})},
        )
    for old, new in zip(call.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    call.erase()
