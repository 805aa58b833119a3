"""The page of a run, a self-contained HTML file that is readable on a phone.

It shows throughput, latency and each client's availability over time with the faults, the recovery
times by kind of fault, lost messages, the verdict, and the command that repeats the run.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raftmq.ops.page import chart_sections, document, key, section
from raftmq.ops.svg import LabelRows, Panel, Scale
from raftmq.ops.svg import by_kind as dots_by_kind

from ..checks.verdict import Check, Verdict, merge
from ..history.deferred_events import all_sends
from ..history.events import History, Outcome
from .recovery import Recovery, Spread, by_kind, ms_text, recoveries, spread
from .series import Series, series_of

STYLES = {Outcome.OK: "ok", Outcome.UNKNOWN: "vague", Outcome.FAIL: "bad"}
LANES_MAX = 4  # rows of labels in the chart, which do not touch; further labels are tooltips only
STRIP_HEIGHT = 18.0
LOST_ROWS_MAX = 200  # the rest is in verdict.json


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
    """The page's content apart from the charts, which are drawn from the history."""

    title: str
    subtitle: str
    verdict: Verdict
    tiles: tuple[tuple[str, str], ...]  # (value, label)
    tables: tuple[PageTable, ...]
    command: str


def write_report(history: History, checks: Sequence[Check], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(chaos_page(history, checks), history), encoding="utf-8")


def chaos_page(history: History, checks: Sequence[Check]) -> Page:
    result = recoveries(history)
    meta = history.meta
    scenario = str(meta.get("scenario", "history"))
    seed = f"seed {meta['seed']}" if "seed" in meta else ""
    return Page(
        f"Chaos: {scenario}",
        ", ".join(filter(None, (str(meta.get("mode", "")), seed, f"{len(result)} faults"))),
        merge(checks),
        (*send_tiles(history), *recovery_tiles(result)),
        (
            check_table(checks),
            kinds_table(result),
            *lost_tables(checks, history),
            recovery_table(result, history),
        ),
        str(meta.get("command", "")),
    )


def send_tiles(history: History) -> tuple[tuple[str, str], ...]:
    counts = {outcome: 0 for outcome in Outcome}
    sends = all_sends(history)
    for send in sends:
        counts[send.outcome] += 1
    vague = counts[Outcome.UNKNOWN] + counts[Outcome.OPEN]
    shed = sum(send.shed for send in sends)
    return (
        (f"{len(sends):,}", "sent"),
        (f"{counts[Outcome.OK]:,}", "acknowledged"),
        (f"{vague:,}", "outcome unknown"),
        (f"{counts[Outcome.FAIL] - shed:,}", "failed for certain"),
        *([(f"{shed:,}", "never made: backlog full")] if shed else []),
    )


def recovery_tiles(recoveries: Sequence[Recovery]) -> tuple[tuple[str, str], ...]:
    """Return the times from a fault to the next acknowledged send; nothing if there were none."""
    times = spread(r.everybody_ms for r in recoveries if r.everybody_ms is not None)
    if times is None:
        return ()
    return (
        (ms_text(times.p50), "recovery p50"),
        *([(ms_text(times.p99), "recovery p99")] if times.p99 is not None else []),
        (ms_text(times.max), "recovery max"),
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


def recovery_table(recoveries: Sequence[Recovery], history: History) -> PageTable:
    """Return a table with a row per fault."""
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
        for number, r in enumerate(recoveries, 1)
    )
    head = (
        "fault", "at", "kind", "node", "next ack", "slowest client", "longest gap", "usual rate"
    )  # fmt: skip
    return PageTable("From each fault to the next acknowledged send", head, rows)


def kinds_table(recoveries: Sequence[Recovery]) -> PageTable:
    """Return a table with a row per kind of fault and role."""
    rows = []
    for name, of_kind in by_kind(recoveries).items():
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
    charts = [figure(series_of(history))]
    result = recoveries(history)
    if any(r.everybody_ms is not None for r in result):
        charts.append(recovery_figure({"": result}))
    tiles = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for value, label in page.tiles
    )
    mark = page.verdict.value
    text = {
        "pass": "everything holds",
        "fail": "something is wrong",
        "unknown": "not decided",
        "invalid": "the experiment did not take place",
    }
    return document(
        page.title,
        f"<h1>{html.escape(page.title)}</h1>"
        f'<p class="soft">{html.escape(page.subtitle)}</p>'
        f'<p><span class="badge {mark}">{text[mark]}</span></p>'
        f'<div class="tiles">{tiles}</div>{chart_sections(charts)}'
        f"{''.join(table(page_table) for page_table in page.tables)}"
        f"{again(page.command) if page.command else ''}",
    )


