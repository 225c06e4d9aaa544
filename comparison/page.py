"""`compare --html`: one self-contained page: the KL of every position, the logits against each other, the speeds.

The pictures are inline SVG; nothing is fetched, and no script runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import median

from ..runtime.compare import Comparison, Speed
from .table import comparison_rows, verdict_lines

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 260, 64, 36, 12
FLOOR = 1e-9  # of a KL on the logarithmic axis
STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d8dee4;--page:#fff;--ours:#1f6feb;--theirs:#bc4c00}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--page:#0d1117;--ours:#4493f8;
--theirs:#f0883e}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:760px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}svg{width:100%;height:auto}
table{border-collapse:collapse;width:100%}td,th{padding:.2rem .8rem .2rem 0;text-align:right;
border-bottom:1px solid var(--line)}td:first-child,th:first-child{text-align:left}
.pass{color:#1a7f37}.fail{color:#cf222e}.note{color:var(--soft)}
svg text{fill:var(--soft);font-size:12px}.axis{stroke:var(--line)}.limit{stroke:#cf222e;stroke-dasharray:4 3}
.ours{fill:var(--ours)}.theirs{fill:var(--theirs)}.curve{fill:none;stroke:var(--ours);stroke-width:1.5}
.dot{fill:var(--ours);fill-opacity:.35}.whisker{stroke:var(--ink)}
"""


def comparison_page(result: Comparison, title: str, findings: Sequence[str] = ()) -> str:
    """The whole page. findings: what --bisect found, by lines. All texts that come from outside (model names, errors)
    are escaped."""
    state = "fail" if result.failures else "pass"
    padded = [(*row, "", "", "")[:4] for row in comparison_rows(result)]
    rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in padded)
    verdict = "<br>".join(escape(line) for line in (*verdict_lines(result), *findings))
    over = "" if result.numerics.top_n is None else f" Over the {result.numerics.top_n} likeliest tokens only."
    head = f"<tr><th></th><th>strixhlo</th><th>{escape(result.native)}</th><th>ratio</th></tr>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="{state}">{verdict}</p>
<table><thead>{head}</thead><tbody>{rows}</tbody></table>
<h2>KL divergence of every position</h2>
<p class="note">KL({escape(result.native)} || strixhlo) in nats, logarithmic; dashed: the limit of the 99th
percentile.{over}</p>
{_kl_plot(result.trace.kl, result.limits.p99_kl)}
<h2>Log-probabilities against each other</h2>
<p class="note">{len(result.trace.ours)} pairs: the likeliest tokens of each position and some at random. Across:
{escape(result.native)}; up: strixhlo. Equal ones lie on the line.</p>
{_scatter(result.trace.theirs, result.trace.ours)}
<h2>Speed</h2>
<p class="note">Tokens a second, median of the runs in turn, with the least and the most.
Blue: strixhlo; orange: {escape(result.native)}.</p>
{_bars(result.speeds, result.native)}
</body></html>
"""


def _svg(label: str, body: str, height: float = HEIGHT) -> str:
    return f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {height:g}">{body}</svg>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _place(value: float, low: float, high: float, start: float, end: float) -> float:
    return start + (end - start) * (value - low) / ((high - low) or 1.0)


def _kl_plot(kl: Sequence[float], limit: float) -> str:
    logs = [math.log10(max(v, FLOOR)) for v in kl]
    low, high = math.floor(min(*logs, math.log10(limit))), math.ceil(max(*logs, math.log10(limit)) + 1e-9)

    def y(v: float) -> float:
        return _place(v, low, high, HEIGHT - BOTTOM, TOP)

    marks = [
        _line("axis", LEFT, y(p), WIDTH, y(p)) + _text(LEFT - 6, y(p) + 4, f"1e{p}", "end")
        for p in range(low, high + 1)
    ]
    points = " ".join(f"{_place(i, 0, len(kl) - 1, LEFT, WIDTH - 4):.1f},{y(v):.1f}" for i, v in enumerate(logs))
    limit_line = _line("limit", LEFT, y(math.log10(limit)), WIDTH, y(math.log10(limit)))
    ends = _text(LEFT, HEIGHT - 12, "position 0") + _text(WIDTH - 4, HEIGHT - 12, str(len(kl) - 1), "end")
    return _svg("KL by position", f'{"".join(marks)}{limit_line}<polyline class="curve" points="{points}"/>{ends}')


def _scatter(theirs: Sequence[float], ours: Sequence[float]) -> str:
    low, high = math.floor(min(*theirs, *ours)), math.ceil(max(*theirs, *ours) + 1e-9)
    side = 400
    left, right = LEFT, LEFT + side - TOP - BOTTOM

    def x(v: float) -> float:
        return _place(v, low, high, left, right)

    def y(v: float) -> float:
        return _place(v, low, high, side - BOTTOM, TOP)

    body = _line("axis", x(low), y(low), x(high), y(high)) + _line("axis", x(low), y(low), x(high), y(low))
    body += _line("axis", x(low), y(low), x(low), y(high))
    for v in (low, high):
        body += _text(x(v), side - 12, f"{v:g}", "middle") + _text(left - 6, y(v) + 4, f"{v:g}", "end")
    body += "".join(
        f'<circle class="dot" cx="{x(a):.1f}" cy="{y(b):.1f}" r="2"/>' for a, b in zip(theirs, ours, strict=True)
    )
    return _svg("log-probabilities of both sides", body, side)


def _bars(speeds: Sequence[Speed], native: str) -> str:
    body, y = "", float(TOP)
    for speed in speeds:
        most = max(*speed.ours, *speed.theirs)  # each test has its own scale: prefill and decode differ by far
        body += _text(LEFT - 6, y + 26, speed.test, "end")
        for kind, name, rates in (("ours", "strixhlo", speed.ours), ("theirs", native, speed.theirs)):
            end = _place(median(rates), 0, most, LEFT, WIDTH - 170)
            body += f'<rect class="{kind}" x="{LEFT}" y="{y:.1f}" width="{end - LEFT:.1f}" height="16"/>'
            spread = [_place(v, 0, most, LEFT, WIDTH - 170) for v in (min(rates), max(rates))]
            body += _line("whisker", spread[0], y + 8, spread[1], y + 8)
            body += _text(max(end, spread[1]) + 6, y + 13, f"{median(rates):.1f} {name}"[:28])
            y += 20
        y += 14
    return _svg("tokens a second", body, y)
