"""`compare --native URL` before two real servers: our own and llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strixhlo.bundle import Bundle
from strixhlo.comparison.native_engine import open_native
from strixhlo.runtime.compare import PASSAGE, Workload, compare
from strixhlo.runtime.engine import Engine
from strixhlo.runtime.native.compiled import CompiledBundle
from strixhlo.runtime.native.llama_cpp import LlamaCpp
from strixhlo.runtime.native.openai_server import API_KEY
from strixhlo.runtime.program import Program
from strixhlo.runtime.tokenizer import load_tokenizer


def compared(bundle: Bundle, url: str):
    tokenizer = load_tokenizer(bundle.path)
    ids = tuple(tokenizer.encode(PASSAGE.read_text("utf-8"))[:24])
    with Program(bundle, "cpu", 1) as program:
        engine = Engine(program)
        work = Workload(ids, tuple(tokenizer.encode("Once upon a time")), 4, (16,), (4,), 1)
        native = open_native(url, None, bundle, 1, 64)
        result = compare(CompiledBundle(engine, tokenizer), native, work, say=lambda _text: None)
        engine.close()
    return result


def test_our_own_server(served: Any, smollm2: Callable[[str], Bundle]) -> None:
    result = compared(smollm2("int8"), served.url)
    assert result.failures == () and result.numerics.top_n == 20
    assert result.numerics.mean_kl < 1e-3 and result.greedy_agreed == 4
    assert "likeliest tokens only" in result.limits.name and result.prompt_ids == "same"


def test_llama_server(smollm2_gguf: Path, smollm2: Callable[[str], Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    with LlamaCpp(smollm2_gguf, n_ctx=256, n_threads=1) as model:
        monkeypatch.setenv(API_KEY, model._key)
        result = compared(smollm2("int8"), model._server.listening_address)
    assert result.failures == () and result.numerics.top_n == 20
    assert result.prompt_ids == result.chat_ids == "same"
    assert result.numerics.perplexity_theirs and result.numerics.perplexity_theirs > 1
