"""What `strixhlo compare` shows a person."""

from __future__ import annotations

from rich.table import Table

from .runtime.compare import Comparison


def comparison_table(result: Comparison) -> Table:
    """Numerics first, then speed with its ratio."""
    n, s = result.numerics, result.speeds
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, justify in (("", "left"), ("strixhlo", "right"), (result.native, "right"), ("ratio", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_row("same token ids on both sides", "yes" if result.same_prompt_ids else "no: check BOS")
    table.add_row("greedy tokens agreed", f"{result.greedy_agreed} of {result.greedy_tokens}")
    if result.divergence_gap is not None:
        table.add_row("gap of the two best logits there", f"{result.divergence_gap:.3f}")
    table.add_row(f"mean KL, {n.positions} positions", f"{n.mean_kl:.6f}")
    table.add_row("99th percentile KL", f"{n.p99_kl:.6f}")
    table.add_row("top-1 agreement", f"{n.top1_agreement:.1%}")
    table.add_row("perplexity", f"{n.perplexity_ours:.3f}", f"{n.perplexity_theirs:.3f}")
    for name, ours, theirs in (
        (f"prefill {s.prompt_tokens} tokens, tok/s", s.prefill_ours, s.prefill_theirs),
        (f"decode {s.decoded_tokens} tokens, tok/s", s.decode_ours, s.decode_theirs),
    ):
        table.add_row(name, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}x")
    return table
