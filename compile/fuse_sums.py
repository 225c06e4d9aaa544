"""Sums with a normalized input become a part of the matmul that takes them.

`add_normed` and the `fused_matmul` that is the first to take its result are one custom call where that saves a launch:
the matmul's kernel forms the sum for itself, and gives it to whoever else wants it (ops/fused_matmul.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from iree.compiler import ir

from ..custom_kernels.ops import add_normed, fused_matmul
from ..custom_kernels.ops.launch import LoweringRule
from .lower import call_attributes, operand_types, operations, types_of

CALL = "stablehlo.custom_call"


def fuse_sums(module: ir.Module, rules: Mapping[str, LoweringRule]) -> int:
    """Fuse what can be; returns how many calls that saved."""
    sums = [call for call in operations(module, CALL) if target_of(call) == add_normed.NAME]
    return sum(_fused(call, rules) for call in sums)


def _fused(sum_call: ir.Operation, rules: Mapping[str, LoweringRule]) -> bool:
    users = [use.owner for use in sum_call.results[0].uses]
    first = next((u for u in users if all(u == other or u.is_before_in_block(other) for other in users)), None)
    if first is None or first.name != CALL or target_of(first) != fused_matmul.NAME:
        return False
    operands, result = list(first.operands), sum_call.results[0]
    attributes = call_attributes(first)
    if operands[0] != result or result in operands[1:] or attributes.get("summed"):
        return False
    of_sum = call_attributes(sum_call)
    base, x, *further = sum_call.operands
    operands = [x, *operands[1:], base, *further]
    made = {
        "summed": "scaled" if of_sum["scaled"] else "sum",
        "sum_epsilon": of_sum["epsilon"],
        "sum_offset": of_sum["offset"],
    }
    rule, other = rules["fused_matmul"], rules["add_normed"]
    together = rule(attributes | made, types_of(operands))
    apart = [rule(attributes, operand_types(first)), other(of_sum, operand_types(sum_call))]
    if together is None or len(together.launches) >= sum(len(lowering.launches) for lowering in apart if lowering):
        return False
    with ir.InsertionPoint(first):
        call = ir.Operation.create(
            CALL,
            results=[first.results[0].type, result.type],
            operands=operands,
            attributes={name: first.attributes[name] for name in ("call_target_name", "api_version")}
            | {"backend_config": _with(ir.DictAttr(first.attributes["backend_config"]), made)},
        )
    for old, new in ((first.results[0], call.results[0]), (result, call.results[1])):
        old.replace_all_uses_with(new)
    first.erase()
    sum_call.erase()
    return True


def target_of(call: ir.Operation) -> str:
    """The op that became a custom call."""
    return str(ir.StringAttr(call.attributes["call_target_name"]).value)


def _with(attributes: ir.DictAttr, made: Mapping[str, str | float]) -> ir.DictAttr:
    double = ir.F64Type.get()
    values = {k: ir.StringAttr.get(v) if isinstance(v, str) else ir.FloatAttr.get(double, v) for k, v in made.items()}
    return ir.DictAttr.get({item.name: item.attr for item in attributes} | values)
