"""Bytes that a decode step must read: the weights that take part, and the keys and values that its tokens see.

This is the floor under a step's traffic, each byte read once, as the portable program says it: the parameters of
`decode_1`, and the window of each of its attentions. Activations, results and what a cache may spare are not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .bundle import Build, Bundle, Manifest, Parameter, built_cache
from .errors import StrixhloError

STRIX_HALO_BANDWIDTH = 212e9  # bytes a second, what a copy reaches on gfx1151
_PARAMETER = re.compile(r'strixhlo\.parameter = "([^"]+)"')
# the pools of keys and values, kv_heads, window, and the head size, which is the last dimension of the first operand
_ATTENTION = re.compile(
    r'stablehlo\.composite "strixhlo\.attention" %\S+, (%\S+), (%\S+),'
    r".*?\bkv_heads = (\d+).*?\bwindow = (-?\d+).*?: \(tensor<\d+x\d+x(\d+)x"
)
# Tables of which a token takes one row: embeddings (unless the output head is the same matrix) and rotary angles.
_EMBEDDING, _HEAD, _ROPE, _EXPERTS = "embed_tokens", "lm_head", "rope.", ".experts."
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_A_TOKEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k")


@dataclass(frozen=True)
class StepTraffic:
    """always: bytes of weights that every step reads; a_row: of tables, a row of tokens; expert_bytes: of all experts
    of all layers, of which a row takes `used` of `experts`. windows: of each attention, 0 for none, below 0 for chunks
    of so many positions, and position_bytes: the keys and values of one position in it."""

    always: int
    a_row: int
    expert_bytes: int
    experts: int
    used: int
    windows: tuple[int, ...]
    position_bytes: tuple[int, ...]

    def weight_bytes(self, rows: int) -> float:
        """Of a step of `rows` tokens. Of experts the expected number of distinct ones, rows choosing independently."""
        distinct = 1 - (1 - self.used / self.experts) ** rows if self.experts else 1.0
        return self.always + rows * self.a_row + distinct * self.expert_bytes

    def kv_bytes(self, position: int) -> int:
        """Of one token at `position` (from 0): it sees itself and what is before it, inside each layer's window."""
        attentions = zip(self.windows, self.position_bytes, strict=True)
        return sum(each * _seen(position, window) for window, each in attentions)

    def step_bytes(self, rows: int, first: int, steps: int) -> float:
        """Mean over `steps` steps of `rows` sequences whose tokens are at positions first, first + 1, ..."""
        seen = sum(self.kv_bytes(p) for p in range(first, first + steps)) / steps
        return self.weight_bytes(rows) + rows * seen


def step_traffic(bundle: Bundle, build: Build | None = None) -> StepTraffic:
    """Read from the bundle's program and manifest; build: for its type of KV cache. StrixhloError when the program has
    no decode_1."""
    manifest = bundle.manifest
    names, attentions = _decode_function(bundle)
    used = {name: manifest.parameters[name] for name in names if name in manifest.parameters}
    tied = not any(_HEAD in name for name in used)
    kinds: dict[str, list[Parameter]] = {"row": [], "expert": [], "whole": []}
    for name, parameter in used.items():
        if name.startswith(_ROPE) or (_EMBEDDING in name and not (tied and f".{_EMBEDDING}." in f".{name}")):
            kinds["row"].append(parameter)
        else:
            kinds["expert" if _EXPERTS in name else "whole"].append(parameter)
    experts, chosen = _experts(manifest) if kinds["expert"] else (0, 0)
    kv = built_cache(manifest, build)
    return StepTraffic(
        always=sum(p.length for p in kinds["whole"]),
        a_row=sum(p.length // max(p.shape[0], 1) for p in kinds["row"] if p.shape),
        expert_bytes=sum(p.length for p in kinds["expert"]),
        experts=experts,
        used=chosen,
        windows=tuple(window for _, window in attentions),
        position_bytes=tuple(width * kv.element_bytes for width, _ in attentions),
    )


def _seen(position: int, window: int) -> int:
    """How many positions one sees, itself included."""
    return position % -window + 1 if window < 0 else min(position + 1, window) if window else position + 1


def _decode_function(bundle: Bundle) -> tuple[list[str], list[tuple[int, int]]]:
    """Names of the parameters of decode_1, and of each of its attentions: values of keys and values together (where the
    values are the keys, once), window."""
    names: list[str] = []
    attentions: list[tuple[int, int]] = []
    inside = False
    for line in bundle.program_text().splitlines():
        if "func.func " in line:
            inside = "@decode_1(" in line
            if inside:
                names = _PARAMETER.findall(line)
        elif inside and (found := _ATTENTION.search(line)):
            keys, values, heads, window, size = found.groups()
            attentions.append(((1 if keys == values else 2) * int(heads) * int(size), int(window)))
    if not names:
        raise StrixhloError(f"{bundle.program}: has no entry decode_1 with weights; export the bundle again")
    return names, attentions


def _experts(manifest: Manifest) -> tuple[int, int]:
    """(experts of a layer, of which a token takes); where the config does not say it, all are taken."""

    def first(keys: tuple[str, ...]) -> int:
        text = manifest.config.get("text_config")
        configs = [manifest.config, text if isinstance(text, dict) else {}]
        found = (c[k] for c in configs for k in keys if isinstance(c.get(k), int) and c[k] > 0)
        return next(found, 1)

    count = first(_EXPERT_COUNTS)
    return count, min(first(_EXPERTS_A_TOKEN), count)
