"""An audit tells messages that retention deleted, when each replica did so, from lost ones."""

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from raftmq.audit.api import run_audit
from raftmq.audit.read import removed
from raftmq.audit.read.committed_range import Limits, StoreLimits
from raftmq.audit.read.log_facts import Fall, LogFacts, Times
from raftmq.audit.read.store_files import Store
from raftmq.audit.read.voters import Members
from raftmq.audit.report.report import AuditReport
from tests.audit.checks.test_acknowledged import ids, rows_of, write
from tests.audit.run import NAMES, QUEUES, TOPIC, Run, message_id
from tests.audit.stores import BORN_MS, SEGMENT_SIZE_BYTES, Message, note_time

COUNT = 80
IDLE = "Idle"  # a topic of one message, where the log ends
EARLY = "Early"  # a topic of which nothing is left
WORKED = {"began_ns": 0, "first": 0, "last": 0, "done": True}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run.plan(tmp_path, COUNT).store()
    run.log.frame(5, [Message("idle", b"the only one", topic=IDLE)])
    for name in NAMES:
        run.logs[name] = run.log.copy()
    return run.write()


def remove_first(run: Run, *names: str) -> None:
    """Delete the first segment file of these replicas, as retention does."""
    for name in names:
        (run.root / name / "store" / "commitlog" / f"{0:020d}").unlink()


def clear(run: Run, position: int, end: int, *names: str) -> None:
    """Overwrite a part of the second segment by zeros."""
    assert SEGMENT_SIZE_BYTES <= position < end <= 2 * SEGMENT_SIZE_BYTES
    for name in names:
        path = run.root / name / "store" / "commitlog" / f"{SEGMENT_SIZE_BYTES:020d}"
        data = bytearray(path.read_bytes())
        data[position - SEGMENT_SIZE_BYTES : end - SEGMENT_SIZE_BYTES] = bytes(end - position)
        path.write_bytes(data)


def acknowledged(run: Run) -> dict[str, dict[str, Any]]:
    idle = {"msg_id": "idle", "topic": IDLE, "broker": None, "queue_id": 0, "queue_offset": 0}
    return {row["msg_id"]: row for row in rows_of(run)} | {"idle": {**idle, "body_crc": None}}


def audit(run: Run, rows: dict[str, dict[str, Any]]) -> AuditReport:
    return run_audit(run.stores, acknowledged=write(run, list(rows.values())))


def in_first(run: Run) -> int:
    """The number of acknowledged messages in the first segment."""
    placed = (p for p in run.log.placed if p.message.topic == TOPIC)
    return sum(p.position < SEGMENT_SIZE_BYTES for p in placed)


