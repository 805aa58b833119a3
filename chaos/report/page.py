"""The page of a run: one HTML file, nothing fetched from elsewhere, readable on a phone.

Throughput, latency and each client's availability over time with the faults drawn in, how long it
took to recover from each kind of fault, what was lost, the verdict, and the command that repeats
the run.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from raftmq.chaos.checks.verdict import Check, Verdict, merge
from raftmq.chaos.history.events import History, Outcome
from raftmq.chaos.history.later import all_sends
from raftmq.chaos.report.recovery import Recovery, Spread, by_kind, recoveries, spread
from raftmq.chaos.report.series import Series, series_of

COLOURS = {Outcome.OK: "#1a9850", Outcome.UNKNOWN: "#e6961e", Outcome.FAIL: "#d73027"}
CONSUMED = "#4575b4"
LEADER = "#6a51a3"
DOWN = "rgba(215,48,39,0.13)"
LABELS_MAX = 8  # faults that get words in the chart; more would lie on each other
LOST_ROWS_MAX = 200  # the rest is in verdict.json
STRIP_COLOURS = ((0.0, "#d73027"), (0.5, "#fdae61"), (0.98, "#d9ef8b"), (1.0, "#1a9850"))

STYLE = """
:root{color-scheme:light;--ink:#1c2733;--soft:#5b6b7b;--line:#dde4ea;--page:#f5f7f9}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1100px;margin:0 auto;padding:20px 14px 48px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.08rem;margin:0 0 10px}
p{margin:0 0 8px}.soft{color:var(--soft)}
.badge{display:inline-block;border-radius:99px;padding:2px 12px;color:#fff;font-weight:600}
.pass{background:#1a9850}.fail{background:#d73027}.unknown{background:#b27408}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:10px;
  margin:18px 0}
.tile,section{background:#fff;border:1px solid var(--line);border-radius:10px}
.tile{padding:10px 14px}.tile b{display:block;font-size:1.3rem;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:.86rem}
section{padding:16px;margin:14px 0;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:7px 10px 7px 0;border-top:1px solid var(--line);
  vertical-align:top}
thead th{border-top:0;color:var(--soft);font-weight:500;font-size:.86rem}
td small{color:var(--soft);display:block;overflow-wrap:anywhere}
pre{background:#1c2733;color:#e8eef3;border-radius:8px;padding:12px;overflow-x:auto;
  font-size:.86rem;margin:0}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a page's table; `mark` is "pass", "fail", "unknown" or ""."""

    cells: tuple[str, ...]
    mark: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page. With `marked`, a last column shows each row's mark."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """The page's content besides the charts, which come from the history."""

    title: str
    subtitle: str
    verdict: Verdict
    tiles: tuple[tuple[str, str], ...]  # (value, label)
    tables: tuple[PageTable, ...]
    command: str


def write_report(history: History, checks: Sequence[Check], path: Path) -> None:
    """Write the page of a chaos run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(chaos_page(history, checks), history), encoding="utf-8")


def chaos_page(history: History, checks: Sequence[Check]) -> Page:
    """Return the words and tables of a chaos run's page."""
    found = recoveries(history)
    meta = history.meta
    scenario = str(meta.get("scenario", "history"))
    seed = f"seed {meta['seed']}" if "seed" in meta else ""
    return Page(
        f"Chaos: {scenario}",
        ", ".join(filter(None, (str(meta.get("mode", "")), seed, f"{len(found)} faults"))),
        merge(checks),
        (*send_tiles(history), *recovery_tiles(found)),
        (
            check_table(checks),
            kinds_table(found),
            *lost_tables(checks, history),
            recovery_table(found, history),
        ),
        str(meta.get("command", "")),
    )


def send_tiles(history: History) -> tuple[tuple[str, str], ...]:
    """Return the number of sends by outcome."""
    counts = {outcome: 0 for outcome in Outcome}
    sends = all_sends(history)
    for send in sends:
        counts[send.outcome] += 1
    vague = counts[Outcome.UNKNOWN] + counts[Outcome.OPEN]
    return (
        (f"{len(sends):,}", "sent"),
        (f"{counts[Outcome.OK]:,}", "acknowledged"),
        (f"{vague:,}", "outcome unknown"),
        (f"{counts[Outcome.FAIL]:,}", "failed for certain"),
    )


def recovery_tiles(found: Sequence[Recovery]) -> tuple[tuple[str, str], ...]:
    """Return the times from a fault to the next acknowledged send; nothing if there were none."""
    times = spread(r.everybody_ms for r in found if r.everybody_ms is not None)
    if times is None:
        return ()
    return (
        (f"{times.p50:,.0f} ms", "recovery p50"),
        (f"{times.p99:,.0f} ms", "recovery p99"),
        (f"{times.max:,.0f} ms", "recovery max"),
    )


def check_table(checks: Sequence[Check]) -> PageTable:
    """Return the verdict of every check, with offenders under those that failed."""
    rows = tuple(
        Row(
            (check.name, f"{check.count:,}"),
            check.verdict.value,
            "\n".join((check.detail, *check.examples)),
        )
        for check in checks
    )
    return PageTable("Checks of the history", ("check", "count"), rows, marked=True)


def recovery_table(found: Sequence[Recovery], history: History) -> PageTable:
    """Return a table with one line per fault."""
    rows = tuple(
        Row(
            (
                str(number),
                f"{(r.injected_ns - history.start_ns) / 1e9:.1f} s",
                r.name,
                r.node or "clients",
                ms_text(r.everybody_ms),
                ms_text(r.worst_client_ms),
                ms_text(r.longest_gap_ms),
                ms_text(r.normal_ms),
            )
        )
        for number, r in enumerate(found, 1)
    )
    head = (
        "fault", "at", "kind", "node", "next ack", "slowest client", "longest gap", "usual rate"
    )  # fmt: skip
    return PageTable("From each fault to the next acknowledged send", head, rows)


def kinds_table(found: Sequence[Recovery]) -> PageTable:
    """Return a table with one line per kind of fault and role it hit."""
    rows = []
    for name, of_kind in by_kind(found).items():
        everybody = spread(r.everybody_ms for r in of_kind if r.everybody_ms is not None)
        worst = spread(r.worst_client_ms for r in of_kind if r.worst_client_ms is not None)
        rows.append(
            Row((name, str(len(of_kind)), *_spread_cells(everybody), *_spread_cells(worst)))
        )
    head = (
        "fault", "times", "any client p50", "p99", "max", "slowest client p50", "p99", "max"
    )  # fmt: skip
    return PageTable("Recovery by kind of fault", head, tuple(rows))


def lost_tables(checks: Sequence[Check], history: History) -> tuple[PageTable, ...]:
    """Return a table of the acknowledged messages that are lost; nothing if none is."""
    lost = [message for check in checks for message in check.lost]
    if not lost:
        return ()
    rows = tuple(
        Row(
            (
                message.id,
                f"{message.topic}-{message.queue}@{message.offset}",
                message.broker,
                f"{(message.acked_ns - history.start_ns) / 1e9:.3f} s",
            )
        )
        for message in lost[:LOST_ROWS_MAX]
    )
    title = f"Acknowledged and lost: {len(lost):,} messages"
    if len(lost) > LOST_ROWS_MAX:
        title += f" (the first {LOST_ROWS_MAX}; all are in verdict.json)"
    return (PageTable(title, ("message", "position", "broker", "acknowledged at"), rows),)


def _spread_cells(times: Spread | None) -> tuple[str, str, str]:
    if times is None:
        return ("none", "none", "none")
    return (ms_text(times.p50), ms_text(times.p99), ms_text(times.max))


def render(page: Page, history: History) -> str:
    """Return the whole file."""
    charts = [figure(series_of(history))]
    found = recoveries(history)
    if any(r.everybody_ms is not None for r in found):
        charts.append(recovery_figure({"": found}))
    tiles = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for value, label in page.tiles
    )
    mark = page.verdict.value
    words = {"pass": "everything holds", "fail": "something is wrong", "unknown": "not decided"}
    command = ""
    if page.command:
        repeat = html.escape(page.command)
        command = f"<section><h2>Do it again</h2><pre>{repeat}</pre></section>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(page.title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{html.escape(page.title)}</h1>"
        f'<p class="soft">{html.escape(page.subtitle)}</p>'
        f'<p><span class="badge {mark}">{words[mark]}</span></p>'
        f'<div class="tiles">{tiles}</div>{chart_sections(charts)}'
        f"{''.join(table(part) for part in page.tables)}{command}</main></body></html>"
    )


