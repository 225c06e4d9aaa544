"""Bundle + target -> program.vmfb and build.json."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iree.compiler import ir

from ..build_inputs import interface_sha256, lowering_sha256
from ..bundle import (
    BUILD,
    SCHEMA_VERSION,
    VMFB,
    Build,
    Bundle,
    Manifest,
    read_record,
    sha256_file,
    write_record,
)
from ..cpu_features import required_flags
from ..custom_kernels.choices import RULES_ONLY, Choices
from ..custom_kernels.ops import (
    add_gated,
    add_normed,
    argmax,
    attention,
    dense_matmul,
    embedding,
    fused_matmul,
    layer_norm,
    moe_matmul,
    moe_route,
    quantized_matmul,
    rope_and_append,
)
from ..custom_kernels.toolchain import KernelObject
from ..errors import StrixhloError
from ..replacement import replaced_directory
from ..weight_spans import Span, weight_spans
from .fuse_experts import fuse_experts
from .fuse_sums import fuse_sums
from .given_storage import FLAGS, give_storage
from .iree_compile import iree_compile
from .kv_pools import free_pools
from .lower import PREFIX, composites_to_custom_calls, custom_calls_to_dispatches, operations
from .manifest_check import check_manifest
from .parameters import bind_parameters
from .report import decode_report, entry_report, kernels_report
from .table_choices import refused_answers, table_choices
from .target_kernels import kernels_hash, lowering_rules, put_kernels_in
from .targets import Target
from .whole_weights import Whole, bind_whole_weights

ACTIVATIONS = ("int8", "f32")
# All that export may put into a program.
OPS = {op.NAME for op in (add_gated, add_normed, argmax, attention, dense_matmul, embedding, fused_matmul, moe_route)}
OPS |= {layer_norm.NAME, moe_matmul.GATE_UP, moe_matmul.DOWN, quantized_matmul.NAME, rope_and_append.NAME}


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
    kv_dtype: str | None = None,
) -> Result:
    """Compile the bundle's program for a target, unless an equal build is there.

    activations: "f32", or "int8" (rounded to 8 bits per 32 columns before each quantized matmul, as llama.cpp does),
    which only the CPU's kernels do: other targets are float32. kv_dtype: of the KV cache, in place of the exported one.
    """
    if activations not in ACTIVATIONS:
        raise StrixhloError(f"activations {activations!r} are not known; choose one of {', '.join(ACTIVATIONS)}")
    if target.kind != "cpu":
        activations = "f32"
    folder = bundle.target_dir(target.name)
    text = bundle.program_text()
    versions = {p: version(p) for p in ("strixhlo", "iree-base-compiler")}
    kv_dtype = None if kv_dtype == bundle.manifest.kv_cache.dtype else kv_dtype
    choices, chosen = table_choices(bundle, target, activations)
    key = build_key(bundle, target, activations, versions, kv_dtype, chosen.get("digest", ""))
    if keep_intermediates is None and (build := _current(folder, key)):
        ignored = {k: v for k, v in build.report.get("choices", {}).items() if k == "ignored"}
        report = build.report | {"choices": chosen | ignored}  # which may say of another table why it is not used
        return Result(build.model_copy(update={"report": report}), fresh=False)
    with replaced_directory(folder, BUILD, VMFB) as temporary, tempfile.TemporaryDirectory(dir=temporary) as scratch:
        say("building kernels, lowering custom ops")
        spans = weight_spans(bundle.manifest.parameters)
        lowered = lower_without_kernels(
            text, target, activations, keep_intermediates, kv_dtype, choices, spans, bundle.manifest, queued=True
        )
        say("compiling with IREE")
        try:
            entries = _compile_lowered(lowered, target, temporary / VMFB, Path(scratch), keep_intermediates)
        except StrixhloError as error:
            raise _explained(error, target, lowered.program) from None
        report = lowered.report | {"choices": chosen | refused_answers(choices), "entries": entries}
        report |= decode_report(bundle, target, kv_dtype, entries) | kernels_report(temporary / VMFB, lowered.kernels)
        build = Build(
            schema_version=SCHEMA_VERSION,
            target=target.name,
            program_sha256=bundle.manifest.program_sha256,
            key=key,
            lowering_sha256=lowering_sha256(target.kind),
            interface_sha256=interface_sha256(bundle.manifest),
            flags=target.iree_flags,
            versions=versions,
            cpu_features=required_flags(target.cpu, target.cpu_features) if target.cpu else (),
            activations=activations,
            kv_dtype=kv_dtype,
            kv_rows_free=lowered.kv_rows_free,
            vmfb_sha256=sha256_file(temporary / VMFB),
            vmfb_bytes=(temporary / VMFB).stat().st_size,
            report=report,
        )
        write_record(temporary / BUILD, build)
    return Result(build, fresh=True)


def _explained(error: StrixhloError, target: Target, program: str) -> StrixhloError:
    """The compiler's error; where bfloat16 is the cause, what to do about it."""
    if target.kind != "vulkan" or "xbf16>" not in program or "bf16" not in str(error):
        return error
    return StrixhloError(
        f"{target.name}: the compiler has no bfloat16 there; export the bundle with --dtype f16 and, if you chose bf16"
        f" for them, other --activations and --kv-dtype ({error})"
    )


