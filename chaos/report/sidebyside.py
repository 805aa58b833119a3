"""Makes the tables and the page that set systems side by side, schedule by schedule, from the
verdicts of their runs. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftmq.ops.page import document

from .page import PageTable, Row, again, table
from .recovery import ms_text

# Names of checks.
REPLICAS_DIFFER, WHOLE = "replicas differ", "whole again after each fault"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system's run of a schedule. `verdict` is the content of verdict.json; None: it was not
    run, and `why_not` says why."""

    words: str
    verdict: Mapping[str, Any] | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and what became of the systems under it."""

    name: str
    promise: str
    wishes: Sequence[str]
    outcomes: Sequence[Outcome]


HEAD = (
    "system", "sent", "acknowledged", "unknown", "failed", "acked and lost", "duplicates",
    "replicas that differ", "not whole again", "wedged at the end", "recovery p50 / max", "verdict",
)  # fmt: skip


def rows_of(schedule: Schedule) -> list[tuple[str, ...]]:
    """Return one row per system, under HEAD."""
    return [
        _row(outcome.words, outcome.verdict)
        if outcome.verdict is not None
        else (outcome.words, *("not run",) * (len(HEAD) - 1))
        for outcome in schedule.outcomes
    ]


def _row(words: str, data: Mapping[str, Any]) -> tuple[str, ...]:
    load, counts = data["load"], data["counts"]
    checks = {check["name"]: check for check in data["checks"]}
    return (
        words,
        *(f"{load[name]:,}" for name in ("sent", "ok", "unknown", "fail")),
        *(f"{counts[name]:,}" for name in ("lost", "duplicates")),
        _count(checks.get(REPLICAS_DIFFER)),
        f"after {checks[WHOLE]['count']} of {data['recovery']['faults']} faults",
        wedged(data),
        _recovery(data["recovery"]),
        data["verdict"],
    )


def _count(check: Mapping[str, Any] | None) -> str:
    if check is None or check["verdict"] == "unknown":
        return "unknown"
    return f"{check['count']:,}"


def wedged(data: Mapping[str, Any]) -> str:
    """Return whether sends that began after the last heal were all refused or lost."""
    later = data["after_last_heal"]
    if not later["sent"]:
        return "unknown"
    return "no" if later["ok"] else "yes"


def _recovery(found: Mapping[str, Any]) -> str:
    """Return the slowest client's time to its next acknowledged send, over all faults."""
    spread = found["worst_client"]
    if spread is None:
        return f"never in {found['faults']}"
    text = f"{ms_text(spread['p50_ms'])} / {ms_text(spread['max_ms'])}"
    missing = found["faults"] - spread["count"]
    return f"{text} ({missing} of {found['faults']} not)" if missing else text


def reasons(schedule: Schedule) -> list[str]:
    """Return in words why a system was not run, and which faults were not done."""
    found = []
    for outcome in schedule.outcomes:
        if outcome.why_not:
            found.append(f"{outcome.words}: not run: {outcome.why_not}")
        elif outcome.verdict is not None:
            found += [f"{outcome.words}: not done: {words}" for words in outcome.verdict["skipped"]]
    return found


def side_by_side_page(schedules: Sequence[Schedule], command: str) -> str:
    """Return one self-contained page."""
    parts = []
    for schedule in schedules:
        rows = tuple(Row(cells) for cells in rows_of(schedule))
        parts.append(table(PageTable(f"{schedule.name}: {schedule.promise}", HEAD, rows)))
        said = [f"faults: {' '.join(schedule.wishes)}", *reasons(schedule)]
        parts += [f"<p class='soft'>{html.escape(words)}</p>" for words in said]
    title = "Jepsen's schedules, side by side"
    return document(title, f"<h1>{title}</h1>{''.join(parts)}{again(command)}")
