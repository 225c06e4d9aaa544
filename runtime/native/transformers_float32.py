"""The float32 oracle: transformers loads the GGUF, dequantizes it, and torch evaluates it in float32 on the CPU.

Not a native path to race against but the reference that both our programs and llama.cpp are held to.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StrixhloError
from ..numerics import top_two_gap


class Float32Model:
    """A GGUF file as a float32 torch model. Takes 4 bytes a weight and ten to thirty seconds to load.

    Raises StrixhloError when transformers or what it needs is missing, or cannot load the file.
    """

    def __init__(self, path: Path | str, *, n_threads: int = 2) -> None:
        path = Path(path)
        if not path.is_file():
            raise StrixhloError(f"transformers: no file {path}")
        for package in ("torch", "transformers", "accelerate", "gguf"):
            _import(package)
        self._torch = _import("torch")
        self._torch.set_num_threads(n_threads)
        transformers = _import("transformers")
        try:
            with _quiet(transformers):
                self._model = transformers.AutoModelForCausalLM.from_pretrained(
                    str(path.parent), gguf_file=path.name, dtype=self._torch.float32, attn_implementation="eager"
                ).eval()
        except (ValueError, OSError, KeyError, NotImplementedError) as error:
            raise StrixhloError(f"transformers: cannot load {path}: {' '.join(str(error).split())[:300]}") from error

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 logits [T, V] after each of the T tokens, from one causal evaluation."""
        with self._torch.inference_mode():
            return self._model(self._row(ids), use_cache=False).logits[0].numpy()

    def greedy(self, ids: Sequence[int], n: int) -> tuple[list[int], list[float]]:
        """The n tokens that follow by greedy choice (no end is looked for), and the gap of the top two logits at each."""
        tokens, gaps = [], []
        with self._torch.inference_mode():
            row, cache = self._row(ids), None
            for _ in range(n):
                out = self._model(row, past_key_values=cache, use_cache=True, logits_to_keep=1)
                logits, cache = out.logits[0, -1].numpy(), out.past_key_values
                tokens.append(int(logits.argmax()))
                gaps.append(float(top_two_gap(logits)))
                row = self._row(tokens[-1:])
        return tokens, gaps

    def _row(self, ids: Sequence[int]) -> Any:
        if not len(ids):
            raise StrixhloError("transformers: no tokens to evaluate")
        return self._torch.tensor([list(ids)], dtype=self._torch.long)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' progress bars and warnings, which belong to no user of ours."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise StrixhloError(
            f"transformers: {package} is missing; install it: pip install 'strixhlo[transformers]'"
        ) from error
