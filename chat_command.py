"""`strixhlo chat`: a conversation on the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .bundle import open_bundle
from .chat_input import line_reader
from .chat_record import Messages, cache_path, load_messages, save_messages
from .command_group import Output, Progress, say_dim
from .errors import StrixhloError
from .loading_options import Loading, loading_options
from .sampling_options import sampling_options, sampling_params

if TYPE_CHECKING:
    from .runtime.loaded import Loaded
    from .runtime.sampling import SamplingParams
    from .runtime.tokenizer import BundleTokenizer

HELP = """/system TEXT  set the system message (without TEXT: remove it), and begin anew
/reset        forget the conversation
/save FILE    write the conversation as JSON, and the model's cache of it beside as FILE.kv
/load FILE    read one back, and go on without computing it again
/help         this list
/quit         leave (Ctrl-D too); Ctrl-C ends an answer
Alt-Enter, or Esc then Enter, begins a new line; Enter sends."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--target", default="cpu", show_default=True, help="Which compiled program to run.")
@click.option("--system", help="System message.")
@sampling_options(max_tokens=1024, temperature=0.7, top_p=0.95)
@loading_options
def chat(
    bundle: Path,
    target: str,
    system: str | None,
    loading: Loading,
    **sampling: Any,
) -> None:
    """Talk with a compiled bundle; /help lists the commands. Without a terminal, each line of input is a message."""
    from .runtime.tokenizer import load_tokenizer

    params = sampling_params(sampling)
    opened = open_bundle(bundle)
    tokenizer = load_tokenizer(bundle)
    next_line = line_reader()
    with loading.loaded(opened, tokenizer, target) as made:
        conversation = Conversation(made, tokenizer, params, _system(system or ""))
        while (line := next_line()) is not None:
            try:
                if line.startswith("/"):
                    if not obey(line, conversation):
                        return
                elif line.strip():
                    answer(line, conversation)
            except StrixhloError as error:
                Progress().print(str(error), style="red", markup=False, soft_wrap=True)


@dataclass
class Conversation:
    """A model, how it is sampled, and what was said."""

    made: Loaded
    tokenizer: BundleTokenizer
    params: SamplingParams
    messages: Messages = field(default_factory=list)


def _system(text: str) -> Messages:
    return [{"role": "system", "content": text}] if text else []


def obey(line: str, conversation: Conversation) -> bool:
    """Do what a /command says; False to leave. StrixhloError for what cannot be done."""
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    if command == "/quit":
        return False
    if command == "/help":
        click.echo(HELP)
    elif command == "/reset":
        conversation.messages = [m for m in conversation.messages if m["role"] == "system"]
    elif command == "/system":
        conversation.messages = _system(rest)
    elif command in ("/save", "/load") and not rest:
        raise StrixhloError(f"{command} needs a file name")
    elif command == "/save":
        save(Path(rest), conversation)
    elif command == "/load":
        load(Path(rest), conversation)
    else:
        raise StrixhloError(f"{command} is no command; /help lists them")
    return True


def save(path: Path, conversation: Conversation) -> None:
    """Write messages and cache."""
    from .runtime.session_file import save_session

    save_messages(path, conversation.messages)
    if not conversation.messages:
        return
    made, tokenizer = conversation.made, conversation.tokenizer
    ids = tokenizer.encode_rendered(tokenizer.chat_text(conversation.messages, answer=False))
    kept = save_session(made.program, made.scheduler, ids, cache_path(path))
    say_dim(f"{path}: {len(conversation.messages)} messages, {kept} tokens of cache")


def load(path: Path, conversation: Conversation) -> None:
    """Read messages and, where it is this model's, the cache; without it the next answer computes all again."""
    from .runtime.session_file import load_session

    conversation.messages = load_messages(path)
    kept = 0
    if cache_path(path).exists():
        try:
            kept = load_session(conversation.made.program, conversation.made.scheduler, cache_path(path))
        except StrixhloError as error:
            say_dim(f"without the cache: {error}")
    say_dim(f"{path}: {len(conversation.messages)} messages, {kept} tokens of cache")


def answer(text: str, conversation: Conversation) -> None:
    """Stream the answer to a message; both join the conversation. Ctrl-C ends it early."""
    from .chat_view import AnswerView
    from .runtime.generate import generate
    from .runtime.tool_calls.choose import output_parser, shows_special_tokens

    made, tokenizer = conversation.made, conversation.tokenizer
    asked = [*conversation.messages, {"role": "user", "content": text}]
    prompt = tokenizer.chat_text(asked)
    ids = tokenizer.encode_rendered(prompt)
    reused, template, result = made.scheduler.reused, tokenizer.chat_template, None
    view = AnswerView(Output(), output_parser(template, prompt, []))
    try:
        with view:
            result = generate(
                made.scheduler,
                tokenizer,
                ids,
                conversation.params,
                show=view.push,
                skip_special_tokens=not shows_special_tokens(template),
            )
    except KeyboardInterrupt:
        pass
    conversation.messages = [*asked, {"role": "assistant", "content": view.content}]
    if result is None:
        say_dim("stopped")
        return
    rate = f" at {result.decode_rate:.1f} tok/s" if result.decode_rate else ""
    used = f"context {len(ids) + len(result.tokens)} of {made.context}, {made.scheduler.reused - reused} reused"
    say_dim(f"{len(result.tokens)} tokens{rate}, {used}")
