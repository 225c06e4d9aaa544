"""What `strixhlo compare` shows a person."""

from __future__ import annotations

from statistics import median

from rich.table import Table

from .runtime.compare import Comparison


def comparison_table(result: Comparison) -> Table:
    """Numerics first, then speed with its spread and ratio."""
    n, d = result.numerics, result.decoded
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, justify in (("", "left"), ("strixhlo", "right"), (result.native, "right"), ("ratio", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_row("ids of a plain prompt", result.prompt_ids)
    table.add_row("ids of a chat", result.chat_ids)
    table.add_row("greedy tokens agreed", f"{result.greedy_agreed} of {result.greedy_tokens}")
    if result.divergence_gap is not None:
        table.add_row("gap of the two best logits there", f"{result.divergence_gap:.3f}")
    over = "" if n.top_n is None else f", the {n.top_n} likeliest tokens only"
    table.add_row(f"mean KL, {n.positions} positions{over}", f"{n.mean_kl:.6f}")
    table.add_row(f"mean KL, {d.positions} decoded one by one", f"{d.mean_kl:.6f}")
    table.add_row("99th percentile KL", f"{n.p99_kl:.6f}")
    table.add_row("mean and largest |delta logit|", f"{n.mean_abs_delta:.4f}, {n.max_abs_delta:.3f}")
    table.add_row("relative error of the logits", f"{n.relative_error:.2%}")
    table.add_row("top-1 agreement", f"{n.top1_agreement:.1%}")
    if n.perplexity_ours is not None and n.perplexity_theirs is not None:
        where = "" if n.top_n is None else " where the token is among them"
        table.add_row(f"perplexity{where}", f"{n.perplexity_ours:.3f}", f"{n.perplexity_theirs:.3f}")
    for s in result.speeds:
        table.add_row(f"{s.test}, tok/s: median (least-most)", _spread(s.ours), _spread(s.theirs), f"{s.ratio:.2f}x")
        if s.test.startswith("pp"):
            first = [f"{1000 * s.tokens / median(rates):.1f}" for rates in (s.ours, s.theirs)]
            table.add_row("  time to the first token, ms", *first)
    return table


def verdict_lines(result: Comparison) -> list[str]:
    """PASS or FAIL with the limits, then one line for each that was exceeded."""
    m = result.limits
    stated = f"mean KL {m.mean_kl:g}, p99 KL {m.p99_kl:g}, relative error {m.relative_error:g}"
    word = "FAIL" if result.failures else "PASS"
    return [f"{word}: limits for {m.name}: {stated}", *(f"  {line}" for line in result.failures)]


def _spread(rates: tuple[float, ...]) -> str:
    return f"{median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})"
