"""What the tests of the GPU kernels launch, in files for a machine with an NVIDIA GPU and without this project's tools.

`recording` writes down each test's calls of `run_launches`, with the host build's results; programs.py makes programs
of them, device.py runs these on the GPU and keeps what comes out, and `replaying` gives it to the same tests to judge.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from host_kernels import RunLaunches

from strixhlo.custom_kernels.gpu.attention_kernels import flash_local_memory
from strixhlo.custom_kernels.gpu.elements import elements_of
from strixhlo.custom_kernels.gpu.kernels import threads
from strixhlo.custom_kernels.ops.launch import COUNTERS, CounterSlot, Launch, Output

# Where the tests write what they launch, and where they find what came out of it on a GPU.
RECORD, REPLAY = os.environ.get("STRIXHLO_CUDA_KIT"), os.environ.get("STRIXHLO_TEST_CUDA")
NVIDIA = ["host", *(["cuda"] if RECORD or REPLAY else [])]  # machines that have NVIDIA's kernels
RECORDED, ARRAYS, PLAN, FILES, RESULTS = "recorded", "arrays", "plan.json", "files.zip", "results"


@dataclass(frozen=True)
class Result:
    """What a buffer holds at the end. array: its name in the folder of arrays. last: no later launch reads it, and it
    is the same in any order of workgroups."""

    dtype: str
    shape: tuple[int, ...]
    array: str
    last: bool


@dataclass(frozen=True)
class Chain:
    """One call of `run_launches`: the number `index` of a test. inputs: of what no launch makes, its array's name and
    size in bytes."""

    test: str
    index: int
    launches: tuple[Launch, ...]
    inputs: dict[str, tuple[str, int]]
    results: dict[str, Result]


def recording(folder: Path, test: str, run: RunLaunches) -> RunLaunches:
    """`run`, which also writes each call to the folder."""
    count = 0

    def record(launches: tuple[Launch, ...], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal count
        values = run(launches, arrays)
        made: dict[str, tuple[Output, bool]] = {}
        for launch in launches:
            made = {name: (output, last and name not in launch.inputs) for name, (output, last) in made.items()}
            made |= {o.name: (o, o.updates != COUNTERS) for o in launch.outputs}  # how counters end is by chance
        external = dict.fromkeys(name for launch in launches for name in launch.inputs if name in arrays)
        chain = Chain(
            test,
            count,
            tuple(map(on_nvidia, launches)),
            {name: (_store(folder, arrays[name]), arrays[name].nbytes) for name in external},
            {n: Result(o.dtype, values[n].shape, _store(folder, values[n]), last) for n, (o, last) in made.items()},
        )
        path = folder / RECORDED / f"{hashlib.sha256(test.encode()).hexdigest()[:16]}-{count}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(chain)))
        count += 1
        return values

    return record


def on_nvidia(launch: Launch) -> Launch:
    """With the counters of its own, no more threads than the kernel has there (it goes on until all is done), and the
    local memory that attention has there."""
    scalars = tuple(0 if isinstance(s, CounterSlot) else s for s in launch.scalars)
    local = launch.local_memory or flash_local_memory(elements_of(launch.symbol)[0])
    return replace(launch, scalars=scalars, threads=min(launch.threads, threads(launch.symbol)), local_memory=local)


def _store(folder: Path, array: np.ndarray) -> str:
    data = np.ascontiguousarray(array).tobytes()
    name = hashlib.sha256(data).hexdigest()[:24]
    path = folder / ARRAYS / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.compress(data, 6))
    return name


def recorded(folder: Path) -> list[Chain]:
    """All of a folder, in the order of their tests."""
    found = [_chain(json.loads(path.read_text())) for path in (folder / RECORDED).glob("*.json")]
    return sorted(found, key=lambda c: (c.test, c.index))


def _chain(fields: dict[str, Any]) -> Chain:
    launches = tuple(
        Launch(
            **one
            | {
                "inputs": tuple(one["inputs"]),
                "scalars": tuple(one["scalars"]),
                "outputs": tuple(Output(**o | {"shape": tuple(o["shape"])}) for o in one["outputs"]),
            }
        )
        for one in fields["launches"]
    )
    results = {name: Result(**r | {"shape": tuple(r["shape"])}) for name, r in fields["results"].items()}
    return Chain(**fields | {"launches": launches, "results": results})


def replaying(folder: Path, test: str, dtypes: Mapping[str, Any]) -> RunLaunches:
    """What came out on the GPU, in the order of the test's calls. AssertionError where the folder is of other launches.
    dtypes: of results by their names in launches."""
    count = 0

    def replay(launches: tuple[Launch, ...], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal count
        case = _plan(folder).get((test, count))
        count += 1
        assert case, f"{folder} was made of other tests: make it anew"
        assert case["launches"] == described(map(on_nvidia, launches)), f"{folder} was made of other launches"
        assert not case["missing"], case["missing"]
        values = dict(arrays)
        for name, result in case["results"].items():
            before = arrays.get(name)
            dtype = before.dtype if before is not None else dtypes[result["dtype"]]
            data = _results(folder, case["module"])[f"{case['function']} {name}"]
            values[name] = data.view(dtype).reshape(result["shape"])
        return values

    return replay


def described(launches: Any) -> list[list[Any]]:
    """Launches as the plan has them."""
    return [[one.symbol, list(one.scalars), one.workgroups, one.threads, one.local_memory] for one in launches]


@cache
def _plan(folder: Path) -> dict[tuple[str, int], Any]:
    plan = json.loads((folder / PLAN).read_text())
    done = {name: (folder / RESULTS / f"{name}.npz").exists() for name in plan["modules"]}
    said = {
        name: "" if there else f"{folder}: {name} was not run, or ended with an error" for name, there in done.items()
    }
    return {(c["test"], c["index"]): c | {"missing": said[c["module"]]} for c in plan["cases"]}


@cache
def _results(folder: Path, module: str) -> Mapping[str, np.ndarray]:
    with np.load(folder / RESULTS / f"{module}.npz") as file:
        return {name: file[name] for name in file.files}
