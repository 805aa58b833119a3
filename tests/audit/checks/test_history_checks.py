"""The checks that need the history alone, through Spark: what is planted is found, and
what clients do themselves, or faults explain, is not."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from raftmq.audit.api import AuditReport, run_audit
from tests.audit.run import TOPIC, Run
from tests.audit.stores import History, Log

pytestmark = pytest.mark.timeout(900)


def offset(history: History, queue: int, offset: int | None, **more: Any) -> int:
    """An answered commit (or what `f` says) of group G; returns its operation."""
    fields: dict[str, Any] = {"topic": TOPIC, "group": "G", "queue": queue, "offset": offset}
    fields |= {"p": "c0"} | more
    return history.event("ok", fields.pop("f", "commit"), fields.pop("op", None), **fields)


def begun(history: History, offset: int, process: str, group: str) -> int:
    place = {"topic": TOPIC, "group": group, "queue": 0, "offset": offset, "p": process}
    return history.event("invoke", "commit", **place)


def wrote(
    history: History, name: str, version: int, outcome: str = "ok", process: str = "m"
) -> None:
    fields = {"what": "topic", "name": name, "broker": "broker-a", "version": version}
    fields["p"] = process
    op = history.event("invoke", "meta_write", **fields)
    history.event(outcome, "meta_write", op, **fields)


def reading(history: History, name: str) -> int:
    return history.event("invoke", "meta_read", what="topic", name=name, broker="broker-a")


def read(history: History, name: str, version: int | None, op: int | None = None) -> None:
    op = reading(history, name) if op is None else op
    fields = {"what": "topic", "name": name, "broker": "broker-a", "version": version}
    history.event("ok", "meta_read", op, **fields)


def plant(history: History) -> None:
    """Queue n has the n-th story; so has the topic Xn."""
    offset(history, 0, 2)
    offset(history, 0, 1)  # below its own: wrong
    offset(history, 1, 2)
    offset(history, 1, 1, f="fetch", p="o")  # wrong
    offset(history, 2, 2)
    offset(history, 2, None, f="fetch", p="o")  # wrong: nothing is known any more
    wrote(history, "X0", 1)
    wrote(history, "X0", 2)
    read(history, "X0", 1)  # wrong
    wrote(history, "X1", 1)
    read(history, "X1", None)  # wrong
    wrote(history, "X2", 1)
    read(history, "X2", 9)  # wrong: nobody wrote it
    wrote(history, "X3", 1)
    wrote(history, "X3", 2, "unknown")
    read(history, "X3", 2)
    read(history, "X3", 1)  # wrong: 2 had been read
    for node in ("n0", "n1"):
        history.event("ok", "leader", node=node, term=4, group="broker-a")
    history.event("ok", "log_line", node="n1", line="AssertionError: x", level="ERROR")
    fault = {"fault": 7, "kind": "flip-header", "nodes": ["n4"]}
    number = history.event("invoke", "inject", **fault)
    began_ns = history.events[-1]["t_ns"]
    history.event("ok", "inject", number, **fault)
    for line, logged_ns in (
        ("before", began_ns - 10**9),
        ("after", began_ns + 1),
        ("some time", 0),
    ):
        words = f"StoreDamaged {line}"
        history.event("ok", "log_line", node="n4", line=words, level="ERROR", logged_ns=logged_ns)


def allow(history: History) -> None:
    """Add events that are no fault, of other consumer groups, topics, terms and nodes."""
    offset(history, 0, 9, group="G1")
    offset(history, 0, 0, group="G1", f="reset")
    offset(history, 0, 0, group="G1", f="fetch")
    offset(history, 0, 1, group="G1")
    begun(history, 1, "c1", "G2")
    offset(history, 0, 3, group="G2")
    offset(history, 0, 1, group="G2", f="fetch")  # the commit without an answer may have happened
    late = begun(history, 1, "c1", "G3")
    offset(history, 0, 3, group="G3")
    offset(history, 0, 1, group="G3", f="fetch")
    offset(history, 0, 1, group="G3", op=late, p="c1")  # it had happened
    offset(history, 0, 3, group="G4")
    offset(history, 0, 1, group="G4", p="c1")  # it took over and did not know
    offset(history, 0, 1, group="G4", f="fetch")
    two, one = begun(history, 3, "c1", "G6"), begun(history, 1, "c0", "G6")
    offset(history, 0, 1, group="G6", op=one)  # at one time: either may be the last, and stand
    offset(history, 0, 3, group="G6", op=two, p="c1")
    offset(history, 0, 1, group="G6", f="fetch")
    asked = len(history.events)
    offset(history, 0, 3, group="G5")
    offset(history, 0, None, group="G5", f="fetch", invoked_ns=asked - 1)  # asked for before
    offset(history, 0, 1, broker="broker-b")  # another register than the one without a broker
    wrote(history, "X4", 1)
    early = reading(history, "X4")
    wrote(history, "X4", 2)
    read(history, "X4", 1, early)
    wrote(history, "X4", 3, "unknown")
    read(history, "X4", 2)
    read(history, "X4", 3)
    read(history, "never written", None)
    wrote(history, "X5", 2, process="n")  # of several writers: their versions do not rise
    wrote(history, "X5", 1)
    read(history, "X5", 1)
    history.event("ok", "leader", node="n0", term=5, group="broker-a")
    history.event("ok", "leader", node="n3", term=5, group="broker-b")
    for node in ("m0", "m1"):
        history.event("ok", "leader", node=node, term=0, group="broker-a")
    fault = {"fault": 1, "kind": "disk-full", "nodes": ["n2"]}
    history.event("ok", "inject", **fault)
    history.event("ok", "log_line", node="n2", line="member_failed | OSError: [Errno 28]")
    history.event("ok", "note", text="anything")


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """A sound store of a few messages, and a history with all of the above."""
    run = Run.plan(tmp_path_factory.mktemp("observed"), count=30)
    run.log = Log(framed=False)
    run.store()
    plant(run.history)
    allow(run.history)
    run.write()
    return run_audit(spark, {"n0": run.stores["n0"]}, run.history_path, TOPIC)


def test_all_of_it_fails_the_verdict(report: AuditReport) -> None:
    assert {check.name for check in report.checks if not check.ok} == {
        "offsets_back",
        "commits_back",
        "metadata_back",
        "two_leaders",
        "log_lines",
    }


def test_offsets_that_went_back_are_named(report: AuditReport) -> None:
    rows = report.check("offsets_back").offenders
    assert [(row["queue"], row["offset"], row["floor"]) for row in rows] == [
        (1, 1, 2),
        (2, None, 2),
    ]
    (row,) = report.check("commits_back").offenders
    assert (row["p"], row["queue"], row["before"], row["offset"]) == ("c0", 0, 2, 1)


def test_metadata_that_went_back_is_named(report: AuditReport) -> None:
    rows = report.check("metadata_back").offenders
    assert [(row["name"], row["version"], row["floor"]) for row in rows] == [
        ("X0", 1, 2),
        ("X1", None, 1),
        ("X2", 9, 1),
        ("X3", 1, 2),
    ]


def test_two_leaders_and_a_bad_line_are_named(report: AuditReport) -> None:
    (row,) = report.check("two_leaders").offenders
    assert (row["group"], row["term"], row["leaders"]) == ("broker-a", 4, ["n0", "n1"])
    assert [dict(line) for line in report.check("log_lines").offenders] == [
        {"node": "n1", "line": "AssertionError: x"},
        {"node": "n4", "line": "StoreDamaged before"},
    ]
