"""Bundle + target -> program.vmfb and build.json."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from iree.compiler import ir

from ..bundle import (
    BUILD,
    SCHEMA_VERSION,
    VMFB,
    Build,
    Bundle,
    read_record,
    replaced_directory,
    sha256_file,
    write_record,
)
from ..cpu_features import required_flags
from ..custom_kernels.cpu.rules import cpu_rules
from ..custom_kernels.toolchain import build_cpu_object, kernel_sources_hash
from ..errors import StrixhloError
from .cpu_executable import CpuExecutable
from .iree_compile import executable_target, iree_compile
from .lower import append, composites_to_custom_calls, custom_calls_to_dispatches
from .parameters import bind_parameters
from .targets import Target

ACTIVATIONS = ("int8", "f32")


@dataclass(frozen=True)
class Result:
    """What `compile_bundle` did: the build's record, and whether it was there already."""

    build: Build
    fresh: bool


def compile_bundle(
    bundle: Bundle,
    target: Target,
    *,
    activations: str,
    keep_intermediates: Path | None,
    say: Callable[[str], None],
) -> Result:
    """Compile the bundle's program for a target, unless an equal build is there.

    activations: "f32", or "int8" (rounded to 8 bits per 32 columns before each quantized matmul, as llama.cpp does).
    """
    if activations not in ACTIVATIONS:
        raise StrixhloError(f"activations {activations!r} are not known; choose one of {', '.join(ACTIVATIONS)}")
    folder = bundle.target_dir(target.name)
    versions = {p: version(p) for p in ("strixhlo", "iree-base-compiler")}
    key = build_key(bundle, target, activations, versions)
    if keep_intermediates is None and (build := _current(folder, key)):
        return Result(build, fresh=False)
    say("building kernels")
    kernels = build_cpu_object(target.cpu, target.cpu_features)
    say("lowering custom ops")
    program, report = lower_program(bundle.program.read_text("utf-8"), target, activations, kernels, keep_intermediates)
    say("compiling with IREE")
    with replaced_directory(folder, BUILD) as temporary:
        flags = list(target.iree_flags)
        if keep_intermediates:
            flags.append(f"--dump-compilation-phases-to={keep_intermediates}")
        iree_compile(program, flags, temporary / VMFB)
        build = Build(
            schema_version=SCHEMA_VERSION,
            target=target.name,
            key=key,
            flags=target.iree_flags,
            versions=versions,
            cpu_features=required_flags(target.cpu, target.cpu_features),
            activations=activations,
            vmfb_sha256=sha256_file(temporary / VMFB),
            vmfb_bytes=(temporary / VMFB).stat().st_size,
            report=report,
        )
        write_record(temporary / BUILD, build)
    return Result(build, fresh=True)


def build_key(bundle: Bundle, target: Target, activations: str, versions: dict[str, str]) -> str:
    """Hash of all that a build depends on: program, flags, versions, kernel sources."""
    parts = [bundle.manifest.program_sha256, target.iree_flags, target.cpu, target.cpu_features, activations, versions]
    return hashlib.sha256(json.dumps([*parts, kernel_sources_hash("cpu")]).encode()).hexdigest()


def _current(folder: Path, key: str) -> Build | None:
    """The build that is there, if it is whole and has this key."""
    if not (folder / BUILD).is_file() or not (folder / VMFB).is_file():
        return None
    build = read_record(folder / BUILD, Build, "build")
    return build if build.key == key and sha256_file(folder / VMFB) == build.vmfb_sha256 else None


def lower_program(
    text: str, target: Target, activations: str, kernels: Path, keep: Path | None
) -> tuple[str, dict[str, Any]]:
    """Portable StableHLO -> what iree-compile gets, in generic form; and the report of what was lowered."""
    rules = cpu_rules(fast=activations == "int8")
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(kernels, keep / kernels.name)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        bind_parameters(module)
        calls = composites_to_custom_calls(module, rules)
        if keep:
            (keep / "custom_calls.mlir").write_text(module.operation.get_asm())
        executable = CpuExecutable(kernels, executable_target(target.iree_flags))
        dispatches = custom_calls_to_dispatches(module, rules, executable.export)
        append(module, executable.text())
        module.operation.verify()
        program = module.operation.get_asm(print_generic_op_form=True)
        if keep:
            (keep / "lowered.mlir").write_text(module.operation.get_asm())
    return program, {"custom_calls": calls, "kernel_dispatches": dispatches}
