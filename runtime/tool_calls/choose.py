"""Which parser a model's output needs: told by what its chat template writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import glm, harmony, hermes, llama3, mistral, reasoning
from .pieces import OutputParser, PlainParser

FORMATS = ("harmony", "glm", "hermes", "mistral", "llama3")


def tool_format(template: str | None) -> str | None:
    """The tool-call format of a chat template, one of FORMATS; None when it shows none."""
    text = template or ""
    if harmony.CHANNEL in text and harmony.MESSAGE in text:
        return "harmony"
    if hermes.BEGIN in text:
        return "glm" if glm.KEY in text else "hermes"
    if mistral.BEGIN in text:
        return "mistral"
    return "llama3" if llama3.TAG in text or "<|start_header_id|>" in text else None


def shows_special_tokens(template: str | None) -> bool:
    """Whether the format's markers are special tokens, which must then not be left out of the text."""
    return tool_format(template) in ("harmony", "mistral", "llama3")


def output_parser(template: str | None, prompt: str, tools: Sequence[Mapping[str, Any]]) -> OutputParser:
    """The parser of one answer. prompt: the rendered text that the model goes on from; tools: OpenAI's tool objects."""
    form = tool_format(template)
    if form == "harmony":
        return harmony.HarmonyParser()
    names = {t["function"]["name"] for t in tools}
    parser: OutputParser = PlainParser()
    if tools and form == "glm":
        parser = glm.GlmParser(tools)
    elif tools and form == "mistral":
        parser = mistral.MistralParser()
    elif tools and form == "llama3":
        parser = llama3.Llama3Parser(names)
    elif tools:
        parser = hermes.HermesParser()
    inside = prompt.rstrip().endswith(reasoning.BEGIN)
    if inside or reasoning.END in (template or ""):
        return reasoning.ThinkParser(parser, inside)
    return parser
