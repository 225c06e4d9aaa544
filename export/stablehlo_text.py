"""From JAX's module text to a bundle's program: the traced functions public, their arguments marked, no duplicates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ..bundle import EntryPoint

_FUNCTION = re.compile(r"^  func\.func (public|private) @([\w.$-]+)(.*?^  }\n)", re.MULTILINE | re.DOTALL)
_SYMBOL = re.compile(r"@([\w.$-]+)")
_COMPOSITE = re.compile(r'stablehlo\.composite "(strixhlo\.[a-z0-9_]+)"')
_ARGUMENT = re.compile(r"%arg(\d+): (tensor<[^>]*>)")


def entry_module(text: str, entries: Mapping[str, EntryPoint], parameters: Sequence[str]) -> tuple[str, dict[str, int]]:
    """`text` is the module of a main function that calls each entry. Returns the program, and the count of each op.

    Every entry's arguments are the parameters in order, then its inputs.
    """
    functions = {name: body for _, name, body in _FUNCTION.findall(text) if name != "main"}
    missing = [name for name in entries if name not in functions]
    if missing:
        raise RuntimeError(f"JAX did not keep {missing} as functions of the module")
    functions = _without_duplicates(functions, entries)
    for name, entry in entries.items():
        functions[name] = _marked(functions[name], entry, parameters)
    custom_ops = Counter(op for body in functions.values() for op in _COMPOSITE.findall(body))
    lines = ["module @strixhlo {"]
    for name, body in functions.items():
        lines.append(f"  func.func {'public' if name in entries else 'private'} @{name}{body.rstrip()}")
    return "\n".join([*lines, "}", ""]), dict(sorted(custom_ops.items()))


def _without_duplicates(functions: dict[str, str], entries: Mapping[str, EntryPoint]) -> dict[str, str]:
    """Merge private functions of equal text, until none are left; JAX writes one decomposition per call."""
    while True:
        first: dict[str, str] = {}
        same = {}
        for name, body in functions.items():
            if name in entries:
                continue
            kept = first.setdefault(body, name)
            if kept != name:
                same[name] = kept
        if not same:
            return functions

        def rename(match: re.Match[str], same: Mapping[str, str] = same) -> str:
            return "@" + same.get(match[1], match[1])

        functions = {n: _SYMBOL.sub(rename, body) for n, body in functions.items() if n not in same}


def _marked(body: str, entry: EntryPoint, parameters: Sequence[str]) -> str:
    """Mark the arguments in a function's signature: parameters by name, pools as donated to their results."""
    end = body.index("->")
    first = len(entry.outputs) - 2
    results = {o.name: first + i for i, o in enumerate(entry.outputs[first:])}  # the pools
    count = 0

    def mark(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        index = int(match[1])
        if index < len(parameters):
            return f'{match[0]} {{strixhlo.parameter = "{parameters[index]}"}}'
        name = entry.inputs[index - len(parameters)].name
        return f"{match[0]} {{tf.aliasing_output = {results[name]} : i32}}" if name in results else match[0]

    signature = _ARGUMENT.sub(mark, body[:end])
    if count != len(parameters) + len(entry.inputs):
        raise RuntimeError(f"{count} arguments in the module where {len(parameters) + len(entry.inputs)} were traced")
    return signature + body[end:]