def _compile_lowered(
    lowered: Lowered, target: Target, vmfb: Path, scratch: Path, keep: Path | None
) -> dict[str, dict[str, int]]:
    """Write the vmfb; the report of its entries. IREE runs twice, up to its stream dialect and on from there: beside
    the first run the kernels are built, which only the second reads, beside the second the first's result is read."""
    flags = [*target.iree_flags, *(FLAGS if lowered.queued else ())]
    flags += [f"--dump-compilation-phases-to={keep}"] if keep else []
    between = scratch / "stream.mlir"
    with ThreadPoolExecutor(1) as beside:
        kernels = beside.submit(lowered.kernels.built) if lowered.kernels else None
        iree_compile(lowered.program, [*flags, "--compile-to=stream"], between)
        if kernels and keep:
            shutil.copy(kernels.result(), keep)
        elif kernels:
            kernels.result()
        stream = between.read_text("utf-8")
        entries = beside.submit(entry_report, stream)
        iree_compile(stream, [*flags, "--compile-from=stream"], vmfb)
        return entries.result()


def build_key(
    bundle: Bundle, target: Target, activations: str, versions: dict[str, str], kv_dtype: str | None, table: str = ""
) -> str:
    """Hash of all that a build depends on: program, what the manifest says of it, flags, versions, the sources of
    lowering and of kernels, and the table of choices (its hash)."""
    of_target = [target.iree_flags, target.cpu, target.cpu_features, target.device, kernels_hash(target)]
    of_bundle = [interface_sha256(bundle.manifest), lowering_sha256(target.kind)]
    return hashlib.sha256(
        json.dumps([*of_bundle, *of_target, activations, versions, kv_dtype, table]).encode()
    ).hexdigest()


def _current(folder: Path, key: str) -> Build | None:
    """The build that is there, if it is whole and has this key."""
    if not (folder / BUILD).is_file() or not (folder / VMFB).is_file():
        return None
    try:
        build = read_record(folder / BUILD, Build, "build")
    except StrixhloError:  # damaged, or of another schema: it is made again
        return None
    return build if build.key == key and sha256_file(folder / VMFB) == build.vmfb_sha256 else None


@dataclass(frozen=True)
class Lowered:
    """What iree-compile gets, in generic form; the kernels' object that it names, None where it launches none; what was
    lowered; whether the KV pools may have any number of rows; and whether the entries are those of `given_storage`."""

    program: str
    kernels: KernelObject | None
    report: dict[str, Any]
    kv_rows_free: bool
    queued: bool = False


