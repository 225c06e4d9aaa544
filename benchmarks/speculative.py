"""Decoding with and without speculation, in turns in one run: on text that repeats itself, and on text that does not.

python benchmarks/speculative.py BUNDLE [--threads 2] [--repeats 5] [-n 128]
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from statistics import median

from strixhlo.bundle import open_bundle
from strixhlo.runtime.batch_engine import BatchEngine
from strixhlo.runtime.generate import generate
from strixhlo.runtime.loaded import new_speculation
from strixhlo.runtime.program import Program
from strixhlo.runtime.sampling import SamplingParams
from strixhlo.runtime.scheduler import Scheduler
from strixhlo.runtime.tokenizer import load_tokenizer

ROW = '{"name": "%s", "kind": "harbour", "open": true, "berths": 12, "depth": 7.5},\n'
PROMPTS = {  # with the temperature
    "repetitive": ("[\n" + "".join(ROW % name for name in ("Aber", "Brest", "Cork", "Dover", "Elba", "Faro")), 0.0),
    "story": ("Once upon a time there was a lighthouse keeper who", 1.0),
}
MODES = ("none", "auto", "lookup")


def main() -> None:
    """Print one line for each text and mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.bundle)
    with (
        Program(open_bundle(options.bundle), "cpu", options.threads) as program,
        closing(BatchEngine(program)) as engine,
    ):
        for name, (prompt, temperature) in PROMPTS.items():
            params = SamplingParams(max_tokens=options.tokens, temperature=temperature, seed=1)
            ids = tokenizer.encode(prompt)
            rates: dict[str, list[float]] = {mode: [] for mode in MODES}
            drafts = dict.fromkeys(MODES, (0, 0))
            texts = set()
            for _ in range(options.repeats):
                for mode in MODES:
                    speculation = new_speculation(mode, engine, None)
                    with closing(Scheduler(engine, tokenizer.tokenizer, speculation=speculation)) as scheduler:
                        out = generate(scheduler, tokenizer, ids, params, show=lambda _: None, ignore_eos=True)
                    rates[mode].append(out.decode_rate or 0.0)
                    texts.add(out.text)
                    if speculation:
                        drafts[mode] = (speculation.drafted, speculation.accepted)
            assert len(texts) == 1, "speculation changed the text"
            for mode in MODES:
                ratios = sorted(a / b for a, b in zip(rates[mode], rates["none"], strict=True))
                print(
                    f"{name:10} {mode:7} {median(rates[mode]):7.1f} tok/s, {median(ratios):.2f}x"
                    f" ({ratios[0]:.2f} to {ratios[-1]:.2f}), {drafts[mode][1]} of {drafts[mode][0]} drafts right"
                )


if __name__ == "__main__":
    main()
