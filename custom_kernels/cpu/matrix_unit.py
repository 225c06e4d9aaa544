"""Kernels that use the CPU's matrix unit (AMX) where it has one and the process may: they are told so when they run.

A build for AVX-512 with VNNI holds both ways. Its matmuls take one operand more, `MACHINE`, which the runtime fills.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ops.launch import MACHINE, Launch, Lowering, LoweringRule, OperandTypes

FEATURES = ("amx-tile", "amx-int8", "amx-bf16")  # for the compiler of the kernels alone
WITH = "avx512vnni"
KERNELS = ("strixhlo_qmm_", "strixhlo_mm_", "strixhlo_fused_", "strixhlo_moe_rows_")


def kernel_features(features: Sequence[str]) -> tuple[str, ...]:
    """What kernels for a CPU with these features are built with."""
    return (*features, *FEATURES) if WITH in features else tuple(features)


def with_machine(launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """The launches as such a build takes them."""
    return tuple(
        replace(one, inputs=(MACHINE, *one.inputs)) if one.symbol.startswith(KERNELS) else one for one in launches
    )


def for_matrix_unit(rule: LoweringRule) -> LoweringRule:
    """The rule, with launches as such a build takes them."""

    def changed(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
        lowering = rule(attributes, types)
        return replace(lowering, launches=with_machine(lowering.launches)) if lowering else None

    return changed
