"""The page of bench.curves: one chart for each kind of figure of each curve."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from raftmq.chaos.report.page import STYLE, chart_sections

# The kinds of figures by the ends of their names; the first that fits is taken.
KINDS = (
    ("_kib_topic", "KiB a topic"),
    ("_kib_each", "KiB a connection"),
    ("cpu_ms_s", "CPU ms a second"),
    ("rate", "a second"),
    ("_ms", "ms"),
    ("_us", "CPU µs a message"),
    ("_mib", "resident MiB"),
    ("mib_s", "MiB a second"),
    ("_s", "seconds"),
)


def write_page(path: Path, curves: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Write the curves: axis → value, in digits → figures."""
    path.write_text(render(curves), encoding="utf-8")


def render(curves: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the whole file."""
    drawn = [chart for axis, found in curves.items() for chart in charts(axis, found)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Curves</title><style>{STYLE}</style></head><body><main><h1>Curves</h1>"
        f"{''.join(chart_sections(drawn))}</main></body></html>"
    )


def charts(axis: str, found: Mapping[str, Mapping[str, float]]) -> list[go.Figure]:
    """Return a chart for each kind of figure of one curve."""
    kinds: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for value in sorted(found, key=int):
        for name, figure in found[value].items():
            line = kinds.setdefault(kind_of(name), {}).setdefault(name, [])
            line.append((int(value), figure))
    return [_chart(axis, kind, lines) for kind, lines in kinds.items()]


def kind_of(name: str) -> str:
    """Return what a figure is counted in."""
    return next((kind for end, kind in KINDS if name.endswith(end)), "")


def _chart(axis: str, kind: str, lines: Mapping[str, list[tuple[int, float]]]) -> go.Figure:
    chart = go.Figure()
    for name, line in lines.items():
        chart.add_scatter(
            x=[value for value, _ in line],
            y=[figure for _, figure in line],
            name=name,
            mode="lines+markers",
        )
    chart.update_xaxes(type="log", title_text=html.escape(axis))
    chart.update_yaxes(rangemode="tozero", title_text=kind)
    chart.update_layout(
        title=f"{kind} over {axis}",
        template="plotly_white",
        height=380,
        margin={"l": 70, "r": 12, "t": 48, "b": 40},
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    return chart
