"""Reading config.json: typed values whose errors name the key, and flags that a family does not know how to honour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StrixhloError

LIMIT = 1 << 31  # of a count: positions and sizes are int32 in the program
MAX_LAYERS = 4096  # the largest models have some 130
SMALLEST, LARGEST = 1e-37, 3e38  # of a number: what float32 holds


def wrong(key: str, value: object, expected: str) -> StrixhloError:
    """The error for a value that is there but makes no sense."""
    return StrixhloError(f"config.json: {key} = {shown(value)} is not {expected}; get the model's config.json again")


def shown(value: object) -> str:
    """A value for an error message, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def required(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key that must be there."""
    value = config.get(key)
    if value is None:
        kind = f" of this {config['model_type']} model" if "model_type" in config else ""
        raise StrixhloError(f"config.json{kind} lacks {key}; get the model's config.json again")
    return value


def count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number from 1 to 2**31 - 1. Without a default the key must be there; null counts as absent."""
    value = default if default is not None and config.get(key) is None else required(config, key)
    if type(value) is not int or not 0 < value < LIMIT:
        raise wrong(key, value, f"a whole number from 1 to {LIMIT - 1}")
    return value


def whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number from 0 to 2**31 - 1. Without a default the key must be there; null counts as absent."""
    value = default if default is not None and config.get(key) is None else required(config, key)
    return 0 if value == 0 and type(value) is int else count({key: value}, key)


def layer_count(config: Mapping[str, Any], key: str = "num_hidden_layers") -> int:
    """The number of layers, refused where no model could have so many."""
    layers = count(config, key)
    if layers > MAX_LAYERS:
        raise wrong(key, layers, f"a whole number from 1 to {MAX_LAYERS}")
    return layers


def positive(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A finite number above 0 that float32 can hold. Without a default the key must be there."""
    value = default if default is not None and config.get(key) is None else required(config, key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not SMALLEST < value < LARGEST:
        raise wrong(key, value, "a number above 0")
    return float(value)


def optional(config: Mapping[str, Any], key: str) -> float:
    """A number above 0, or 0.0 where the key is absent or null."""
    return 0.0 if config.get(key) is None else positive(config, key)


def flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """True or false."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise wrong(key, value, "true or false")
    return default if value is None else value


def numbers(config: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """A list of finite numbers above 0."""
    values = required(config, key)
    if not isinstance(values, list):
        raise wrong(key, values, "a list of numbers")
    return tuple(positive({key: value}, key) for value in values)


def layer_types(config: Mapping[str, Any], layers: int, default: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """One kind of attention a layer: the list `layer_types`, or `default` where there is none."""
    kinds = config.get("layer_types")
    if kinds is None:
        return list(default)
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in allowed for k in kinds):
        raise wrong("layer_types", kinds, f"a list that names {layers} layers as {' or '.join(allowed)}")
    return kinds


def attention_heads(config: Mapping[str, Any], hidden: int) -> tuple[int, int, int]:
    """(query heads, key and value heads, head size), checked against each other."""
    heads = count(config, "num_attention_heads")
    kv_heads = count(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads = {heads}")
    if config.get("head_dim") is None and hidden % heads:
        raise wrong("num_attention_heads", heads, f"a divisor of hidden_size = {hidden}, and there is no head_dim")
    head_dim = count(config, "head_dim", hidden // heads)
    if head_dim % 2:
        raise wrong("head_dim", head_dim, "even, as rotary embeddings need it")
    return heads, kv_heads, head_dim


def refuse(config: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> None:
    """Error on a flag whose value is none of those that the family computes; an absent flag is fine."""
    for key, values in allowed.items():
        if key in config and config[key] not in values:
            raise StrixhloError(
                f"config.json: {key} = {shown(config[key])} is not supported for {config.get('model_type')};"
                f" supported: {', '.join(map(repr, values))}"
            )
