"""llama.cpp's own C functions inside the xllamacpp wheel: the logits of many positions from one evaluation.

xllamacpp's public interface gives the vocabulary of one position a request, as JSON: 0.4 s (SmolLM2) to 3 s (Gemma 3)
a position, against milliseconds here. Its shared object exports the functions of llama.h, whose parameter structures
change between releases. So nothing of their layout is assumed beyond what `supported` finds in place: the library's own
default functions make them, and they are passed on in a block of memory that is larger than they are, which every
calling convention that passes large structures in memory allows.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np

from ...errors import StrixhloError

BLOCK_WORDS = 256  # 1 KiB; the structures have about 150 bytes
CHUNK = 128  # positions evaluated at a time: bounds the copy of the logits that llama.cpp holds

# llama_context_params begins with these int32 fields; the defaults below must be found in them.
DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
}


class _Params(ctypes.Structure):
    _fields_ = (("words", ctypes.c_int32 * BLOCK_WORDS),)


class _Batch(ctypes.Structure):
    """llama_batch of llama.h; null positions and sequences: the next positions of sequence 0."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.c_void_p),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    )


@cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    signatures = {
        "llama_context_default_params": (_Params, []),
        "llama_decode": (int32, [pointer, _Batch]),
        "llama_free": (None, [pointer]),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [pointer, int32]),
        "llama_init_from_model": (pointer, [pointer, _Params]),
        "llama_model_default_params": (_Params, []),
        "llama_model_free": (None, [pointer]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, _Params]),
        "llama_vocab_n_tokens": (int32, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def supported(library_path: str) -> bool:
    """Whether this build exports the functions and lays out the context parameters as this file expects."""
    try:
        library = _library(library_path)
    except (OSError, AttributeError):
        return False
    return library.llama_context_default_params().words[: len(DEFAULTS)] == list(DEFAULTS.values())


def logits(library_path: str, model: Path, ids: np.ndarray, n_threads: int) -> np.ndarray:
    """float32 logits [T, V] of every position of ids [T] (int32), from one causal evaluation with an f16 KV cache.

    The model is loaded for this call and freed after it. Raises StrixhloError when llama.cpp reports a failure.
    """
    library = _library(library_path)
    loaded = library.llama_model_load_from_file(str(model).encode(), library.llama_model_default_params())
    if not loaded:
        raise StrixhloError(f"llama.cpp: cannot load {model}: not a GGUF file that this version of it supports")
    try:
        params = library.llama_context_default_params()
        chosen = {"n_ctx": len(ids), "n_threads": n_threads, "n_threads_batch": n_threads}
        chosen |= dict.fromkeys(("n_batch", "n_ubatch", "n_outputs_max", "n_outputs_max_per_seq"), CHUNK)
        for i, name in enumerate(DEFAULTS):
            params.words[i] = chosen.get(name, DEFAULTS[name])
        context = library.llama_init_from_model(loaded, params)
        if not context:
            raise StrixhloError(f"llama.cpp: no context for {len(ids)} tokens of {model}: too little memory?")
        try:
            return _evaluate(library, context, ids, library.llama_vocab_n_tokens(library.llama_model_get_vocab(loaded)))
        finally:
            library.llama_free(context)
    finally:
        library.llama_model_free(loaded)


def _evaluate(library: ctypes.CDLL, context: int, ids: np.ndarray, vocabulary: int) -> np.ndarray:
    result = np.empty((len(ids), vocabulary), np.float32)
    wanted = np.ones(CHUNK, np.int8)
    for start in range(0, len(ids), CHUNK):
        tokens = np.ascontiguousarray(ids[start : start + CHUNK], np.int32)
        batch = _Batch(n_tokens=len(tokens), token=tokens.ctypes.data, logits=wanted.ctypes.data)
        if code := library.llama_decode(context, batch):
            raise StrixhloError(f"llama.cpp: llama_decode failed with code {code} at token {start} of {len(ids)}")
        for row in range(len(tokens)):
            pointer = library.llama_get_logits_ith(context, row)
            if not pointer:
                raise StrixhloError(f"llama.cpp: no logits for token {start + row} of {len(ids)}")
            result[start + row] = np.ctypeslib.as_array(pointer, shape=(vocabulary,))
    return result
