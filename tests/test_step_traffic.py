"""Bytes of a decode step, from programs and manifests whose sums are known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from strixhlo.bundle import Bundle, Parameter
from strixhlo.errors import StrixhloError
from strixhlo.step_traffic import step_traffic

HEAD = 'func.func public @{}(%0: tensor<1xi8> {{strixhlo.parameter = "{}"}}'
ATTENTION = (
    '%1 = stablehlo.composite "strixhlo.attention" %0, %2#0, {2}, %4 {{composite_attributes = {{kv_heads = {0} : i64,'
    " window = {1} : i64}}, decomposition = @a}} : (tensor<1x4x16xf32>, tensor<2x64x32xf16>) -> tensor<1x4x16xf32>"
)


@pytest.fixture
def altered(tiny: Bundle, tmp_path: Path) -> Callable[..., Bundle]:
    """(sizes of parameters, their rows, windows, config) -> the tiny bundle with another program and other weights."""

    def alter(sizes: dict[str, tuple[int, int]], windows: list[int], **config: object) -> Bundle:
        arguments = ", ".join(f'%a: tensor<1xi8> {{strixhlo.parameter = "{name}"}}' for name in sizes)
        lines = [
            f"func.func public @decode_1({arguments}) {{",
            *(ATTENTION.format(max(1, 2 >> i), w, "%2#1" if i < 2 else "%2#0") for i, w in enumerate(windows)),
            "}",
        ]
        lines += [HEAD.format("decode_2", "other"), ATTENTION.format(2, 7, "%2#1"), "}"]
        text = "\n".join(lines)
        (tmp_path / "program.mlir").write_text(text)
        parameters = {
            name: Parameter(dtype="i8", shape=(rows, size // rows), offset=0, length=size)
            for name, (size, rows) in {**sizes, "other": (1 << 30, 1)}.items()
        }
        update = {
            "parameters": parameters,
            "program_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "config": config,
        }
        return Bundle(tmp_path, tiny.manifest.model_copy(update=update))

    return alter


def test_a_real_bundle(tiny: Bundle) -> None:
    """Untied: all weights but the embedding and the rotary table, of which a token takes a row."""
    traffic = step_traffic(tiny)
    tables = {n: p for n, p in tiny.manifest.parameters.items() if "embed_tokens" in n or n.startswith("rope.")}
    assert len(tables) == 2
    rest = sum(p.length for n, p in tiny.manifest.parameters.items() if n not in tables)
    assert traffic.always == rest and traffic.a_row == sum(p.length // p.shape[0] for p in tables.values())
    each = 2 * 2 * 16 * 2  # keys and values of 2 heads of 16, float16
    assert traffic.windows == (0, 0) and traffic.position_bytes == (each, each)
    assert traffic.kv_bytes(9) == 2 * 10 * each
    assert traffic.step_bytes(3, 0, 2) == rest + 3 * traffic.a_row + 3 * 2 * 1.5 * each


def test_tied_embeddings_are_read_whole(altered: Callable[..., Bundle]) -> None:
    sizes = {"model.embed_tokens.weight.codes": (3200, 320), "rope.table.dense": (800, 100), "model.norm": (64, 1)}
    traffic = step_traffic(altered(sizes, []))
    assert (traffic.always, traffic.a_row) == (3264, 8)


def test_windows_bound_what_is_seen(altered: Callable[..., Bundle]) -> None:
    traffic = step_traffic(altered({"model.norm": (64, 1)}, [4, 0]))
    assert traffic.windows == (4, 0)
    assert traffic.position_bytes == (128, 64)  # the second layer has one head of keys
    assert traffic.kv_bytes(2) == 3 * 128 + 3 * 64
    assert traffic.kv_bytes(99) == 4 * 128 + 100 * 64


def test_chunks_and_values_that_are_keys(altered: Callable[..., Bundle]) -> None:
    traffic = step_traffic(altered({"model.norm": (64, 1)}, [-8, 0, 0]))
    assert traffic.kv_bytes(19) == 4 * 128 + 20 * 64 + 20 * 32  # 16 .. 19 are the third chunk so far


def test_experts_count_as_far_as_they_are_chosen(altered: Callable[..., Bundle]) -> None:
    sizes = {"model.norm": (64, 1), "model.layers.0.mlp.experts.down_proj.codes": (8000, 8)}
    traffic = step_traffic(altered(sizes, [], num_experts=8, num_experts_per_tok=2))
    assert traffic.weight_bytes(1) == 64 + 2000
    assert traffic.weight_bytes(2) == pytest.approx(64 + 8000 * (1 - 0.75**2))
    unknown = step_traffic(altered(sizes, []))
    assert unknown.weight_bytes(1) == 64 + 8000


def test_a_program_without_decode_is_refused(altered: Callable[..., Bundle]) -> None:
    with pytest.raises(StrixhloError, match="no entry decode_1"):
        step_traffic(altered({}, []))
