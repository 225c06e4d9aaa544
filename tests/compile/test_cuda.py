"""cuda programs, compiled: which GPUs a target can name, and what the PTX asks of a driver."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from gfx1151_sim.kernel_machine import TESTED
from iree.compiler import ir

from strixhlo.bundle import VMFB, Bundle, open_bundle
from strixhlo.compile.compile import compile_bundle
from strixhlo.compile.iree_compile import executable_target
from strixhlo.compile.target_kernels import kernel_executable
from strixhlo.compile.targets import CHIPS, IREE_CHIPS, parse_target
from strixhlo.custom_kernels.gpu.kernels import build_ptx
from strixhlo.custom_kernels.gpu.launches import H200, quantized_matmul_launches
from strixhlo.custom_kernels.ops.formats import FORMATS
from strixhlo.errors import StrixhloError


def test_a_gpu_that_the_compiler_does_not_know_gets_a_way_out() -> None:
    with pytest.raises(StrixhloError) as error:
        parse_target("cuda:sm_100")
    message = str(error.value)
    assert all(chip in message for chip in ("sm_100", *CHIPS["cuda"]))
    assert "PTX" in message and "cuda:sm_90" in message and "\n" not in message


@pytest.mark.parametrize("chip", CHIPS["cuda"])
def test_the_compiler_knows_what_we_say_it_knows(chip: str) -> None:
    assert IREE_CHIPS.get(chip, chip) in executable_target(parse_target(f"cuda:{chip}").iree_flags)


def test_the_oldest_gpu_is_meant_when_none_is_named() -> None:
    assert parse_target("cuda").chip == "sm_80"


def test_every_kernel_is_ptx_for_the_oldest_gpu() -> None:
    ptx = build_ptx("sm_80", TESTED).read_text()
    assert re.search(r"^\.version 7\.8$", ptx, re.MULTILINE) and re.search(r"^\.target sm_80$", ptx, re.MULTILINE)
    assert set(re.findall(r"^\.visible \.entry (\w+)\(", ptx, re.MULTILINE)) == set(TESTED)
    assert ".extern" not in ptx  # nothing is left for a linker
    assert ".local" not in ptx  # no array went to memory


def test_a_kernel_that_asks_for_local_memory_gets_it() -> None:
    (launch,) = quantized_matmul_launches(FORMATS["q4_0"], 1, 512, 512, chip=H200)
    assert launch.local_memory > 48 << 10  # what a kernel has without asking
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse("module {}")
        executable = kernel_executable(parse_target("cuda:sm_89"))
        executable.export(launch, (), ())
        executable.add_to(module)
        assert f"workgroup_local_memory = {launch.local_memory}>" in str(module)


def test_a_bundle_compiles_with_the_kernels_inside(tiny: Bundle, tmp_path: Path) -> None:
    bundle = open_bundle(shutil.copytree(tiny.path, tmp_path / "bundle", copy_function=os.link))
    target = parse_target("cuda:sm_89")
    build = compile_bundle(bundle, target, activations="f32", keep_intermediates=None, say=lambda _: None).build
    for entry in build.report["entries"].values():
        assert entry["submissions"] == 1 and entry["host_waits"] == 0  # nothing waits for the device
        assert entry["copies"] == 1  # logits, beside the argmax that reads them
        assert entry["transient_bytes"] > 0 and entry["result_bytes"] >= 4 * 320
    vmfb = (bundle.target_dir("cuda:sm_89") / VMFB).read_bytes()
    assert vmfb.count(b".visible .entry strixhlo_fused_bf16_1r_m1(") == 1
