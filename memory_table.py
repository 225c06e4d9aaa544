"""What `strixhlo inspect --memory` shows: a bundle's budget on this machine, or on machines named."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .bundle import Bundle
from .command_group import Output
from .compile.targets import parse_target
from .errors import StrixhloError
from .runtime.device_pool import device_pool
from .runtime.machines import MACHINES, machine_pool
from .runtime.memory import Budget, budget_record, memory_budget
from .runtime.program import built_target, read_build
from .runtime.sizes import parse_size, size


def show_budgets(
    bundle: Bundle,
    machine: tuple[str, ...],
    target: str | None,
    context: int | None,
    parallel: int,
    memory_budget: str | None,
    as_json: bool,
) -> None:
    """Print the budgets; StrixhloError for a machine that has no name here."""
    names = tuple(MACHINES) if machine == ("all",) else machine
    for name in names:
        if name not in MACHINES:
            raise StrixhloError(f"machine {name!r} is not known; choose one of {', '.join(MACHINES)}, or all")
    limit = None if memory_budget is None else parse_size(memory_budget)
    found = budgets(
        bundle, target if target is not None else ("rocm" if names else "cpu"), names, limit, context, parallel
    )
    if as_json:
        click.echo(json.dumps({name: budget_record(budget) for name, budget in found.items()}, indent=1))
    else:
        Output().print(budget_tables(found))


def budgets(
    bundle: Bundle, target: str, machines: Sequence[str], limit: int | None, context: int | None, parallel: int
) -> dict[str, Budget]:
    """Name of the machine -> budget. Without names: this machine's device for `target`.

    The machines named are AMD's, so `target` is then rocm, whether the bundle is compiled for it or not.
    """
    target = built_target(bundle, target)
    if not bundle.target_dir(target).is_dir():
        parse_target(target)  # StrixhloError for one that cannot be compiled for
    build = read_build(bundle, target) if bundle.target_dir(target).is_dir() else None
    kind = target.partition(":")[0]
    if machines and kind != "rocm":
        raise StrixhloError(f"--machine names AMD GPUs: --target {target} does not run there; leave one of them out")
    pools = {name: machine_pool(name) for name in machines} or {"this machine": device_pool(kind)}
    return {
        name: memory_budget(bundle.manifest, build, kind, pool, limit=limit, context=context, parallel=parallel)
        for name, pool in pools.items()
    }


def budget_tables(found: dict[str, Budget]) -> Group:
    """The sums for a person, one table a machine."""
    return Group(*(_table(name, budget) for name, budget in found.items()))


def _table(name: str, budget: Budget) -> Table:
    what = f" ({MACHINES[name].what})" if name in MACHINES else ""
    table = Table(title=Text(f"{name}{what}"), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()

    def row(*cells: str) -> None:
        table.add_row(*map(Text, cells))

    for item in budget.items:
        row(item.name, size(item.bytes), item.note)
    row("needed", size(budget.needed))
    amount = "not known" if budget.amount is None else size(budget.amount)
    row(budget.source.partition(" of ")[0], amount, "; ".join(budget.pool.reasons) if budget.pool else "")
    if budget.left is not None:
        row("left" if budget.fits else "missing", size(abs(budget.left)))
    for fitting in budget.fitting:
        row("would fit", "", fitting)
    for warning in budget.pool.warnings if budget.pool else ():
        row("warning", "", warning)
    return table
