"""The manifest held against the program: a run gives the program what the manifest says."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir

from ..bundle import MANIFEST, Manifest, TensorSpec
from ..errors import StrixhloError
from .lower import operations
from .parameters import MARK


def check_manifest(module: ir.Module, manifest: Manifest) -> None:
    """StrixhloError where a portable program's entry points, KV pools or weights have other shapes or types than the
    manifest says, or where one is missing. Before anything is lowered."""
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in operations(module, "func.func")}
    for name, entry in manifest.entry_points.items():
        if name not in functions:
            raise _unlike(f"the entry point {name}", "is not in the program")
        function = functions[name]
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        inputs = []
        for argument, attributes in zip(type_.inputs, _attributes(function, len(type_.inputs)), strict=True):
            if MARK in attributes:
                _check_parameter(ir.StringAttr(attributes[MARK]).value, argument, manifest)
            else:
                inputs.append(argument)
        _check_specs(name, "inputs", inputs, entry.inputs)
        _check_specs(name, "outputs", type_.results, entry.outputs)


def _attributes(function: ir.Operation, count: int) -> Sequence[ir.DictAttr]:
    if "arg_attrs" not in function.attributes:
        return [ir.DictAttr.get({})] * count
    return [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]


def _check_parameter(name: str, type_: ir.Type, manifest: Manifest) -> None:
    said = manifest.parameters.get(name)
    if said is None:
        raise _unlike(f"the weight {name}", "is missing, the program takes it")
    _check(f"the weight {name}", type_, said.shape, said.dtype)


def _check_specs(entry: str, what: str, types: Sequence[ir.Type], specs: Sequence[TensorSpec]) -> None:
    if len(types) != len(specs):
        raise _unlike(entry, f"has {len(specs)} {what}, in the program {len(types)}")
    for type_, spec in zip(types, specs, strict=True):
        _check(f"{spec.name} of {entry}", type_, spec.shape, spec.dtype)


def _check(what: str, type_: ir.Type, shape: Sequence[int], dtype: str) -> None:
    said = "x".join([*map(str, shape), dtype])
    found = str(type_).removeprefix("tensor<").removesuffix(">")
    if said != found:
        raise _unlike(what, f"is {said}, in the program {found}")


def _unlike(what: str, problem: str) -> StrixhloError:
    return StrixhloError(f"{MANIFEST}: {what} {problem}; export the bundle again")
