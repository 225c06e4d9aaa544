"""`strixhlo run`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .bundle import open_bundle
from .command_group import say_dim
from .errors import StrixhloError
from .loading_options import Loading, loading_options
from .sampling_options import sampling_options, sampling_params
from .text_file import text_of

if TYPE_CHECKING:
    from .runtime.generate import Generation
    from .runtime.tokenizer import BundleTokenizer


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="The prompt; - reads it from standard input.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="A text file with the prompt, in place of -p.")
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option("--system", help="System message of the chat.")
@click.option("--raw", is_flag=True, help="Give the prompt as it is, without the chat template.")
@sampling_options(max_tokens=128, temperature=0.0, top_p=1.0)
@click.option("--ignore-eos", is_flag=True, help="Go on after an end-of-text token.")
@loading_options
@click.option("--token-ids", is_flag=True, help="Print token ids in place of text.")
@click.option(
    "--logprobs", type=click.IntRange(min=0), help="Report each token's log-probability and the N best (--json)."
)
@click.option("--json", "as_json", is_flag=True, help="Print prompt ids, tokens, text and timings as JSON at the end.")
def run(
    bundle: Path,
    prompt: str | None,
    file: Path | None,
    target: str,
    system: str | None,
    raw: bool,
    ignore_eos: bool,
    loading: Loading,
    token_ids: bool,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Generate text with a compiled bundle; streams to standard output, timings go to standard error.

    The prompt is a user's chat message unless --raw is given.
    """
    from .runtime.generate import generate
    from .runtime.memory import budget_record
    from .runtime.tokenizer import load_tokenizer

    params = sampling_params(sampling)
    text = _prompt(prompt, file)
    opened = open_bundle(bundle)
    tokenizer = load_tokenizer(bundle)
    ids = _prompt_ids(tokenizer, text, system, raw)
    quiet = as_json or token_ids

    def show(piece: str) -> None:
        if not quiet:
            click.echo(piece, nl=False)

    with loading.loaded(opened, tokenizer, target) as made:
        result = generate(made.scheduler, tokenizer, ids, params, show=show, ignore_eos=ignore_eos)
        budget, peak, speculation = made.program.budget, made.program.peak(), made.scheduler.speculation
    drafts = (speculation.drafted, speculation.accepted) if speculation else (0, 0)
    if as_json:
        record = _record(ids, result) | {"drafted": drafts[0], "accepted": drafts[1]}
        record |= {"memory": budget_record(budget) | {"peak": asdict(peak)}}
        click.echo(json.dumps(record, ensure_ascii=False))
    elif token_ids:
        click.echo(" ".join(str(t.id) for t in result.tokens))
    else:
        click.echo()
        if params.logprobs is not None:
            for t in result.tokens:
                best = "  ".join(f"{tokenizer.token(i)!r} {lp:.3f}" for i, lp in t.top)
                click.echo(f"{t.id:>7} {t.text!r} {t.logprob:.4f}  {best}")
    say_dim(summary(result, drafts, params.temperature > 0))
    say_dim(f"memory peak: {peak}")


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise StrixhloError("give the prompt: -p TEXT, -p - for standard input, or -f FILE")
    if file is not None:
        return text_of(file)
    assert prompt is not None
    return _standard_input() if prompt == "-" else prompt


def _prompt_ids(tokenizer: BundleTokenizer, text: str, system: str | None, raw: bool) -> list[int]:
    if raw:
        if system:
            raise StrixhloError("--system needs the chat template; leave out --raw")
        return tokenizer.encode(text)
    messages = [{"role": "system", "content": system}] if system else []
    return tokenizer.encode_chat([*messages, {"role": "user", "content": text}])


def _standard_input() -> str:
    if sys.stdin is None:
        raise StrixhloError("-p - reads the prompt from standard input, which is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise StrixhloError(f"standard input is not UTF-8 text (byte {error.start}); convert it first") from None


def summary(result: Generation, drafts: tuple[int, int], seeded: bool) -> str:
    """One line: tokens, rates, how it ended. drafts: (drafted, accepted)."""
    decode = f", {len(result.tokens)} generated at {result.decode_rate:.1f} tok/s" if result.decode_rate else ""
    right = f", {drafts[1]} of {drafts[0]} drafts right" if drafts[0] else ""
    end = f"{result.finish}, seed {result.seed}" if seeded else result.finish
    return f"{result.prompt_tokens} prompt tokens at {result.prefill_rate:.1f} tok/s{decode}{right} ({end})"


def _record(prompt: Sequence[int], result: Generation) -> dict[str, Any]:
    """What --json prints of a generation."""
    return {
        "prompt_ids": list(prompt),
        "token_ids": [t.id for t in result.tokens],
        "text": result.text,
        "finish": result.finish,
        "seed": result.seed,
        "logprobs": [
            {"id": t.id, "logprob": t.logprob, "top": [{"id": i, "logprob": lp} for i, lp in t.top]}
            for t in result.tokens
            if t.logprob is not None
        ],
        "prefill_seconds": result.prefill_seconds,
        "decode_seconds": result.decode_seconds,
    }
