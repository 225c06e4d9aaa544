"""The application: which path goes where, and every failure in OpenAI's form."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from .answering import Answering
from .chat_completions import chat_completions
from .completions import completions
from .embeddings import embeddings
from .errors import ApiError, bad_request
from .gate import Gate
from .metrics import Metrics
from .responses import responses
from .schemas import ChatBody, CompletionBody, DetokenizeBody, EmbeddingsBody, ResponsesBody, TokenizeBody
from .served import ServedModel, encode, find_model

log = logging.getLogger("strixhlo.server")
MOST_TO_TOKENIZE = 1_000_000  # characters: seconds of one core
PAGE = Path(__file__).parent / "page"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_B = TypeVar("_B", bound=BaseModel)


@dataclass(frozen=True)
class Settings:
    """keys: API keys, none for an open server. hosts: names in Host headers that are answered, None for any.
    Sizes in bytes, times in seconds."""

    keys: tuple[str, ...] = ()
    hosts: frozenset[str] | None = None
    max_body: int = 8 << 20
    body_seconds: float = 30
    request_seconds: float = 600
    webui: bool = False


def create_app(models: Mapping[str, ServedModel], settings: Settings) -> FastAPI:
    """The ASGI application over loaded models, by name."""
    app = FastAPI(title="strixhlo", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.draining = False
    _errors(app)
    _generating(app, models, Answering(Metrics(models), settings.request_seconds))
    _describing(app, models)
    if settings.webui:
        _page(app)
    app.add_middleware(
        Gate,
        keys=settings.keys,
        hosts=settings.hosts,
        max_body=settings.max_body,
        body_seconds=settings.body_seconds,
    )
    return app


async def _read(request: Request, kind: type[_B]) -> _B:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # other types need no permission to come from another web page
        raise ApiError(415, "the Content-Type must be application/json", code="unsupported_media_type")
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise bad_request(error) from None


def _generating(app: FastAPI, models: Mapping[str, ServedModel], answering: Answering) -> None:
    kinds: dict[str, tuple[type[Any], Any]] = {
        "/v1/chat/completions": (ChatBody, chat_completions),
        "/v1/completions": (CompletionBody, completions),
        "/v1/responses": (ResponsesBody, responses),
        "/v1/embeddings": (EmbeddingsBody, embeddings),
    }

    def add(path: str, kind: type[Any], answer: Any) -> None:
        async def endpoint(request: Request) -> Response:
            if app.state.draining:
                raise ApiError(503, "the server is shutting down", "server_error", code="shutting_down")
            body = await _read(request, kind)
            result: Response = await answer(request, body, find_model(models, body.model), answering)
            return result

        app.add_route(path, endpoint, methods=["POST"])

    for path, (kind, answer) in kinds.items():
        add(path, kind, answer)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(answering.metrics.text(), media_type="text/plain; version=0.0.4")


def _describing(app: FastAPI, models: Mapping[str, ServedModel]) -> None:
    def record(model: ServedModel) -> dict[str, Any]:
        own = {"context": model.context, "slots": model.slots}
        return {"id": model.name, "object": "model", "created": model.created, "owned_by": "strixhlo", **own}

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [record(m) for m in models.values()]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return record(find_model(models, name))

    @app.get("/health")
    async def health() -> Response:
        if app.state.draining:
            return JSONResponse({"status": "shutting down"}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/slots")
    async def slots() -> list[dict[str, Any]]:
        out = []
        for model in models.values():
            running, waiting = model.scheduler.state()
            used = [{"prompt_tokens": len(h.request.token_ids), "generated": h.generated} for h in running]
            state = {"model": model.name, "slots": model.slots, "running": used, "waiting": waiting}
            out.append({**state, "blocks": model.scheduler.blocks()})
        return out

    async def tokenize(request: Request) -> Response:
        body = await _read(request, TokenizeBody)
        model = find_model(models, body.model)
        if len(body.content) > MOST_TO_TOKENIZE:
            raise ApiError(400, f"content has more than {MOST_TO_TOKENIZE} characters; send parts", param="content")
        return JSONResponse({"tokens": await encode(model, body.content, body.add_special)})

    async def detokenize(request: Request) -> Response:
        body = await _read(request, DetokenizeBody)
        tokenizer = find_model(models, body.model).tokenizer.tokenizer
        for token in set(body.tokens):
            if tokenizer.id_to_token(token) is None:
                raise ApiError(400, f"the tokenizer has no token {token}", param="tokens")
        return JSONResponse({"content": tokenizer.decode(body.tokens, skip_special_tokens=False)})

    app.add_route("/tokenize", tokenize, methods=["POST"])
    app.add_route("/detokenize", detokenize, methods=["POST"])


def _errors(app: FastAPI) -> None:
    async def api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), error.status, headers=error.headers)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        return JSONResponse(ApiError(error.status_code, message).body(), error.status_code)

    async def unexpected(_: Request, error: Exception) -> Response:
        log.error("internal error: %s: %s", type(error).__name__, error)
        return JSONResponse(ApiError(500, "internal error; see the server's log", "server_error").body(), 500)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _page(app: FastAPI) -> None:
    def add(path: str, file: str, kind: str) -> None:
        content = (PAGE / file).read_bytes()

        async def endpoint(_: Request) -> Response:
            headers = {
                "content-security-policy": CSP,
                "x-content-type-options": "nosniff",
                "referrer-policy": "no-referrer",
                "cache-control": "no-cache",
            }
            return Response(content, media_type=kind, headers=headers)

        app.add_route(path, endpoint, methods=["GET"])

    for path, (file, kind) in PAGE_FILES.items():
        add(path, file, kind)
