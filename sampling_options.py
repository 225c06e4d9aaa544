"""The options of `run` and `chat` that say how tokens are chosen, and what the sampler makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .errors import StrixhloError
from .text_file import text_of

if TYPE_CHECKING:
    from .runtime.sampling import SamplingParams

_F = TypeVar("_F", bound=Callable[..., Any])
_file = click.Path(path_type=Path)


def sampling_options(*, max_tokens: int, temperature: float, top_p: float) -> Callable[[_F], _F]:
    """Adds the options to a command, with its defaults."""
    options = [
        click.option("-n", "--max-tokens", default=max_tokens, show_default=True, help="Tokens to generate at most."),
        click.option("--temp", "temperature", default=temperature, show_default=True, help="0 is greedy."),
        click.option("--top-k", default=0, show_default=True, help="Keep the k likeliest tokens; 0 is off."),
        click.option("--top-p", default=top_p, show_default=True, help="Keep the likeliest tokens up to this mass."),
        click.option("--min-p", default=0.0, show_default=True, help="Drop tokens below this share of the best's."),
        click.option("--typical-p", type=float, help="Keep the most typical tokens up to this mass."),
        click.option("--repetition-penalty", type=float, help="Divides what stood in prompt or answer; 1 is off."),
        click.option("--presence-penalty", type=float, help="Taken off a token that stood in the answer."),
        click.option("--frequency-penalty", type=float, help="Taken off for each time that it stood there."),
        click.option("--logit-bias", multiple=True, metavar="ID=BIAS", help="Added to a token's logit; repeatable."),
        click.option("--dry-multiplier", type=float, help="DRY: weight of the penalty on repetitions; 0 is off."),
        click.option("--dry-base", type=float, help="DRY: it grows by this with each token. Default: 1.75."),
        click.option("--dry-allowed-length", type=int, help="DRY: repetitions below are free. Default: 2."),
        click.option("--dry-sequence-breakers", multiple=True, help="DRY: text that ends a repetition; repeatable."),
        click.option("--xtc-probability", type=float, help="XTC: how often the top choices are excluded; 0 is off."),
        click.option("--xtc-threshold", type=float, help="XTC: probability of a top choice. Default: 0.1."),
        click.option("--json-schema", type=_file, help="The answer is JSON of the schema in this file."),
        click.option("--regex", help="The answer matches this regular expression."),
        click.option("--grammar", type=_file, help="The answer matches the Lark grammar in this file."),
        click.option("--stop", multiple=True, help="End before this text; may be given several times."),
        click.option("--seed", type=int, help="Same seed, same text. Default: a fresh one, reported at the end."),
    ]

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def sampling_params(options: dict[str, Any]) -> SamplingParams:
    """What the options say; those that were not given have the sampler's own defaults. StrixhloError names the option
    that is out of range."""
    from .runtime.sampling import InvalidSampling, SamplingParams

    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if "" in given.get("stop", ()):
        raise StrixhloError("--stop is empty; give the text before which the answer ends, or leave it out")
    if "logit_bias" in given:
        given["logit_bias"] = dict(_bias(text) for text in given["logit_bias"])
    if "json_schema" in given:
        path = given["json_schema"]
        try:
            given["json_schema"] = json.loads(text_of(path))
        except (ValueError, RecursionError) as error:
            raise StrixhloError(f"{path}: is not JSON: {error}") from None
    if "grammar" in given:
        given["grammar"] = text_of(given["grammar"])
    try:
        return SamplingParams(**given)
    except InvalidSampling as error:
        raise StrixhloError(f"{_option(error.name)} is {error.value!r}; it must be {error.expected}") from None


def _option(name: str) -> str:
    """temperature -> --temp, by the command that runs."""
    for parameter in click.get_current_context().command.params:
        if parameter.name == name:
            return max(parameter.opts, key=len)
    return name


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise StrixhloError(f"--logit-bias {text!r} is not of the form ID=BIAS, such as 42=-100") from None
