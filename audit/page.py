"""An audit's reports as a page with pictures: where in the log, when, and in which replica.

The first picture of a group has a bar for each store, from where its log was read to where its data
end, with its commit position and the end of what it agrees on; findings that have a position stand
on the bars. The second shows when the group's messages were stored, and findings at the store time
of the messages around them.
"""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import plotly.graph_objects as go

from raftmq.audit.report import AuditReport, CheckResult, Offender

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:0;color:#1c2733;background:#f6f7f9}
main{max-width:1080px;margin:auto;padding:1.5rem}
section{background:#fff;border:1px solid #dde2e8;border-radius:8px;padding:1rem;margin:1rem 0}
table{border-collapse:collapse;width:100%;font-size:14px}
td,th{text-align:left;padding:.25rem .6rem;border-top:1px solid #e8ebef;vertical-align:top}
td.n{text-align:right}
code{font-size:13px;overflow-wrap:anywhere}
.wrong{color:#b3261e;font-weight:600}
.ok{color:#1b6e3a}
.soft{color:#5c6b7a}
"""
ROW_PX = 70  # of a store in the first picture


def page(reports: Sequence[AuditReport], audited_at_ms: int) -> str:
    """Return the whole file; the library that draws is in it."""
    ok = all(report.ok for report in reports)
    mark = "ok" if ok else "wrong"
    verdict = "Nothing is wrong." if ok else "Something is wrong."
    parts = []
    first = True
    for report in reports:
        parts.append(f"<h2>{html.escape(_title(report))}</h2>")
        for chart in _charts(report):
            drawn = chart.to_html(full_html=False, include_plotlyjs=first)
            parts.append(f"<section>{drawn}</section>")
            first = False
        parts.append(f"<section>{_check_table(report)}</section>")
        for gap in report.not_judged:
            parts.append(f'<p class="soft">Not judged: {html.escape(gap)}</p>')
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mqaudit</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f'<body><main><h1>Audit of {_utc(audited_at_ms)}</h1><p class="{mark}">{verdict}</p>'
        f"{''.join(parts)}</main></body></html>"
    )


def _title(report: AuditReport) -> str:
    topic = f"topic {report.topic}" if report.topic else "all topics"
    return f"{report.group or 'the group'}, {topic}"


def _utc(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _charts(report: AuditReport) -> Iterator[go.Figure]:
    if report.stores:
        yield _where(report)
    if report.timeline:
        yield _when(report)


def _wrong(report: AuditReport) -> Iterator[tuple[CheckResult, Offender, int]]:
    """Yield each finding that has a log position."""
    for check in report.checks:
        for offender in check.offenders if not check.ok else ():
            found = offender.get("position", offender.get("first_position"))
            if isinstance(found, int):
                yield check, offender, found


def _where(report: AuditReport) -> go.Figure:
    """Draw the stores along the log."""
    chart = go.Figure()
    names = [store.store for store in report.stores]
    chart.add_bar(
        y=names,
        x=[store.data_end - store.begin for store in report.stores],
        base=[store.begin for store in report.stores],
        orientation="h",
        marker={"color": "#c9d6e6"},
        name="log",
    )
    for name, symbol in (("commit", "line-ns-open"), ("agreed", "triangle-down")):
        chart.add_scatter(
            y=names,
            x=[getattr(store, name) for store in report.stores],
            mode="markers",
            marker={"symbol": symbol, "size": 14, "color": "#1f5fa8"},
            name=name,
        )
    for name in dict.fromkeys(check.name for check, _, _ in _wrong(report)):
        found = [
            (at, store, offender)
            for check, offender, at in _wrong(report)
            if check.name == name
            for store in ([offender["store"]] if offender.get("store") in names else names)
        ]
        chart.add_scatter(
            x=[at for at, _, _ in found],
            y=[store for _, store, _ in found],
            text=[_hover(offender) for _, _, offender in found],
            hoverinfo="text",
            mode="markers",
            marker={"symbol": "x", "size": 11},
            name=name,
        )
    chart.update_layout(title="Where in the log, and in which replica", barmode="overlay")
    chart.update_xaxes(title_text="log position, bytes")
    return _styled(chart, 200 + ROW_PX * len(names))


def _when(report: AuditReport) -> go.Figure:
    """Draw when the messages were stored."""
    chart = go.Figure()
    times = [datetime.fromtimestamp(ms / 1000, UTC) for ms, _, _ in report.timeline]
    counts = [count for _, count, _ in report.timeline]
    chart.add_scatter(x=times, y=counts, mode="lines", fill="tozeroy", name="messages stored")
    positions = [position for _, _, position in report.timeline]
    for name in dict.fromkeys(check.name for check, _, _ in _wrong(report)):
        found = [(offender, at) for check, offender, at in _wrong(report) if check.name == name]
        parts = [max(0, bisect_right(positions, at) - 1) for _, at in found]
        chart.add_scatter(
            x=[times[part] for part in parts],
            y=[counts[part] for part in parts],
            text=[_hover(offender) for offender, _ in found],
            hoverinfo="text",
            mode="markers",
            marker={"symbol": "x", "size": 11},
            name=name,
        )
    chart.update_layout(title="When: messages by store time")
    return _styled(chart, 320)


def _styled(chart: go.Figure, height: int) -> go.Figure:
    chart.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 80, "r": 16, "t": 56, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    return chart


def _hover(offender: Offender) -> str:
    return "<br>".join(html.escape(f"{key}={value}") for key, value in offender.items())


def _check_table(report: AuditReport) -> str:
    rows = []
    for check in report.checks:
        mark = "" if not check.fault else "ok" if check.ok else "wrong"
        verdict = {"": "allowed", "ok": "ok", "wrong": "WRONG"}[mark]
        rows.append(
            f'<tr><td>{html.escape(check.title)}</td><td class="n">{check.count:,}</td>'
            f'<td class="{mark}">{verdict}</td></tr>'
        )
        if not check.ok:
            for offender in check.offenders:
                said = "  ".join(f"{key}={value}" for key, value in offender.items())
                rows.append(f'<tr><td colspan="3"><code>{html.escape(said)}</code></td></tr>')
            if check.count > len(check.offenders):
                more = check.count - len(check.offenders)
                rows.append(f'<tr><td colspan="3" class="soft">and {more:,} more</td></tr>')
    return f"<table><tr><th>question</th><th>count</th><th></th></tr>{''.join(rows)}</table>"
