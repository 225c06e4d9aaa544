"""The models of a server: planned together, then loaded one after the other, each with a scheduler of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

from ...bundle import Build, Bundle
from ...errors import StrixhloError
from ..batch_engine import BatchEngine
from ..cache_size import require_kv_dtype
from ..embedding import embed
from ..load_plan import LoadPlan, shortage
from ..loaded import new_speculation, open_draft, planned_draft, plans_beside
from ..memory import Budget, budget_line, require_fit_together
from ..program import Program, read_build, version_line
from ..scheduler import Scheduler
from ..tokenizer import load_tokenizer
from .served import ServedModel


@dataclass(frozen=True)
class Wanted:
    """How models are loaded. parallel: requests at a time, each of `context` positions (None: the bundle's); queue:
    requests that may wait; memory_limit: bytes that all may take; kv_dtype: of the KV cache, None for any."""

    target: str
    parallel: int
    queue: int
    context: int | None
    kv_dtype: str | None
    speculate: str
    draft: Bundle | None
    threads: int | None
    memory_limit: int | None


@dataclass(frozen=True)
class Models:
    """What was loaded. budgets: of each model, last of the draft model if there is one."""

    served: Mapping[str, ServedModel]
    programs: tuple[Program, ...]
    budgets: tuple[Budget, ...]


@contextmanager
def loaded_models(bundles: Mapping[str, Bundle], wanted: Wanted, say: Callable[[str], None]) -> Iterator[Models]:
    """Load bundles by name; StrixhloError where they do not fit. say: gets lines on version and
    memory before they are loaded."""
    if wanted.draft and len(bundles) > 1:
        raise StrixhloError("--draft goes with one served bundle, not with several")
    built = [(bundle, read_build(bundle, wanted.target)) for bundle in bundles.values()]
    for bundle, build in built:
        require_kv_dtype(bundle, build, wanted.kv_dtype)
        if line := version_line(bundle, build):
            say(line)
    plans, small = _plans(built, wanted)
    budgets = tuple(plan.budget for plan in (*plans, small) if plan)
    require_fit_together(budgets)
    say(budget_line(budgets))
    for name, plan in zip(bundles, plans, strict=True):
        if lack := shortage(plan, wanted.parallel):
            say(f"{name}: {lack}")
    with ExitStack() as stack:
        programs, served = [], {}
        for (name, bundle), plan in zip(bundles.items(), plans, strict=True):
            program = stack.enter_context(Program(bundle, wanted.target, wanted.threads, plan=plan))
            programs.append(program)
            served[name] = _served(stack, name, program, small, wanted)
        yield Models(served, tuple(programs), budgets)


def _plans(built: list[tuple[Bundle, Build]], wanted: Wanted) -> tuple[list[LoadPlan], LoadPlan | None]:
    """Of each program, and of the draft model if there is one."""
    tokenizer = load_tokenizer(built[0][0].path)
    parallel, limit = wanted.parallel, wanted.memory_limit
    small = planned_draft(wanted.draft, wanted.speculate, tokenizer, wanted.target, limit, parallel)
    return plans_beside(small, built, limit, wanted.context, parallel), small


def _served(stack: ExitStack, name: str, program: Program, small: LoadPlan | None, wanted: Wanted) -> ServedModel:
    """The model of a program, with what `stack` closes."""
    bundle = program.bundle
    engine = stack.enter_context(closing(BatchEngine(program)))
    tokenizer = load_tokenizer(bundle.path)
    drafts = open_draft(stack, wanted.draft, small, wanted.target, wanted.threads)
    made = Scheduler(
        engine,
        tokenizer.tokenizer,
        eos_ids=tokenizer.eos_ids,
        parallel=wanted.parallel,
        queue_size=wanted.queue,
        speculation=new_speculation(wanted.speculate, engine, drafts),
    )
    scheduler = stack.enter_context(closing(made))
    pooling = bundle.manifest.pooling
    gives = partial(embed, scheduler, pooling) if pooling else None
    return ServedModel(name, tokenizer, engine.context, wanted.parallel, scheduler, gives)
