"""Options that take several whole numbers: `-b 1,4,8`."""

from __future__ import annotations

import click


class NumberList(click.ParamType):
    """Comma-separated integers of at least `least`, as a tuple; StrixhloError's exit code 2 for anything else."""

    name = "N,N"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            numbers = (self.least - 1,)
        if any(n < self.least for n in numbers):
            self.fail(f"{value!r} is no list of whole numbers from {self.least} on, such as 128,512", param, ctx)
        return numbers
