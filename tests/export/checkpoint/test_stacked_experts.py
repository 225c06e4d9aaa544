"""Experts as checkpoints store them, and as the families read them."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from family_checkpoints import CASES, random_checkpoint
from safetensors.numpy import load_file, save_file

from strixhlo.custom_kernels.ops.formats import FORMATS, dequantize
from strixhlo.errors import StrixhloError
from strixhlo.export.checkpoint.checkpoint import open_checkpoint
from strixhlo.export.checkpoint.contents import Tensor
from strixhlo.export.checkpoint.stacked_experts import stack_experts
from strixhlo.export.models import model_from_config

E, N, K = 3, 8, 64


def tensor(name: str, values: np.ndarray) -> Tensor:
    return Tensor(name, values.shape, "f32", lambda: {"dense": values})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    random_checkpoint(*CASES["olmoe"][1:], tmp_path)
    return tmp_path


def test_one_tensor_an_expert() -> None:
    rng = np.random.default_rng(0)
    each = rng.standard_normal((E, N, K), np.float32)
    names = [f"model.layers.0.mlp.experts.{e}.up_proj.weight" for e in range(E)]
    found = stack_experts({n: tensor(n, each[e]) for e, n in reversed([*enumerate(names)])})
    (stacked,) = found.values()
    assert stacked.name == "model.layers.0.mlp.experts.up_proj.weight" and stacked.shape == (E * N, K)
    np.testing.assert_array_equal(stacked.read()["dense"], each.reshape(-1, K))


def test_gate_and_up_in_one_stack() -> None:
    both = np.random.default_rng(0).standard_normal((E, 2 * N, K)).astype(np.float32)
    found = stack_experts({"m.experts.gate_up_proj": tensor("m.experts.gate_up_proj", both)})
    for name, rows in (("gate_proj", both[:, :N]), ("up_proj", both[:, N:])):
        np.testing.assert_array_equal(found[f"m.experts.{name}.weight"].read()["dense"], rows.reshape(-1, K))


def test_what_is_no_matrix_or_far_away_is_refused() -> None:
    def given(*numbers: int, shape: tuple[int, ...] = (N, K)) -> dict[str, Tensor]:
        names = [f"m.experts.{e}.up_proj.weight" for e in numbers]
        return {n: tensor(n, np.zeros(shape, np.float32)) for n in names}

    with pytest.raises(StrixhloError, match="expert 2 is missing of 1000000"):
        stack_experts(given(0, 1, 999_999))
    with pytest.raises(StrixhloError, match="expert 3 is missing of 4"):  # the last one
        stack_experts(given(0, 1, 2), 4)
    with pytest.raises(StrixhloError, match="has 3 experts where the model says 2"):
        stack_experts(given(0, 1, 2), 2)
    for shape in ((N * K,), (2, N, K)):
        with pytest.raises(StrixhloError, match=r"up_proj.weight: an expert's weight is a matrix, not \["):
            stack_experts(given(0, 1, shape=shape))
    stack = {"m.experts.up_proj.weight": tensor("m.experts.up_proj.weight", np.zeros((E, N, K), np.float32))}
    for both in (stack | given(0, 1), given(0, 1) | stack):
        with pytest.raises(StrixhloError, match="is there twice, as a stack and expert by expert"):
            stack_experts(both)


@pytest.mark.parametrize("bits", [4, 8])
def test_stack_of_mlx(checkpoint: Path, bits: int) -> None:
    """As mlx_lm.convert writes OLMoE: switch_mlp with a dimension of experts in codes, scales and biases."""
    tensors = load_file(checkpoint / "model.safetensors")
    weights = []
    for e in range(16):
        weights.append(tensors.pop(f"model.layers.0.mlp.experts.{e}.up_proj.weight"))
    codes, scales, biases = mx.quantize(mx.array(np.stack(weights)), group_size=32, bits=bits)
    for leaf, part in (("weight", codes), ("scales", scales), ("biases", biases)):
        tensors[f"model.layers.0.mlp.switch_mlp.up_proj.{leaf}"] = np.array(part)
    save_file(tensors, checkpoint / "model.safetensors")
    config = (checkpoint / "config.json").read_text().rstrip().removesuffix("}")
    (checkpoint / "config.json").write_text(f'{config}, "quantization": {{"group_size": 32, "bits": {bits}}}}}')
    opened = open_checkpoint(str(checkpoint))
    up = opened.tensors["model.layers.0.mlp.experts.up_proj.weight"]
    assert (up.format, up.shape) == (f"affine{bits}_g32", (16 * 160, 96))
    want = np.array(mx.dequantize(codes, scales, biases, group_size=32, bits=bits)).reshape(-1, 96)
    np.testing.assert_allclose(np.asarray(dequantize(FORMATS[up.format], up.read())), want, atol=1e-6)
    assert {*dict(model_from_config(opened.config).shapes())} == {*opened.tensors}


@pytest.mark.parametrize("fault", ["missing", "shape"])
def test_refused(checkpoint: Path, fault: str) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    name = "model.layers.1.mlp.experts.5.down_proj.weight"
    tensors[name] = tensors[name][:-1]
    if fault == "missing":
        del tensors[name]
    save_file(tensors, checkpoint / "model.safetensors")
    expected = "expert 5 is missing of 16" if fault == "missing" else "experts must be alike"
    with pytest.raises(StrixhloError, match=expected):
        open_checkpoint(str(checkpoint))
