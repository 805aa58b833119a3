"""Turns a written history into verdict.json and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from ..checks.experiment import was_run
from ..checks.suite import (
    BY_CLIENT_RETRY,
    LOST,
    MADE_BY_BROKERS,
    METADATA,
    OFFSETS,
    OFFSETS_BACK,
    SENT_ONCE,
    suite_of,
)
from ..checks.verdict import Check, LostMessage, Verdict, merge
from ..history.deferred_events import all_sends
from ..history.events import History, Outcome
from ..history.files import read_history
from ..report.figures import Load, lateness_of, load_of
from ..report.page import write_report
from ..report.recovery import Recovery, recoveries, summary

RECOVERED = "whole again after each fault"
WATCHED = "found by the continuous audit"
LOSSES = ("missing", "altered", "unread")  # kinds of its findings
# Keys of verdict["counts"] → the checks with the counted violations.
COUNTED = {
    "lost": (LOST,),
    "duplicates": (MADE_BY_BROKERS, SENT_ONCE, BY_CLIENT_RETRY),
    "offsets_back": (OFFSETS, OFFSETS_BACK),
    "metadata_back": (METADATA,),
}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    verdict: Verdict
    checks: tuple[Check, ...]
    recoveries: list[Recovery]
    load: Load
    lost: tuple[LostMessage, ...]
    skipped: tuple[str, ...]
    history: Path
    page: Path
    data: dict[str, Any]  # the content of verdict.json


def judge(
    path: Path,
    directory: Path,
    say: Callable[[str], None],
    page: Path | None = None,
) -> RunResult:
    """Judge `path`; write verdict.json and report.html. Raises HistoryError, OSError."""
    say("checking the history")
    history = read_history(path)
    if history.stuck is None:
        _recall(history, path.with_name("verdict.json"))
    suite = suite_of(history)
    checks = (was_run(history), *suite.results())
    if history.stuck is not None:
        checks = (*checks, recovered_check(history, history.stuck))
    if history.watched is not None:
        checks = (*checks, watched_check(history.watched))
    result = recoveries(history)
    page = page or directory / "report.html"
    write_report(history, checks, page)
    load = load_of(history)
    data = verdict_data(history, checks, result, load, suite.lost())
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2)
    (directory / "verdict.json").write_bytes(text)
    return RunResult(
        merge(checks), checks, result, load, suite.lost(), history.skipped, path, page, data
    )


def _recall(history: History, verdict: Path) -> None:
    """Read the outcome of the faults from the run's own verdict, if there is one. The history of an
    interrupted run does not have it, and a new verdict must not be better than the run's."""
    try:
        saved = orjson.loads(verdict.read_bytes())
        history.skipped = tuple(saved["skipped"])
        recovered = [check for check in saved["checks"] if check["name"] == RECOVERED]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if recovered:
        history.stuck = tuple(recovered[0]["examples"])


def recovered_check(history: History, stuck: Sequence[str]) -> Check:
    """Check that every heal brought back leaders in all groups and up-to-date replicas."""
    count = len(history.faults)
    detail = f"{count} faults"
    if stuck:
        return Check(RECOVERED, Verdict.FAIL, len(stuck), detail, tuple(stuck[:10]))
    return Check(RECOVERED, Verdict.PASS, 0, detail)


def watched_check(watched: Mapping[str, Any]) -> Check:
    """Check that the continuous audit found every acknowledged message. Messages that were late,
    and groups that were behind, are allowed, because faults were in effect."""
    findings = watched["findings"]
    wrong = sum(findings.get(kind, 0) for kind in LOSSES)
    allowed = ", ".join(f"{n:,} {kind}" for kind, n in findings.items() if kind not in LOSSES)
    detail = f"{watched['judged']:,} acknowledgements judged, killed {watched['kills']} times"
    detail += f"; allowed: {allowed}" if allowed else ""
    examples = tuple(watched["examples"]) if wrong else ()
    verdict = Verdict.FAIL if wrong else Verdict.PASS if watched["judged"] else Verdict.UNKNOWN
    return Check(WATCHED, verdict, wrong, detail, examples)


def after_last_heal(history: History) -> dict[str, int]:
    """Return the sends after the last heal, and the acknowledged. A wedged cluster has none."""
    healed_ns = max((fault.healed_ns for fault in history.faults), default=0)
    later = [send for send in all_sends(history) if send.invoked_ns > healed_ns and not send.shed]
    return {"sent": len(later), "ok": sum(send.outcome is Outcome.OK for send in later)}


def verdict_data(
    history: History,
    checks: Sequence[Check],
    recoveries: Sequence[Recovery],
    load: Load,
    lost: Sequence[LostMessage],
) -> dict[str, Any]:
    counts = {check.name: check.count for check in checks}
    return {
        "verdict": merge(checks).value,
        "meta": history.meta,
        "load": load.plain(),
        "after_last_heal": after_last_heal(history),
        "counts": {
            key: sum(counts.get(name, 0) for name in names) for key, names in COUNTED.items()
        },
        "checks": [
            {
                "name": check.name,
                "verdict": check.verdict.value,
                "count": check.count,
                "detail": check.detail,
                "examples": list(check.examples),
            }
            for check in checks
        ],
        "faults": Counter(fault.kind for fault in history.faults),
        "skipped": list(history.skipped),
        "recovery": summary(recoveries),
        "lateness": lateness_of(history),
        "lost": [asdict(message) for message in lost],
    }
