"""Compiles what `strixhlo doctor` runs: a matmul of IREE's own, and one of our kernels."""

from __future__ import annotations

from pathlib import Path

from .compile.compile import lower_program
from .compile.iree_compile import iree_compile
from .compile.target_kernels import lowering_rules
from .compile.targets import parse_target

# Shapes and types are those of runtime.selftest.PROGRAMS.
MATMUL = """
func.func public @main(%x: tensor<64x256xf32>, %w: tensor<256x48xf32>) -> tensor<64x48xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x48xf32>) -> tensor<64x48xf32>
  return %y : tensor<64x48xf32>
}
"""
# What jax.jit(custom_kernels.ops.dense_matmul.dense_matmul) traces to.
KERNEL = """
func.func public @main(%x: tensor<16x512xf32>, %w: tensor<96x512xf16>) -> tensor<16x96xf32> {
  %y = stablehlo.composite "strixhlo.dense_matmul" %x, %w {decomposition = @reference}
      : (tensor<16x512xf32>, tensor<96x512xf16>) -> tensor<16x96xf32>
  return %y : tensor<16x96xf32>
}
func.func private @reference(%x: tensor<16x512xf32>, %w: tensor<96x512xf16>) -> tensor<16x96xf32> {
  %f = stablehlo.convert %w : (tensor<96x512xf16>) -> tensor<96x512xf32>
  %y = stablehlo.dot_general %x, %f, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST]
      : (tensor<16x512xf32>, tensor<96x512xf32>) -> tensor<16x96xf32>
  return %y : tensor<16x96xf32>
}
"""


def build_programs(kind: str, folder: Path) -> None:
    """Write matmul.vmfb and, for a target with kernels, kernel.vmfb to `folder`; StrixhloError when that fails."""
    target = parse_target(kind)
    texts = {"matmul": MATMUL}
    if lowering_rules(target, "f32"):
        texts["kernel"] = KERNEL
    for name, text in texts.items():
        lowered = lower_program(f"module @{name} {{{text}}}", target, "f32", None)
        if name == "kernel" and not lowered.report["kernel_dispatches"]:
            raise RuntimeError(f"the kernel of dense_matmul was not used for {kind}")
        iree_compile(lowered.program, target.iree_flags, folder / f"{name}.vmfb")
