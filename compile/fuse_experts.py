"""A mixture of experts of few tokens becomes fewer calls where the target has kernels for them.

`moe_route`, `moe_gate_up` and `moe_down`, whose results nobody else wants, become `moe_one`, which no model calls. Or
the first two become `moe_chosen_gate_up`, whose choice the last takes as `moe_chosen_down`, with the `add_gated` of a
shared expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir

from ..custom_kernels.ops.add_gated import NAME as ADD_GATED
from ..custom_kernels.ops.launch import LoweringRule
from ..custom_kernels.ops.moe_matmul import DOWN, GATE_UP
from ..custom_kernels.ops.moe_route import NAME as ROUTE
from .fuse_sums import CALL, target_of
from .lower import call_attributes, operations, types_of

NAME, CHOSEN_GATE_UP, CHOSEN_DOWN = "strixhlo.moe_one", "strixhlo.moe_chosen_gate_up", "strixhlo.moe_chosen_down"
OF_DOWN = 7  # operands before its weight


@dataclass(frozen=True)
class Mixture:
    """The three calls of a mixture of experts, of which nobody else takes a result."""

    route: ir.Operation
    gate_up: ir.Operation
    down: ir.Operation

    @property
    def weighed(self) -> bool:
        """Whether the router's weights are of the experts' input; what `down` takes in their place are ones."""
        return bool(call_attributes(self.gate_up).get("weighed", False))

    @property
    def attributes(self) -> dict[str, Any]:
        """Of all three; `corrected` where the router's scores are, `added` where the last operand of `down` is a
        residual, and the factor of what is added to it."""
        of_route, of_gate_up = call_attributes(self.route), call_attributes(self.gate_up)
        of_down, columns = call_attributes(self.down), ir.RankedTensorType(self.route.operands[0].type).shape[1]
        added = {"added": bool(of_down.get("added", False)), "added_scale": float(of_down.get("scale", 1.0))}
        return {"experts": columns} | of_route | of_gate_up | {"corrected": of_route["biased"]} | added

    def made_attributes(self) -> dict[str, ir.Attribute]:
        """`attributes` as the compiler has them."""
        calls = (self.route, self.gate_up)
        made = {i.name: i.attr for call in calls for i in ir.DictAttr(call.attributes["backend_config"])}
        flags = {name: ir.BoolAttr.get(self.attributes[name]) for name in ("corrected", "added")}
        scale = ir.FloatAttr.get(ir.F64Type.get(), self.attributes["added_scale"])
        experts = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.attributes["experts"])
        return made | flags | {"added_scale": scale, "experts": experts}


def fuse_experts(module: ir.Module, rules: Mapping[str, LoweringRule]) -> int:
    """Fuse what can be; returns how many calls that saved."""
    if not {NAME, CHOSEN_GATE_UP} & {f"strixhlo.{name}" for name in rules}:
        return 0
    downs = [call for call in operations(module, CALL) if target_of(call) == DOWN]
    mixtures = [found for down in downs if (found := _mixture(down))]
    return sum(_into_one(found, rules) or _with_choice(found, rules) for found in mixtures)


def _mixture(down: ir.Operation) -> Mixture | None:
    gate_up, route = (_maker(down.operands[i], name) for i, name in ((0, GATE_UP), (3, ROUTE)))
    if gate_up is None or route is None or {use.owner for use in gate_up.results[0].uses} != {down}:
        return None
    users = {use.owner for result in route.results for use in result.uses}
    found = Mixture(route, gate_up, down)
    own_weights = found.weighed or down.operands[1].owner == route
    return found if own_weights and users == {gate_up, down} else None


def _into_one(mixture: Mixture, rules: Mapping[str, LoweringRule]) -> int:
    rule, down = rules.get("moe_one"), mixture.down
    operands = _operands(mixture)
    same = mixture.attributes["format"] == call_attributes(down)["format"]
    if rule is None or not same or mixture.weighed or rule(mixture.attributes, types_of(operands)) is None:
        return 0
    (y,) = _call(down, NAME, operands, [down.results[0].type], mixture.made_attributes())
    _replace(mixture, y)
    return 2


def _with_choice(mixture: Mixture, rules: Mapping[str, LoweringRule]) -> int:
    rule, of_down = rules.get("moe_chosen_gate_up"), rules.get("moe_chosen_down")
    route, gate_up, down = mixture.route, mixture.gate_up, mixture.down
    own = list(gate_up.operands)[5:]
    operands = [*route.operands, gate_up.operands[0], *own[: len(own) - mixture.weighed]]
    attributes = mixture.attributes
    if rule is None or of_down is None:
        return 0
    together = rule(attributes, types_of(operands))
    joined = together is None  # one buffer less, for both results
    together = together or rule(attributes | {"joined": True}, types_of(operands))
    if together is None:
        return 0
    h, experts = gate_up.results[0].type, attributes["experts"]
    shape = next(o.shape for o in together.launches[-1].outputs if o.name == "chosen")
    chosen = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
    ((pairs, inner), x) = types_of([gate_up.results[0]])[0]
    of_h = {"joined": True, "pairs": pairs, "inner": inner, "x": x} if joined else {}
    config = {i.name: i.attr for i in ir.DictAttr(down.attributes["backend_config"])}
    config["experts"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), experts)
    weights = list(down.operands)[OF_DOWN:]
    types = [*([] if joined else types_of([gate_up.results[0]])), (tuple(chosen.shape), "i32"), *types_of(weights)]
    if of_down(call_attributes(down) | {"experts": experts} | of_h, types) is None:
        return 0
    gated = _gated(mixture)
    if gated:
        weights[-1:] = gated.operands
        of_sum = {i.name: i.attr for i in ir.DictAttr(gated.attributes["backend_config"])}
        config |= {"gated": ir.BoolAttr.get(True), "shared_scale": of_sum["scale"], "column": of_sum["column"]}
    made_attributes = mixture.made_attributes()
    if joined:
        made_attributes["joined"] = config["joined"] = ir.BoolAttr.get(True)
        numbers = {"pairs": pairs, "inner": inner}
        config |= {n: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), v) for n, v in numbers.items()}
        config["x"] = ir.StringAttr.get(x)
    made = _call(gate_up, CHOSEN_GATE_UP, operands, [chosen] if joined else [h, chosen], made_attributes)
    (y,) = _call(down, CHOSEN_DOWN, [*made, *weights], [down.results[0].type], config)
    _replace(mixture, y)
    if gated:
        gated.erase()
    return 1 + bool(gated)


def _gated(mixture: Mixture) -> ir.Operation | None:
    """The `add_gated` whose result nobody but `down` takes, as its residual."""
    residual = mixture.down.operands[len(mixture.down.operands) - 1]
    found = _maker(residual, ADD_GATED) if mixture.attributes["added"] else None
    return found if found and {use.owner for use in residual.uses} == {mixture.down} else None


def _call(
    before: ir.Operation,
    name: str,
    operands: list[ir.Value],
    results: list[ir.Type],
    attributes: dict[str, ir.Attribute],
) -> list[ir.Value]:
    with ir.InsertionPoint(before):
        call = ir.Operation.create(
            CALL,
            results=results,
            operands=operands,
            attributes={
                "call_target_name": ir.StringAttr.get(name),
                "api_version": before.attributes["api_version"],
                "backend_config": ir.DictAttr.get(attributes),
            },
        )
    return list(call.results)


def _replace(mixture: Mixture, y: ir.Value) -> None:
    mixture.down.results[0].replace_all_uses_with(y)
    for old in (mixture.down, mixture.gate_up, mixture.route):
        old.erase()


def _maker(value: ir.Value, name: str) -> ir.Operation | None:
    """The call of that name that made a value."""
    if isinstance(value.owner, ir.Block) or value.owner.name != CALL or target_of(value.owner) != name:
        return None
    return value.owner


def _operands(mixture: Mixture) -> list[ir.Value]:
    """In the order of moe_one_launch.operands_of."""
    x, *rest = mixture.gate_up.operands
    logits, positions, *correction = mixture.route.operands
    attributes = mixture.attributes
    weights, own = rest[4:], list(mixture.down.operands)[OF_DOWN:]
    residual = [own.pop()] if attributes["added"] else []
    norm = [weights.pop()] if attributes["normed"] else []
    return [logits, positions, x, *correction, *weights, *own, *norm, *residual]