def figure(series: Series) -> str:
    """Draw throughput, latency (log) and availability, with faults and leaders across all three."""
    return "".join((_legend(), _rates(series), _latencies(series), _strips(series)))


def recovery_figure(by_name: Mapping[str, Sequence[Recovery]]) -> str:
    """Draw every recovery time as a dot, by kind of fault; one colour per name (a mode or "")."""
    times: dict[tuple[str, str], list[float]] = {}
    for name, of_name in by_name.items():
        for recovery in of_name:
            for label, ms in (
                ("any client", recovery.everybody_ms),
                ("slowest client", recovery.worst_client_ms),
            ):
                if ms is not None:
                    text = f"{name}: {label}" if name else label
                    times.setdefault((recovery.name, text), []).append(ms)
    rows = [(kind, label, values) for (kind, label), values in sorted(times.items())]
    labels = sorted({label for _, label, _ in rows})
    return dots_by_kind("From each fault to the next acknowledged send", labels, rows)


def _legend() -> str:
    labels = (
        ("ok", "acknowledged"),
        ("vague", "outcome unknown"),
        ("bad", "failed"),
        ("blue", "consumed; p50"),
        ("violet", "a new leader"),
    )
    return key((f'<i style="background:var(--{name})"></i>', text) for name, text in labels)


def _time(series: Series) -> Scale:
    return Scale.across(0.0, series.end_s or 1.0)


def _rates(series: Series) -> str:
    shown = [*series.rates.values(), series.consumed]
    most = max((value for rate in shown for value in rate.per_s), default=1.0)
    y = Scale.upright(0.0, most * 1.3, 230)
    panel = Panel("messages a second", _time(series), y, 230)
    _faults(panel, series, worded=True)
    panel.line(series.consumed.at_s, series.consumed.per_s, "consumed")
    for outcome, rate in series.rates.items():
        panel.line(rate.at_s, rate.per_s, STYLES[outcome])
    return panel.svg()


def _latencies(series: Series) -> str:
    latency = series.latency
    values = [ms for dots in series.dots.values() for ms in dots.ms] + latency.p50_ms
    low = max(min(values, default=1.0), 0.01)
    y = Scale.upright(low, max(max(values, default=1.0), low * 10), 270, log=True)
    title = "time to acknowledge, ms: p50, p99, and the slowest one by one"
    panel = Panel(title, _time(series), y, 270)
    _faults(panel, series, worded=False)
    for outcome, dots in series.dots.items():
        panel.dots(dots.at_s, dots.ms, STYLES[outcome])
    panel.line(latency.at_s, latency.p50_ms, "median")
    panel.line(latency.at_s, latency.p99_ms, "ok")
    return panel.svg()


def _strips(series: Series) -> str:
    if not series.strips:
        return ""
    height = STRIP_HEIGHT * len(series.strips)
    panel = Panel(
        "each client: share of sends acknowledged within 1 s", _time(series), None, height
    )
    for number, strip in enumerate(series.strips):
        panel.strip(number, STRIP_HEIGHT, strip.at_s, strip.share, strip.client, series.bucket_s)
    return panel.svg(" s")


def _faults(panel: Panel, series: Series, *, worded: bool) -> None:
    """Draw faults as bands and new leaders as lines, with words that do not touch."""
    lanes = LabelRows(LANES_MAX)
    marks = [
        (band.from_s, band.to_s, "fault", f"{band.kind} {band.nodes}".strip())
        for band in series.bands
    ]
    marks += [
        (at_s, at_s, "leads", f"{node} leads term {term}") for at_s, node, term in series.leaders
    ]
    for start, end, style, text in sorted(marks):
        panel.band(start, end, style, text)
        if worded:
            panel.label(start, text, style, lanes)


def again(command: str) -> str:
    return section(f"<h2>Do it again</h2><pre>{html.escape(command)}</pre>")


def table(page_table: PageTable) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in page_table.head)
    if page_table.marked:
        head += "<th>verdict</th>"
    rows = []
    for row in page_table.rows:
        cells = [html.escape(text) for text in row.cells]
        if row.note:
            note = html.escape(row.note).replace("\n", "<br>")
            cells[0] += f"<small>{note}</small>"
        if page_table.marked:
            mark = row.mark
            cells.append(f'<span class="badge {mark}">{mark}</span>' if mark else "")
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return section(
        f"<h2>{html.escape(page_table.title)}</h2><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
