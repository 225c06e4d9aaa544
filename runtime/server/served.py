"""The models that a server has, and the requests' way to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol

import numpy as np

from ...errors import StrixhloError
from ..requests import Handle, Request
from ..sampling import SamplingParams
from ..speculation import Speculation
from ..tokenizer import BundleTokenizer
from .errors import ApiError
from .schemas import ResponseFormat, Sampling

LONG = 50_000  # characters; above it an encoding takes over 5 MB for a while, and every thread keeps what it once had
ONE_AT_A_TIME = ThreadPoolExecutor(1, "long texts")
KNOWN = {f.name for f in fields(SamplingParams)}
OFF = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "typical_p": 1, "logit_bias": {}}


Embed = Callable[[Sequence[int], Callable[[], bool]], np.ndarray]  # (ids, whether to go on) -> float32 [hidden]


class SchedulerLike(Protocol):
    """What the server needs of a scheduler."""

    speculation: Speculation | None

    def submit(self, request: Request) -> Handle:
        """Queue a request; QueueFull when too many wait."""
        ...

    def state(self) -> tuple[list[Handle], int]:
        """(running, how many wait)."""
        ...

    def blocks(self) -> dict[str, int]:
        """Blocks of the KV pool: total, in_use, cached."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """One bundle that is loaded."""

    name: str
    tokenizer: BundleTokenizer
    context: int
    slots: int
    scheduler: SchedulerLike
    embed: Embed | None = None  # of an embedding model
    created: int = field(default_factory=lambda: int(time.time()))


def find_model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    """The model of that name; without a name the first."""
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        message = f"the model {name!r:.200} does not exist here; there is {', '.join(models)}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return models[name]


async def encode_prompt(model: ServedModel, text: str, add_special: bool = True) -> list[int]:
    """Text -> ids; one that cannot fit the context in any tokens is refused without tokenizing it."""
    if len(text) > model.context * model.tokenizer.longest_token:
        message = f"the prompt has {len(text)} characters, more than a context of {model.context} tokens can hold"
        raise ApiError(400, message, code="context_length_exceeded")
    return await encode(model, text, add_special)


async def encode(model: ServedModel, text: str, add_special: bool = True) -> list[int]:
    """Text -> ids, beside the event loop; long texts one after the other."""
    # Not `encode`, which keeps all other threads waiting (it holds the GIL) for a second per million characters.
    job = partial(model.tokenizer.tokenizer.encode_batch_fast, [text], add_special_tokens=add_special)
    try:
        (done,) = await asyncio.get_running_loop().run_in_executor(ONE_AT_A_TIME if len(text) > LONG else None, job)
    except Exception as error:  # tokenizers raises bare Exceptions
        raise ApiError(400, f"the model's tokenizer cannot encode this text: {error}") from None
    return list(done.ids)


def sampling_params(
    model: ServedModel,
    body: Sampling,
    prompt: Sequence[int],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    form: ResponseFormat | None = None,
    grammar: str | None = None,
) -> SamplingParams:
    """The request's SamplingParams; OpenAI's default temperature is 1. ApiError 400 on what is out of range.

    grammar: of tool calls that are forced; `form` is of a content, of which there is then none.
    """
    room = model.context - len(prompt)
    if room < 1:
        message = f"the prompt has {len(prompt)} tokens, this model's context is {model.context}; shorten it"
        raise ApiError(400, message, code="context_length_exceeded")
    wanted: dict[str, Any] = {
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_k": max(body.top_k or 0, 0),
        "min_p": body.min_p or 0.0,
        "seed": None if body.seed is None else body.seed % (1 << 64),
        "max_tokens": room if max_tokens is None else min(max_tokens, room),
        "logprobs": logprobs,
    }
    for name, off in OFF.items():
        value = getattr(body, name)
        if value is not None and value != off:
            wanted[name] = value
    for name in KNOWN:
        if name.startswith(("dry_", "xtc_", "regex", "grammar")) and (value := getattr(body, name)) is not None:
            wanted[name] = value
    if grammar is not None:
        wanted["grammar"] = grammar
    elif form is not None and form.type != "text":
        wanted["json_schema"] = form.json_schema.schema_ if form.json_schema else {"type": "object"}
    unknown = sorted(set(wanted) - KNOWN)
    if unknown:
        name = "response_format" if unknown[0] == "json_schema" else unknown[0]
        raise ApiError(400, f"{name} is not supported by this server", code="unsupported_parameter", param=name)
    try:
        return SamplingParams(**wanted)
    except StrixhloError as error:
        raise ApiError(400, str(error)) from None
