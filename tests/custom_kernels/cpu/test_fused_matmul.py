"""`strixhlo_fused_*` against the op's reference, in float64 where the input is rounded to 8 bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
import pytest
from quantized_activations import activations, quantize, relative
from quantized_weights import CASES, first_rows, random_weight

from strixhlo.custom_kernels.choices import RULES_ONLY
from strixhlo.custom_kernels.cpu.direct import run_launches
from strixhlo.custom_kernels.cpu.fused_launches import SCRATCH, fused_matmul
from strixhlo.custom_kernels.ops.formats_gguf import RUN
from strixhlo.custom_kernels.ops.fused_matmul import Form
from strixhlo.custom_kernels.ops.launch import Launch
from strixhlo.custom_kernels.ops.moe_matmul import ACTIVATIONS, activate

DENSE = {"f32": np.float32, "f16": np.float16, "bf16": None}
TYPES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.int32): "i32", np.dtype(np.int8): "i8"}


@dataclass
class Problem:
    """A call of the op: its attributes, operands and their dtypes, and what the weights are in float64."""

    attributes: dict
    operands: dict[str, np.ndarray] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    values: list[np.ndarray] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)


def problem(x: np.ndarray, names: tuple[str, ...], rows: tuple[tuple[int, int], ...], **attributes: object) -> Problem:
    """names: of CASES, or dense dtypes."""
    k = x.shape[1]
    rng = np.random.default_rng(k + len(names))
    formats = [CASES[n].format if n in CASES else n for n in names]
    made = {"normed": False, "epsilon": 0.0, "offset": 0.0, "biased": False, "activation": "", "limit": 0.0}
    made |= {"added": False, "scale": 1.0, "formats": ",".join(formats)} | attributes
    made["rows"] = ",".join(f"{i}:{first}:{n}" for i, (first, n) in enumerate(rows))
    p = Problem(made, {"x": x}, {"x": "f32"})
    for i, (name, (first, n)) in enumerate(zip(names, rows, strict=True)):
        if name in CASES:
            parts = first_rows(CASES[name], random_weight(CASES[name], k)[0], first + n, k)
            values, dtypes = random_weight(CASES[name], k)[1][: first + n], CASES[name].dtypes
        else:
            dense = jnp.asarray(rng.standard_normal((first + n, k)), {"bf16": jnp.bfloat16}.get(name, DENSE[name]))
            values, dtypes = np.asarray(dense, np.float64), {"dense": name}
            parts = {"dense": np.asarray(dense).view(np.uint16) if name == "bf16" else np.asarray(dense)}
        p.operands |= {f"{i}.{part}": array for part, array in parts.items()}
        p.dtypes |= {f"{i}.{part}": dtypes.get(part) or TYPES[array.dtype] for part, array in parts.items()}
        p.values.append(values[first : first + n])
        p.integer.append(name in CASES and CASES[name].integer)
    if made["normed"]:
        p.operands["norm"] = rng.standard_normal(k).astype(np.float32)
    if made.get("layer_norm") == "biased":
        p.operands["norm bias"] = rng.standard_normal(k).astype(np.float32)
    if made["biased"]:
        p.operands |= {f"bias {i}": rng.standard_normal(n).astype(np.float32) for i, (_, n) in enumerate(rows)}
    if made["added"]:
        p.operands["residual"] = rng.standard_normal((len(x), rows[0][1])).astype(np.float32)
    if made.get("summed"):
        p.operands["base"] = np.random.default_rng(1).standard_normal((8, k)).astype(np.float32)[: len(x)]
        p.operands["sum norm"] = rng.standard_normal(k).astype(np.float32)
    if made.get("summed") == "scaled":
        p.operands["factor"] = np.float32([0.75])
    return p


def summed(p: Problem) -> np.ndarray:
    """What the input becomes, in float64: the second result."""
    a, x = p.attributes, p.operands["x"].astype(np.float64)
    if not a.get("summed"):
        return x
    x = x / np.sqrt((x * x).mean(1, keepdims=True) + a["sum_epsilon"]) * (p.operands["sum norm"] + a["sum_offset"])
    return (p.operands["base"] + x) * p.operands.get("factor", 1.0)


def expected(p: Problem, fast: bool) -> np.ndarray:
    """The op in float64; where a weight takes 8 bits, they are those of the kernels' definition."""
    a, x = p.attributes, summed(p)
    if a.get("layer_norm"):
        x = x - x.mean(1, keepdims=True)
    if a["normed"]:
        x = x / np.sqrt((x * x).mean(1, keepdims=True) + a["epsilon"]) * (p.operands["norm"] + a["offset"])
        x = x + p.operands.get("norm bias", 0.0)
    results = []
    for i, (values, integer) in enumerate(zip(p.values, p.integer, strict=True)):
        h = x
        if fast and integer:
            xq, xs, _ = quantize(x.astype(np.float32))
            h = (xq.reshape(*xs.shape, RUN) * xs[..., None].astype(np.float64)).reshape(x.shape)
        y = h @ values.T
        results.append(y + p.operands[f"bias {i}"] if a["biased"] else y)
    if a["activation"]:
        gate, up = (jnp.asarray(r, jnp.float32) for r in (results if len(results) == 2 else (results[0], 1.0)))
        results = [np.asarray(activate(gate, up, a["activation"], a["limit"]), np.float64)]
    y = np.concatenate(results, axis=1)
    return p.operands["residual"] + a["scale"] * y if a["added"] else y


