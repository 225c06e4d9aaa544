"""The same shape in mlx-lm's own Llama, with random weights in MLX's formats."""

from __future__ import annotations

import time
from typing import Any

from .shapes import Beside, Shape


def measure(shape: Shape, beside: Beside, prompt: int, decode: int, repeats: int) -> dict[str, Any]:
    """{"pp": tokens a second of each repetition, "tg": the same, "how"}; or {"error"} where MLX cannot do it."""
    try:
        import mlx.core as mx
        import mlx.nn as nn
        from mlx.utils import tree_map
        from mlx_lm.models.llama import Model, ModelArgs

        config = shape.config(prompt + decode)
        names = ModelArgs.__dataclass_fields__
        model = Model(ModelArgs(**{k: v for k, v in config.items() if k in names}))
        model.update(tree_map(lambda a: a.astype(mx.bfloat16), model.parameters()))
        if beside.mlx is not None:
            nn.quantize(model, **beside.mlx)
        mx.eval(model.parameters())
        tokens = mx.random.randint(0, shape.vocab_size, (prompt,))
        runs = [_run(model, tokens, prompt, decode) for _ in range(repeats + 1)][1:]
    except (ImportError, RuntimeError, ValueError, TypeError, AttributeError, OSError) as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    how = f"mlx-lm's generate_step on {mx.default_device()}"
    return {"pp": [p for p, _ in runs], "tg": [d for _, d in runs], "how": how}


def _run(model: Any, tokens: Any, prompt: int, decode: int) -> tuple[float, float]:
    """Rates of the prompt (until its first token is there) and of the decode steps behind it."""
    from mlx_lm.generate import generate_step

    began = time.perf_counter()
    steps = generate_step(tokens, model, max_tokens=decode + 1)
    int(next(steps)[0])
    first = time.perf_counter()
    for token, _ in steps:
        int(token)
    return prompt / (first - began), decode / (time.perf_counter() - first)
