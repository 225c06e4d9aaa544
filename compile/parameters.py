"""Weights: arguments marked `strixhlo.parameter` become IREE parameters, each one global for all entry points."""

from __future__ import annotations

from iree.compiler import ir

SCOPE = "model"
MARK = "strixhlo.parameter"


def bind_parameters(module: ir.Module) -> dict[str, str]:
    """Replace every marked argument by a load of `#flow.parameter.named<"model"::name>`, and drop the argument; the
    globals' symbols -> names."""
    globals_: dict[str, str] = {}
    for function in list(module.body.operations):
        if function.operation.name == "func.func" and "arg_attrs" in function.attributes:
            _bind_function(module, function.operation, globals_)
    return {symbol: name for name, symbol in globals_.items()}


def _bind_function(module: ir.Module, function: ir.Operation, globals_: dict[str, str]) -> None:
    arg_attrs = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]
    if not any(MARK in attrs for attrs in arg_attrs):
        return
    block = function.regions[0].blocks[0]
    kept = []
    with ir.InsertionPoint.at_block_begin(block):
        for argument, attrs in zip(list(block.arguments), arg_attrs, strict=True):
            if MARK not in attrs:
                kept.append((argument.type, attrs))
                continue
            name = ir.StringAttr(attrs[MARK]).value
            symbol = globals_.get(name) or _global(module, name, argument.type, len(globals_))
            globals_[name] = symbol
            load = ir.Operation.create(
                "util.global.load",
                results=[argument.type],
                attributes={"global": ir.FlatSymbolRefAttr.get(symbol)},
            )
            argument.replace_all_uses_with(load.result)
    for i in reversed(range(len(arg_attrs))):
        if MARK in arg_attrs[i]:
            block.erase_argument(i)
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([t for t, _ in kept], results))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([a for _, a in kept])


def _global(module: ir.Module, name: str, type_: ir.Type, index: int) -> str:
    symbol = f"parameter_{index}"
    add_parameter(module, symbol, name, type_)
    return symbol


def add_parameter(module: ir.Module, symbol: str, name: str, type_: ir.Type) -> None:
    """A global at the begin of the module, whose value the runtime has under that name."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    with ir.InsertionPoint.at_block_begin(module.body):
        ir.Operation.create(
            "util.global",
            attributes={
                "sym_name": ir.StringAttr.get(symbol),
                "sym_visibility": ir.StringAttr.get("private"),
                "type": ir.TypeAttr.get(type_),
                "initial_value": ir.Attribute.parse(f'#flow.parameter.named<"{SCOPE}"::"{quoted}"> : {type_}'),
            },
        )
