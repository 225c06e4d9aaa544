"""The native path through llama.cpp: the prebuilt wheel `xllamacpp` on the CPU, token ids in and token ids out.

xllamacpp runs llama.cpp's server inside this process; it is asked over loopback HTTP, behind a random key.
"""

from __future__ import annotations

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np

from ...errors import StrixhloError, one_line
from ..numerics import log_softmax
from . import llama_cpp_api
from .contender import Precision, Timing
from .optional_import import optional_import

SECONDS = 600  # for one answer
SMALLEST_LOG_PROBABILITY = -103.98  # log(2**-150): below what the server's float32 probabilities can hold


@dataclass(frozen=True)
class Speed:
    """Tokens a second, from llama.cpp's own clock: the median of the repeats, and each of them."""

    prefill: float
    decode: float
    prefill_all: tuple[float, ...]
    decode_all: tuple[float, ...]


class LlamaCpp:
    """A GGUF file loaded by llama.cpp (f16 KV cache, one sequence). A context manager; `close` frees it.

    Raises StrixhloError when xllamacpp is not installed or the file cannot be loaded.
    """

    name = "llama.cpp"
    precision: Precision = "reduced"  # activations are rounded to 8 bits before a quantized matmul

    def __init__(self, path: Path | str, *, n_ctx: int = 2048, n_threads: int = 2, n_batch: int = 512) -> None:
        self._xllamacpp = optional_import("xllamacpp", "llama-cpp")
        self._path, self._n_ctx, self._n_threads = Path(path), n_ctx, n_threads
        if not self._path.is_file():
            raise StrixhloError(f"llama.cpp: no file {self._path}")
        self._key = secrets.token_hex(16)
        try:
            self._server = self._xllamacpp.Server(self._parameters(n_batch))
        except RuntimeError as error:
            raise StrixhloError(
                f"llama.cpp: cannot load {self._path}: not a GGUF file that this version of it supports, "
                f"or too little memory for {n_ctx} tokens of context"
            ) from error
        # A server that is closed before its loop runs never ends (xllamacpp 2026.10): an answer shows that it does.
        self._ask("/completion", {"prompt": [0], "n_predict": 1, "cache_prompt": False})
        (model,) = self._ask("/v1/models", None)["data"]
        self.vocab_size: int | None = model.get("meta", {}).get("n_vocab")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and free the model; the object cannot be used after that."""
        self._server = None

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids. add_special: begin (and end) as the model wants; parse_special: `<|...|>` in text are tokens."""
        request = {"content": text, "add_special": add_special, "parse_special": parse_special}
        return [int(i) for i in self._ask("/tokenize", request)["tokens"]]

    def encode(self, text: str) -> list[int]:
        """A plain prompt as llama.cpp begins it."""
        return self.tokenize(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """A conversation by the file's own template, up to the reply."""
        answer = self._ask("/apply-template", {"messages": [dict(m) for m in messages]})
        return self.tokenize(str(answer["prompt"]), add_special=False)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """See `teacher_forced_logits`."""
        return self.teacher_forced_logits(ids)

    def run(self, prompt: Sequence[int], n: int) -> Timing:
        """Seconds by llama.cpp's own clock: to the first token, and of the n after it."""
        timings = self._timings(prompt, n)
        return Timing(timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000)

    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """The n tokens that follow `ids` by greedy choice; fewer when the last of them ends the generation."""
        return [int(i) for i in self._complete(ids, n)["tokens"]]

    def teacher_forced_logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [T, V]: logits after each of the T tokens, over the whole vocabulary (Gemma 3: 1 MiB a token).

        From llama.cpp's C functions where this build lets us reach them, else log-probabilities from
        `teacher_forced_log_probs`, minutes slower. The two differ by a constant a row; both are before any sampling.
        """
        library = self._library_path()
        if not llama_cpp_api.supported(library):
            return self.teacher_forced_log_probs(ids)
        return llama_cpp_api.logits(library, self._path, self._checked(ids, 0), self._n_threads)

    def teacher_forced_log_probs(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [T, V]: log-probabilities after each of the T tokens, through xllamacpp's public interface.

        One request a position (0.4 s on a vocabulary of 49,152; 3 s on 262,144). The server takes them from the logits
        before any sampler, as float32 probabilities whose sum is rounded (1.0001 to 1.001): they are normalized here.
        Raises StrixhloError when an answer does not hold every token once, or its sum is off by more than 0.5%.
        """
        tokens = self._checked(ids, 0)
        return np.stack([self._log_probs_after(tokens[: t + 1]) for t in range(len(tokens))])

    def measure_speed(self, prompt_ids: Sequence[int], n_decode: int, repeats: int = 5) -> Speed:
        """Prefill of the whole prompt, then n_decode steps of one token each; one unmeasured run, then `repeats`."""
        prefill, decode = [], []
        for run in range(repeats + 1):
            timings = self._timings(prompt_ids, n_decode)
            if run > 0:
                prefill.append(1000 * len(prompt_ids) / timings["prompt_ms"])
                decode.append(1000 * n_decode / timings["predicted_ms"])
        return Speed(median(prefill), median(decode), tuple(prefill), tuple(decode))

    def _timings(self, prompt: Sequence[int], n: int) -> dict[str, Any]:
        """The server's clock for generation starts at the first token, which the prefill has computed."""
        timings: dict[str, Any] = self._complete(prompt, n + 1, ignore_eos=True)["timings"]
        if timings["prompt_n"] != len(prompt) or timings["predicted_n"] != n + 1:
            raise StrixhloError(
                f"llama.cpp: evaluated {timings['prompt_n']} of {len(prompt)} prompt tokens "
                f"and generated {timings['predicted_n']} of {n + 1}: its timings cannot be used"
            )
        return timings

    def _parameters(self, n_batch: int) -> Any:
        params = self._xllamacpp.CommonParams()
        params.model.path = str(self._path)
        params.n_ctx, params.n_batch, params.n_ubatch = self._n_ctx, n_batch, n_batch
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._n_threads
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.fit_params = False  # do not change what was asked for
        params.n_ctx_checkpoints = 0  # they would cut a prompt in two and slow its evaluation down
        params.cache_ram_mib = 0
        params.warmup = False  # the first answer is one
        params.ui = False
        params.verbosity = -1
        params.api_keys = [self._key]
        return params

    def _checked(self, ids: Sequence[int], more: int) -> np.ndarray:
        """ids as int32 [T], if they and `more` tokens fit the context."""
        if self._server is None:
            raise StrixhloError("llama.cpp: the model is closed")
        tokens = np.asarray(ids, np.int32)
        if tokens.ndim != 1 or tokens.size == 0:
            raise StrixhloError("llama.cpp: no tokens to evaluate")
        if tokens.size + more > self._n_ctx:
            raise StrixhloError(f"llama.cpp: {tokens.size} + {more} tokens do not fit a context of {self._n_ctx}")
        return tokens

    def _complete(self, ids: Sequence[int], n: int, **options: Any) -> dict[str, Any]:
        request = {
            "prompt": self._checked(ids, n).tolist(),
            "n_predict": n,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        return self._ask("/completion", request | options)

    def _log_probs_after(self, tokens: np.ndarray) -> np.ndarray:
        answer = self._complete(tokens.tolist(), 1, cache_prompt=True, n_probs=2**31 - 1)
        entries = answer["completion_probabilities"][0]["top_logprobs"]
        order = np.fromiter((entry["id"] for entry in entries), np.int64, len(entries))
        values = np.fromiter((entry["logprob"] for entry in entries), np.float64, len(entries))
        values = np.maximum(values, SMALLEST_LOG_PROBABILITY)
        total = np.exp(values).sum()
        if not (np.array_equal(np.sort(order), np.arange(len(order))) and abs(total - 1) < 0.005):
            raise StrixhloError(
                f"llama.cpp: its answer is not a distribution over a vocabulary: {len(order)} tokens, sum {total:.4f}"
            )
        result = np.empty(len(order))
        result[order] = values
        return log_softmax(result).astype(np.float32)

    def _library_path(self) -> str:
        return str(self._xllamacpp.xllamacpp.__file__)

    def _ask(self, path: str, request: dict[str, Any] | None) -> dict[str, Any]:
        """POST, or GET without a request."""
        if self._server is None:
            raise StrixhloError("llama.cpp: the model is closed")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        address = self._server.listening_address + path
        message = urllib.request.Request(address, None if request is None else json.dumps(request).encode(), headers)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach our loopback
        try:
            with direct.open(message, timeout=SECONDS) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            raise StrixhloError(
                f"llama.cpp: {path} failed: {one_line(error.read().decode(errors='replace'))}"
            ) from error
        except OSError as error:
            raise StrixhloError(f"llama.cpp: {path} gave no answer: {error}") from error
