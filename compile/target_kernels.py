"""Which kernels a target has: lowering rules, the executable that holds them, and what their sources hash to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from iree.compiler import ir

from ..cpu_features import cpu_model
from ..custom_kernels.choices import RULES_ONLY, Choices
from ..custom_kernels.cpu.matrix_unit import for_matrix_unit, kernel_features
from ..custom_kernels.cpu.rules import cpu_rules
from ..custom_kernels.gpu.kernels import hsaco, ptx_object, sources_hash
from ..custom_kernels.gpu.launches import GFX1151, H200, SM_90
from ..custom_kernels.gpu.rules import gpu_rules
from ..custom_kernels.ops.launch import LoweringRule
from ..custom_kernels.toolchain import KernelObject, build_cpu_object, kernel_sources_hash
from .cpu_executable import CpuExecutable
from .gpu_executable import GpuExecutable
from .iree_compile import executable_target
from .lower import ExportRule
from .targets import Target

CHIPS = {"rocm": GFX1151, "cuda": H200}  # launches are shaped for these, and run on others
OWN_CHIPS = {"sm_90": SM_90}  # with launches that need what others have not
# What PTX is made for: the oldest GPU that a CUDA target names, and the first that converts fp8. The driver compiles it
# for newer ones.
PTX_CHIPS = {"sm_80": "sm_80", "sm_86": "sm_80"}
FP8_CHIP = "sm_89"


def lowering_rules(target: Target, activations: str, choices: Choices = RULES_ONLY) -> Mapping[str, LoweringRule]:
    """Op name -> rule; empty for a target without kernels, where IREE compiles the ops' decompositions. choices: of a
    table, in place of the rules' own."""
    if target.kind == "cpu":
        rules = cpu_rules(activations == "int8", choices)
        if kernel_features(target.cpu_features) == target.cpu_features:
            return rules
        return {name: for_matrix_unit(rule) for name, rule in rules.items()}
    chip = OWN_CHIPS.get(target.chip, CHIPS.get(target.kind))
    return gpu_rules(replace(chip, choices=choices)) if chip else {}


def kernel_executable(target: Target) -> CpuExecutable | GpuExecutable:
    """An empty executable for a target with kernels. StrixhloError when kernels cannot be built."""
    attribute = executable_target(target.iree_flags)
    if target.kind == "cpu":
        return CpuExecutable(build_cpu_object(target.cpu, kernel_features(target.cpu_features)), attribute)
    if target.kind == "rocm":
        return GpuExecutable(lambda symbols: hsaco(target.chip, symbols), attribute)
    return GpuExecutable(lambda symbols: ptx_object(PTX_CHIPS.get(target.chip, FP8_CHIP), symbols), attribute)


def put_kernels_in(
    module: ir.Module, target: Target, dispatch: Callable[[ExportRule], int]
) -> tuple[KernelObject | None, int]:
    """Turn a module's custom calls into dispatches of the target's kernels by `dispatch`, and add what holds these; the
    object, yet to be built (None where nothing is launched), and the number of dispatches."""
    executable = kernel_executable(target)
    count = dispatch(executable.export)
    executable.add_to(module)
    return executable.kernels, count


def tuned_chip(target: Target) -> str:
    """What a table of measurements is of: the GPU that programs are compiled for, or this machine's CPU."""
    return cpu_model() if target.kind == "cpu" else target.chip


def kernels_hash(target: Target) -> str:
    """What decides what the target's kernels compute; empty for a target without."""
    if target.kind == "cpu":
        return kernel_sources_hash("cpu")
    return sources_hash() if target.kind in ("rocm", "cuda") else ""
