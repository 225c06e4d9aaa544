"""What `strixhlo compare` shows a person."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table
from rich.text import Text

from ..runtime.compare import Comparison


def comparison_table(result: Comparison) -> Table:
    """For a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, justify in (("", "left"), ("strixhlo", "right"), (result.native, "right"), ("ratio", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in comparison_rows(result):
        table.add_row(*(Text(cell) for cell in row))
    return table


def comparison_rows(result: Comparison) -> list[tuple[str, ...]]:
    """What is said, strixhlo's value, the other's, the ratio: numerics first, then speed with its spread."""
    n, d = result.numerics, result.decoded
    over = "" if n.top_n is None else f", the {n.top_n} likeliest tokens only"
    rows: list[tuple[str, ...]] = [
        ("ids of a plain prompt", result.prompt_ids),
        ("ids of a chat", result.chat_ids),
        ("greedy tokens agreed", f"{result.greedy_agreed} of {result.greedy_tokens}"),
    ]
    if result.divergence_gap is not None:
        rows.append(("gap of the two best logits there", f"{result.divergence_gap:.3f}"))
    rows += [
        (f"mean KL, {n.positions} positions{over}", f"{n.mean_kl:.6f}"),
        (f"mean KL, {d.positions} decoded one by one", f"{d.mean_kl:.6f}"),
        ("99th percentile KL", f"{n.p99_kl:.6f}"),
        ("mean and largest |delta logit|", f"{n.mean_abs_delta:.4f}, {n.max_abs_delta:.3f}"),
        ("relative error of the logits", f"{n.relative_error:.2%}"),
        ("top-1 agreement", f"{n.top1_agreement:.1%}"),
    ]
    if n.perplexity_ours is not None and n.perplexity_theirs is not None:
        where = "" if n.top_n is None else " where the token is among them"
        rows.append((f"perplexity{where}", f"{n.perplexity_ours:.3f}", f"{n.perplexity_theirs:.3f}"))
    for s in result.speeds:
        rows.append((f"{s.test}, tok/s: median (least-most)", _spread(s.ours), _spread(s.theirs), f"{s.ratio:.2f}x"))
        if s.test.startswith("pp"):
            first = [_spread([1000 * s.tokens / r for r in rates]) for rates in (s.ours, s.theirs)]
            rows.append(("  time to the first token, ms", *first))
    if result.memory is not None:
        rows.append(("peak memory, alone in a process (above its start)", *(str(m) for m in result.memory)))
    return rows


def verdict_lines(result: Comparison) -> list[str]:
    """PASS or FAIL with the limits, then one line for each that was exceeded."""
    m = result.limits
    stated = f"mean KL {m.mean_kl:g}, p99 KL {m.p99_kl:g}, relative error {m.relative_error:g}"
    word = "FAIL" if result.failures else "PASS"
    return [f"{word}: limits for {m.name}: {stated}", *(f"  {line}" for line in result.failures)]


def _spread(rates: Sequence[float]) -> str:
    return f"{median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})"
