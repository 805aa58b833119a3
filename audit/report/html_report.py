"""An audit's reports as an HTML page, with position and store time of each finding."""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Sequence
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
        f'<h1>Audit of {_utc(audited_at_ms)}</h1><p class="{mark}">{verdict}</p>{"".join(parts)}',
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


def _utc(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _store_table(report: AuditReport) -> str:
    names = ("start", "commit", "agreed", "data end", "records", "frames")
    rows = [
        (store.start, store.commit, store.agreed, store.data_end, store.records, store.frames)
        for store in report.stores
    ]
    body = "".join(
        f"<tr><td>{html.escape(store.store)}</td>"
        + "".join(f'<td class="n">{number:,}</td>' for number in row)
        + "</tr>"
        for store, row in zip(report.stores, rows, strict=True)
    )
    head = "".join(f"<th>{name}</th>" for name in ("store", *names))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _check_table(report: AuditReport) -> str:
    rows = []
    for check in report.checks:
        mark = "" if not check.fault else "fine" if check.ok else "wrong"
        verdict = {"": "allowed", "fine": "ok", "wrong": "WRONG"}[mark]
        rows.append(
            f'<tr><td>{html.escape(check.title)}</td><td class="n">{check.count:,}</td>'
            f'<td class="{mark}">{verdict}</td></tr>'
        )
        if not check.ok:
            for offender in check.offenders:
                details = html.escape(_details(report, offender))
                rows.append(f'<tr><td colspan="3"><code>{details}</code></td></tr>')
            if check.count > len(check.offenders):
                more = check.count - len(check.offenders)
                rows.append(f'<tr><td colspan="3" class="soft">and {more:,} more</td></tr>')
    return (
        "<table><thead><tr><th>question</th><th>count</th><th>verdict</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _details(report: AuditReport, offender: Offender) -> str:
    """Return an offender's fields, with the store time of the messages at its log position."""
    fields = ", ".join(f"{key}={value}" for key, value in offender.items())
    at = offender.get("position", offender.get("first_position"))
    if not isinstance(at, int) or not report.timeline:
        return fields
    positions = [position for _, _, position in report.timeline]
    stored_ms = report.timeline[max(0, bisect_right(positions, at) - 1)][0]
    return f"{fields}, stored about {_utc(stored_ms)}"
