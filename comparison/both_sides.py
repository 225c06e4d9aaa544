"""What `strixhlo compare` does: both sides get one workload in this process, then each a process for its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle import Bundle
from ..command_group import Progress, say_dim
from ..errors import StrixhloError
from ..progress import spinner
from ..runtime.compare import DECODED, GREEDY_PROMPT, PASSAGE, SHORT, Comparison, Workload
from ..runtime.compare import compare as run_comparison
from ..runtime.engine import Engine
from ..runtime.native.compiled import CompiledBundle
from ..runtime.native.contender import Contender
from ..runtime.peak import SidePeak
from ..runtime.program import Program
from ..runtime.tokenizer import BundleTokenizer
from ..text_file import text_of
from .contender_memory import side_peak

if TYPE_CHECKING:
    from ..bisection.bisect import Bisection
    from ..export.checkpoint.contents import Checkpoint


def workload(
    bundle: Bundle,
    tokenizer: BundleTokenizer,
    text: Path | None,
    tokens: int,
    greedy: int,
    prefill: tuple[int, ...],
    decode: tuple[int, ...],
    repeats: int,
) -> Workload:
    """What both sides get; StrixhloError where it does not fit into the bundle's context, or the text is too short."""
    prompt = tuple(tokenizer.encode(GREEDY_PROMPT))
    needs = {"--tokens": tokens, "--greedy": len(prompt) + greedy, "-p": max(prefill), "-n": SHORT + max(decode)}
    option = max(needs, key=lambda name: needs[name])
    context = bundle.manifest.context
    if needs[option] > context:
        raise StrixhloError(
            f"{option} needs {needs[option]} positions, more than the context of {context} that {bundle.path} was"
            f" exported with; give a smaller {option}, or export with a larger --context"
        )
    ids = tuple(tokenizer.encode(text_of(text or PASSAGE))[:tokens])
    work = Workload(ids, prompt, greedy, prefill, decode, repeats)
    work.check()
    return work


def compared(
    bundle: Bundle,
    tokenizer: BundleTokenizer,
    target: str,
    threads: int,
    limit: int | None,
    their_side: Callable[[], Contender],
    work: Workload,
) -> Comparison:
    """Both sides in this process."""
    with (
        spinner(Progress(), "comparing") as say,
        Program(bundle, target, threads, limit, say_dim, context=work.longest) as program,
        closing(Engine(program)) as engine,
    ):
        say("loading the other side")
        with closing(their_side()) as theirs:
            return run_comparison(CompiledBundle(engine, tokenizer), theirs, work, say=say)


def peaks(
    bundle: Path, ours: tuple[None, str], theirs: tuple[str | None, str | None], load: dict[str, Any]
) -> tuple[SidePeak | str, SidePeak | str]:
    """(native, target) of each side, and what else `side_peak` takes."""
    with spinner(Progress(), "peak memory of each side, alone in a process"):
        first, second = (side_peak(bundle, n, **load, decode=DECODED, target=t) for n, t in (ours, theirs))
    return first, second


def open_source(bundle: Bundle, source: Path | None) -> Checkpoint:
    """The checkpoint that --bisect holds programs against."""
    from ..export.checkpoint.checkpoint import open_checkpoint

    return open_checkpoint(str(source or bundle.manifest.source))


def bisections(
    bundle: Bundle, targets: Sequence[str | None], checkpoint: Checkpoint, ids: Sequence[int], threads: int
) -> list[Bisection]:
    """Of each target in turn."""
    from ..bisection.bisect import bisect

    with spinner(Progress(), "bisecting") as say:
        return [bisect(bundle, t, ids, checkpoint, threads=threads, say=say) for t in targets if t is not None]
