"""The parameter in which the runtime tells kernels what the process may use: a global that is loaded once."""

from __future__ import annotations

from iree.compiler import ir

from ..bundle import MACHINE_PARAMETER, MACHINE_WORDS
from .parameters import SCOPE

SYMBOL = "machine"


def machine_value(module: ir.Module, call: ir.Operation) -> ir.Value:
    """int32 [MACHINE_WORDS], loaded before `call`."""
    type_ = ir.Type.parse(f"tensor<{MACHINE_WORDS}xi32>")
    if not any(
        op.operation.name == "util.global" and ir.StringAttr(op.operation.attributes["sym_name"]).value == SYMBOL
        for op in module.body.operations
    ):
        with ir.InsertionPoint.at_block_begin(module.body):
            ir.Operation.create(
                "util.global",
                attributes={
                    "sym_name": ir.StringAttr.get(SYMBOL),
                    "sym_visibility": ir.StringAttr.get("private"),
                    "type": ir.TypeAttr.get(type_),
                    "initial_value": ir.Attribute.parse(
                        f'#flow.parameter.named<"{SCOPE}"::"{MACHINE_PARAMETER}"> : {type_}'
                    ),
                },
            )
    with ir.InsertionPoint(call):
        load = ir.Operation.create(
            "util.global.load", results=[type_], attributes={"global": ir.FlatSymbolRefAttr.get(SYMBOL)}
        )
    return load.result