def lower_program(
    text: str, target: Target, activations: str, keep: Path | None, kv_dtype: str | None = None
) -> Lowered:
    """`lower_without_kernels`, and the kernels built."""
    lowered = lower_without_kernels(text, target, activations, keep, kv_dtype)
    if lowered.kernels:
        lowered.kernels.build()
    return lowered


def lower_without_kernels(
    text: str,
    target: Target,
    activations: str,
    keep: Path | None,
    kv_dtype: str | None = None,
    choices: Choices = RULES_ONLY,
    spans: Mapping[str, Span] = MappingProxyType({}),
    manifest: Manifest | None = None,
    queued: bool = False,
) -> Lowered:
    """Portable StableHLO -> the program for a target. keep: a folder for what lies between. choices: of a table.
    kv_dtype: of the KV cache, None: as exported. spans: the weights that the runtime has whole too. manifest: what the
    program must be like. queued: with the entries of `given_storage`, where the target has them. StrixhloError where it
    is not, and where the target has no kernels for that."""
    rules = lowering_rules(target, activations, choices)
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        _refuse_unknown_ops(module)
        if manifest:
            check_manifest(module, manifest)
        names = bind_parameters(module)
        calls = composites_to_custom_calls(module, rules, float32=target.kind == "cpu")
        whole = Whole(names, spans if target.kind in ("rocm", "cuda") else {})
        calls -= fuse_sums(module, rules, whole) + fuse_experts(module, rules)
        bind_whole_weights(module, rules, whole)
        _refuse_experts_without_kernels(module, target)
        free = free_pools(module, kv_dtype)
        if kv_dtype and not free:
            advice = f"export the bundle with --kv-dtype {kv_dtype}"
            if (target.kind, kv_dtype) == ("vulkan", "bf16"):
                advice = "take f16 there, the compiler has no bfloat16"
            raise StrixhloError(
                f"{target.name}: the KV cache cannot become {kv_dtype} here, since the compiler's own code reads it;"
                f" {advice}"
            )
        if keep:
            (keep / "custom_calls.mlir").write_text(module.operation.get_asm())
        queued = queued and give_storage(module, target.kind)
        kernels, dispatches = None, 0
        if rules:
            kernels, dispatches = put_kernels_in(
                module, target, lambda export: custom_calls_to_dispatches(module, rules, export)
            )
        if target.device:
            module.operation.attributes["hal.device.targets"] = ir.Attribute.parse(f"[{target.device}]")
        module.operation.verify()
        program = module.operation.get_asm(print_generic_op_form=True)
        if keep:
            (keep / "lowered.mlir").write_text(module.operation.get_asm())
    return Lowered(program, kernels, {"custom_calls": calls, "kernel_dispatches": dispatches}, free, queued)


def _refuse_unknown_ops(module: ir.Module) -> None:
    """What IREE would make of an op that this version has not may write anywhere: an older one relied on its kernel."""
    for composite in operations(module, "stablehlo.composite"):
        name = ir.StringAttr(composite.attributes["name"]).value
        if name.startswith(PREFIX) and name not in OPS:
            raise StrixhloError(
                f"the program calls {name}, which this version of strixhlo does not have; export the bundle again"
            )


def _refuse_experts_without_kernels(module: ir.Module, target: Target) -> None:
    """The ops' own definitions decode one expert after the other in a loop of the host: nobody wants that."""
    left = {ir.StringAttr(c.attributes["name"]).value for c in operations(module, "stablehlo.composite")}
    if any(name.startswith("strixhlo.moe_") for name in left):
        advice = "use another quantization" if target.name == "cpu" else "compile it for the CPU (--target cpu)"
        raise StrixhloError(
            f"{target.name}: there are no kernels here for mixtures of experts, or not for weights like this model's"
            f" (or a bundle that an older version has exported: export it again); {advice}"
        )
