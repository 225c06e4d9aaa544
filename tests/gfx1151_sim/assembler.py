"""Code objects from assembly and from C, with the clang that builds strixhlo's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from strixhlo.custom_kernels.toolchain import find_clang, linker, run_tool

TARGET = ("-target", "amdgcn-amd-amdhsa", "-mcpu=gfx1151", "-mcode-object-version=5")

KERNEL = """
  .globl {name}
  .p2align 8
  .type {name},@function
{name}:
{body}
  s_endpgm
  .rodata
  .p2align 6
  .amdhsa_kernel {name}
    .amdhsa_user_sgpr_kernarg_segment_ptr 1
    .amdhsa_user_sgpr_count 2
    .amdhsa_system_sgpr_workgroup_id_x 1
    .amdhsa_next_free_vgpr 64
    .amdhsa_next_free_sgpr 64
    .amdhsa_group_segment_fixed_size {lds}
    .amdhsa_kernarg_size 16
    .amdhsa_float_denorm_mode_32 {denormals}
    .amdhsa_float_denorm_mode_16_64 3
  .end_amdhsa_kernel
  .text
"""
ARGUMENTS = "".join(
    f"\n      - {{.offset: {8 * k}, .size: 8, .value_kind: global_buffer, .address_space: global}}" for k in range(2)
)
METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 0
    .wavefront_size: 32
    .sgpr_count: 64
    .vgpr_count: 64
    .max_flat_workgroup_size: 1024
    .args:{arguments}"""


def assemble(bodies: Mapping[str, str], out: Path, lds: int = 0, denormals: int = 3) -> Path:
    """A code object with one kernel for each body of instructions; each takes two pointers, in s[0:1]'s segment.

    s2 is the workgroup, v0 the thread. denormals: 3 keeps those of float32, 0 flushes them.
    """
    text = ['  .amdgcn_target "amdgcn-amd-amdhsa--gfx1151"\n  .text']
    text += [KERNEL.format(name=name, body=body, lds=lds, denormals=denormals) for name, body in bodies.items()]
    kernels = "".join(METADATA.format(name=name, lds=lds, arguments=ARGUMENTS) for name in bodies)
    text.append(
        f"  .amdgpu_metadata\n---\namdhsa.version: [1, 2]\namdhsa.kernels:{kernels}\n...\n  .end_amdgpu_metadata\n"
    )
    source = out.with_suffix(".s")
    source.write_text("\n".join(text))
    return _build([str(source)], out)


def compile_kernels(source: str, out: Path, flags: tuple[str, ...] = ("-O2",)) -> Path:
    """A code object from C."""
    path = out.with_suffix(".c")
    path.write_text(source)
    return _build(["-nogpulib", "-ffreestanding", "-fvisibility=default", *flags, str(path)], out)


def _build(arguments: list[str], out: Path) -> Path:
    made = out.with_suffix(".o")
    run_tool([*find_clang().command, *TARGET, *arguments, "-c", "-o", str(made)], "assembling a test kernel")
    run_tool([*linker(), "-shared", str(made), "-o", str(out)], "linking a test kernel")
    return out
