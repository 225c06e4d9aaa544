"""KV pools whose number of rows, and whose type, need not be the exported ones, where all access to them is by kernels.

The portable program has pools of one size. IREE's own code on a dynamic axis is slow or fails, so the axis becomes
dynamic only where no such code touches the pools: our kernels take the number of rows as a scalar.
"""

from __future__ import annotations

from iree.compiler import ir

from ..bundle import KV_ARRAYS
from .lower import PREFIX, operations

DONATED = "tf.aliasing_output"
ROWS_AXIS = 1  # of a pool [layers, rows, width]


def free_pools(module: ir.Module, kv_dtype: str | None) -> bool:
    """Make the row axis of all pools dynamic, and with kv_dtype (of `KV_ARRAYS`) their elements of that type. Pools are
    the donated arguments, and what custom calls make of them in place. False, and nothing changed, where something
    else than our custom calls uses a pool."""
    entries = [f for f in operations(module, "func.func") if "arg_attrs" in f.attributes]
    pools = [_pools(f) for f in entries]
    if not any(pools) or not all(_ours(use.owner) for found in pools for value in found for use in value.uses):
        return False
    element = ir.Type.parse(KV_ARRAYS[kv_dtype]) if kv_dtype else None
    for function, values in zip(entries, pools, strict=True):
        for value in values:
            value.set_type(_freed(value.type, element))
        block = function.regions[0].blocks[0]
        results = [v.type for v in block.operations[len(block.operations) - 1].operands]
        type_ = ir.FunctionType.get([a.type for a in block.arguments], results)
        function.attributes["function_type"] = ir.TypeAttr.get(type_)
    return True


def _pools(function: ir.Operation) -> list[ir.Value]:
    """The donated arguments, and everything of their type that is made from them."""
    block = function.regions[0].blocks[0]
    marks = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]
    found: list[ir.Value] = [a for a, attrs in zip(block.arguments, marks, strict=True) if DONATED in attrs]
    seen = set(found)
    for value in found:  # grows while it is read
        for use in value.uses:
            made = [r for r in use.owner.results if r.type == value.type and r not in seen]
            found += made
            seen.update(made)
    return found


def _ours(operation: ir.Operation) -> bool:
    if operation.name == "func.return":
        return True
    called = operation.name == "stablehlo.custom_call" and operation.attributes["call_target_name"]
    return bool(called) and ir.StringAttr(called).value.startswith(PREFIX)


def _freed(type_: ir.Type, element: ir.Type | None) -> ir.Type:
    ranked = ir.RankedTensorType(type_)
    shape = [*ranked.shape]
    shape[ROWS_AXIS] = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get(shape, element or ranked.element_type)
