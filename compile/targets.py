"""Targets: what the user writes after --target, and what it means to IREE and to the kernels' compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cpu_features import LEVELS, host_cpu
from ..errors import StrixhloError

KINDS = ("cpu", "rocm", "cuda", "vulkan")
# GPUs by kind; the first is meant when none is named.
CHIPS = {
    "rocm": ("gfx1151",),
    "cuda": ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120"),
}
IREE_CHIPS = {"sm_90": "sm_89"}  # what IREE 3.13 takes for those that it does not know: the newest before


@dataclass(frozen=True)
class Target:
    """A compile target: `name` as the user writes it ("cpu", "cpu:x86-64-v3", "rocm:gfx1151"), IREE's flags; for the
    CPU the level and extra features that kernels and IREE's own code may use, for a GPU its name."""

    name: str
    kind: str
    iree_flags: tuple[str, ...]
    cpu: str = ""
    cpu_features: tuple[str, ...] = ()
    chip: str = ""
    device: str = ""  # the #hal.device.target attribute where IREE's flags cannot say it


# Any Vulkan 1.1 device with 8 and 16 bit storage and arithmetic, as desktop drivers and Mesa's lavapipe have. The
# compiler's own baseline (Android's) knows no float16, and reads it wrongly.
VULKAN_DEVICE = (
    '#hal.device.target<"vulkan", [#hal.executable.target<"vulkan-spirv", "vulkan-spirv-fb",'
    ' {iree_codegen.target_info = #iree_gpu.target<arch = "generic", features = "spirv:v1.3,cap:Shader",'
    " wgp = <compute = fp32|fp16|int32|int16|int8, storage = b32|b16|b8, subgroup = none, subgroup_size_choices = [64],"
    " max_workgroup_sizes = [128, 128, 64],"
    " max_thread_count_per_workgroup = 128, max_workgroup_memory_bytes = 16384,"
    " max_workgroup_counts = [65535, 65535, 65535]>>}>]> : !hal.device"
)
# Weights stay as they are in the file: without these IREE repacks or dequantizes small ones when it loads.
COMMON_FLAGS = ("--iree-opt-const-expr-hoisting=false", "--iree-opt-data-tiling=false")


def parse_target(text: str) -> Target:
    """ "cpu" (this machine), "cpu:<level>", "rocm[:gfx...]", "cuda[:sm_...]", "vulkan"; StrixhloError for others."""
    kind, _, variant = text.partition(":")
    if kind not in KINDS:
        raise StrixhloError(
            f"target {text!r} is not known; choose one of {', '.join(KINDS)}, for example cpu:x86-64-v3"
        )
    if kind != "cpu":
        return _gpu(text, kind, variant)
    if not variant:
        level, extra = host_cpu()
    elif variant in LEVELS:
        level, extra = variant, ()
    else:
        raise StrixhloError(
            f"CPU {variant!r} is not known; choose one of {', '.join(LEVELS)}, or cpu alone for this machine"
        )
    return Target(text, "cpu", (*_cpu_flags(level, extra), *COMMON_FLAGS), level, tuple(extra))


def _cpu_flags(level: str, extra: Sequence[str]) -> tuple[str, ...]:
    flags = [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-cpu={level}",
    ]
    if extra:
        flags.append(f"--iree-llvmcpu-target-cpu-features={','.join('+' + f for f in extra)}")
    return tuple(flags)


def _gpu(text: str, kind: str, variant: str) -> Target:
    if kind == "vulkan":
        if variant:
            raise StrixhloError(f"target {text!r} is not known; vulkan has no variants, write --target vulkan")
        return Target(text, kind, COMMON_FLAGS, device=VULKAN_DEVICE)
    chip = variant or CHIPS[kind][0]
    if chip not in CHIPS[kind]:
        raise StrixhloError(_unknown_chip(kind, chip))
    driver = {"rocm": "hip", "cuda": "cuda"}[kind]
    flags = (f"--iree-hal-target-device={driver}", f"--iree-{kind}-target={IREE_CHIPS.get(chip, chip)}")
    return Target(text, kind, (*flags, *COMMON_FLAGS), chip=chip)


def _unknown_chip(kind: str, chip: str) -> str:
    known = ", ".join(CHIPS[kind])
    if kind == "cuda":
        return (
            f"the compiler does not know the CUDA GPU {chip!r}, only {known}; a program is PTX, which the driver"
            " compiles for any newer GPU when it loads: name one that is not newer than yours (H100, H200: cuda:sm_90)"
        )
    return f"the AMD GPU {chip!r} has no kernels here, only {known}"
