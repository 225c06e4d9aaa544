"""Embedding models: vectors are transformers', also beside requests that generate; over HTTP by OpenAI's client."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import httpx
import numpy as np
import openai
import pytest
import torch
from family_checkpoints import CASES, VOCAB, random_checkpoint
from openai import AsyncOpenAI
from token_streams import result

from strixhlo.bundle import Bundle
from strixhlo.errors import StrixhloError
from strixhlo.export import export
from strixhlo.export.checkpoint.pooling import directory_pooling, gguf_pooling
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.embedding import embed
from strixhlo.runtime.load_plan import load_plans
from strixhlo.runtime.program import Program, read_build
from strixhlo.runtime.requests import QueueFull, Request
from strixhlo.runtime.sampling import SamplingParams
from strixhlo.runtime.scheduler import Scheduler
from strixhlo.runtime.server.app import Settings, create_app
from strixhlo.runtime.server.served import ServedModel
from strixhlo.runtime.tokenizer import load_tokenizer

ENTRIES = {"prefill_16": ("prefill", 16), "score_16": ("score", 16), "decode_1": ("decode", 1)}
MODES = {"qwen3": ("lasttoken", True), "gemma3": ("mean_tokens", False)}


def sentence_transformer(folder: Path, mode: str, normalize: bool) -> None:
    """The files beside a checkpoint that make it an embedding model."""
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
    listed = [
        {"idx": int(n), "name": n, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, path, kind in modules[: 3 if normalize else 2]
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{m}": m == mode for m in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **flags}))


@pytest.fixture(scope="module", params=MODES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Bundle]]:
    """(transformers' model without its head, the bundle); the checkpoint's tensors have no "model." before them."""
    folder = tmp_path_factory.mktemp("embedding")
    _, kind, changes = CASES[request.param]
    whole = random_checkpoint(kind, changes, folder / "whole")
    shutil.copytree(folder / "whole", folder / "checkpoint")
    whole.model.save_pretrained(folder / "checkpoint")
    sentence_transformer(folder / "checkpoint", *MODES[request.param])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "ENTRIES", ENTRIES)
        bundle = conftest.exported(folder / "checkpoint", folder / "bundle", 96, "f32")
    yield whole.model, conftest.compiled(bundle)


def expected(model: Any, bundle: Bundle, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].double().numpy()
    assert bundle.manifest.pooling
    vector = hidden[-1] if bundle.manifest.pooling.method == "last" else hidden.mean(0)
    return vector / np.linalg.norm(vector) if bundle.manifest.pooling.normalize else vector


def random_ids(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(3, VOCAB, length)]


async def over_http(app: Any, name: str, inputs: list[list[int]]) -> None:
    """OpenAI's client, as it asks by itself (base64) and for plain numbers, shorter vectors, and what is refused."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        client = AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
        answer = await client.embeddings.create(model=name, input=inputs)
        plain = await client.embeddings.create(model=name, input=inputs[0], encoding_format="float")
        assert [d.index for d in answer.data] == [0, 1, 2] and answer.usage.prompt_tokens == sum(map(len, inputs))
        np.testing.assert_allclose(answer.data[0].embedding, plain.data[0].embedding, rtol=1e-6)
        short = await client.embeddings.create(model=name, input="w5 w6", dimensions=8)
        assert len(short.data[0].embedding) == 8
        np.testing.assert_allclose(np.linalg.norm(short.data[0].embedding), 1, rtol=1e-5)
        for bad in ({"input": []}, {"input": [1] * 97}, {"input": [VOCAB + 5]}, {"input": "w1", "dimensions": 1 << 20}):
            with pytest.raises(openai.BadRequestError):
                await client.embeddings.create(model=name, **bad)  # type: ignore[arg-type]


def test_vectors_are_transformers(model: tuple[Any, Bundle]) -> None:
    reference, bundle = model
    pooling, tokenizer = bundle.manifest.pooling, load_tokenizer(bundle.path)
    plan = load_plans([(bundle, read_build(bundle, "cpu"))], None, None, 2)[0]
    with Program(bundle, "cpu", 1, plan=plan) as program, closing(BatchEngine(program)) as engine:
        with closing(Scheduler(engine, tokenizer.tokenizer)) as scheduler:
            assert pooling
            request = Request(tuple(random_ids(9, 20)), SamplingParams(max_tokens=30))
            alone = result(scheduler.submit(request))
            handle = scheduler.submit(request)
            for seed, length in enumerate((1, 16, 17, 90)):
                ids = random_ids(seed, length)
                found, wanted = embed(scheduler, pooling, ids), expected(reference, bundle, ids)
                assert np.linalg.norm(found - wanted) < 1e-4 * np.linalg.norm(wanted), length
            assert result(handle) == alone
            with pytest.raises(StrixhloError, match="cancelled"):
                embed(scheduler, pooling, random_ids(1, 40), lambda: False)
            assert scheduler.pool.in_use == 0
            held = [scheduler.pool.allocate() for _ in range(scheduler.pool.available - 1)]
            with pytest.raises(QueueFull):
                embed(scheduler, pooling, random_ids(1, 90))
            scheduler.pool.release([block for block in held if block is not None])
            with pytest.MonkeyPatch.context() as patch, pytest.raises(QueueFull):
                patch.setattr(Scheduler, "pressed", True)
                embed(scheduler, pooling, [5])
            served = ServedModel("m", tokenizer, engine.context, 2, scheduler, partial(embed, scheduler, pooling))
            app = create_app({"m": served}, Settings())
            asyncio.run(over_http(app, "m", [random_ids(s, n) for s, n in ((1, 5), (2, 30), (3, 1))]))
            assert scheduler.pool.in_use == 0
        assert threading.active_count() < 50


def test_what_is_no_embedding_model_here_is_refused(tmp_path: Path) -> None:
    assert directory_pooling(tmp_path) is None
    sentence_transformer(tmp_path, "cls_token", True)
    with pytest.raises(StrixhloError, match=r"pooling \['cls_token'\] is not supported: only lasttoken or mean"):
        directory_pooling(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    with pytest.raises(StrixhloError, match="'Dense' is not supported"):
        directory_pooling(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "../x"}]')
    with pytest.raises(StrixhloError, match="not a plain folder name"):
        directory_pooling(tmp_path)
    for text in ("{", "{}", "[1]", "[]"):
        (tmp_path / "modules.json").write_text(text)
        with pytest.raises(StrixhloError, match=r"modules\.json"):
            directory_pooling(tmp_path)


@pytest.mark.parametrize(("kind", "method"), [(None, None), (0, None), (1, "mean"), (3, "last"), (2, "refused")])
def test_what_a_gguf_file_says(kind: int | None, method: str | None) -> None:
    file: Any = SimpleNamespace(path="x.gguf", metadata={} if kind is None else {"qwen3.pooling_type": kind})
    if method == "refused":
        with pytest.raises(StrixhloError, match="pooling_type = 2 is not supported"):
            gguf_pooling(file, "qwen3")
        return
    found = gguf_pooling(file, "qwen3")
    assert (found.method if found else None) == method and (found is None or found.normalize)
