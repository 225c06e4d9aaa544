"""Chat templates: messages -> the prompt's text, as Hugging Face's apply_chat_template renders it.

The template is rendered in a short-lived process with limits (template_worker.py); that costs about 60 ms.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StrixhloError

MAX_CHARACTERS = 16_000_000  # about four times the longest context that any model has
MEMORY_BYTES = 1 << 30  # address space of the worker: the interpreter and several times MAX_CHARACTERS
CPU_SECONDS = 5
WALL_SECONDS = 60  # also bounds a worker that waits instead of computing, or starves on a busy machine

_KILLED_BY_CPU_LIMIT = -getattr(signal, "SIGXCPU", 0) or None  # as subprocess reports it; Windows has no such signal


def render_chat(
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos_token: str | None,
    eos_token: str | None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """The prompt for a conversation: what the model's chat template makes of it.

    messages: plain JSON values, each with a "role"; keys whose value is None are dropped, as transformers does.
    bos_token, eos_token: None leaves the variable undefined (it renders as nothing).
    The text already holds the special tokens: tokenize it without adding any.
    Raises StrixhloError when there is no template, and when it fails or asks for too much time, memory or output.
    """
    if not template:
        raise StrixhloError("chat: this model has no chat template; pass --raw to give it the prompt as it is")
    variables: dict[str, Any] = {
        "messages": [_message(m, i) for i, m in enumerate(messages)],
        "tools": None if tools is None else list(tools),
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    variables |= {k: v for k, v in (("bos_token", bos_token), ("eos_token", eos_token)) if v is not None}
    job = {
        "template": template,
        "variables": variables,
        "max_characters": MAX_CHARACTERS,
        "memory_bytes": MEMORY_BYTES,
        "cpu_seconds": CPU_SECONDS,
    }
    try:
        request = json.dumps(job)
    except (TypeError, ValueError) as error:
        raise StrixhloError(f"chat: messages and tools must be plain JSON values: {error}") from error
    return _run_worker(request)


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise StrixhloError(f'chat: message {index} is not an object with a "role"')
    return {key: value for key, value in message.items() if value is not None}


def _run_worker(request: str) -> str:
    # -P keeps the current directory, which may hold anything, off the module path.
    command = [sys.executable, "-P", "-m", f"{__package__}.template_worker"]
    try:
        done = subprocess.run(command, input=request.encode(), capture_output=True, timeout=WALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _failed(f"it takes longer than {WALL_SECONDS} seconds") from None
    if done.returncode == _KILLED_BY_CPU_LIMIT:
        raise _failed(f"it takes longer than {CPU_SECONDS} seconds")
    if done.returncode:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise _failed(last_line or f"its process ended with code {done.returncode}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise _failed(answer["error"])
    return str(answer["text"])


def _failed(reason: str) -> StrixhloError:
    return StrixhloError(f"chat: the model's chat template does not work here: {reason}; pass --raw to do without it")
