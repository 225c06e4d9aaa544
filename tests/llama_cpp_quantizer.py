"""llama.cpp's own quantizer, which the `gguf` package has for the simple formats only: `ggml_quantize_chunk`."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np


@cache
def _library() -> ctypes.CDLL:
    spec = find_spec("xllamacpp")
    assert spec and spec.origin, "xllamacpp is not installed: run `make env`"
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    return library


def quantize(weights: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """float32 [n, k] -> uint8 [n, bytes of a row], without an importance matrix."""
    n, k = weights.shape
    source = np.ascontiguousarray(weights, np.float32)
    blocks = np.zeros(gguf.quant_shape_to_byte_shape((n, k), kind), np.uint8)
    written = _library().ggml_quantize_chunk(kind, source.ctypes.data, blocks.ctypes.data, 0, n, k, None)
    assert written == blocks.nbytes
    return blocks
