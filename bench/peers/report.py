"""The table, in text and as Markdown's, and the page of bench.peers."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from bench.peers.rounds import Figures, Measured
from bench.peers.system import KILL, ONE, ROWS
from raftmq.chaos.report.page import STYLE, chart_sections

HEAD = ("row", "system", "a second", "p50 ms", "p99 ms", "servers' CPU µs", "servers' MiB")
NOTHING = "-"


def lines(found: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    """Return the table's lines, row by row, medians of the rounds."""
    made = []
    for row in ROWS:
        for name, measured in found.items():
            figures = measured.medians(row)
            if figures is not None:
                made.append((row, name, *cells(row, figures)))
    return made


def cells(row: str, figures: Figures) -> tuple[str, ...]:
    """Return a line's figures as text. A single kill has no rate."""
    return (
        NOTHING if row == KILL else f"{figures.rate:,.0f}",
        _text(figures.p50_ms, 2),
        _text(figures.p99_ms, 2) if row != KILL else NOTHING,
        _text(figures.cpu_us, 1),
        _text(figures.memory_mib, 0),
    )


def _text(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def reasons(found: Mapping[str, Measured]) -> list[str]:
    """Return a sentence for each system that could not be had and each round that failed."""
    said = [f"{name} is not measured: {m.missing}" for name, m in found.items() if m.missing]
    return said + [f"{name}, {text}" for name, m in found.items() for text in m.failures]


def markdown(found: Mapping[str, Measured]) -> str:
    """Return table and reasons as Markdown."""
    table = [HEAD, ("---",) * len(HEAD), *lines(found)]
    text = "".join(f"| {' | '.join(line)} |\n" for line in table)
    return text + "".join(f"\n- {reason}" for reason in reasons(found)) + "\n"


def write_page(path: Path, found: Mapping[str, Measured], about: str) -> None:
    """Write one HTML file that needs no other: table, reasons and a chart for each row."""
    path.write_text(render(found, about), encoding="utf-8")


def render(found: Mapping[str, Measured], about: str) -> str:
    """Return the whole page; `about` says on what machine, when and how it was measured."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in HEAD)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>"
        for line in lines(found)
    )
    said = "".join(f"<p>{html.escape(reason)}</p>" for reason in reasons(found))
    charts = [_chart(row, found) for row in ROWS if any(row in m.rows for m in found.values())]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Beside others</title><style>{STYLE}</style></head><body><main>"
        f'<h1>Beside others</h1><p class="soft">{html.escape(about)}</p>'
        f"<section><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"
        f"<section>{said or '<p>Every system was measured in every round.</p>'}</section>"
        f"{chart_sections(charts)}</main></body></html>"
    )


def _chart(row: str, found: Mapping[str, Measured]) -> go.Figure:
    """Return a bar for each system, from the medians, with a dot for each round."""
    timed = row in (ONE, KILL)
    chart = go.Figure()
    for name, measured in found.items():
        median = measured.medians(row)
        if median is None:
            continue
        chart.add_bar(x=[html.escape(name)], y=[_height(median, timed)], showlegend=False)
        chart.add_scatter(
            x=[html.escape(name)] * len(measured.rows[row]),
            y=[_height(figures, timed) for figures in measured.rows[row]],
            mode="markers",
            marker={"color": "#1c2733", "size": 6},
            showlegend=False,
        )
    chart.update_yaxes(rangemode="tozero", title_text="p50, ms" if timed else "a second")
    chart.update_layout(
        title=row,
        template="plotly_white",
        height=380,
        margin={"l": 70, "r": 12, "t": 48, "b": 40},
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    return chart


def _height(figures: Figures, timed: bool) -> float | None:
    return figures.p50_ms if timed else figures.rate