class Fused:
    """One library, run with guards around everything that it may touch."""

    def __init__(self, kernels: ctypes.CDLL, fenced: Callable, guarded: Callable) -> None:
        self.kernels, self.fenced, self.guarded = kernels, fenced, guarded
        self.results: dict[str, np.ndarray] = {}  # of the last run

    def __call__(self, p: Problem, fast: bool) -> tuple[np.ndarray, tuple[Launch, ...]]:
        k = p.operands["x"].shape[1]
        names = Form.of(p.attributes).operands(k)
        types = [(p.operands[n].shape, p.dtypes.get(n, "f32")) for n in names]
        lowering = fused_matmul(fast, RULES_ONLY, p.attributes, types)
        assert lowering.operands == names
        buffers = {n: self.fenced(p.operands[n]) for n in names}
        checks = []
        for output in lowering.launches[-1].outputs:
            buffers[output.name], check = self.guarded(output.shape)
            checks.append(check)
        run_launches(self.kernels, lowering.launches, buffers)
        for check in checks:
            check()
        self.results = {name: buffers[name] for name in lowering.results}
        return buffers["y"], lowering.launches


@pytest.fixture
def fused(kernels: ctypes.CDLL, fenced: Callable, guarded: Callable) -> Fused:
    return Fused(kernels, fenced, guarded)


def hold(fused: Fused, p: Problem, fast: bool, most: float = 1e-5) -> tuple[Launch, ...]:
    y, launches = fused(p, fast)
    assert relative(y, expected(p, fast)) < most
    return launches


# The kernel's norm and the expected one differ in the last bit, so that a few values round to another of 127 steps.
NORMED_8_BIT = 1e-3


@pytest.mark.parametrize("name", [*CASES, *DENSE])
def test_every_format(fused: Fused, name: str) -> None:
    k = CASES[name].columns[-1] if name in CASES else 83
    for fast in (False, True) if name in CASES and CASES[name].integer else (False,):
        for m in (1, 3, 8, 9, 17):
            qkv = problem(activations(m, k), (name,) * 3, ((0, 17), (0, 1), (3, 14)), biased=m == 3)
            launches = hold(fused, qkv, fast)
            assert len(launches) == 1 or m > 8
            form = {"normed": True, "epsilon": 1e-3, "offset": 1.0, "activation": "silu"}
            gated = problem(activations(m, k), (name, name), ((0, 17), (0, 17)), **form)
            hold(fused, gated, fast, NORMED_8_BIT if fast else 1e-5)


def test_weights_of_different_formats(fused: Fused) -> None:
    names = ("q4_k", "q6_k", "f16")
    for m in (2, 20):
        for normed in (False, True):
            form = {"normed": normed, "epsilon": 1e-5}
            p = problem(activations(m, 256), names, ((0, 17), (0, 16), (1, 3)), **form)
            launches = hold(fused, p, True, NORMED_8_BIT)
            assert len(launches) == (1 if m == 2 else 3 if normed else 2)


