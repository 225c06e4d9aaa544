"""Which engine a bundle is compared with: the names of `--native`, and how each is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..bundle import Bundle
from ..errors import StrixhloError

if TYPE_CHECKING:
    from ..runtime.native.contender import Contender

NAMES = ("llama.cpp", "mlx", "transformers", "jax")


class Native(click.ParamType):
    """One of NAMES, or the http(s) address of a server."""

    name = "NAME|URL"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text not in NAMES and not text.startswith(("http://", "https://")):
            self.fail(f"{text!r} is neither one of {', '.join(NAMES)} nor a http(s) URL", param, ctx)
        return text


def open_native(
    native: str, source: Path | None, bundle: Bundle, threads: int, longest: int, top: int = 20
) -> Contender:
    """The other side, loaded from `source` or from what the bundle was made of. longest: tokens that it must hold. top:
    log-probabilities of a position to ask a server for."""
    path = source or Path(bundle.manifest.source)
    if native == "llama.cpp":
        from ..runtime.native.llama_cpp import LlamaCpp

        if source is None and bundle.manifest.container != "gguf":
            raise StrixhloError(f"{bundle.path}: was not made from a GGUF file; name one for {native} with --source")
        return LlamaCpp(path, n_ctx=max(2048, longest + 64), n_threads=threads)
    if native == "mlx":
        from ..runtime.native.mlx import Mlx

        return Mlx(path)
    if native == "jax":
        from ..export.checkpoint.checkpoint import open_checkpoint
        from ..export.jax_model import model_of_bundle
        from .jax_native import JaxNative

        return JaxNative(model_of_bundle(open_checkpoint(str(source or bundle.manifest.source)), bundle.manifest))
    if native not in NAMES:
        from ..runtime.native.openai_server import OpenAIServer
        from ..runtime.tokenizer import load_tokenizer

        return OpenAIServer(native, load_tokenizer(bundle.path).id_of_text, top)
    from ..runtime.native.transformers_float32 import Float32Model

    return Float32Model(path, n_threads=threads)


def open_target(target: str, bundle: Bundle, threads: int) -> Contender:
    """The bundle's own program for another target."""
    from ..runtime.engine import Engine
    from ..runtime.native.compiled import CompiledBundle
    from ..runtime.program import Program

    program = Program(bundle, target, threads)
    return CompiledBundle(Engine(program), None, f"strixhlo, {program.build.target}")
