"""An audit's reports as an HTML page, with position and store time of each finding."""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from raftmq.ops.page import document, section

from .report import AuditReport, Offender, first_of_each_store

OWN_STYLE = """
.wrong{color:var(--bad);font-weight:600}.fine{color:var(--ok)}
td.n{text-align:right}code{font-size:13px;overflow-wrap:anywhere}
"""
FINDINGS_MAX = 600  # per page


def page(reports: Sequence[AuditReport], audited_at_ms: int) -> str:
    """Return the file's content, with at most FINDINGS_MAX findings but at least one per check."""
    reports = _few(reports)
    ok = all(report.ok for report in reports)
    mark = "fine" if ok else "wrong"
    verdict = "Nothing is wrong." if ok else "Something is wrong."
    parts = []
    for report in reports:
        parts.append(f"<h2>{html.escape(_title(report))}</h2>")
        parts.append(section(_store_table(report)))
        parts.append(section(_check_table(report)))
        for gap in report.not_judged:
            parts.append(f'<p class="soft">Not judged: {html.escape(gap)}</p>')
    return document(
        "mqaudit",
        f'<h1>Audit of {utc(audited_at_ms)}</h1><p class="{mark}">{verdict}</p>{"".join(parts)}',
        OWN_STYLE,
    )


def _few(reports: Sequence[AuditReport]) -> list[AuditReport]:
    """Return the reports with only as many offenders per check as fit on a page."""
    wrong = sum(not check.ok for report in reports for check in report.checks)
    each = max(1, FINDINGS_MAX // max(1, wrong))
    return [
        replace(
            report,
            checks=tuple(
                replace(check, offenders=first_of_each_store(check.offenders, each))
                for check in report.checks
            ),
        )
        for report in reports
    ]


def _title(report: AuditReport) -> str:
    topic = f"topic {report.topic}" if report.topic else "all topics"
    return f"{report.group or 'the group'}, {topic}"


def utc(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def cells(*values: str | int) -> str:
    """Return a table's row, with numbers aligned at the right."""
    return "".join(
        f"<td>{html.escape(value)}</td>"
        if isinstance(value, str)
        else f'<td class="n">{value:,}</td>'
        for value in values
    )


def table_of(names: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table of rows that consist of cells."""
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _store_table(report: AuditReport) -> str:
    rows = (
        cells(
            *(each.store, each.start, each.commit, each.agreed),
            *(each.data_end, each.records, each.frames),
        )
        for each in report.stores
    )
    names = ("store", "start", "commit", "agreed", "data end", "records", "frames")
    return table_of(names, rows)


def _check_table(report: AuditReport) -> str:
    rows = []
    for check in report.checks:
        mark = "" if not check.fault else "fine" if check.ok else "wrong"
        verdict = {"": "allowed", "fine": "ok", "wrong": "WRONG"}[mark]
        rows.append(f'{cells(check.title, check.count)}<td class="{mark}">{verdict}</td>')
        if not check.ok:
            for offender in check.offenders:
                details = html.escape(_details(report, offender))
                rows.append(f'<td colspan="3"><code>{details}</code></td>')
            if check.count > len(check.offenders):
                more = check.count - len(check.offenders)
                rows.append(f'<td colspan="3" class="soft">and {more:,} more</td>')
    return table_of(("question", "count", "verdict"), rows)


def _details(report: AuditReport, offender: Offender) -> str:
    """Return an offender's fields, with the store time of the messages at its log position."""
    fields = ", ".join(f"{key}={value}" for key, value in offender.items())
    at = offender.get("position", offender.get("first_position"))
    if not isinstance(at, int) or not report.timeline:
        return fields
    positions = [position for _, _, position in report.timeline]
    stored_ms = report.timeline[max(0, bisect_right(positions, at) - 1)][0]
    return f"{fields}, stored about {utc(stored_ms)}"
