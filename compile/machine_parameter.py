"""The parameter in which the runtime tells kernels what the process may use: a global that is loaded once."""

from __future__ import annotations

from iree.compiler import ir

from ..bundle import MACHINE_PARAMETER, MACHINE_WORDS
from .parameters import add_parameter

SYMBOL = "machine"


def machine_value(module: ir.Module, call: ir.Operation) -> ir.Value:
    """int32 [MACHINE_WORDS], loaded before `call`."""
    type_ = ir.Type.parse(f"tensor<{MACHINE_WORDS}xi32>")
    if not any(
        op.operation.name == "util.global" and ir.StringAttr(op.operation.attributes["sym_name"]).value == SYMBOL
        for op in module.body.operations
    ):
        add_parameter(module, SYMBOL, MACHINE_PARAMETER, type_)
    with ir.InsertionPoint(call):
        load = ir.Operation.create(
            "util.global.load", results=[type_], attributes={"global": ir.FlatSymbolRefAttr.get(SYMBOL)}
        )
    return load.result
