"""A layer of experts takes at most 5 dispatches of a decoded step beyond its attention, in the compiler's own plan.

One family of each kind of mixture; `make bench-dispatches` counts all of them. On cuda that holds up to two tokens:
more go faster in more launches (docs/performance.md).
"""

from __future__ import annotations

import pytest
from expert_dispatches import MOST, beyond_attention

# SparseMixer and LayerNorms; weights of the experts' input and a shared expert; a gated shared one; a dense MLP beside.
FAMILIES = {"phi moe": "bf16", "llama 4": "bf16", "qwen2 moe": "q4_0", "gemma4 moe": "bf16"}
MORE_ON_THE_CPU = {"glm4 moe": "q5_k", "gpt-oss": "mxfp4"}
MORE_ON_CUDA = {"qwen2 moe": "q4_k", "glm4 moe": "q4_0"}


@pytest.mark.parametrize("target", ["cpu", "rocm", "cuda"])
@pytest.mark.parametrize(("case", "format"), FAMILIES.items())
def test_few_tokens(case: str, format: str, target: str) -> None:
    for entry, dispatches in beyond_attention(case, format, target).items():
        assert 3 <= dispatches <= _most(entry, target), entry


@pytest.mark.parametrize(("case", "format"), MORE_ON_THE_CPU.items())
def test_few_tokens_on_the_cpu(case: str, format: str) -> None:
    """Where a dispatch may have any number of buffers, in every format."""
    for entry, dispatches in beyond_attention(case, format, "cpu").items():
        assert 3 <= dispatches <= MOST, entry


@pytest.mark.parametrize("target", ["rocm", "cuda"])
def test_one_buffer_less(target: str) -> None:
    """Corrected scores, a shared expert, weights of five parts: h and what is chosen must share a buffer."""
    for entry, dispatches in beyond_attention("deepseek 3", "q4_k", target).items():
        assert 3 <= dispatches <= _most(entry, target), entry


@pytest.mark.parametrize(("case", "format"), MORE_ON_CUDA.items())
def test_few_tokens_on_cuda(case: str, format: str) -> None:
    """One launch of one token, or two, and the router's; with a shared expert."""
    for entry, dispatches in beyond_attention(case, format, "cuda").items():
        assert 3 <= dispatches <= _most(entry, "cuda"), entry


def _most(entry: str, target: str) -> int:
    return 2 * MOST if (entry, target) == ("decode_8", "cuda") else MOST
