"""A bundle made ready to answer requests: program, KV pools, scheduler, and perhaps a small model that drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from ..bundle import Build, Bundle
from ..errors import StrixhloError
from .batch_engine import BatchEngine
from .draft_model import DraftModel, check_same_tokens
from .load_plan import LoadPlan, load_plans
from .memory import budget_line
from .program import Program, read_build, version_line
from .prompt_lookup import PromptLookup
from .scheduler import Scheduler
from .speculation import Speculation
from .tokenizer import BundleTokenizer, load_tokenizer


@dataclass(frozen=True)
class Loaded:
    """What a command works with."""

    program: Program
    scheduler: Scheduler
    context: int


@contextmanager
def loaded(
    bundle: Bundle,
    tokenizer: BundleTokenizer,
    target: str,
    *,
    threads: int | None = None,
    memory_limit: int | None = None,
    context: int | None = None,
    speculate: str = "auto",
    draft: Bundle | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Iterator[Loaded]:
    """For one request at a time. memory_limit, context: see `load_plans`; say: gets lines on version and memory
    before loading; speculate: auto, lookup or none."""
    with ExitStack() as stack:
        small = planned_draft(draft, speculate, tokenizer, target, memory_limit, parallel=1)
        build = read_build(bundle, target)
        if line := version_line(bundle, build):
            say(line)
        plan = plans_beside(small, [(bundle, build)], memory_limit, context)[0]
        say(budget_line([p.budget for p in (plan, small) if p]))
        program = stack.enter_context(Program(bundle, target, threads, plan=plan))
        engine = stack.enter_context(closing(BatchEngine(program)))
        speculation = new_speculation(speculate, engine, open_draft(stack, draft, small, target, threads))
        made = Scheduler(engine, tokenizer.tokenizer, eos_ids=tokenizer.eos_ids, speculation=speculation)
        yield Loaded(program, stack.enter_context(closing(made)), engine.context)


def planned_draft(
    draft: Bundle | None, speculate: str, tokenizer: BundleTokenizer, target: str, limit: int | None, parallel: int
) -> LoadPlan | None:
    """The plan of a draft model, if there is one; StrixhloError where it cannot draft for this tokenizer."""
    if draft is None:
        return None
    if speculate != "auto":
        raise StrixhloError(f"--draft goes with --speculate auto, not with {speculate}")
    check_same_tokens(tokenizer.tokenizer, load_tokenizer(draft.path).tokenizer)
    return load_plans([(draft, read_build(draft, target))], limit, parallel=parallel)[0]


def plans_beside(
    draft: LoadPlan | None,
    programs: list[tuple[Bundle, Build]],
    limit: int | None,
    context: int | None,
    parallel: int = 1,
) -> list[LoadPlan]:
    """`load_plans` with what a draft model leaves; the budgets name the whole amount."""
    if draft is None:
        return load_plans(programs, limit, context, parallel)
    whole = draft.budget
    plans = load_plans(programs, whole.left, context, parallel)
    return [replace(p, budget=replace(p.budget, amount=whole.amount, source=whole.source)) for p in plans]


def open_draft(
    stack: ExitStack, draft: Bundle | None, plan: LoadPlan | None, target: str, threads: int | None
) -> BatchEngine | None:
    """Load a draft model, if there is one; `stack` closes it."""
    if draft is None or plan is None:
        return None
    program = stack.enter_context(Program(draft, target, threads, plan=plan))
    return stack.enter_context(closing(BatchEngine(program)))


def new_speculation(speculate: str, engine: BatchEngine, draft: BatchEngine | None) -> Speculation | None:
    """What the scheduler of `engine` drafts with. draft: the small model's."""
    if speculate == "none":
        return None
    if draft is None:
        return Speculation(PromptLookup, adaptive=speculate == "auto")
    return Speculation(DraftModel(draft, engine.vocab_size).begin)
