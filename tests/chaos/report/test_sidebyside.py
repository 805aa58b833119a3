"""The tables that set systems side by side, from verdicts of planted histories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from raftmq.chaos.checks.suite import Suite
from raftmq.chaos.report import sidebyside
from raftmq.chaos.report.sidebyside import HEAD, Outcome, Schedule, reasons, rows_of
from raftmq.chaos.run import judge as judging
from raftmq.chaos.run.judge import judge
from tests.chaos.builder import HistoryBuilder, clean


def outcome(
    directory: Path, words: str, builder: HistoryBuilder, stuck: Sequence[str] = ()
) -> Outcome:
    directory.mkdir()
    path = directory / "history.jsonl"
    builder.inflicted(["x: no proxies"], stuck)
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in builder.records))
    result = judge(path, directory, lambda _: None)
    return Outcome(words, result.data)


def test_rows_say_what_each_lost_and_what_was_not_run(tmp_path: Path) -> None:
    keeps, loses = clean(), clean()
    keeps.fault("kill", "n0")
    keeps.sent("x", 0, 2)
    keeps.consumed(0, (2, "x"))
    keeps.replicas(n0="ab", n1="ab")
    keeps.drained()
    loses.sent("x", 0, 2)
    loses.replicas(n0="ac", n1="ab", n2="ab")
    loses.drained()
    loses.fault("kill", "n0")
    loses.ended("y", "unknown")
    schedule = Schedule(
        "jepsen-power",
        "nothing is lost",
        ("kernel-power-cut:all",),
        [
            outcome(tmp_path / "a", "keeps", keeps),
            outcome(tmp_path / "b", "loses", loses, stuck=("after kill: no leader",)),
            Outcome("absent", why_not="there is no Go & no network"),
        ],
    )
    first, second, third = (dict(zip(HEAD, row, strict=True)) for row in rows_of(schedule))
    assert (first["acked and lost"], first["replicas that differ"]) == ("0", "0")
    assert first["not whole again"] == "after 0 of 1 faults"
    assert (first["wedged at the end"], first["verdict"]) == ("no", "pass")
    assert (second["acked and lost"], second["replicas that differ"]) == ("1", "1")
    assert second["not whole again"] == "after 1 of 1 faults"
    assert (second["wedged at the end"], second["verdict"]) == ("yes", "fail")
    assert second["recovery p50 / max"] == "never in 1"
    assert set(third.values()) == {"absent", "not run"}
    assert reasons(schedule) == [
        "keeps: not done: x: no proxies",
        "loses: not done: x: no proxies",
        "absent: not run: there is no Go & no network",
    ]
    page = sidebyside.side_by_side_page([schedule], "mqchaos jepsen --dir <x>")
    for words in ("no Go &amp; no network", "jepsen-power: nothing is lost", "--dir &lt;x&gt;"):
        assert words in page


def test_checks_are_called_so() -> None:
    assert sidebyside.REPLICAS_DIFFER in Suite().names()
    assert sidebyside.WHOLE == judging.WHOLE
