"""Programs of recorded launches: a function for each chain, which takes its inputs and outputs as bytes and gives them
back. Outputs come in poisoned, with a guard behind them, and are written in place."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gfx1151_sim.kernel_machine import relatives
from iree.compiler import ir

from strixhlo.compile.gpu_executable import EXECUTABLE, GpuExecutable
from strixhlo.compile.iree_compile import iree_compile
from strixhlo.compile.target_kernels import kernel_executable
from strixhlo.compile.targets import Target, parse_target
from strixhlo.custom_kernels.ops.launch import Launch
from strixhlo.errors import StrixhloError

from .recording import ARRAYS, FILES, PLAN, RECORDED, RESULTS, Chain, described, recorded

GUARD = 256  # bytes
ITEM = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i32": 4}  # bytes
MOST_KERNELS = 48  # of a module: the driver compiles all of them when it is loaded


def build(folder: Path, target: str = "cuda:sm_89", keep: bool = False) -> int:
    """plan.json and files.zip (programs, arrays) of what the folder's `recorded` has; how many chains there are."""
    parsed, chains = parse_target(target), recorded(folder)
    if not chains:
        raise StrixhloError(f"{folder}: no launches were recorded there; make the whole kit with make cuda-kit")
    shutil.rmtree(folder / RESULTS, ignore_errors=True)
    cases: list[dict[str, Any]] = []
    groups = modules(chains)
    for i, group in enumerate(groups):
        name = f"m{i}.vmfb"
        compile_module(group, parsed, folder / name)
        cases += [_case(chain, name, f"t{n}") for n, chain in enumerate(group)]
        print(f"{i + 1} of {len(groups)} programs, {len(group)} calls", flush=True)
    plan: dict[str, Any] = {
        "target": target,
        "guard": GUARD,
        "modules": [f"m{i}.vmfb" for i in range(len(groups))],
        "cases": cases,
    }
    (folder / PLAN).write_text(json.dumps(plan))
    used = {name for c in cases for name in (*c["inputs"].values(), *(r["array"] for r in c["results"].values()))}
    with zipfile.ZipFile(folder / FILES, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
        for name in plan["modules"]:
            file.write(folder / name, name)
            (folder / name).unlink()
        for name in sorted(used):
            file.writestr(name, zlib.decompress((folder / ARRAYS / name).read_bytes()))
    if not keep:
        shutil.rmtree(folder / ARRAYS)
        shutil.rmtree(folder / RECORDED)
    return len(chains)


def modules(chains: Sequence[Chain]) -> list[list[Chain]]:
    """Chains that share kernels together, and no kernel with two kinds of arguments in one."""
    found: list[tuple[list[Chain], dict[str, str]]] = []
    for chain in sorted(chains, key=lambda c: (relatives(c.launches[0].symbol), c.test, c.index)):
        own = {launch.symbol: _form(launch) for launch in chain.launches}
        group, forms = found[-1] if found else ([], {})
        if not group or len(forms | own) > MOST_KERNELS or any(forms.get(s, form) != form for s, form in own.items()):
            group, forms = [], {}
            found.append((group, forms))
        group.append(chain)
        forms |= own
    return [group for group, _ in found]


def _form(launch: Launch) -> str:
    given = in_place(launch, 0)
    written = {o.updates for o in given.outputs}
    return f"{len(launch.scalars)} {[n in written for n in given.inputs]} {launch.threads} {launch.local_memory}"


def in_place(launch: Launch, number: int) -> Launch:
    """With an input for each output, named after the launch's number."""
    fresh = tuple(f"{number} {o.name}" for o in launch.outputs if not o.updates)
    outputs = tuple(replace(o, updates=o.updates or f"{number} {o.name}") for o in launch.outputs)
    return replace(launch, inputs=(*launch.inputs, *fresh), outputs=outputs)


def poisoned(chain: Chain) -> dict[str, int]:
    """Arguments for what the launches make: name, and size in bytes."""
    outputs = [(f"{i} {o.name}", o) for i, one in enumerate(chain.launches) for o in one.outputs if not o.updates]
    return {name: math.prod(o.shape) * ITEM[o.dtype] + GUARD for name, o in outputs}


def compile_module(chains: Sequence[Chain], target: Target, vmfb: Path) -> None:
    """One program with a function t0, t1, ... for each chain: its inputs, then what is poisoned."""
    executable = kernel_executable(target)
    assert isinstance(executable, GpuExecutable)
    functions = [_function(chain, f"t{n}", executable) for n, chain in enumerate(chains)]
    exports = f"hal.executable.source private @{EXECUTABLE} {{{''.join(executable.exports.values())}\n}}"
    with ir.Context(), ir.Location.unknown():
        module, made = ir.Module.parse("\n".join([exports, *functions])), ir.Module.parse("module {}")
        executable.add_to(made)
        source = made.body.operations[0].operation
        module.body.operations[0].operation.attributes["objects"] = source.attributes["objects"]
        program = module.operation.get_asm(print_generic_op_form=True)
    assert executable.kernels
    executable.kernels.build()
    iree_compile(program, target.iree_flags, vmfb)


def _function(chain: Chain, name: str, executable: GpuExecutable) -> str:
    sizes = {n: size for n, (_, size) in chain.inputs.items()} | poisoned(chain)
    kind = {n: f"tensor<{size}xi8>" for n, size in sizes.items()}  # of each buffer
    value = {n: f"%a{i}" for i, n in enumerate(sizes)}  # that holds it now
    given = ", ".join(f"{v}: {kind[n]}" for n, v in value.items())
    lines: list[str] = []
    for number, launch in enumerate(chain.launches):
        own = in_place(launch, number)
        lines.append(f"%w{number} = arith.constant {own.workgroups} : index")
        lines += [f"%s{number}_{i} = arith.constant {s} : i32" for i, s in enumerate(own.scalars)]
        scalars = [f"%s{number}_{i}" for i in range(len(own.scalars))]
        operands = ", ".join([*scalars, *(value[n] for n in own.inputs)])
        kinds = ", ".join([*(["i32"] * len(scalars)), *(kind[n] for n in own.inputs)])
        tied = ", ".join(value[o.updates] for o in own.outputs)
        call = f"flow.dispatch {executable.export(own, (), ())}[%w{number}]({operands}) : ({kinds}) -> ({tied})"
        lines.append(f"%r{number}:{len(own.outputs)} = {call}")
        for i, output in enumerate(own.outputs):
            value[output.name], kind[output.name] = f"%r{number}#{i}", kind[output.updates]
    kinds = ", ".join(kind[n] for n in chain.results)
    body = "".join(f"  {line}\n" for line in lines)
    returned = f"  return {', '.join(value[n] for n in chain.results)} : {kinds}\n"
    return f"func.func public @{name}({given}) -> ({kinds}) {{\n{body}{returned}}}"


def _case(chain: Chain, module: str, function: str) -> dict[str, Any]:
    """A chain as the plan has it."""
    updated = {o.updates for launch in chain.launches for o in launch.outputs}
    return {
        "test": chain.test,
        "index": chain.index,
        "module": module,
        "function": function,
        "launches": described(chain.launches),
        "inputs": {name: array for name, (array, _) in chain.inputs.items()},
        "kept": [name for name in chain.inputs if name not in updated],
        "poisoned": poisoned(chain),
        "results": {name: asdict(result) for name, result in chain.results.items()},
    }