def wrong(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


@pytest.mark.parametrize(
    "names", [NAMES[:1], NAMES[:2], pytest.param(NAMES, marks=pytest.mark.long)], ids=len
)
def test_replicas_remove_the_first_segment_at_different_hours(
    run: Run, names: tuple[str, ...]
) -> None:
    """A majority still has it, or one replica alone, or none."""
    remove_first(run, *names)
    report = audit(run, acknowledged(run))
    assert wrong(report) == set()
    assert report.count("removed") == (in_first(run) if len(names) > 1 else 0)


HOUR_MS = 3_600_000


def test_missing_message_younger_than_retention_is_lost(run: Run) -> None:
    """Nothing in the stores is more than two hours old; one message was sent long before."""
    remove_first(run, *NAMES)
    for name in NAMES:
        note_time(run.root / name / "store", BORN_MS + 2 * HOUR_MS)
    rows = acknowledged(run)
    rows[message_id(0)]["time_ms"] = BORN_MS - 10 * HOUR_MS
    rows[message_id(1)]["time_ms"] = BORN_MS
    path = write(run, list(rows.values()))
    report = run_audit(run.stores, acknowledged=path, retention_hours=3)
    assert wrong(report) == {"removed_early", "missing"}
    assert [
        (row["store"], row["position"], row["age_hours"])
        for row in report.check("removed_early").offenders
    ] == [(name, SEGMENT_SIZE_BYTES, "2.0") for name in NAMES]
    assert ids(report, "removed") == [message_id(0)]
    assert report.count("missing") == in_first(run) - 1
    ages = (report.figures[f"{which}_removed_age_s"] for which in ("youngest", "oldest"))
    assert [*ages] == [12 * 3600, 12 * 3600]


def timed(stores: str, start: int, low_ms: int) -> LogFacts:
    """The facts of a window of some stores' logs."""
    times = Times.of(start, low_ms, low_ms + 7, Fall(start, start, 0))
    return LogFacts(times=dict.fromkeys(stores, times))


@pytest.mark.parametrize(
    ("noted_ms", "hours", "too_early"),
    [
        (BORN_MS + 72 * HOUR_MS - 61_000, None, True),
        (BORN_MS + 72 * HOUR_MS - 59_000, None, False),  # a minute may have passed since
        (BORN_MS + 72 * HOUR_MS, 73, True),
        (BORN_MS + 2 * HOUR_MS, 1, False),
        (0, None, False),  # nothing is noted: the audit's time, years later, counts
    ],
)
def test_ages_are_as_of_the_close_of_the_stores(
    tmp_path: Path, noted_ms: int, hours: int | None, too_early: bool
) -> None:
    stores = {}
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint").write_bytes(bytes(4096))
        note_time(tmp_path / name, noted_ms if name == "b" else 0)
        stores[name] = Store(name, str(tmp_path / name))
    begins = (("a", 0), ("b", 5), ("c", 5))
    limits = Limits(
        tuple(StoreLimits(name, start, 99, 9, 9, 0, 0) for name, start in begins),
        Members(frozenset("abc"), frozenset(), ""),
        tuple("abc"),
        (),
    )
    windows = [timed("a", 0, 7), timed("abc", 5, BORN_MS), timed("bc", 20, 1)]
    facts = reduce(LogFacts.merge, windows)
    found = removed.retention_of(stores, facts, limits, hours, BORN_MS + 9_000 * HOUR_MS)
    assert found.first_ms == {"b": BORN_MS, "c": BORN_MS}
    assert found.too_early == too_early


@pytest.mark.parametrize("names", [NAMES[:2], pytest.param(NAMES, marks=pytest.mark.long)], ids=len)
def test_history_may_start_before_the_log(run: Run, names: tuple[str, ...]) -> None:
    run.log.placed.pop()  # the history has no send of it
    remove_first(run, *names)
    report = run_audit(run.stores, run.history_path)
    assert wrong(report) == set()
    assert report.count("removed") == in_first(run)


def test_replica_with_an_earlier_start_shows_messages_never_stored(run: Run) -> None:
    """Another message stands where it was acknowledged, or its queue never was."""
    remove_first(run, *NAMES[:2])
    rows = acknowledged(run)
    rows["gone"] = rows[message_id(0)] | {"msg_id": "gone"}
    rows["anywhere"] = rows["gone"] | {"msg_id": "anywhere", "queue_offset": None}
    rows["elsewhere"] = rows["gone"] | {"msg_id": "elsewhere", "topic": "NoSuchTopic"}
    report = audit(run, rows)
    assert ids(report, "missing") == ["anywhere", "elsewhere", "gone"]
    assert report.count("removed") == in_first(run)


@pytest.mark.parametrize("names", [NAMES[:2], pytest.param(NAMES, marks=pytest.mark.long)], ids=len)
def test_message_lost_on_a_majority_after_the_log_start_is_missing(
    run: Run, names: tuple[str, ...]
) -> None:
    """One of a queue that goes on before and behind it, and the only one of another."""
    lost, idle = run.placed(70), run.log.placed[-1]
    remove_first(run, *names)
    for each in (lost, idle):
        clear(run, each.position, each.position + each.size, *NAMES[:2])
    report = audit(run, acknowledged(run))
    missing = {row["id_text"]: row["held_by"] for row in report.check("missing").offenders}
    assert {message_id(70), "idle"} <= missing.keys()
    assert missing["idle"] and all(position.startswith("n2/") for position in missing["idle"])
    assert report.count("removed") == in_first(run)


def test_segment_lost_on_one_replica_excuses_no_missing_message(run: Run) -> None:
    """The others have it; one of these has lost a message."""
    remove_first(run, "n0")
    path = run.root / "n1" / "store" / "commitlog" / f"{0:020d}"
    lost = run.placed(3)
    data = bytearray(path.read_bytes())
    data[lost.position : lost.position + lost.size] = bytes(lost.size)
    path.write_bytes(data)
    report = audit(run, acknowledged(run))
    assert message_id(3) in ids(report, "missing")
    assert report.count("removed") == 0


@pytest.mark.long
def test_replica_that_was_down_long_neither_excuses_nor_shows_losses(run: Run) -> None:
    """Its log ends before that of the others begins."""
    remove_first(run, *NAMES[:2])
    for path in sorted((run.root / "n2" / "store" / "commitlog").iterdir())[1:]:
        path.unlink()
    (run.root / "n2" / "store" / "checkpoint").unlink(missing_ok=True)
    first = run.root / "n2" / "store" / "commitlog" / f"{0:020d}"
    kept = run.placed(20).position
    first.write_bytes(first.read_bytes()[:kept] + bytes(SEGMENT_SIZE_BYTES - kept))
    report = audit(run, acknowledged(run))
    assert report.count("missing") == 0
    assert report.count("removed") == in_first(run)


@pytest.mark.parametrize(
    ("begins", "voting", "voters", "begin"),
    [
        ((0, 0, 0), "abc", "abc", 0),
        ((5, 0, 0), "abc", "abc", 0),
        ((5, 5, 0), "abc", "abc", 5),
        ((5, 7, 0), "abc", "abc", 5),
        ((5, 7, 0), "ab", "ab", 7),  # the third is a learner's
        ((5, 7), "ab", "abc", 7),
        ((5,), "a", "abc", 5),  # there is no majority
        ((5, 5, 7, 0, 0), "abcde", "abcde", 5),
    ],
)
def test_log_start_is_where_a_majority_has_it(
    begins: tuple[int, ...], voting: str, voters: str, begin: int
) -> None:
    stores = tuple(
        StoreLimits(name, at, 9, 9, 9, 0, 0) for name, at in zip("abcde", begins, strict=False)
    )
    members = Members(frozenset(voters), frozenset(), "")
    absent = tuple(sorted({*voters} - {*voting}))
    assert Limits(stores, members, tuple(voting), absent).start == begin


def gone_places(run: Run) -> Iterator[tuple[int, int]]:
    """The places, (queue id, queue offset), of the history's topic in the first segment."""
    for placed in run.log.placed:
        if placed.message.topic == TOPIC and placed.position < SEGMENT_SIZE_BYTES:
            yield placed.message.queue, placed.queue_offset


def lived_through(run: Run) -> None:
    """Add what consumers and workloads did with messages that stood in the first segment."""
    history = run.history
    for queue, offset in gone_places(run):
        history.consume(queue, [offset], [], TOPIC)
    history.commit(QUEUES, 1, TOPIC)  # of this queue nothing is left
    history.event("ok", "work", p="x", group="G", broker=None, topic=EARLY, queue=0, **WORKED)
    for work in ("transactions", "delayed", "retries"):
        post = {"p": "x", "work": work, "id": work, "topic": work.title(), "delay_ms": 0}
        op = history.event("invoke", "post", **post)
        history.event("ok", "post", op, **post, attempts=1)
    op = history.event("invoke", "decide", p="x", id="transactions", decision="commit")
    history.event("ok", "decide", op, p="x", id="transactions", decision="commit")
    back = {"p": "x", "work": "retries", "id": "retries", "times": 0, "seen": 0, "dead": False}
    op = history.event("invoke", "give_back", **back)
    history.event("ok", "give_back", op, **back, tries=1)
    for topic in ("Transactions", "Delayed", "Retries"):
        history.event("ok", "drain", p="x", topic=topic, group="G", complete=True)
    for number, event in enumerate(history.events):
        event["t_ns"] = number
    history.write(run.history_path)


def test_consumer_events_before_the_log_start_are_no_fault(run: Run) -> None:
    lived_through(run)
    remove_first(run, *NAMES[:2])
    report = run_audit(run.stores, run.history_path)
    assert wrong(report) == set()
    for check in ("committed_but_lost", "delayed_and_lost", "given_back_and_lost"):
        assert report.count(check) >= 1
        assert report.check(check).title.endswith("(retention has removed messages: not decided)")


def test_impossible_consumer_events_before_the_log_start_are_a_fault(run: Run) -> None:
    run.history.consume(0, [500], [], TOPIC)
    run.history.commit(0, 9_000, TOPIC)
    run.history.write(run.history_path)
    remove_first(run, *NAMES[:2])
    report = run_audit(run.stores, run.history_path)
    assert wrong(report) == {"consumed_not_stored", "committed_beyond"}