def chart_sections(charts: Sequence[go.Figure]) -> str:
    """Put each chart in a section; the library comes with the first."""
    parts = []
    for number, chart in enumerate(charts):
        body = chart.to_html(
            full_html=False,
            include_plotlyjs=number == 0,
            config={"displaylogo": False, "responsive": True},
        )
        parts.append(f"<section>{body}</section>")
    return "".join(parts)


def figure(series: Series) -> go.Figure:
    """Draw throughput, latency (log) and availability, with faults and leaders across all three."""
    chart = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.07,
        row_heights=[0.38, 0.44, 0.18],
        subplot_titles=(
            "messages a second",
            "time to acknowledge, ms",
            "each client: share of sends acknowledged within 1 s",
        ),
    )
    _add_rates(chart, series)
    _add_latencies(chart, series)
    _add_strips(chart, series)
    _add_faults(chart, series)
    chart.update_yaxes(rangemode="tozero", row=1, col=1)
    chart.update_yaxes(type="log", row=2, col=1)
    chart.update_xaxes(title_text="seconds", row=3, col=1, range=[0, series.end_s])
    chart.update_layout(
        template="plotly_white",
        height=760 + 18 * len(series.strips),
        margin={"l": 84, "r": 12, "t": 56, "b": 40},
        legend={"orientation": "h", "y": -0.08, "yanchor": "top"},
        hovermode="x",
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    return chart


def recovery_figure(found: Mapping[str, Sequence[Recovery]]) -> go.Figure:
    """Draw every recovery time as a dot, by kind of fault; one colour per name (a mode or "")."""
    chart = go.Figure()
    for name, of_name in found.items():
        for label, values in (
            ("any client", [(r, r.everybody_ms) for r in of_name]),
            ("slowest client", [(r, r.worst_client_ms) for r in of_name]),
        ):
            known = [(r, ms) for r, ms in values if ms is not None]
            if known:
                chart.add_box(
                    x=[r.name for r, _ in known],
                    y=[ms for _, ms in known],
                    name=f"{name}: {label}" if name else label,
                    boxpoints="all",
                    jitter=0.5,
                    pointpos=0,
                    marker={"size": 4},
                )
    chart.update_yaxes(type="log", title_text="ms")
    chart.update_layout(
        title="From each fault to the next acknowledged send",
        template="plotly_white",
        boxmode="group",
        height=460,
        margin={"l": 56, "r": 12, "t": 56, "b": 40},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    return chart


def _add_strips(chart: go.Figure, series: Series) -> None:
    if not series.strips:
        return
    chart.add_heatmap(
        x=series.strips[0].at_s,
        y=[strip.client for strip in series.strips],
        z=[strip.share for strip in series.strips],
        zmin=0,
        zmax=1,
        colorscale=STRIP_COLOURS,
        showscale=False,
        ygap=2,
        row=3,
        col=1,
    )


def _add_rates(chart: go.Figure, series: Series) -> None:
    names = {
        Outcome.OK: "acknowledged",
        Outcome.UNKNOWN: "outcome unknown",
        Outcome.FAIL: "failed",
    }
    for outcome, rate in series.rates.items():
        if rate.at_s:
            line = {"color": COLOURS[outcome], "width": 2}
            chart.add_scatter(
                x=rate.at_s, y=rate.per_s, name=names[outcome], line=line, row=1, col=1
            )
    if series.consumed.at_s:
        line = {"color": CONSUMED, "width": 1.5, "dash": "dot"}
        rate = series.consumed
        chart.add_scatter(x=rate.at_s, y=rate.per_s, name="consumed", line=line, row=1, col=1)


def _add_latencies(chart: go.Figure, series: Series) -> None:
    latency = series.latency
    for name, values, colour in (
        ("p50", latency.p50_ms, "#91cf60"),
        ("p99", latency.p99_ms, COLOURS[Outcome.OK]),
    ):
        if values:
            line = {"color": colour, "width": 2}
            chart.add_scatter(x=latency.at_s, y=values, name=name, line=line, row=2, col=1)
    names = {
        Outcome.OK: "slowest acknowledged",
        Outcome.UNKNOWN: "unknown, given up",
        Outcome.FAIL: "failed",
    }
    for outcome, dots in series.dots.items():
        if dots.at_s:
            marker = {"color": COLOURS[outcome], "size": 5, "opacity": 0.6}
            chart.add_scatter(
                x=dots.at_s,
                y=dots.ms,
                name=names[outcome],
                mode="markers",
                marker=marker,
                row=2,
                col=1,
            )


def _add_faults(chart: go.Figure, series: Series) -> None:
    """Draw bands and lines over all rows, all shapes at once: adding one looks at all others."""
    worded = len(series.bands) <= LABELS_MAX
    shapes = []
    for band in series.bands:
        width_s = max(band.to_s - band.from_s, series.end_s / 400)
        shapes.append(_shape("rect", band.from_s, width_s, fillcolor=DOWN, line={"width": 0}))
        line = {"color": COLOURS[Outcome.FAIL], "width": 1.5}
        shapes.append(_shape("line", band.from_s, 0.0, line=line))
        if worded:
            words = f"{band.kind} {band.nodes}".strip()
            _add_words(chart, band.from_s, words, COLOURS[Outcome.FAIL], 1.0)
    for at_s, node, term in series.leaders:
        line = {"color": LEADER, "width": 1, "dash": "dash"}
        shapes.append(_shape("line", at_s, 0.0, line=line))
        if worded:
            _add_words(chart, at_s, f"{node} leads term {term}", LEADER, 0.93)
    chart.update_layout(shapes=shapes)


def _shape(kind: str, at_s: float, width_s: float, **style: Any) -> dict[str, Any]:
    """Return a shape from top to bottom of the figure."""
    place = {"x0": at_s, "x1": at_s + width_s, "y0": 0, "y1": 1, "xref": "x", "yref": "paper"}
    return {"type": kind, "layer": "below" if kind == "rect" else "above", **place, **style}


def _add_words(chart: go.Figure, at_s: float, words: str, colour: str, height: float) -> None:
    chart.add_annotation(
        x=at_s,
        y=height,
        xref="x",
        yref="y domain",
        text=words,
        showarrow=False,
        xanchor="left",
        yanchor="top",
        font={"size": 11, "color": colour},
        bgcolor="rgba(255,255,255,0.7)",
    )


def table(part: PageTable) -> str:
    """Return a table in a section of its own."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in part.head)
    if part.marked:
        head += "<th>verdict</th>"
    rows = []
    for row in part.rows:
        cells = [html.escape(text) for text in row.cells]
        if row.note:
            note = html.escape(row.note).replace("\n", "<br>")
            cells[0] += f"<small>{note}</small>"
        if part.marked:
            mark = row.mark
            cells.append(f'<span class="badge {mark}">{mark}</span>' if mark else "")
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return (
        f"<section><h2>{html.escape(part.title)}</h2><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></section>"
    )


def ms_text(value: float | None) -> str:
    """Format a time for a table."""
    return "none" if value is None else f"{value:,.0f} ms"
