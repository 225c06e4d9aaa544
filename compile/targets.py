"""Targets: what the user writes after --target, and what it means to IREE and to the kernels' compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cpu_features import LEVELS, host_cpu
from ..errors import StrixhloError

KINDS = ("cpu", "rocm", "cuda", "vulkan")


@dataclass(frozen=True)
class Target:
    """A compile target: `name` as the user writes it ("cpu", "cpu:x86-64-v3"), IREE's flags, and for the CPU the level
    and extra features that kernels and IREE's own code may use."""

    name: str
    kind: str
    iree_flags: tuple[str, ...]
    cpu: str = ""
    cpu_features: tuple[str, ...] = ()


# Weights stay as they are in the file: without these IREE repacks or dequantizes small ones when it loads.
COMMON_FLAGS = ("--iree-opt-const-expr-hoisting=false", "--iree-opt-data-tiling=false")


def parse_target(text: str) -> Target:
    """ "cpu" (this machine) or "cpu:<level>"; StrixhloError for anything else."""
    kind, _, variant = text.partition(":")
    if kind not in KINDS:
        raise StrixhloError(
            f"target {text!r} is not known; choose one of {', '.join(KINDS)}, for example cpu:x86-64-v3"
        )
    if kind != "cpu":
        raise StrixhloError(f"target {kind} is not built in this version; use --target cpu")
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
