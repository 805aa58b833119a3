"""The demo's verdict from audit, history checks and delays, as table, page and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

from demo.flights_data import DelayTable
from demo.load import KILLS_AT, LoadResult
from raftmq.audit.report.report import AuditReport, CheckResult
from raftmq.chaos.checks.verdict import Check, Verdict
from raftmq.chaos.history.events import History, Outcome
from raftmq.chaos.report.page import (
    Page,
    PageTable,
    Row,
    check_table,
    recovery_table,
    recovery_tiles,
    render,
    send_tiles,
)
from raftmq.chaos.report.recovery import Recovery, summary

HOLES = ("offset_holes", "offset_repeats")
ORDER = ("order", "order_queues")
NAMED = {"missing", "phantom", "duplicate_broker", "duplicate_retry", "replicas", *HOLES, *ORDER}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the verdict. `holds` is None for a fact without a check."""

    name: str
    value: str
    holds: bool | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The data of the verdict."""

    load: LoadResult
    history: History
    checks: tuple[Check, ...]
    recoveries: list[Recovery]
    audit: AuditReport
    expected: DelayTable
    delay_differences: list[str]
    seconds: Mapping[str, float]  # phase of the demo → its duration


def lines_of(evidence: Evidence) -> list[Line]:
    """Return the lines of the verdict in reading order."""
    audit, figures = evidence.audit, evidence.audit.figures
    failed = [check.name for check in evidence.checks if check.verdict is not Verdict.PASS]
    rest = [check for check in audit.checks if check.name not in NAMED and not check.ok]
    lines = [
        Line("sent", f"{figures['sent']:,}"),
        Line("acknowledged", f"{figures['acknowledged']:,}"),
        Line("outcome unknown", f"{figures['unknown']:,}"),
        Line("stored", f"{figures['stored']:,}"),
        _fault("missing", audit, ("missing",)),
        _fault("phantom", audit, ("phantom",)),
        _fault("duplicates made by a broker", audit, ("duplicate_broker",)),
        Line("duplicates by a client's retry", f"{audit.count('duplicate_retry'):,}"),
        _fault("holes or repeats in queue offsets", audit, HOLES),
        _fault("order violations", audit, ORDER),
        Line("replicas identical", _yes(audit.check("replicas").ok), audit.check("replicas").ok),
        Line(
            f"all {len(audit.checks)} checks of the audit",
            "; ".join(f"{c.title}: {c.count:,}" for c in rest) or "hold",
            audit.ok,
        ),
        Line(
            f"all {len(evidence.checks)} checks of the history",
            ", ".join(failed) or "hold",
            not failed,
        ),
        Line("everything consumed", _yes(evidence.load.drained), evidence.load.drained),
        _stopped_line(evidence.load.stopped),
    ]
    lines += kill_lines(evidence.recoveries)
    lines += rate_lines(evidence.history)
    different = evidence.delay_differences
    lines.append(
        Line(
            f"delays by carrier and month ({len(evidence.expected)} figures)",
            f"{len(different)} differ" if different else "equal to the data set's",
            not different,
        )
    )
    return lines


def all_hold(lines: Sequence[Line]) -> bool:
    """Return whether all checks hold."""
    return all(line.holds is not False for line in lines)


def kill_lines(result: Sequence[Recovery]) -> list[Line]:
    """Return the time from each kill to the next acknowledged send, which every kill must have."""
    lines = [Line("leaders killed under load", f"{len(result)}", len(result) == len(KILLS_AT))]
    for number, recovery in enumerate(result, 1):
        name = f"kill {number} ({recovery.node}) to the next acknowledged send"
        if recovery.everybody_ms is None:
            lines.append(Line(name, "none", False))
        else:
            lines.append(Line(name, f"{recovery.everybody_ms:,.0f} ms", True))
    return lines


def rate_lines(history: History) -> list[Line]:
    """Return acknowledged messages per second before, between and after the kills."""
    done = sorted(send.done_ns for send in history.sends if send.outcome is Outcome.OK)
    if not done:
        return []
    cuts = [kill.invoked_ns for kill in history.kills()]
    edges = [min(send.invoked_ns for send in history.sends), *cuts, done[-1]]
    names = phase_names(len(cuts))
    lines = []
    for name, start_ns, end_ns in zip(names, edges, edges[1:], strict=False):
        count = sum(1 for t_ns in done if start_ns < t_ns <= end_ns)
        seconds = max(1, end_ns - start_ns) / 1e9
        lines.append(Line(f"acknowledged a second, {name}", f"{count / seconds:,.0f}"))
    return lines


def phase_names(kills: int) -> list[str]:
    """Return the names of the phases (before, between, after), with numbers for more than two
    kills."""
    if kills == 0:
        return ["all of it"]
    between = ["between the kills"] if kills == 2 else [f"after kill {n}" for n in range(1, kills)]
    return ["before the kills", *between, "after the last kill"]


def table_of(lines: Sequence[Line]) -> Table:
    """Return the verdict as a table."""
    table = Table(title="the verdict", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    marks = {None: "", True: "[green]holds[/]", False: "[bold red]WRONG[/]"}
    for line in lines:
        table.add_row(line.name, line.value, marks[line.holds])
    return table


def write_verdict(evidence: Evidence, lines: Sequence[Line], directory: Path) -> None:
    """Write report/verdict.json and report/index.html."""
    directory.mkdir(parents=True, exist_ok=True)
    content = orjson.dumps(verdict_data(evidence, lines), option=orjson.OPT_INDENT_2)
    (directory / "verdict.json").write_bytes(content)
    page = render(page_of(evidence, lines), evidence.history)
    (directory / "index.html").write_text(page, encoding="utf-8")


def verdict_data(evidence: Evidence, lines: Sequence[Line]) -> dict[str, Any]:
    """Return the lines and their evidence as plain data."""
    return {
        "ok": all_hold(lines),
        "lines": [{"name": x.name, "value": x.value, "holds": x.holds} for x in lines],
        "meta": evidence.history.meta,
        "recovery": summary(evidence.recoveries),
        "seconds": dict(evidence.seconds),
        "history_checks": [
            {"name": c.name, "verdict": c.verdict.value, "count": c.count, "detail": c.detail}
            for c in evidence.checks
        ],
        "audit": orjson.loads(evidence.audit.to_json()),
        "delay_differences": evidence.delay_differences,
    }


def page_of(evidence: Evidence, lines: Sequence[Line]) -> Page:
    """Return the page's texts and tables."""
    rows = tuple(
        Row((x.name, x.value), "" if x.holds is None else "pass" if x.holds else "fail")
        for x in lines
    )
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in evidence.seconds.items())
    return Page(
        "A year of departures through two leader kills",
        f"{len(evidence.history.sends):,} messages, three replicas; {seconds}",
        Verdict.PASS if all_hold(lines) else Verdict.FAIL,
        (*send_tiles(evidence.history), *recovery_tiles(evidence.recoveries)),
        (
            PageTable("The verdict", ("", ""), rows, marked=True),
            recovery_table(evidence.recoveries, evidence.history),
            _audit_table(evidence.audit.checks),
            check_table(evidence.checks),
            _delay_table(evidence.expected),
        ),
        str(evidence.history.meta.get("command", "")),
    )


