"""What can be said of a program without running it: registers of its kernels, work and waits of its entry points."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iree.compiler import ir

from ..bundle import Bundle
from ..custom_kernels.toolchain import KernelObject
from ..step_traffic import STRIX_HALO_BANDWIDTH, step_traffic
from .hsaco import code_objects
from .hsaco import kernels as kernels_of
from .stream_memory import memory_of
from .table_choices import table_lines
from .targets import Target

DECODED_AFTER = 1024  # positions that the token of the report's bytes sees
VGPRS, VGPR_STEP, MOST_WAVES = 1536, 24, 16  # of a SIMD of gfx1151, 32 lanes wide
# Operations of the stream dialect that an entry point is made of when it runs.
_COUNTED = {
    "stream.cmd.dispatch": "dispatches",
    "stream.cmd.copy": "copies",
    "stream.cmd.fill": "fills",
    "stream.cmd.execute": "submissions",
    "stream.timepoint.await": "host_waits",
}


def kernels_report(vmfb: Path, kernels: KernelObject | None) -> dict[str, Any]:
    """`kernels` (see `kernel_report`) of a program for an AMD GPU, else nothing. kernels: where its own come from."""
    if kernels and kernels.path.suffix == ".hsaco":
        return {"kernels": kernel_report(vmfb.read_bytes(), kernels.path.with_suffix(".s"))}
    return {}


def decode_report(
    bundle: Bundle, target: Target, kv_dtype: str | None, entries: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """`decode`: of a decoded token of one sequence the dispatches, and the bytes of active weights, keys and values
    that it must read at `position`. For gfx1151 also tokens a second if these bytes came at `bandwidth`, what a copy
    reaches there, and nothing else took time: a bound, predicted. kv_dtype: of the KV cache, None: as exported."""
    if "decode_1" not in entries:  # a program that is observed, or of an embedding model
        return {}
    manifest = bundle.manifest
    if kv_dtype:
        cache = manifest.kv_cache.model_copy(update={"dtype": kv_dtype})
        bundle = Bundle(bundle.path, manifest.model_copy(update={"kv_cache": cache}))
    position = min(manifest.context, DECODED_AFTER) - 1
    nbytes = step_traffic(bundle).step_bytes(1, position, 1)
    decode: dict[str, Any] = {"dispatches_per_token": entries["decode_1"]["dispatches"]}
    decode |= {"bytes_per_token": round(nbytes), "position": position}
    if target.kind == "rocm":
        rate = STRIX_HALO_BANDWIDTH / nbytes
        decode |= {"predicted_tokens_per_second": round(rate, 1), "bandwidth": STRIX_HALO_BANDWIDTH}
    return {"decode": decode}


def decode_line(decode: Mapping[str, Any]) -> str:
    """The same for people to read."""
    text = (
        f"  a decoded token: {decode['dispatches_per_token']} dispatches, {decode['bytes_per_token'] / 1e6:,.1f} MB at"
    )
    text += f" position {decode['position']}"
    if "predicted_tokens_per_second" in decode:
        text += f"; predicted {decode['predicted_tokens_per_second']:g} tok/s at {decode['bandwidth'] / 1e9:.0f} GB/s"
    return text


def entry_report(stream: str) -> dict[str, dict[str, int]]:
    """From the compiler's stream IR, what one call of each entry point does: dispatches, copies, fills, submissions and
    host waits. A loop or a condition in an entry would make these numbers wrong, and is an error."""
    found: dict[str, dict[str, int]] = {}
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        for function in ir.Module.parse(stream).body.operations:
            attributes = function.operation.attributes
            if function.operation.name != "util.func" or "private" in str(attributes.get("sym_visibility", "")):
                continue
            if "iree.abi.stub" not in attributes:
                continue  # what says how much storage an entry needs
            counts = _count(function.operation)
            if loops := [name for name in counts if name.startswith(("scf.", "cf."))]:
                raise RuntimeError(f"{attributes['sym_name']}: the host decides in the middle of a step ({loops[0]})")
            name = ir.StringAttr(attributes["sym_name"]).value
            counted = {label: counts[operation] for operation, label in _COUNTED.items()}
            found[name] = counted | memory_of(function.operation)
    return found


def _count(function: ir.Operation) -> Counter[str]:
    counts: Counter[str] = Counter()

    def visit(op: ir.Operation) -> ir.WalkResult:
        counts[op.operation.name] += 1
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return counts


def kernel_report(program: bytes, assembly: Path) -> dict[str, dict[str, Any]]:
    """Per kernel of a rocm program (ours and the compiler's) what the code objects in the vmfb say.

    `load_bytes`, for our kernels only: how many load instructions there are by bytes a lane, from the assembly that
    they were built from. Spills, and scratch memory, are counted because they cost time that nothing else shows.
    """
    widths = load_widths(assembly.read_text())
    report: dict[str, dict[str, Any]] = {}
    for code in code_objects(program):
        for kernel in kernels_of(code):
            name = kernel[".name"]
            report[name] = {
                "vgprs": kernel[".vgpr_count"],
                "sgprs": kernel[".sgpr_count"],
                "lds_bytes": kernel[".group_segment_fixed_size"],
                "scratch_bytes": kernel[".private_segment_fixed_size"],
                "vgpr_spills": kernel[".vgpr_spill_count"],
                "sgpr_spills": kernel[".sgpr_spill_count"],
                "wave": kernel[".wavefront_size"],
                "waves_per_simd": waves_per_simd(kernel),
            }
            if name in widths:
                report[name]["load_bytes"] = widths[name]
    return dict(sorted(report.items()))


def waves_per_simd(kernel: Mapping[str, Any]) -> int:
    """How many waves of a kernel a SIMD of gfx1151 holds at a time, of 16: as registers and local memory allow.

    1,536 registers of a lane in steps of 24; 128 KiB of local memory for the four SIMDs of a pair of CUs, or in CU mode
    64 for two. Source: LLVM's AMDGPUBaseInfo (getTotalNumVGPRs, getVGPRAllocGranule), RDNA 3 ISA guide.
    """
    registers = -(-max(kernel[".vgpr_count"], 1) // VGPR_STEP) * VGPR_STEP
    waves = min(MOST_WAVES, VGPRS // registers)
    local, threads = kernel[".group_segment_fixed_size"], kernel[".max_flat_workgroup_size"]
    if local:
        of_workgroup = -(-threads // kernel[".wavefront_size"])
        simds, room = (4, 128 * 1024) if kernel.get(".workgroup_processor_mode", 1) else (2, 64 * 1024)
        waves = min(waves, max(1, room // local * of_workgroup // simds))
    return waves


# global_load_b128, global_load_d16_hi_u8, global_load_d16_b16, buffer_load_..., of gfx11 and later
_LOAD = re.compile(r"^\s+(?:global|flat|buffer)_load_(?:d16_)?(?:hi_)?[bui](\d+)\b")


def load_widths(assembly: str) -> dict[str, dict[str, int]]:
    """AMD GPU assembly -> per kernel the number of vector load instructions by bytes a lane ("16": 12, "2": 8)."""
    found: dict[str, Counter[int]] = {}
    current: Counter[int] = Counter()
    for line in assembly.splitlines():
        if label := re.match(r"^(\w+):", line):
            current = found.setdefault(label.group(1), Counter())
        elif load := _LOAD.match(line):
            current[int(load.group(1)) // 8] += 1
    return {
        name: {str(k): v for k, v in sorted(counts.items(), reverse=True)} for name, counts in found.items() if counts
    }


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """The report for people to read."""
    lines = []
    for name, entry in report.get("entries", {}).items():
        values = ", ".join(f"{value} {label.replace('_', ' ')}" for label, value in entry.items() if value)
        lines.append(f"  {name}: {values}")
    if "decode" in report:
        lines.append(decode_line(report["decode"]))
    if "choices" in report:
        lines += table_lines(report["choices"])
    table = report.get("kernels", {})
    if table:
        width = max(map(len, table))
        lines.append(
            f"  {'kernel':{width}} VGPRs SGPRs   LDS spills scratch waves  loads (bytes a lane x instructions)"
        )
    for name, k in table.items():
        loads = " ".join(f"{size}x{count}" for size, count in k.get("load_bytes", {}).items()) or "-"
        spills = k["vgpr_spills"] + k["sgpr_spills"]
        numbers = f"{k['vgprs']:5} {k['sgprs']:5} {k['lds_bytes']:5} {spills:6} {k['scratch_bytes']:7}"
        numbers += f" {k['waves_per_simd']:5}"
        lines.append(f"  {name:{width}} {numbers}  {loads}")
    return lines
