"""Renders one chat template, in a process of its own: chat.py starts it as `python -m`, JSON in, JSON out.

A template comes with the checkpoint, from a stranger. Jinja's sandbox keeps it from Python's internals, but not from
asking for all memory or all time (`x ~ x` in a loop, a format width of 10**9, nested loops); only the limits of a
process bound every such trick. This module imports nothing but jinja2 and the standard library, so it starts fast.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PublicNamespace(Namespace):
    """jinja's `namespace()`, which stores under any name, without the names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no named `self`: a template may well say namespace(self=1)
        Namespace.__init__(args[0])
        for name, value in dict(*args[1:], **kwargs).items():
            PublicNamespace.__setitem__(args[0], name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"namespace attribute {name!r} starts with an underscore")
        Namespace.__setitem__(self, name, value)


def environment() -> ImmutableSandboxedEnvironment:
    """Jinja as Hugging Face's chat templates expect it (their documentation, "Chat templates: writing")."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = _tojson
    env.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, "namespace": PublicNamespace}
    return env


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja's own filter escapes <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def render(template: str, variables: dict[str, Any], max_characters: int) -> dict[str, str]:
    """{"text": ...}, or {"error": one line}."""
    pieces: list[str] = []
    size = 0
    try:
        for piece in environment().from_string(template).generate(**variables):
            size += len(piece)
            if size > max_characters:
                return {"error": f"its output is longer than {max_characters:,} characters"}
            pieces.append(piece)
    except MemoryError:
        pieces.clear()
        return {"error": "it asks for more memory than a chat template may have"}
    except Exception as error:  # whatever a stranger's template can raise becomes the user's one line
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
    return {"text": "".join(pieces)}


def limit_this_process(memory_bytes: int, cpu_seconds: int) -> None:
    """Kernel limits for the rest of this process; where the system has none (Windows), the caller's timeout remains."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))  # SIGXCPU first, then SIGKILL
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]  # which `ulimit -v` may have set lower
    memory_bytes = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def main() -> None:
    """stdin: {"template", "variables", "max_characters", "memory_bytes", "cpu_seconds"}; stdout: see `render`."""
    job = json.load(sys.stdin)
    limit_this_process(job["memory_bytes"], job["cpu_seconds"])
    json.dump(render(job["template"], job["variables"], job["max_characters"]), sys.stdout)


if __name__ == "__main__":
    main()
