"""Composite -> custom call -> kernel dispatch.

A `strixhlo.*` composite whose op has a kernel on the target becomes `stablehlo.custom_call @strixhlo.<op>`, and each
custom call becomes one or more `flow.dispatch` of the target's kernel executable. A composite that is left alone is
inlined by IREE from its decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from iree.compiler import ir

from ..custom_kernels.ops.activations import activation_operands, activation_results
from ..custom_kernels.ops.launch import COUNTERS, DYNAMIC, MACHINE, CounterSlot, Dimension, Launch, LoweringRule
from .counters import Counters
from .machine_parameter import machine_value
from .numbers import Numbers

# (launch, input types, output types) -> symbol of the executable's export
ExportRule = Callable[[Launch, Sequence[ir.Type], Sequence[ir.Type]], str]

PREFIX = "strixhlo."
CALL = "stablehlo.custom_call"


def operations(module: ir.Module, name: str) -> list[ir.Operation]:
    """Every operation of that name, in order."""
    found = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.operation.name == name:
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def append(module: ir.Module, text: str) -> None:
    """Parse one top-level operation and move it to the end of the module."""
    holder = ir.Module.parse(text)  # must live until its operation has moved
    module.body.append(holder.body.operations[0])


def composites_to_custom_calls(module: ir.Module, rules: Mapping[str, LoweringRule], float32: bool = False) -> int:
    """Turn composites that have a kernel into custom calls, then drop the decompositions that nothing uses.

    float32: the kernels' activations are of that type alone; others are converted before a call and after it.
    """
    count = 0
    for composite in operations(module, "stablehlo.composite"):
        name = ir.StringAttr(composite.attributes["name"]).value
        op = name.removeprefix(PREFIX)
        rule, attributes = rules.get(op), _composite_attributes(composite)
        values, types = _python_values(attributes), operand_types(composite)
        widened = activation_operands(op, values, len(types)) if float32 and rule else ()
        types = [(shape, "f32" if i in widened else dtype) for i, (shape, dtype) in enumerate(types)]
        if rule is None or rule(values, types) is None:
            continue
        results, narrowed = [r.type for r in composite.results], activation_results(op, values) if float32 else ()
        with ir.InsertionPoint(composite):
            call = ir.Operation.create(
                CALL,
                results=[_in_float32(t) if i in narrowed else t for i, t in enumerate(results)],
                operands=[
                    _converted(v, _in_float32(v.type)) if i in widened else v for i, v in enumerate(composite.operands)
                ],
                attributes={
                    "call_target_name": ir.StringAttr.get(name),
                    "backend_config": attributes,
                    "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
                },
            )
            made = [_converted(new, t) for new, t in zip(call.results, results, strict=True)]
        for old, new in zip(composite.results, made, strict=True):
            old.replace_all_uses_with(new)
        composite.erase()
        count += 1
    drop_unused_functions(module)
    return count


def _in_float32(type_: ir.Type) -> ir.Type:
    return ir.RankedTensorType.get(ir.RankedTensorType(type_).shape, ir.F32Type.get())


def _converted(value: ir.Value, type_: ir.Type) -> ir.Value:
    """The value as that type, rounded to nearest even where it is narrower."""
    if value.type == type_:
        return value
    return ir.Operation.create("stablehlo.convert", results=[type_], operands=[value]).result


def drop_unused_functions(module: ir.Module) -> None:
    """Erase private functions that no public one reaches."""
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in operations(module, "func.func")}
    reached: set[str] = set()
    pending = [
        n
        for n, f in functions.items()
        if "sym_visibility" not in f.attributes or "public" in str(f.attributes["sym_visibility"])
    ]
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        pending += [n for n in _callees(functions[name]) if n in functions]
    for name, function in functions.items():
        if name not in reached:
            function.erase()


def _callees(function: ir.Operation) -> list[str]:
    found = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        for key in ("callee", "decomposition"):
            if key in op.operation.attributes:
                found.append(ir.FlatSymbolRefAttr(op.operation.attributes[key]).value)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def custom_calls_to_dispatches(module: ir.Module, rules: Mapping[str, LoweringRule], export: ExportRule) -> int:
    """Turn every strixhlo custom call into dispatches; equal launches on equal inputs (an activation that several
    matmuls share is quantized once) are made once. Returns the number of dispatches."""
    memo: dict[tuple[Any, ...], list[ir.Value]] = {}
    numbers, counters = Numbers(), Counters()
    count = 0
    for call in operations(module, CALL):
        name = ir.StringAttr(call.attributes["call_target_name"]).value
        if not name.startswith(PREFIX):
            continue
        rule = rules[name.removeprefix(PREFIX)]
        lowering = rule(call_attributes(call), operand_types(call))
        if lowering is None:
            raise RuntimeError(f"{name} has no kernel here, but became a custom call")
        values: dict[str, ir.Value] = dict(zip(lowering.operands, call.operands, strict=True))
        if any(COUNTERS in launch.inputs for launch in lowering.launches):
            values[COUNTERS] = counters.of(call, numbers)
        for launch in lowering.launches:
            if MACHINE in launch.inputs and MACHINE not in values:
                values[MACHINE] = machine_value(module, call)
            inputs = [values[i] for i in launch.inputs]
            pure = not any(o.updates for o in launch.outputs)
            key = (launch, *inputs)
            results = memo.get(key) if pure else None
            if results is None:
                results = memo[key] = _dispatch(call, launch, values, numbers, counters, export)
                count += 1
            values.update(zip((o.name for o in launch.outputs), results, strict=True))
        for name, old in zip(lowering.results, call.results, strict=True):
            old.replace_all_uses_with(values[name])
        call.erase()
    return count


def _dispatch(
    call: ir.Operation,
    launch: Launch,
    values: Mapping[str, ir.Value],
    numbers: Numbers,
    counters: Counters,
    export: ExportRule,
) -> list[ir.Value]:
    inputs = [values[i] for i in launch.inputs]  # an input may be there twice
    types = [
        values[o.updates].type if o.updates else ir.RankedTensorType.get(o.shape, ir.Type.parse(o.dtype))
        for o in launch.outputs
    ]
    symbol = export(launch, [v.type for v in inputs], types)
    entry = call.parent
    workload = numbers.constant(entry, launch.workgroups, "index")
    scalars = [
        numbers.length_i32(entry, values[s.input], s.axis)
        if isinstance(s, Dimension)
        else numbers.constant(entry, counters.next_slot(entry) if isinstance(s, CounterSlot) else s, "i32")
        for s in launch.scalars
    ]
    tied = [len(scalars) + launch.inputs.index(o.updates) if o.updates else -1 for o in launch.outputs]
    lengths = [n for v in inputs for n in numbers.dynamic_lengths(entry, v)]
    updated = [values[o.updates] for o in launch.outputs if o.updates]
    groups = [[workload], [*scalars, *inputs], lengths, [n for v in updated for n in numbers.dynamic_lengths(entry, v)]]
    attributes = {
        "entry_points": ir.Attribute.parse(f"[{symbol}]"),
        # workload, arguments, dimensions of arguments, dimensions of results
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(g) for g in groups]),
    }
    if updated:
        attributes["tied_operands"] = ir.Attribute.parse(f"[{', '.join(f'{t} : index' for t in tied)}]")
    operands = [value for group in groups for value in group]
    with ir.InsertionPoint(call):
        dispatch = ir.Operation.create("flow.dispatch", results=types, operands=operands, attributes=attributes)
    for output, result in zip(launch.outputs, dispatch.results, strict=True):
        if output.updates == COUNTERS:
            counters.values[entry] = result
        if output.updates:
            numbers.same_shape(result, values[output.updates])
    return list(dispatch.results)


def target_of(call: ir.Operation) -> str:
    """The op that became a custom call."""
    return str(ir.StringAttr(call.attributes["call_target_name"]).value)


def with_attributes(attributes: ir.DictAttr, made: Mapping[str, str | float]) -> ir.DictAttr:
    """The attributes of an op, and more."""
    double = ir.F64Type.get()
    values = {k: ir.StringAttr.get(v) if isinstance(v, str) else ir.FloatAttr.get(double, v) for k, v in made.items()}
    return ir.DictAttr.get({item.name: item.attr for item in attributes} | values)


def call_attributes(call: ir.Operation) -> dict[str, Any]:
    """The attributes of the op that became a custom call."""
    return _python_values(ir.DictAttr(call.attributes["backend_config"]))


def composite_attributes(composite: ir.Operation) -> dict[str, Any]:
    """A composite's own attributes: integers, floats, strings and booleans."""
    return _python_values(_composite_attributes(composite))


def _composite_attributes(composite: ir.Operation) -> ir.DictAttr:
    found = composite.attributes.get("composite_attributes")
    return ir.DictAttr(found) if found is not None else ir.DictAttr.get({})


def operand_types(op: ir.Operation) -> list[tuple[tuple[int, ...], str]]:
    """Shape (DYNAMIC where an axis is) and element type of each operand."""
    return types_of(op.operands)


def types_of(values: Iterable[ir.Value]) -> list[tuple[tuple[int, ...], str]]:
    """The same of any values."""
    types = [ir.RankedTensorType(v.type) for v in values]
    return [
        (tuple(DYNAMIC if t.is_dynamic_dim(i) else n for i, n in enumerate(t.shape)), str(t.element_type))
        for t in types
    ]


def _python_values(attributes: ir.DictAttr) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in attributes:
        attribute = item.attr.maybe_downcast()
        if not isinstance(attribute, ir.IntegerAttr | ir.FloatAttr | ir.StringAttr | ir.BoolAttr):
            raise TypeError(f"composite attribute {item.name} of an unexpected kind: {attribute}")
        values[item.name] = attribute.value
    return values
