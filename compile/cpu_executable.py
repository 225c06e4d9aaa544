"""The CPU's kernels as one `stream.executable`: shims that unwrap IREE's bindings and call the C symbols.

One shim serves every dispatch of one symbol with the same binding types; the number of workgroups is the workload and
the scalars are push constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iree.compiler import ir

from ..custom_kernels.ops.launch import Launch
from ..custom_kernels.toolchain import KernelObject
from .lower import append

EXECUTABLE = "strixhlo_kernels"
ITEM = {"i8": 1, "f16": 2, "bf16": 2, "i32": 4, "f32": 4}  # bytes


@dataclass
class CpuExecutable:
    """Collects the shims that a program needs; `export` is called once a dispatch, `text` at the end."""

    object_path: Path
    target: str  # the #hal.executable.target attribute of the program
    shims: dict[tuple[str, ...], tuple[str, str]] = field(default_factory=dict)  # key -> (symbol, text)

    def export(self, launch: Launch, inputs: Sequence[ir.Type], outputs: Sequence[ir.Type]) -> str:
        """The export for this launch: made on first use."""
        fresh = [t for t, o in zip(outputs, launch.outputs, strict=True) if not o.updates]
        bindings = [ir.RankedTensorType(t) for t in (*inputs, *fresh)]
        if launch.bytes:
            bindings = [_as_bytes(t) for t in bindings]
        key = (launch.symbol, str(len(launch.scalars)), *map(str, bindings))
        if key not in self.shims:
            name = f"{launch.symbol}_{len(self.shims)}"
            self.shims[key] = (name, _shim(name, launch, bindings))
        return f"@{EXECUTABLE}::@{self.shims[key][0]}"

    @property
    def kernels(self) -> KernelObject:
        """The object, which is there."""
        return KernelObject(self.object_path, lambda: None)

    def add_to(self, module: ir.Module) -> None:
        """Put the executable at the end of a module."""
        append(module, self.text())

    def text(self) -> str:
        """The executable as MLIR text."""
        exports = "".join(
            f"""
  stream.executable.export public @{name} workgroups(%n: index) -> (index, index, index) {{
    %c1 = arith.constant 1 : index
    stream.return %n, %c1, %c1 : index, index, index
  }}"""
            for name, _ in self.shims.values()
        )
        declarations = {}
        for (symbol, scalars, *bindings), _ in self.shims.items():
            elements = (t.removesuffix(">").rsplit("x", 1)[-1].removeprefix("tensor<") for t in bindings)
            declarations[symbol] = _declaration(symbol, [*elements], int(scalars))
        return f"""
stream.executable private @{EXECUTABLE} attributes {{ hal.executable.objects = #hal.executable.objects<{{
    {self.target} = [#hal.executable.object<{{path = "{self.object_path}"}}>] }}> }} {{{exports}
  builtin.module {{{"".join(declarations.values())}{"".join(text for _, text in self.shims.values())}
  }}
}}
"""


def _as_bytes(type_: ir.RankedTensorType) -> ir.RankedTensorType:
    """int8 [bytes of the tensor]."""
    return ir.RankedTensorType.get(
        [math.prod(type_.shape) * ITEM[str(type_.element_type)]], ir.IntegerType.get_signless(8)
    )


def _declaration(symbol: str, elements: list[str], scalars: int) -> str:
    types = ", ".join([f"memref<{t}>, index" for t in elements] + ["index"] * (scalars + 1))
    return f"""
    func.func private @{symbol}({types}) attributes {{hal.import.static, llvm.bareptr = true}}"""


def _shim(name: str, launch: Launch, bindings: list[ir.RankedTensorType]) -> str:
    scalars = [f"%s{i}" for i in range(len(launch.scalars))]
    arguments = [f"{s}: i32" for s in scalars] + [f"%b{i}: !stream.binding" for i in range(len(bindings))]
    body, values, types = "", [], []
    for i, t in enumerate(bindings):
        element = str(t.element_type)
        memref = str(t).replace("tensor<", "memref<", 1)
        lengths = ", ".join("%c1" for axis in range(t.rank) if t.is_dynamic_dim(axis))  # only the base is used
        lengths = f"{{{lengths}}}" if lengths else ""
        count = 2 + 2 * len(t.shape)  # base, offset, sizes, strides
        metadata = ", ".join([f"memref<{element}>"] + ["index"] * (count - 1))
        body += f"""
      %m{i} = stream.binding.subspan %b{i}[%c0] : !stream.binding -> {memref}{lengths}
      %p{i}:{count} = iree_codegen.extract_strided_metadata %m{i} : {memref} -> {metadata}"""
        values += [f"%p{i}#0", f"%p{i}#1"]
        types += [f"memref<{element}>", "index"]
    for i, s in enumerate(scalars):
        body += f"\n      %i{i} = arith.index_cast {s} : i32 to index"
        values.append(f"%i{i}")
        types.append("index")
    return f"""
    func.func @{name}({", ".join(arguments)}) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %id = stream.dispatch.workgroup.id[0] : index{body}
      func.call @{launch.symbol}({", ".join([*values, "%id"])}) : ({", ".join([*types, "index"])}) -> ()
      return
    }}"""