@pytest.mark.parametrize("fast", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("m", [1, 8, 18])
def test_what_comes_after(fused: Fused, m: int, fast: bool) -> None:
    x = activations(m, 96) / 10
    for biased in (False, True):
        hold(fused, problem(x, ("q8_0",), ((0, 17),), added=True, scale=0.3, biased=biased), fast)
        for activation in ACTIVATIONS:
            form = {"activation": activation, "limit": 1.5, "biased": biased}
            hold(fused, problem(x, ("q4_0", "q8_0"), ((2, 15), (0, 15)), **form), fast, 2e-5)
            hold(fused, problem(x, ("q4_0",), ((2, 15),), **form), fast, 2e-5)


@pytest.mark.parametrize("fast", [False, True], ids=["f32", "int8"])
def test_a_layer_norm_comes_first(fused: Fused, fast: bool) -> None:
    for names in (("q4_1", "q4_1"), ("q8_0", "f16"), ("bf16", "f32")):
        for form in ({"layer_norm": "plain", "offset": 0.5}, {"layer_norm": "biased", "activation": "silu"}):
            for m in (1, 8, 9):
                p = problem(activations(m, 96) + 1, names, ((0, 17), (0, 17)), normed=True, epsilon=1e-3, **form)
                launches = hold(fused, p, fast, NORMED_8_BIT)
                assert len(launches) == 1 or m > 8


@pytest.mark.parametrize("fast", [False, True], ids=["f32", "int8"])
def test_a_sum_comes_first(fused: Fused, fast: bool) -> None:
    for names in (("q4_1", "q4_1"), ("q8_0", "f16"), ("bf16", "f32")):
        for form in ({}, {"normed": True, "epsilon": 1e-3}, {"normed": True, "activation": "silu"}):
            for m, scaled in ((1, False), (3, True), (8, False), (9, False)):
                how = {"summed": "scaled" if scaled else "sum", "sum_epsilon": 1e-4, "sum_offset": 1.0}
                p = problem(activations(m, 96), names, ((0, 17), (0, 17)), **form, **how)
                p.operands["base"] = np.resize(p.operands["base"], (m, 96))
                launches = hold(fused, p, fast, NORMED_8_BIT)
                assert relative(fused.results["sum"], summed(p)) < 1e-6
                assert len(launches) == 1 or m > 8
    names, rows = (
        ("q4_0", "f32", "q4_0"),
        ((0, 33), (0, 700), (3, 14)),
    )  # several workgroups form the sum
    how = {"summed": "sum", "sum_epsilon": 1e-4, "sum_offset": 0.0, "normed": True}
    x, base = activations(8, 96), np.random.default_rng(1).standard_normal((8, 96)).astype(np.float32)
    together = fused(problem(x, names, rows, **how), fast)[0], fused.results["sum"]
    for i in range(8):
        p = problem(x[i : i + 1], names, rows, **how)
        p.operands["base"] = base[i : i + 1]
        alone = fused(p, fast)[0], fused.results["sum"]
        for one, all_rows in zip(alone, together, strict=True):
            assert one.tobytes() == all_rows[i : i + 1].tobytes()


@pytest.mark.parametrize("name", ["q4_1", "q6_k", "affine3_g64_bf16", "mxfp8", "bf16"])
def test_a_row_does_not_depend_on_its_company(fused: Fused, name: str) -> None:
    name = name if name in CASES or name in DENSE else next(n for n in CASES if n.startswith("affine3"))
    k = CASES[name].columns[-1] if name in CASES else 96
    x, form = activations(8, k), {"normed": True, "epsilon": 1e-5, "activation": "gelu"}
    for fast in (False, True):
        rows = ((0, 17), (0, 17))
        alone = np.concatenate([fused(problem(x[i : i + 1], (name,) * 2, rows, **form), fast)[0] for i in range(8)])
        for m in range(2, 9):
            together = fused(problem(x[:m], (name,) * 2, rows, **form), fast)[0]
            np.testing.assert_array_equal(together.view(np.int32), alone[:m].view(np.int32), err_msg=f"M={m}")


def test_an_input_that_a_workgroup_cannot_hold_is_prepared_first(fused: Fused) -> None:
    k = SCRATCH // 8 // 32 * 32
    p = problem(activations(8, k), ("f16",), ((0, 5),), normed=True, epsilon=1e-5)
    assert [launch.symbol for launch in hold(fused, p, True)] == ["strixhlo_norm_rows", "strixhlo_fused_matmul_1"]


def test_columns_are_shared_out_once(fused: Fused) -> None:
    """Workgroups whose share spans two weights, and the last of which has less to do."""
    for m in (1, 20):
        p = problem(activations(m, 32), ("f32",) * 3, ((0, 500), (0, 33), (0, 1100)))
        launches = hold(fused, p, False)
        assert launches[-1].workgroups > 5
        p = problem(activations(m, 32), ("f32",) * 2, ((0, 700), (0, 700)), activation="silu", normed=True)
        assert hold(fused, p, False)[-1].workgroups > 5


def test_two_weights_in_one_tensor(fused: Fused) -> None:
    for m in (1, 9):
        p = problem(activations(m, 96), ("q8_0", "q8_0"), ((0, 15), (15, 15)), activation="silu")
        p.attributes |= {"formats": "q8_0", "rows": "0:0:15,0:15:15"}
        p.operands |= {name.replace("1.", "0."): array for name, array in p.operands.items() if name.startswith("1.")}
        hold(fused, p, True)


def test_nan_and_infinity_stay_in_their_row(fused: Fused) -> None:
    for fast in (False, True):
        for broken in (np.nan, np.inf):
            x = activations(3, 96)
            x[1, 40] = broken
            y, _ = fused(problem(x, ("q8_0",), ((0, 17),), normed=True, epsilon=1e-5), fast)
            assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()