def _fault(name: str, audit: AuditReport, checks: Sequence[str]) -> Line:
    count = sum(audit.count(check) for check in checks)
    return Line(name, f"{count:,}", count == 0)


def _stopped_line(stopped: Mapping[str, str]) -> Line:
    wrong = [f"{node} {how}" for node, how in stopped.items() if how != "stopped"]
    return Line("cluster stopped in order", "; ".join(wrong) or "yes", not wrong)


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def _audit_table(checks: Sequence[CheckResult]) -> PageTable:
    rows = tuple(
        Row(
            (check.title, f"{check.count:,}"),
            "pass" if check.ok else "fail",
            "\n".join(str(dict(offender)) for offender in check.offenders[:5]),
        )
        for check in checks
    )
    return PageTable("What Spark found in the three stores", ("check", "count"), rows, marked=True)


def _delay_table(delays: DelayTable) -> PageTable:
    """Sum up each carrier's year."""
    carriers: dict[str, list[int]] = {}
    for (carrier, _), figures in delays.items():
        sums = carriers.setdefault(carrier, [0, 0, 0])
        sums[0] += figures.flights
        sums[1] += figures.departures
        sums[2] += figures.delay_sum_min
    rows = tuple(
        Row((carrier, f"{flights:,}", f"{left:,}", f"{delay / left:.1f} min" if left else "none"))
        for carrier, (flights, left, delay) in sorted(carriers.items())
    )
    head = ("carrier", "flights", "departed", "mean departure delay")
    return PageTable("Departures of 2013 by carrier, from the topic", head, rows)
