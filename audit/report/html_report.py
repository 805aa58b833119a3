"""An audit's reports as a page with pictures: where in the log, when, and in which replica.

The first picture of a group has a bar for each store, from where its log was read to where its data
end, with its commit position and the end of what it agrees on; findings that have a position stand
on the bars. The second shows when the group's messages were stored, and findings at the store time
of the messages around them.
"""

from __future__ import annotations

import html
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from raftmq.ops.page import chart_sections, document, key, section
from raftmq.ops.svg import LEFT, TOP, Panel, Scale, axis, marker, picture, swatch, text

from .report import AuditReport, CheckResult, Offender, first_of_each_store

OWN_STYLE = """
.wrong{color:var(--bad);font-weight:600}.fine{color:var(--ok)}
td.n{text-align:right}code{font-size:13px;overflow-wrap:anywhere}
svg .log{fill:var(--line)}svg .commit{stroke:var(--blue);stroke-width:3}
svg .agreed{fill:var(--violet)}
"""
ROW = 40.0  # of a store in the first picture
APART = 9.0  # of markers at one place: several checks name the same damage
LEVELS = (0.0, -APART, APART)  # of these, from the middle of a row
HEIGHT = 200.0  # of the second
RED = 4  # the number of the first check's marker: markers of that number are red
DAY_S = 86_400
STEPS_S = (1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, DAY_S)
TICKS_MAX = 8  # on the axis of store times
FINDINGS_MAX = 600  # on a page. Each stands in the table and two pictures, in about 1 KB
TOOLTIP_MAX = 300  # characters; the table has the rest


def page(reports: Sequence[AuditReport], audited_at_ms: int) -> str:
    """Return the whole file. It has at most FINDINGS_MAX findings, but one of each check."""
    reports = _few(reports)
    ok = all(report.ok for report in reports)
    mark = "fine" if ok else "wrong"
    verdict = "Nothing is wrong." if ok else "Something is wrong."
    parts = []
    for report in reports:
        parts.append(f"<h2>{html.escape(_title(report))}</h2>")
        parts.append(chart_sections(list(_charts(report))))
        parts.append(section(_check_table(report)))
        for gap in report.not_judged:
            parts.append(f'<p class="soft">Not judged: {html.escape(gap)}</p>')
    return document(
        "mqaudit",
        f'<h1>Audit of {_utc(audited_at_ms)}</h1><p class="{mark}">{verdict}</p>{"".join(parts)}',
        OWN_STYLE,
    )


def _few(reports: Sequence[AuditReport]) -> list[AuditReport]:
    """Return the reports with as few offenders of each check as a page has room for."""
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


def _charts(report: AuditReport) -> Iterator[str]:
    if report.stores:
        yield _where(report)
    if report.timeline:
        yield _when(report)


def _marks(report: AuditReport) -> list[tuple[CheckResult, list[tuple[Offender, int]]]]:
    """Return the checks that have findings with a log position, and these with it."""
    marks = []
    for check in report.checks:
        found = []
        for offender in check.offenders if not check.ok else ():
            at = offender.get("position", offender.get("first_position"))
            if isinstance(at, int):
                found.append((offender, at))
        if found:
            marks.append((check, found))
    return marks


def _where(report: AuditReport) -> str:
    """Draw the stores along the log. A finding before or behind all of them is drawn at the edge:
    a damaged position may be anything."""
    rows = {store.store: TOP + ROW * number for number, store in enumerate(report.stores)}
    ends = [end for store in report.stores for end in (store.begin, store.data_end, store.commit)]
    x = Scale.across(min(ends), max(ends), indent=60)
    bottom = TOP + ROW * len(rows)
    parts = axis(x, {tick: f"{tick:,.0f}" for tick in x.ticks()}, bottom)
    for store in report.stores:
        y = rows[store.store]
        begin, end = x.at(store.begin), x.at(store.data_end)
        words = f"{store.store}: bytes {store.begin:,} to {store.data_end:,}"
        parts += [
            text(LEFT + 54, y + ROW / 2 + 4, store.store[-16:], "end"),
            f'<rect class="log" x="{begin:.1f}" y="{y + 6}" width="{max(end - begin, 2):.1f}" '
            f'height="{ROW - 12}"><title>{html.escape(words)}</title></rect>',
            _commit(x.at(store.commit), y, f"commit: {store.commit:,}"),
            _agreed(x.at(store.agreed), y + 3, f"agreed up to: {store.agreed:,}"),
        ]
    marks = _marks(report)
    met: dict[int, list[str]] = {}
    for number, (check, found) in enumerate(marks):
        for offender, at in found:
            level = LEVELS[_nth(met, at, check.name) % len(LEVELS)]
            own = rows.get(str(offender.get("store")))
            stands = rows.values() if own is None else [own]
            places = [(x.at(at), y + ROW / 2 + level) for y in stands]
            parts.append(marker(places, RED + number, _tooltip(check, offender)))
    own_keys = (
        (swatch(_commit(15, -11, "")), "commit"),
        (swatch(_agreed(15, 2, "")), "end of what the store agrees on"),
    )
    drawn = picture("Where in the log (bytes)", bottom + 22, parts)
    return drawn + key([*own_keys, *_keys(marks)])


