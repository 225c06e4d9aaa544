"""Runs a kit's programs where the GPU is, and holds the results against those that were accepted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from kernel_tolerances import ARRAYS as FLOATS
from kernel_tolerances import RELATIVE_L2

PLAN, FILES, RESULTS = "plan.json", "files.zip", "results"
DRIVERS = {"cuda": "cuda", "rocm": "hip"}
POISON = 0xFF
CASE = {"test", "index", "module", "function", "launches", "inputs", "kept", "poisoned", "results"}  # keys
AT_ONCE = min(12, os.cpu_count() or 1)  # processes; the driver compiles each one's kernels on one core


class NoKit(Exception):
    """A folder that `run` cannot use: what is wrong, in one line."""


def read_plan(folder: Path) -> dict[str, Any]:
    """plan.json, with all that `run` reads of it. NoKit where that, or the archive beside it, is not whole."""
    try:
        plan = json.loads((folder / PLAN).read_text())
        modules, cases = plan["modules"], plan["cases"]
        if plan["target"].partition(":")[0] not in DRIVERS or not cases or not all(c.keys() >= CASE for c in cases):
            raise ValueError(f"{PLAN} has not all that a kit's has")
        if {c["module"] for c in cases} != set(modules) or not all(re.fullmatch(r"m\d+\.vmfb", m) for m in modules):
            raise ValueError(f"{PLAN} names other programs than its calls are in")
        arrays = {n for c in cases for n in (*c["inputs"].values(), *(r["array"] for r in c["results"].values()))}
        with zipfile.ZipFile(folder / FILES) as files:
            if missing := {*arrays, *modules} - set(files.namelist()):
                raise ValueError(f"{FILES} lacks {min(missing)}")
    except OSError as error:
        raise NoKit(f"{folder}: no kit of tests, {error.filename}: {error.strerror}; see make cuda-kit") from None
    except KeyError as error:
        raise NoKit(f"{folder}: no kit of tests, {PLAN} has no {error}; see make cuda-kit") from None
    except (ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise NoKit(f"{folder}: no whole kit of tests ({error}); copy or make it again") from None
    return plan


def run(folder: Path) -> int:
    """Every program in a process of its own, so that a fault ends only its tests; how many tests failed."""
    plan = read_plan(folder)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = dict(
            zip(plan["modules"], pool.map(lambda name: _in_process(folder, name), plan["modules"]), strict=True)
        )
    wrong: dict[str, str] = {}
    for case in plan["cases"]:
        text = said[case["module"]].get(case["function"], "its program ended with an error")
        wrong[case["test"]] = wrong.get(case["test"]) or text
    for test, text in wrong.items():
        print(f"failed  {test}: {text}" if text else f"passed  {test}")
    failed = sum(map(bool, wrong.values()))
    print(
        f"{len(wrong) - failed} passed, {failed} failed, {len(plan['cases'])} calls in {len(plan['modules'])} programs"
    )
    return failed


def _in_process(folder: Path, module: str) -> dict[str, str]:
    """What `run_module` says, as far as it came."""
    command = [sys.executable, str(Path(__file__).parent), "module", str(folder), module]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)


def run_module(folder: Path, module: str) -> dict[str, str]:
    """Of each function what is wrong with its results ("": nothing); they are kept in the folder of results. Each is
    printed too, once it is known."""
    import iree.runtime as rt

    plan = json.loads((folder / PLAN).read_text())
    device = rt.get_driver(DRIVERS[plan["target"].partition(":")[0]]).create_default_device()
    config = rt.Config(device=device)
    context = rt.SystemContext(config=config)
    found: dict[str, str] = {}
    kept: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(folder / FILES) as files:
        context.add_vm_module(rt.VmModule.copy_buffer(config.vm_instance, files.read(module)))
        (functions,) = (m for name, m in context.modules.items() if name == "module")
        for case in (c for c in plan["cases"] if c["module"] == module):
            given = {n: np.frombuffer(files.read(a), np.int8) for n, a in case["inputs"].items()}
            fresh = {n: np.full(size, POISON, np.uint8).view(np.int8) for n, size in case["poisoned"].items()}
            on_device = [rt.asdevicearray(device, a) for a in (*given.values(), *fresh.values())]
            made = functions[case["function"]](*on_device)
            made = [np.array(a.to_host()) for a in (made if isinstance(made, tuple | list) else (made,))]
            after = {n: np.array(a.to_host()) for n, a in zip(given, on_device, strict=False)}
            text = next((f"{n} was changed" for n in case["kept"] if after[n].tobytes() != given[n].tobytes()), "")
            for (name, result), data in zip(case["results"].items(), made, strict=True):
                want = files.read(result["array"])
                own, guard = data[: len(want)], data[len(want) :].view(np.uint8)
                kept[f"{case['function']} {name}"] = own
                text = text or ("" if (guard == POISON).all() else f"bytes behind {name} were written")
                if result["last"] and not text:
                    text = difference(name, own.tobytes(), want, result)
            found[case["function"]] = text
            print(f"{case['function']}\t{text}", flush=True)
    (folder / RESULTS).mkdir(exist_ok=True)
    np.savez_compressed(folder / RESULTS / f"{module}.npz", **kept)
    return found


def difference(name: str, got: bytes, want: bytes, result: Mapping[str, Any]) -> str:
    """How far a result is from the one that was accepted; "" where that is near enough."""
    dtype = result["dtype"]
    if dtype == "i32":
        return "" if got == want else f"{name} differs"
    kind = FLOATS.get(dtype, np.dtype(ml_dtypes.float8_e4m3fn))
    a, b = (np.frombuffer(data, kind).astype(np.float64) for data in (got, want))
    if (np.isfinite(a) != np.isfinite(b)).any():
        return f"{name} is finite elsewhere"
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    most = RELATIVE_L2[dtype] if dtype in RELATIVE_L2 else 2.0**-4  # an element of fp8 between two of its numbers
    error, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    return "" if error <= most * size else f"{name}: relative L2 {error / max(size, 1e-300):.1e}, more than {most:.0e}"
