"""A kit of kernel tests for another machine (cuda_kit), run by IREE's HIP driver, since no NVIDIA GPU is here: the same
programs, functions, arguments and judgement but for the driver and the kernels' build."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
from cuda_kit import device
from cuda_kit.programs import build, compile_module
from cuda_kit.recording import FILES, PLAN, recorded, recording, replaying
from fused_matmul_cases import TYPES, operands_of
from host_kernels import ITEM, host, runner
from rope_and_append_cases import CASES, Call

from strixhlo.compile.targets import parse_target
from strixhlo.custom_kernels.gpu.fused_launches import fused_matmul
from strixhlo.custom_kernels.gpu.launches import GFX1151, argmax_launches
from strixhlo.custom_kernels.gpu.rules import rope_and_append
from strixhlo.custom_kernels.ops.launch import Launch
from strixhlo.errors import StrixhloError

TEST = "test_some_kernels"
Calls = list[tuple[tuple[Launch, ...], dict[str, np.ndarray]]]


def calls() -> Calls:
    """A kernel alone, one that writes into its inputs, and two of which the second reads what the first made."""
    rope = Call(CASES["decode"], "f16")
    lowering = rope_and_append(rope.attributes, rope.types)
    attributes, operands = operands_of("gated", 17)
    fused = fused_matmul(GFX1151, attributes, [(a.shape, TYPES[str(a.dtype)]) for a in operands.values()])
    assert lowering and fused and len(fused.launches) > 1
    x = np.random.default_rng(0).standard_normal((3, 300), np.float32)
    return [(argmax_launches(3, 300), {"x": x}), (lowering.launches, rope.operands), (fused.launches, operands)]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kit")
    run = recording(folder, TEST, runner(host()))
    for launches, arrays in calls():
        run(launches, arrays)
    return folder


def test_programs_for_cuda(kit: Path) -> None:
    """They compile, and have the functions that are asked for; nothing here can run them."""
    chains = recorded(kit)
    compile_module(chains, parse_target("cuda:sm_89"), kit / "m.vmfb")
    module = rt.VmModule.copy_buffer(rt.VmInstance(), (kit / "m.vmfb").read_bytes())
    assert {f"t{i}" for i in range(len(chains))} <= set(module.function_names)


def test_what_comes_back_is_judged(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(kit, "rocm:gfx1151") == 3
    assert device.run(kit) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [f"passed  {TEST}", "1 passed, 0 failed, 3 calls in 1 programs"]
    replay, run = replaying(kit, TEST, ITEM), runner(host())
    for launches, arrays in calls():
        got, want = replay(launches, arrays), run(launches, arrays)
        for name in {o.name for launch in launches for o in launch.outputs}:
            assert got[name].dtype == want[name].dtype and got[name].shape == want[name].shape
            np.testing.assert_allclose(got[name].astype(np.float64), want[name].astype(np.float64), 1e-3, 1e-5)
    first, *_ = calls()
    with pytest.raises(AssertionError, match="was made of other tests"):
        replay(*first)
    with pytest.raises(AssertionError, match="was made of other launches"):
        replaying(kit, TEST, ITEM)(argmax_launches(2, 300), first[1])


def test_what_is_wrong_is_said(kit: Path) -> None:
    plan = json.loads((kit / PLAN).read_text())
    with zipfile.ZipFile(kit / FILES, "a") as files:
        for case in plan["cases"]:
            result = case["results"]["y" if "y" in case["results"] else "q_out"]
            if case["index"] == 1:
                result["array"] = store(files, "inf", np.full(result["shape"], np.inf, np.float32))
            else:
                kind = ITEM[result["dtype"]]
                right = np.frombuffer(files.read(result["array"]), kind)
                result["array"] = store(files, f"more {case['index']}", right + kind(1))
    (kit / PLAN).write_text(json.dumps(plan))
    said = {c["index"]: device.run_module(kit, c["module"])[c["function"]] for c in plan["cases"]}
    assert said[0] == "y differs" and said[1] == "q_out is finite elsewhere"
    assert said[2].startswith("y: relative L2 ") and said[2].endswith(", more than 1e-05")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no kit of tests, .*plan.json: No such file"),
        ("{", "no whole kit of tests"),
        ("[]", "no whole kit of tests"),
        ('{"modules": [], "trials": []}', "plan.json has no 'cases'"),
        ('{"target": "cuda:sm_89", "modules": [], "cases": []}', "has not all that a kit's has"),
    ],
)
def test_a_folder_that_is_no_kit(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / PLAN).write_text(content)
    with pytest.raises(device.NoKit, match=message):
        device.run(tmp_path)
    with pytest.raises(StrixhloError, match="no launches were recorded there"):
        build(tmp_path)


def test_a_kit_that_is_not_whole(tmp_path: Path) -> None:
    rest = {"test": TEST, "index": 0, "launches": [], "kept": [], "poisoned": {}, "results": {}, "function": "t0"}
    plan = {
        "target": "cuda:sm_89",
        "modules": ["m0.vmfb"],
        "cases": [rest | {"module": "m0.vmfb", "inputs": {"x": "a"}}],
    }
    (tmp_path / PLAN).write_text(json.dumps(plan))
    (tmp_path / FILES).write_bytes(b"PK")
    with pytest.raises(device.NoKit, match="File is not a zip file"):
        device.run(tmp_path)
    with zipfile.ZipFile(tmp_path / FILES, "w") as files:
        files.writestr("m0.vmfb", b"")
    with pytest.raises(device.NoKit, match="lacks a"):
        device.run(tmp_path)
    (tmp_path / PLAN).write_text(json.dumps(plan).replace("m0.vmfb", "../m0.vmfb"))
    with pytest.raises(device.NoKit, match="names other programs"):
        device.run(tmp_path)


def store(files: zipfile.ZipFile, name: str, array: np.ndarray) -> str:
    files.writestr(name, array.tobytes())
    return name