def _commit(x: float, y: float, words: str) -> str:
    return (
        f'<path class="commit" d="M{x:.1f} {y + 3:.1f}v{ROW - 6:g}">'
        f"<title>{html.escape(words)}</title></path>"
    )


def _agreed(x: float, y: float, words: str) -> str:
    return (
        f'<path class="agreed" d="M{x - 6:.1f} {y:.1f}h12l-6 9z">'
        f"<title>{html.escape(words)}</title></path>"
    )


def _when(report: AuditReport) -> str:
    """Draw when the messages were stored."""
    at = [float(ms) for ms, _, _ in report.timeline]
    counts = [float(count) for _, count, _ in report.timeline]
    positions = [position for _, _, position in report.timeline]
    x = Scale.across(at[0], at[-1])
    y = Scale.upright(0.0, max(counts) * 1.1 or 1.0, HEIGHT)
    panel = Panel(
        f"When: messages by store time, from {_utc(at[0])} to {_utc(at[-1])}", x, y, HEIGHT
    )
    panel.line(at, counts, "median")
    marks = _marks(report)
    met: dict[int, list[str]] = {}
    for number, (check, found) in enumerate(marks):
        for offender, position in found:
            part = max(0, bisect_right(positions, position) - 1)
            above = _nth(met, part, check.name) * APART * y.high / HEIGHT
            words = f"{_utc(at[part])}, {_tooltip(check, offender)}"
            panel.marker(at[part], counts[part] + above, RED + number, words)
    drawn = panel.svg(ticks=_clock(at[0], at[-1]))
    return drawn + key(_keys(marks)) if marks else drawn


def _nth(met: dict[int, list[str]], place: int, name: str) -> int:
    """Return how many other checks were met at a place before this one."""
    names = met.setdefault(place, [])
    if name not in names:
        names.append(name)
    return names.index(name)


def _clock(begin_ms: float, end_ms: float) -> dict[float, str]:
    """Return round UTC times between two times: when they are (ms), and as words."""
    span_s = (end_ms - begin_ms) / 1000
    days = math.ceil(span_s / TICKS_MAX / DAY_S)
    step_s = next((step for step in STEPS_S if span_s <= step * TICKS_MAX), days * DAY_S)
    first, last = math.ceil(begin_ms / 1000 / step_s), math.floor(end_ms / 1000 / step_s)
    ticks = {}
    for at_s in range(first * step_s, last * step_s + 1, step_s):
        form = "%Y-%m-%d" if at_s % DAY_S == 0 else "%H:%M" if step_s % 60 == 0 else "%H:%M:%S"
        ticks[at_s * 1000.0] = f"{datetime.fromtimestamp(at_s, UTC):{form}}"
    return ticks


def _keys(marks: Sequence[tuple[CheckResult, list[tuple[Offender, int]]]]) -> list[tuple[str, str]]:
    """Return which check has which marker, and how many of its findings are not drawn."""
    keys = []
    for number, (check, found) in enumerate(marks):
        more = f" ({len(found):,} of {check.count:,})" if len(found) < check.count else ""
        keys.append((swatch(marker([(15, 6)], RED + number, "")), check.name + more))
    return keys


def _tooltip(check: CheckResult, offender: Offender) -> str:
    words = f"{check.name}: {_said(offender)}"
    return words if len(words) <= TOOLTIP_MAX else f"{words[: TOOLTIP_MAX - 1]}…"


def _said(offender: Offender) -> str:
    return ", ".join(f"{key}={value}" for key, value in offender.items())


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
                said = html.escape(_said(offender))
                rows.append(f'<tr><td colspan="3"><code>{said}</code></td></tr>')
            if check.count > len(check.offenders):
                more = check.count - len(check.offenders)
                rows.append(f'<tr><td colspan="3" class="soft">and {more:,} more</td></tr>')
    return (
        "<table><thead><tr><th>question</th><th>count</th><th>verdict</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
