"""A mixture of experts of one token becomes one call where the target has a kernel for all of it.

`moe_route`, `moe_gate_up` and `moe_down`, whose results nobody else wants, become `moe_one`, which no model calls. What
their sum is added to stays an operation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iree.compiler import ir

from ..custom_kernels.ops.launch import LoweringRule
from ..custom_kernels.ops.moe_matmul import DOWN, GATE_UP, part_names
from ..custom_kernels.ops.moe_route import NAME as ROUTE
from .fuse_sums import CALL, target_of
from .lower import call_attributes, operations, types_of

NAME = "strixhlo.moe_one"


def fuse_experts(module: ir.Module, rules: Mapping[str, LoweringRule]) -> int:
    """Fuse what can be; returns how many calls that saved."""
    rule = rules.get(NAME.removeprefix("strixhlo."))
    if rule is None:
        return 0
    downs = [call for call in operations(module, CALL) if target_of(call) == DOWN]
    return sum(2 for down in downs if _fused(down, rule))


def _fused(down: ir.Operation, rule: LoweringRule) -> bool:
    gate_up, route = (_maker(down.operands[i], name) for i, name in ((0, GATE_UP), (1, ROUTE)))
    if gate_up is None or route is None or {use.owner for use in gate_up.results[0].uses} != {down}:
        return False
    users = {use.owner for result in route.results for use in result.uses}
    of_route, of_gate_up, of_down = (call_attributes(call) for call in (route, gate_up, down))
    if users != {gate_up, down} or of_gate_up["format"] != of_down["format"]:
        return False
    attributes = of_route | of_gate_up | {"corrected": of_route["biased"]}
    operands = _operands(route, gate_up, down, attributes)
    if operands is None or rule(attributes, types_of(operands)) is None:
        return False
    made = {
        item.name: item.attr for call in (route, gate_up) for item in ir.DictAttr(call.attributes["backend_config"])
    }
    made["corrected"] = ir.BoolAttr.get(attributes["corrected"])
    with ir.InsertionPoint(down):
        call = ir.Operation.create(
            CALL,
            results=[down.results[0].type],
            operands=operands,
            attributes={
                "call_target_name": ir.StringAttr.get(NAME),
                "api_version": down.attributes["api_version"],
                "backend_config": ir.DictAttr.get(made),
            },
        )
        y = call.results[0]
        if of_down.get("added", False):
            y = _added(y, down.operands[len(down.operands) - 1], of_down)
    down.results[0].replace_all_uses_with(y)
    for old in (down, gate_up, route):
        old.erase()
    return True


def _added(y: ir.Value, residual: ir.Value, of_down: Mapping[str, Any]) -> ir.Value:
    """The residual and `scale` times y, all float32."""
    scale = ir.DenseElementsAttr.get_splat(y.type, ir.FloatAttr.get(ir.F32Type.get(), of_down["scale"]))
    factor = ir.Operation.create("stablehlo.constant", results=[y.type], attributes={"value": scale}).result
    scaled = ir.Operation.create("stablehlo.multiply", results=[y.type], operands=[y, factor]).result
    return ir.Operation.create("stablehlo.add", results=[y.type], operands=[residual, scaled]).result


def _maker(value: ir.Value, name: str) -> ir.Operation | None:
    """The call of that name that made a value."""
    if isinstance(value.owner, ir.Block) or value.owner.name != CALL or target_of(value.owner) != name:
        return None
    return value.owner


def _operands(
    route: ir.Operation, gate_up: ir.Operation, down: ir.Operation, attributes: Mapping[str, Any]
) -> list[ir.Value] | None:
    """In the order of moe_one_launch.operands_of; None where the scores are corrected."""
    if attributes["corrected"]:
        return None
    x, *rest = gate_up.operands
    count = len(part_names(attributes["format"], 1, ir.RankedTensorType(x.type).shape[1]))
    weights, own = rest[4:], list(down.operands)[7:]
    if call_attributes(down).get("added", False):
        own.pop()
    norm = [weights.pop()] if attributes["normed"] else []
    return [*route.operands, x, *weights[: 2 * count], *weights[2 * count :], *own, *norm]
