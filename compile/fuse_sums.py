"""Sums with a normalized input become a part of the matmul that takes them.

`add_normed` and the `fused_matmul` that is the first to take its result are one custom call where that saves a launch:
the matmul's kernel forms the sum for itself, and gives it to whoever else wants it (ops/fused_matmul.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from iree.compiler import ir

from ..custom_kernels.ops import add_normed, fused_matmul
from ..custom_kernels.ops.launch import LoweringRule
from .lower import CALL, call_attributes, operand_types, operations, target_of, types_of, with_attributes
from .whole_weights import NO_WEIGHTS, Whole, taken_whole


def fuse_sums(module: ir.Module, rules: Mapping[str, LoweringRule], whole: Whole = NO_WEIGHTS) -> int:
    """Fuse what can be; returns how many calls that saved. whole: the weights that the call may get whole."""
    sums = [call for call in operations(module, CALL) if target_of(call) == add_normed.NAME]
    return sum(_fused(call, rules, whole) for call in sums)


def _fused(sum_call: ir.Operation, rules: Mapping[str, LoweringRule], whole: Whole) -> bool:
    users = [use.owner for use in sum_call.results[0].uses]
    first = next((u for u in users if all(u == other or u.is_before_in_block(other) for other in users)), None)
    if first is None or first.name != CALL or target_of(first) != fused_matmul.NAME:
        return False
    operands, result = list(first.operands), sum_call.results[0]
    attributes = call_attributes(first)
    if operands[0] != result or result in operands[1:] or attributes.get("summed"):
        return False
    of_sum = call_attributes(sum_call)
    if of_sum.get("based", False):
        return False
    base, x, *further = sum_call.operands
    operands = [x, *operands[1:], base, *further]
    made = {
        "summed": "scaled" if of_sum["scaled"] else "sum",
        "sum_epsilon": of_sum["epsilon"],
        "sum_offset": of_sum["offset"],
    }
    rule, other = rules["fused_matmul"], rules["add_normed"]
    given = attributes | made, types_of(operands)
    together = [rule(*given)]
    if taken := taken_whole(*given, whole.tensors(attributes, first.operands)):
        together.append(rule(*taken))
    apart = [rule(attributes, operand_types(first)), other(of_sum, operand_types(sum_call))]
    least = min((len(lowering.launches) for lowering in together if lowering), default=None)
    if least is None or least >= sum(len(lowering.launches) for lowering in apart if lowering):
        return False
    with ir.InsertionPoint(first):
        call = ir.Operation.create(
            CALL,
            results=[first.results[0].type, result.type],
            operands=operands,
            attributes={name: first.attributes[name] for name in ("call_target_name", "api_version")}
            | {"backend_config": with_attributes(ir.DictAttr(first.attributes["backend_config"]), made)},
        )
    for old, new in ((first.results[0], call.results[0]), (result, call.results[1])):
        old.replace_all_uses_with(new)
    first.erase()
    sum_call.erase()
    return True
