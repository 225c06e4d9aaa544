"""POST /v1/embeddings, for models that give them."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ...errors import StrixhloError
from ..embedding import normalized
from ..requests import QueueFull
from .answering import Answering, whole
from .errors import ApiError
from .schemas import EmbeddingsBody
from .served import Embed, ServedModel, encode_prompt


async def embeddings(request: HttpRequest, body: EmbeddingsBody, model: ServedModel, answering: Answering) -> Response:
    """A vector of each input."""
    if model.embed is None:
        message = f"the model {model.name!r} gives no embeddings: it was not exported from an embedding model"
        raise ApiError(501, message, code="embeddings_not_supported")
    inputs = _inputs(body)
    prompts = [await encode_prompt(model, text) if isinstance(text, str) else text for text in inputs]
    return await whole(request, _all(model, model.embed, prompts, body, answering.seconds))


def _inputs(body: EmbeddingsBody) -> list[str | list[int]]:
    given = body.input
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [[token for token in given if isinstance(token, int)]]
    if not given:
        raise ApiError(400, "input is empty; send a text, token ids, or a list of these", param="input")
    return [one for one in given if not isinstance(one, int)]


async def _all(
    model: ServedModel, embed: Embed, prompts: list[list[int]], body: EmbeddingsBody, seconds: float
) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    left = threading.Event()
    try:
        async with asyncio.timeout(seconds):
            for i, ids in enumerate(prompts):
                vector = await asyncio.to_thread(embed, ids, lambda: not left.is_set())
                data.append({"object": "embedding", "index": i, "embedding": _shown(vector, body)})
    except TimeoutError:
        message = f"the request took longer than {seconds:.0f} seconds"
        raise ApiError(504, message, "server_error", code="timeout") from None
    except QueueFull as error:
        raise ApiError(429, str(error), "rate_limit_error", code="queue_full", retry_after=1) from None
    except StrixhloError as error:
        raise ApiError(400, str(error), param="input") from None
    finally:
        left.set()
    tokens = sum(map(len, prompts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


def _shown(vector: np.ndarray, body: EmbeddingsBody) -> list[float] | str:
    if body.dimensions is not None:
        if body.dimensions > vector.size:
            raise ApiError(400, f"dimensions: this model's embeddings have {vector.size}", param="dimensions")
        vector = normalized(vector[: body.dimensions])
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]
