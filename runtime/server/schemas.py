"""The bodies of requests, as far as they are understood; fields that are not known are ignored, as OpenAI's clients
send many. Ranges of sampling values are checked by SamplingParams, in one place."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

MOST_TOKENS = 1 << 20  # of any context
MOST_BIASES = 100_000


class _FailFast(FailFast):
    """Only the first fault of a list is looked for: a body of 8 MB could have millions, and take minutes to be refused.
    Unlike pydantic's own this can stand in a union."""

    __hash__ = object.__hash__


Parts = Annotated[list[dict[str, Any]], _FailFast(), Field(max_length=1 << 16)]
TokenIds = Annotated[list[int], _FailFast(), Field(max_length=MOST_TOKENS)]
Texts = Annotated[list[str], _FailFast(), Field(max_length=2048)]
ManyTokenIds = Annotated[list[TokenIds], _FailFast(), Field(max_length=2048)]


def _few(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"more than {MOST_BIASES} tokens")
    return value


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Sampling(_Body):
    """What all generating endpoints share."""

    model: str | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_few)] = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: Annotated[tuple[str, ...], _FailFast(), Field(max_length=1000)] | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    regex: str | None = None
    grammar: str | None = None
    ignore_eos: bool = False


class StreamOptions(_Body):
    """stream_options. continuous_usage_stats, as vLLM has it: usage so far in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(_Body):
    """response_format.json_schema."""

    name: str = "answer"
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Body):
    """response_format."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type json_schema needs json_schema.schema")
        return self


class Function(_Body):
    """A tool's function."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(_Body):
    """One of `tools`."""

    type: Literal["function"]
    function: Function


class FunctionName(_Body):
    """The function that a tool_choice names."""

    name: str


class NamedTool(_Body):
    """tool_choice that names one."""

    type: Literal["function"]
    function: FunctionName


class Message(_Body):
    """One message of a conversation. Content parts other than text are refused."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Parts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Parts | None = None
    tool_call_id: str | None = None


Stop = str | Annotated[list[str], _FailFast(), Field(max_length=16)] | None


class ChatBody(Sampling):
    """/v1/chat/completions."""

    messages: Annotated[list[Message], _FailFast(), Field(min_length=1, max_length=1 << 16)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=16)] = 1
    stop: Stop = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], _FailFast(), Field(max_length=4096)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None  # OpenAI's older form of tools: refused
    modalities: Texts | None = None


class CompletionBody(Sampling):
    """/v1/completions. The prompt may be token ids."""

    prompt: str | TokenIds | Texts | ManyTokenIds
    max_tokens: int | None = 16
    n: Annotated[int, Field(ge=1, le=16)] = 1
    best_of: int | None = None  # refused beyond n
    suffix: str | None = None  # refused: needs a model that was trained to fill in
    stop: Stop = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_tokens_as_token_ids: bool = False  # as vLLM: "token_id:<id>" in place of texts, which can be ambiguous
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None


class ResponsesBody(Sampling):
    """/v1/responses."""

    input: str | Parts
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: Parts | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None


class EmbeddingsBody(_Body):
    """/v1/embeddings."""

    model: str | None = None
    input: str | TokenIds | Texts | ManyTokenIds
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None


class TokenizeBody(_Body):
    """/tokenize."""

    model: str | None = None
    content: str
    add_special: bool = True


class DetokenizeBody(_Body):
    """/detokenize."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], _FailFast(), Field(max_length=100_000)]
