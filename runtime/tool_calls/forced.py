"""tool_choice `required`, or a tool by name: a Lark grammar (llguidance) that lets a model write nothing but calls.

The calls are written as the model's format has them, so the format's parser reads them as it reads those that the model
makes of its own accord; arguments follow the tool's JSON schema. Reasoning may come first where the model has any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from ...errors import StrixhloError
from . import glm, harmony, hermes, llama3, mistral, reasoning
from .choose import tool_format

# As templates write JSON; with free white space a small model may go on with blanks for ever.
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
TEXT = r"/(.|\n)*/"


def forced_calls(
    template: str | None, prompt: str, tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, *, several: bool
) -> str:
    """The grammar of an answer that calls one of `tools` (OpenAI's tool objects), or with `several` one after another.

    template: the model's chat template, which tells the format; prompt: the rendered text that the model goes on from.
    """
    rules = _Rules(tokenizer)
    form = tool_format(template)
    functions = [tool["function"] for tool in tools]  # their parameters may be anything
    if form == "harmony":
        return rules.grammar(_harmony(rules, functions))
    calls = _CALLS.get(form or "hermes", _hermes)(rules, functions, several, template or "")
    if prompt.rstrip().endswith(reasoning.BEGIN):
        calls = f"{rules.up_to(reasoning.END)} SPACE {calls}"
    elif reasoning.END in (template or ""):
        thought = f"{rules.marker(reasoning.BEGIN)} {rules.up_to(reasoning.END)} SPACE"
        calls = f"({thought})? {calls}"
    return rules.grammar(calls)


def _is_tag(text: str) -> bool:
    return text.startswith("<") and text.endswith(">")


class _Rules:
    """Collects rules; markers that are single tokens of the vocabulary are written as these tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        # llguidance takes all added tokens of the form <...> for special ones, which no text matches.
        self._ids = {t.content: i for i, t in added.items() if t.special or _is_tag(t.content)}
        self._rules = [r"SPACE: /\s*/"]

    def grammar(self, start: str) -> str:
        """The whole of it."""
        return "\n".join([f"start: {start}", *self._rules])

    def rule(self, body: str) -> str:
        """A new rule's name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def marker(self, text: str) -> str:
        """A marker of the format."""
        return f"<[{self._ids[text]}]>" if text in self._ids else json.dumps(text)

    def up_to(self, end: str) -> str:
        """Any text, and the marker after it."""
        if end in self._ids:
            return f"{self.rule(TEXT)} <[{self._ids[end]}]>"
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}[suffix={json.dumps(end)}]: {TEXT}")
        return name

    def one_of(self, alternatives: Sequence[str]) -> str:
        """A rule of alternatives."""
        return self.rule(" | ".join(alternatives))


def _arguments(function: Mapping[str, Any]) -> str:
    """The tool's schema, written as templates write JSON."""
    return _json(function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False})


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': LAYOUT})}"


def _object(rules: _Rules, functions: Sequence[Mapping[str, Any]], key: str) -> str:
    """{"name": "f", "arguments": {...}} of any of the functions."""
    heads = [json.dumps('{"name": ' + json.dumps(f["name"], ensure_ascii=False) + f', "{key}": ') for f in functions]
    return rules.one_of([f'{head} {_arguments(f)} "}}"' for head, f in zip(heads, functions, strict=True)])


def _many(call: str, several: bool, between: str = "") -> str:
    return f"{call} ({between} {call})*" if several else call


def _hermes(rules: _Rules, functions: Sequence[Mapping[str, Any]], several: bool, _template: str) -> str:
    begin, end = rules.marker(hermes.BEGIN), rules.marker(hermes.END)
    call = rules.rule(rf'{begin} "\n" {_object(rules, functions, "arguments")} "\n" {end}')
    return _many(call, several, r'"\n"')


def _llama3(rules: _Rules, functions: Sequence[Mapping[str, Any]], _several: bool, _template: str) -> str:
    """Always one: Llama 3 knows no parallel calls."""
    return _object(rules, functions, llama3.ARGUMENTS)


def _mistral(rules: _Rules, functions: Sequence[Mapping[str, Any]], several: bool, template: str) -> str:
    begin = rules.marker(mistral.BEGIN)
    if mistral.ARGS not in template:
        call = _object(rules, functions, "arguments")
        return f'{begin} " "? "[" {_many(call, several, json.dumps(", "))} "]"'
    args = rules.marker(mistral.ARGS)
    named = [f"{json.dumps(f['name'])} {args} {_arguments(f)}" for f in functions]
    return _many(rules.rule(f"{begin} {rules.one_of(named)}"), several)


def _harmony(rules: _Rules, functions: Sequence[Mapping[str, Any]]) -> str:
    """The end of a call, <|call|>, ends the answer: it is one of the model's end tokens."""
    channel, message = rules.marker(harmony.CHANNEL), rules.marker(harmony.MESSAGE)
    start, json_follows = rules.marker(harmony.START), rules.marker("<|constrain|>")
    analysis = f'{channel} "analysis" {message} {rules.up_to("<|end|>")} {start} "assistant"'
    calls = [
        f'{json.dumps("commentary to=functions." + f["name"] + " ")} {json_follows} "json" {message} {_arguments(f)}'
        for f in functions
    ]
    return f"({analysis})? {channel} {rules.one_of(calls)}"


def _glm(rules: _Rules, functions: Sequence[Mapping[str, Any]], several: bool, _template: str) -> str:
    begin, end = rules.marker(glm.BEGIN), rules.marker(glm.END)
    bodies = []
    for function in functions:
        schema = function.get("parameters") or {}
        needed, properties = schema.get("required") or [], schema.get("properties") or {}
        if not isinstance(needed, list) or not isinstance(properties, dict):
            raise StrixhloError(f"structured output: the parameters of {function['name']!r} are no JSON schema")
        fields = [
            f"({_glm_field(rules, name, value, schema.get('$defs'))}){'' if name in needed else '?'}"
            for name, value in properties.items()
        ]
        bodies.append(" ".join([json.dumps(function["name"] + "\n"), *fields]))
    call = rules.rule(f"{begin} {rules.one_of(bodies)} {end}")
    return _many(call, several, r'"\n"')


def _glm_field(rules: _Rules, name: str, schema: Any, definitions: Any) -> str:
    """One argument: strings are written without quotation marks, all else as JSON."""
    end = rules.marker(glm.VALUE_END)
    if not isinstance(schema, dict):
        value = f"{_json({})} {end}"
    elif schema.get("type") != "string":
        value = f"{_json({**schema, '$defs': definitions} if definitions else schema)} {end}"
    elif isinstance(schema.get("enum"), list) and schema["enum"]:
        value = f"{rules.one_of([json.dumps(str(choice)) for choice in schema['enum']])} {end}"
    else:
        value = rules.up_to(glm.VALUE_END)
    key = f"{rules.marker(glm.KEY)} {json.dumps(name)} {rules.marker(glm.KEY_END)}"
    return rf'{key} "\n" {rules.marker(glm.VALUE)} {value} "\n"'


_CALLS = {"hermes": _hermes, "llama3": _llama3, "mistral": _mistral, "glm": _glm}
