"""The float32 oracle: transformers loads the checkpoint, dequantizes it, and torch evaluates it in float32 on the CPU.

Not a native path to race against but the reference that both our programs and llama.cpp are held to. It is right for
the Llama and Gemma 3 files it was checked with: llama.cpp on the same weights written as float32 differs from it by a
KL of 3e-7 (SmolLM2) and 7e-7 (Gemma 3), the rest being llama.cpp's f16 KV cache, also past Gemma's sliding window.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StrixhloError, one_line
from ..numerics import top_two_gap
from .contender import Precision, Timing
from .optional_import import optional_import


class Float32Model:
    """A GGUF file, or a folder with config.json, as a float32 torch model: 4 bytes a weight. A `Contender`.

    Raises StrixhloError when transformers or what it needs is missing, or cannot load the file.
    """

    name = "transformers"
    precision: Precision = "float32"

    def __init__(self, path: Path | str, *, n_threads: int = 2) -> None:
        path = Path(path)
        if not path.is_file() and not (path / "config.json").is_file():
            raise StrixhloError(f"transformers: no file {path}")
        for package in ("torch", "transformers", "accelerate", "gguf"):
            optional_import(package, "transformers")
        self._torch = optional_import("torch", "transformers")
        self._torch.set_num_threads(n_threads)
        transformers = optional_import("transformers", "transformers")
        try:
            with _quiet(transformers):
                self._model = transformers.AutoModelForCausalLM.from_pretrained(
                    str(path if path.is_dir() else path.parent),
                    dtype=self._torch.float32,
                    attn_implementation="eager",
                    **({} if path.is_dir() else {"gguf_file": path.name}),
                ).eval()
            self.vocab_size: int | None = self._model.config.get_text_config().vocab_size
            self._model.generation_config = transformers.GenerationConfig(eos_token_id=None, pad_token_id=0)
        except (ValueError, OSError, KeyError, NotImplementedError) as error:
            raise StrixhloError(f"transformers: cannot load {path}: {one_line(error)}") from error

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 logits [T, V] after each of the T tokens, from one causal evaluation."""
        with self._torch.inference_mode():
            return self._model(self._row(ids), use_cache=False).logits[0].numpy()

    def encode(self, _text: str) -> list[int] | None:
        """No tokenizer is loaded: the ids are ours."""
        return None

    def encode_chat(self, _messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """No template is loaded."""
        return None

    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """The n tokens that follow; no end of generation is looked for."""
        return self.greedy_with_gaps(ids, n)[0]

    def run(self, prompt: Sequence[int], n: int) -> Timing:
        """Seconds of a fresh prefill, and of n decode steps with a KV cache in float32."""
        torch = self._torch
        with torch.inference_mode():
            began = time.perf_counter()
            out = self._model(self._row(prompt), use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            first = time.perf_counter()
            for _ in range(n):
                out = self._model(token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            return Timing(first - began, time.perf_counter() - first)

    def close(self) -> None:
        """Drop the model."""
        self._model = None

    def greedy_with_gaps(self, ids: Sequence[int], n: int) -> tuple[list[int], list[float]]:
        """The n tokens that follow by greedy choice, and each one's gap between the two largest logits.

        No end of generation is looked for. Evaluated one token a step, with a float32 KV cache.
        """
        with self._torch.inference_mode():
            row = self._row(ids)
            out = self._model.generate(
                row,
                attention_mask=self._torch.ones_like(row),
                do_sample=False,
                max_new_tokens=n,
                output_logits=True,
                return_dict_in_generate=True,
            )
        gaps = [float(top_two_gap(step[0].numpy())) for step in out.logits]
        return out.sequences[0, row.shape[1] :].tolist(), gaps

    def _row(self, ids: Sequence[int]) -> Any:
        if not len(ids):
            raise StrixhloError("transformers: no tokens to evaluate")
        return self._torch.tensor([list(ids)], dtype=self._torch.long)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' progress bars, which go to stderr, and its warnings about a GGUF's configuration."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
