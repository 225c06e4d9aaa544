"""llama.cpp's server, out of the wheel xllamacpp, as a process of its own: says where it listens, ends with its input.

python benchmarks/llama_cpp_server.py GGUF PARALLEL CONTEXT THREADS
"""

from __future__ import annotations

import sys

import xllamacpp


def parameters(gguf: str, parallel: int, context: int, threads: int) -> xllamacpp.CommonParams:
    """llama-server's own defaults (continuous batching, batches of 2048 in parts of 512, f16 cache), on the CPU."""
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_ctx, params.n_parallel = context, parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 0
    params.fit_params = False  # do not change what was asked for
    params.cache_ram_mib = 0
    params.ui = False
    params.verbosity = -1
    return params


def main() -> None:
    """Serve until standard input ends."""
    gguf, *numbers = sys.argv[1:]
    server = xllamacpp.Server(parameters(gguf, *map(int, numbers)))
    print(f"listening on {server.listening_address}", flush=True)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
