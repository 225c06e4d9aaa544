"""Which kernels a target has: lowering rules, the executable that holds them, and what their sources hash to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..custom_kernels.choices import RULES_ONLY, Choices
from ..custom_kernels.cpu.rules import cpu_rules
from ..custom_kernels.gpu.kernels import hsaco, ptx_object, sources_hash
from ..custom_kernels.gpu.launches import GFX1151, H200
from ..custom_kernels.gpu.rules import gpu_rules
from ..custom_kernels.ops.launch import LoweringRule
from ..custom_kernels.toolchain import build_cpu_object, kernel_sources_hash
from .cpu_executable import CpuExecutable
from .gpu_executable import GpuExecutable
from .iree_compile import executable_target
from .targets import Target

CHIPS = {"rocm": GFX1151, "cuda": H200}  # launches are shaped for these, and run on others
PTX_CHIP = "sm_80"  # the oldest GPU that a CUDA target names; the driver compiles PTX for newer ones


def lowering_rules(target: Target, activations: str, choices: Choices = RULES_ONLY) -> Mapping[str, LoweringRule]:
    """Op name -> rule; empty for a target without kernels, where IREE compiles the ops' decompositions. choices: of a
    table, in place of the rules' own."""
    if target.kind == "cpu":
        return cpu_rules(activations == "int8", choices)
    chip = CHIPS.get(target.kind)
    return gpu_rules(replace(chip, choices=choices)) if chip else {}


def kernel_executable(target: Target) -> CpuExecutable | GpuExecutable:
    """An empty executable for a target with kernels. StrixhloError when kernels cannot be built."""
    attribute = executable_target(target.iree_flags)
    if target.kind == "cpu":
        return CpuExecutable(build_cpu_object(target.cpu, target.cpu_features), attribute)
    if target.kind == "rocm":
        return GpuExecutable(lambda symbols: hsaco(target.chip, symbols), attribute)
    return GpuExecutable(lambda symbols: ptx_object(PTX_CHIP, symbols), attribute)


def kernels_hash(target: Target) -> str:
    """What decides what the target's kernels compute; empty for a target without."""
    if target.kind == "cpu":
        return kernel_sources_hash("cpu")
    return sources_hash() if target.kind in ("rocm", "cuda") else ""
