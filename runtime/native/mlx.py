"""The native path through MLX: mlx-lm in this process, on the CPU where there is no Apple GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StrixhloError, one_line
from .contender import Precision, Timing
from .optional_import import optional_import

CHUNK = 256  # positions evaluated at a time


class Mlx:
    """A folder with config.json and safetensors, as mlx-lm loads it (MLX or Hugging Face). A `Contender`.

    Raises StrixhloError when mlx-lm is missing or cannot load the folder.
    """

    name = "mlx"
    precision: Precision = "reduced"  # activations have the type of the checkpoint's unquantized weights

    def __init__(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            raise StrixhloError(
                f"mlx: {path} is no folder with config.json and safetensors; name one of the same weights with --source"
            )
        self._mx = optional_import("mlx.core", "mlx")
        utilities, self._cache = optional_import("mlx_lm.utils", "mlx"), optional_import("mlx_lm.models.cache", "mlx")
        try:
            self._model, config = utilities.load_model(path, model_config=_older_names(path))
        except (ValueError, OSError, KeyError, TypeError, RuntimeError) as error:
            raise StrixhloError(f"mlx: cannot load {path}: {one_line(error)}") from error
        if self._mx.default_device().type == self._mx.DeviceType.cpu:
            self._compute_in_float32()
        self._tokenizer = _tokenizer(path)
        text = config.get("text_config")
        self.vocab_size: int | None = config.get("vocab_size") or (text or {}).get("vocab_size")

    def encode(self, text: str) -> list[int] | None:
        """See `Contender`."""
        return list(self._tokenizer.encode(text)) if self._tokenizer else None

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """See `Contender`."""
        if self._tokenizer is None or not self._tokenizer.chat_template:
            return None
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [T, vocabulary]."""
        cache = self._new_cache()
        rows = [self._rows(ids[i : i + CHUNK], cache) for i in range(0, len(ids), CHUNK)]
        return np.concatenate(rows)

    def greedy(self, ids: Sequence[int], n: int) -> list[int]:
        """See `Contender`; goes on after an end-of-text token."""
        return self._generate(ids, n)[0]

    def run(self, prompt: Sequence[int], n: int) -> Timing:
        """See `Contender`."""
        return self._generate(prompt, n + 1)[1]

    def close(self) -> None:
        """Drop the model."""
        self._model = None
        self._mx.clear_cache()

    def _compute_in_float32(self) -> None:
        """The CPU's kernels add up bfloat16 products in bfloat16: SmolLM2 in 4 bits is a KL of 0.14 off, at a fourth of
        the speed. Packed weights stay as they are."""
        halves = (self._mx.bfloat16, self._mx.float16)
        map_tree = optional_import("mlx.utils", "mlx").tree_map
        wide = map_tree(lambda a: a.astype(self._mx.float32) if a.dtype in halves else a, self._model.parameters())
        self._model.update(wide)

    def _new_cache(self) -> Any:
        return self._cache.make_prompt_cache(self._model)

    def _rows(self, ids: Sequence[int], cache: Any) -> np.ndarray:
        logits = self._model(self._mx.array([list(ids)]), cache=cache)[0].astype(self._mx.float32)
        return np.array(logits)

    def _generate(self, ids: Sequence[int], n: int) -> tuple[list[int], Timing]:
        mx, cache = self._mx, self._new_cache()
        began = time.perf_counter()
        for start in range(0, len(ids) - 1, CHUNK):  # all but the last, whose logits alone are needed
            self._model(mx.array([list(ids[start : min(start + CHUNK, len(ids) - 1)])]), cache=cache)
            mx.eval([c.state for c in cache])
        tokens = [self._next(ids[-1], cache)]
        first = time.perf_counter()
        while len(tokens) < n:
            tokens.append(self._next(tokens[-1], cache))
        return tokens, Timing(first - began, time.perf_counter() - first)

    def _next(self, token: int, cache: Any) -> int:
        return int(self._mx.argmax(self._model(self._mx.array([[token]]), cache=cache)[0, -1]).item())


def _older_names(path: Path) -> dict[str, Any]:
    """What mlx-lm 0.32 does not find in a config.json of transformers 5: without it every base is its default."""
    config = json.loads((path / "config.json").read_text("utf-8"))
    rope = config.get("rope_parameters") if isinstance(config, dict) else None
    if not isinstance(rope, dict) or "rope_theta" not in rope or "rope_theta" in config:
        return {}
    return {"rope_theta": rope["rope_theta"]}


def _tokenizer(path: Path) -> Any:
    """transformers' tokenizer of the folder, which mlx-lm brings; None where the folder has none."""
    if not (path / "tokenizer_config.json").is_file():
        return None
    return optional_import("transformers", "mlx").AutoTokenizer.from_pretrained(str(path))
