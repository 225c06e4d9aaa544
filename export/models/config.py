"""Reading config.json: what a family needs, and flags that it does not know how to honour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import StrixhloError


def require(config: Mapping[str, Any], *keys: str) -> list[Any]:
    """The values of keys that must be there."""
    missing = [k for k in keys if config.get(k) is None]
    if missing:
        raise StrixhloError(f"config.json of this {config.get('model_type')} model lacks {', '.join(missing)}")
    return [config[k] for k in keys]


def refuse(config: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> None:
    """Error on a flag whose value is none of those that the family computes; an absent flag is fine."""
    for key, values in allowed.items():
        if key in config and config[key] not in values:
            raise StrixhloError(
                f"config.json: {key} = {config[key]!r} is not supported for {config.get('model_type')};"
                f" supported: {', '.join(map(repr, values))}"
            )
