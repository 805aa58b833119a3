"""The table, in text and as Markdown's, and the page of bench.peers."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

from bench.peers.rounds import Figures, Measured
from bench.peers.system import KILL, ONE, PACED_AT, ROWS
from raftmq.ops.page import chart_sections, document, section
from raftmq.ops.svg import bars

HEAD = (
    *("row", "system", "a second", "p50 ms", "p99 ms", "p99.9 ms", "longest ms"),
    *("servers' CPU µs", "servers' MiB"),
)
NOTHING = "-"
TIMED = (ONE, KILL)  # their charts show p50


def lines(results: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    """Return the table's lines, row by row, medians of the rounds."""
    made = []
    for row in ROWS:
        for name, measured in results.items():
            figures = measured.medians(row)
            if figures is not None:
                made.append((row, name, *cells(row, figures)))
    return made


def cells(row: str, figures: Figures) -> tuple[str, ...]:
    """Return a line's figures as text. A single kill has no rate."""
    return (
        NOTHING if row == KILL else f"{figures.rate:,.0f}",
        _text(figures.p50_ms, 2),
        *(
            _text(value if row != KILL else None, 2)
            for value in (figures.p99_ms, figures.p999_ms, figures.longest_ms)
        ),
        _text(figures.cpu_us, 1),
        _text(figures.memory_mib, 0),
    )


def _text(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def reasons(results: Mapping[str, Measured]) -> list[str]:
    """Return a sentence for each system that could not be had and each round that failed."""
    sentences = [f"{name} is not measured: {m.missing}" for name, m in results.items() if m.missing]
    return sentences + [f"{name}, {text}" for name, m in results.items() for text in m.failures]


def markdown(results: Mapping[str, Measured]) -> str:
    sentences = "".join(f"\n- {reason}" for reason in reasons(results))
    rows = [HEAD, ("---",) * len(HEAD), *lines(results)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"{sentences}\n"


def write_page(path: Path, results: Mapping[str, Measured], about: str) -> None:
    """Write a self-contained HTML file with table, reasons and a chart for each row."""
    path.write_text(render(results, about), encoding="utf-8")


def render(results: Mapping[str, Measured], about: str) -> str:
    """Return the page; `about` describes machine, time and method."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in HEAD)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>"
        for line in lines(results)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    sentences = "".join(f"<p>{html.escape(reason)}</p>" for reason in reasons(results))
    sentences = sentences or "<p>Every system was measured in every round.</p>"
    charts = [_chart(row, results) for row in ROWS if any(row in m.rows for m in results.values())]
    return document(
        "Beside others",
        f'<h1>Beside others</h1><p class="soft">{html.escape(about)}</p>'
        f"{section(table)}{section(sentences)}"
        f"{chart_sections(charts)}",
    )


def _chart(row: str, results: Mapping[str, Measured]) -> str:
    """Return a bar for each system, from the medians, with a dot for each round."""
    rows = []
    for name, measured in results.items():
        median = measured.medians(row)
        if median is not None:
            heights = (_height(row, figures) for figures in measured.rows[row])
            dots = [height for height in heights if height is not None]
            rows.append((name, _height(row, median), dots))
    unit = "ms, p99.9" if row in PACED_AT else "ms, p50" if row in TIMED else "a second"
    return bars(f"{row} ({unit})", unit, rows)


def _height(row: str, figures: Figures) -> float | None:
    if row in PACED_AT:
        return figures.p999_ms
    return figures.p50_ms if row in TIMED else figures.rate
