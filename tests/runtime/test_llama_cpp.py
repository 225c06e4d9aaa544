"""The native path through llama.cpp: exact token ids, whole distributions, its timings and its errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from strixhlo.errors import StrixhloError
from strixhlo.runtime.compare import PASSAGE
from strixhlo.runtime.native import llama_cpp_api
from strixhlo.runtime.native.llama_cpp import LlamaCpp
from strixhlo.runtime.numerics import compare_logits, first_divergence, log_softmax, top_two_gap

TEXT = PASSAGE.read_text("utf-8")
SMOLLM2_VOCABULARY = 49152


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Iterator[LlamaCpp]:
    with LlamaCpp(smollm2_gguf, n_ctx=512) as model:
        yield model


def test_special_tokens(smollm2: LlamaCpp) -> None:
    assert smollm2.tokenize("<|im_start|>", parse_special=True) == [1]
    as_text = smollm2.tokenize("<|im_start|>", parse_special=False)
    assert len(as_text) > 1
    assert 1 not in as_text


def test_gemma_begins_with_bos(gemma3_gguf: Path) -> None:
    with LlamaCpp(gemma3_gguf, n_ctx=64) as model:
        with_bos, without = model.tokenize("Hello"), model.tokenize("Hello", add_special=False)
    assert with_bos == [2, *without]


def test_greedy_follows_the_teacher_forced_logits(smollm2: LlamaCpp) -> None:
    prompt = smollm2.tokenize("Once upon a time")
    generated = smollm2.greedy(prompt, 30)
    assert len(generated) == 30
    logits = smollm2.teacher_forced_logits(prompt + generated)[len(prompt) - 1 : -1]
    # One row at a time and many rows are computed by different kernels: they may differ where two tokens are close.
    at = first_divergence(generated, logits.argmax(axis=1).tolist())
    assert at is None or top_two_gap(logits[at]) < 0.3


def test_greedy_ends_with_an_end_token(smollm2: LlamaCpp) -> None:
    prompt = smollm2.tokenize(
        "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>assistant\nYes."
    )
    generated = smollm2.greedy(prompt, 50)
    assert len(generated) < 50
    assert generated[-1] == 2


def test_both_ways_to_the_logits_agree(smollm2_gguf: Path, smollm2: LlamaCpp) -> None:
    ids = smollm2.tokenize(TEXT)[:24]
    assert llama_cpp_api.supported(smollm2._library_path())
    logits = smollm2.teacher_forced_logits(ids)
    assert logits.shape == (24, SMOLLM2_VOCABULARY)
    assert logits.dtype == np.float32
    # The same batch of rows, so the same kernels: equal but for the server's float32 probabilities.
    with LlamaCpp(smollm2_gguf, n_ctx=64) as fresh:
        in_one_batch = fresh._log_probs_after(np.array(ids, np.int32))
    np.testing.assert_allclose(in_one_batch, log_softmax(logits[-1]), atol=2e-4)
    # Position by position other kernels round otherwise: as far apart as llama.cpp is from float32, no more.
    one_by_one = smollm2.teacher_forced_log_probs(ids[:4])
    assert np.exp(one_by_one.astype(np.float64)).sum(axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert compare_logits(one_by_one, logits[:4]).max_kl < 0.03


def test_an_unknown_build_is_asked_through_its_public_interface(
    smollm2: LlamaCpp, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not llama_cpp_api.supported(np._core._multiarray_umath.__file__)  # a library without these functions
    monkeypatch.setattr(llama_cpp_api, "DEFAULTS", {**llama_cpp_api.DEFAULTS, "n_ctx": 4096})
    assert not llama_cpp_api.supported(smollm2._library_path())
    rows = smollm2.teacher_forced_logits(smollm2.tokenize(TEXT)[:2])
    assert np.exp(rows.astype(np.float64)).sum(axis=1) == pytest.approx(np.ones(2), abs=1e-5)


def test_chunks_of_positions_continue_each_other(smollm2: LlamaCpp, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = smollm2.tokenize(TEXT)[:40]
    whole = smollm2.teacher_forced_logits(ids)
    monkeypatch.setattr(llama_cpp_api, "CHUNK", 16)
    assert compare_logits(smollm2.teacher_forced_logits(ids), whole).mean_kl < 0.01


def test_speed(smollm2: LlamaCpp) -> None:
    speed = smollm2.measure_speed(smollm2.tokenize(TEXT)[:100], n_decode=8, repeats=3)
    assert len(speed.prefill_all) == len(speed.decode_all) == 3
    assert sorted(speed.decode_all)[1] == speed.decode
    assert 1 < speed.decode < speed.prefill < 100_000


def test_nothing_is_written_to_the_terminal(smollm2_gguf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with LlamaCpp(smollm2_gguf, n_ctx=64) as model:
        model.greedy([1, 2], 2)
        model.teacher_forced_logits([1, 2, 3])
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_names_its_install_line(smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(StrixhloError, match=r"pip install 'strixhlo\[llama-cpp\]'"):
        LlamaCpp(smollm2_gguf)


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(StrixhloError, match="no file"):
        LlamaCpp(tmp_path / "absent.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(StrixhloError, match="cannot load"):
        LlamaCpp(broken)


def test_too_many_or_no_tokens(smollm2: LlamaCpp) -> None:
    with pytest.raises(StrixhloError, match="do not fit a context of 512"):
        smollm2.greedy([1] * 500, 13)
    with pytest.raises(StrixhloError, match="no tokens"):
        smollm2.teacher_forced_logits([])
    with pytest.raises(StrixhloError, match="no tokens"):
        smollm2.greedy([], 3)


def test_a_closed_model_says_so(smollm2_gguf: Path) -> None:
    with LlamaCpp(smollm2_gguf, n_ctx=64) as model:
        pass
    model.close()
    with pytest.raises(StrixhloError, match="closed"):
        model.tokenize("x")
    with pytest.raises(StrixhloError, match="closed"):
        model.greedy([1], 1)
    with pytest.raises(StrixhloError, match="closed"):
        model.teacher_forced_logits([1])


def test_ids_outside_the_vocabulary(smollm2: LlamaCpp) -> None:
    for ids in ([SMOLLM2_VOCABULARY], [-1]):
        with pytest.raises(StrixhloError, match=r"^llama\.cpp: "):
            smollm2.greedy(ids, 1)
        with pytest.raises(StrixhloError, match=r"^llama\.cpp: "):
            smollm2.teacher_forced_logits(ids)
