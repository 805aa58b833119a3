"""The audit of whole groups: a clean one passes, and each kind of planted damage is found.

Every audit below has several kinds planted at once, each at messages of its own, and every test
looks at one kind: the check that must see it sees it, exactly it. What else must see it as well
stands in the set of wrong checks that each audit has.
"""

import json
import struct
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from raftmq.audit import run as job
from raftmq.audit.api import AuditReport, run_audit
from raftmq.audit.checks.checks import Check
from raftmq.audit.read.store_files import StoreError
from raftmq.audit.report.report import OFFENDERS_MAX, CheckResult
from raftmq.dledger.raft.configuration import (
    Configuration,
    GroupMember,
    decode_configuration,
    encode_configuration,
)
from raftmq.dledger.storage.configuration_file import ConfigurationFile
from raftmq.store.disk import OsDisk
from raftmq.store.frame import FrameKind
from tests.audit.run import NAMES, TOPIC, Run, message_id
from tests.audit.stores import Log, Message, properties_of, unit_bytes

pytestmark = pytest.mark.timeout(900)


CONFIGURATION = encode_configuration(
    Configuration(tuple(GroupMember(name, f"{name}:1", i) for i, name in enumerate(NAMES)))
)


def audit(run: Run) -> AuditReport:
    return run_audit(run.stores, run.history_path, TOPIC)


def wrong(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if not check.ok}


def ids(report: AuditReport, check: str) -> list[str]:
    return sorted(row["id_text"] for row in report.check(check).offenders)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """A group in which nothing is wrong, though much of what may happen did."""
    run = Run.plan(tmp_path_factory.mktemp("clean"))
    # A retry stored twice; unknown and open sends stored and not; a failure that is not stored.
    run.messages.insert(14, run.messages[10])
    run.outcomes[message_id(10)] = ("ok", 2)
    run.outcomes[message_id(20)] = ("unknown", 1)
    run.outcomes[message_id(21)] = ("unknown", 3)
    run.outcomes[message_id(22)] = ("fail", 1)
    run.outcomes[message_id(23)] = ("open", 0)
    run.messages = [m for m in run.messages if m.id not in (message_id(21), message_id(22))]
    # Of unknown outcome and stored late: its sender did not wait for it.
    late = next(m for m in run.messages if m.id == message_id(20))
    run.messages.remove(late)
    run.messages.append(late)
    run.store(first_index=40)
    # n2 lags and has, behind its commit, what a deposed leader left there.
    lagging = run.logs["n2"]
    position, _ = run.log.frames[-3]
    behind = Log(framed=True)
    behind.end, behind.index, behind.segments = position, 99, lagging.segments
    for base in [base for base in lagging.segments if base > position]:
        del lagging.segments[base]
    lagging.patch(position, bytes(-position % run.log.segment_size_bytes))
    behind.frame(3, [Message("E" * 32, b"never committed")])
    run.commits["n2"] = position
    run.commits["n1"] = 0  # killed before it wrote a checkpoint
    for key, content in run.units["n2"].items():
        kept = [content[i : i + 20] for i in range(0, len(content), 20)]
        run.units["n2"][key] = b"".join(
            unit for unit in kept if struct.unpack_from(">q", unit)[0] < position
        )
    queue_0 = [p for p in run.log.placed if p.message.topic == TOPIC and p.message.queue == 0]
    offsets = [p.queue_offset for p in queue_0]
    run.history.consume(0, offsets, [p.message.id for p in queue_0], TOPIC)
    run.history.consume(0, offsets[-1:], [], TOPIC)
    run.history.commit(0, len(offsets), TOPIC)
    run.write()
    return audit(run)


def test_clean_group_passes(clean: AuditReport) -> None:
    assert wrong(clean) == set()
    assert clean.ok
    assert clean.figures == {
        "sent": 60,
        "acknowledged": 56,
        "unknown": 3,
        "failed": 1,
        "stored": 59,
        "stored_messages": 58,
        "unknown_stored": 2,
        "weakly_acknowledged": 0,
    }
    assert {store.store for store in clean.stores} == set(NAMES)


def test_permitted_events_are_counted(clean: AuditReport) -> None:
    assert ids(clean, "duplicate_retry") == [message_id(10)]
    assert ids(clean, "order_unknown") == [message_id(20)]
    assert clean.count("redelivered") == 1
    assert clean.count("not_consumed_yet") == 40
    assert b'"ok": true' in clean.to_json()


OTHER_FIELDS = (
    {"KEYS": "other"},
    {"KEYS": ""},  # sent without
    {"TAGS": "BB"},
    {"__SHARDINGKEY": "other"},
    {"colour": "blue"},
    {"size": "large"},
)


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """Wrong messages in a log that is flawless as a log."""
    run = Run.plan(tmp_path_factory.mktemp("messages"))
    stored = {m.id: m for m in run.messages}
    run.messages.remove(stored[message_id(5)])  # missing
    run.messages.insert(30, Message("F" * 32, b"never sent", queue=1))  # phantom
    run.bodies_sent[message_id(7)] = b"another body"  # altered
    for number, change in enumerate(OTHER_FIELDS, 20):
        stored[message_id(number)].more = {"colour": "red"}
        properties = properties_of(stored[message_id(number)]) | change
        kept = {name: value for name, value in properties.items() if value}
        run.fields_sent[message_id(number)] = (0, kept)
    run.fields_sent[message_id(26)] = (1, properties_of(stored[message_id(26)]))  # another flag
    run.messages.insert(40, stored[message_id(8)])  # made by the broker: one attempt, two copies
    run.messages[42:42] = [stored[message_id(9)]] * 2  # three copies of two attempts
    run.outcomes[message_id(9)] = ("unknown", 2)
    run.outcomes[message_id(11)] = ("fail", 1)
    run.acknowledged_as[message_id(12)] = {"offset": 17}  # misplaced by queue offset
    run.acknowledged_as[message_id(13)] = {"msg_id": "7F00000100002A9F" + "0" * 13 + "400"}
    # The last two of an order key the wrong way round: 59 is its last.
    last, before = stored[message_id(59)], stored[message_id(50)]
    i, j = run.messages.index(before), run.messages.index(last)
    run.messages[i], run.messages[j] = last, before
    run.messages[run.messages.index(stored[message_id(45)])].order = "elsewhere"
    moved = Message(message_id(100), b"other queue", queue=2, order="elsewhere")
    run.messages.append(moved)
    run.sent.append(moved)
    run.seqs[moved.id] = 90
    # Queue offsets of another topic: one left out, and one given twice.
    run.messages.append(Message("A" * 32, b"", topic="Holes", queue=1))
    run.messages.append(Message("B" * 32, b"", topic="Holes", queue=1, queue_offset=2))
    run.messages.append(Message("C" * 32, b"", topic="Repeats", queue=3))
    run.messages.append(Message("D" * 32, b"", topic="Repeats", queue=3, queue_offset=0))
    run.store().write()
    return audit(run)


def test_wrong_messages_fail_the_verdict(messages: AuditReport) -> None:
    assert not messages.ok
    assert wrong(messages) == {
        "missing",
        "phantom",
        "altered",
        "duplicate_broker",
        "failed_stored",
        "misplaced",
        "order",
        "order_queues",
        "offset_holes",
        "offset_repeats",
        "queue_index",  # two records of one queue offset: a unit can point at one of them
        "not_indexed",
    }


@pytest.mark.parametrize(
    ("check", "numbers"),
    [
        ("missing", [5]),
        ("altered", [7, *range(20, 27)]),
        ("duplicate_broker", [8, 9]),
        ("failed_stored", [11]),
        ("misplaced", [12, 13]),
        ("order", [50]),
    ],
)
def test_wrong_message_is_named(messages: AuditReport, check: str, numbers: list[int]) -> None:
    assert ids(messages, check) == [message_id(number) for number in numbers]
    assert messages.count(check) == len(numbers)


def test_checks_without_history_events_are_omitted(messages: AuditReport) -> None:
    names = {check.name for check in messages.checks}
    assert not names & {
        "linearizable_consumer_offsets",
        "linearizable_metadata",
        "two_leaders_in_one_term",
        "failures_in_server_logs",
    }
    assert messages.mode == "raft"


def test_phantom_is_named(messages: AuditReport) -> None:
    assert ids(messages, "phantom") == ["F" * 32]


def test_order_key_in_two_queues_is_named(messages: AuditReport) -> None:
    assert [row["order"] for row in messages.check("order_queues").offenders] == ["elsewhere"]


def test_hole_in_queue_offsets_is_named(messages: AuditReport) -> None:
    (row,) = messages.check("offset_holes").offenders
    assert (row["topic"], row["queue_id"]) == ("Holes", 1)
    assert (row["expected"], row["queue_offset"]) == (1, 2)


def test_repeated_queue_offset_is_named(messages: AuditReport) -> None:
    (row,) = messages.check("offset_repeats").offenders
    assert (row["topic"], row["queue_id"]) == ("Repeats", 3)
    assert (row["expected"], row["queue_offset"]) == (1, 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, AuditReport]:
    """Bytes of n1 damaged in four ways, and units of n2 in five."""
    run = Run.plan(tmp_path_factory.mktemp("files")).store()
    damaged = run.logs["n1"]
    damaged.flip(run.placed(3).position + 90)  # a body
    damaged.patch(run.placed(20).position, b"\0" * 100)  # a record's head
    damaged.flip(run.log.frames[9][0] + 20)  # a frame's header
    command = next(at for at, size in run.log.frames if size == 60 + 14 * 20)
    damaged.flip(command + 70)  # a command's payload
    units = run.units["n2"]

    def edit(number: int, at: int, data: bytes) -> None:
        placed = run.placed(number)
        key = (TOPIC, placed.message.queue)
        start = placed.queue_offset * 20 + at
        units[key] = units[key][:start] + data + units[key][start + len(data) :]

    edit(0, 0, struct.pack(">q", run.log.end + 5000))  # points behind the log; 0 has no unit
    edit(4, 8, struct.pack(">i", 7))  # size
    edit(8, 12, struct.pack(">q", 1))  # tags code
    edit(9, 0, unit_bytes(run.placed(12)))  # points at the record of another offset; 9 has no unit
    edit(13, 0, unit_bytes(run.placed(14)))  # points at a record of another queue; 13 has no unit
    edit(17, 0, bytes(20))  # no unit
    run.write()
    return run, audit(run)


def test_damaged_files_fail_the_verdict(files: tuple[Run, AuditReport]) -> None:
    assert wrong(files[1]) == {
        "damage",
        "replicas",
        "frame_sequence",  # the frame whose header is gone
        "frame_records",
        "queue_index",
        "not_indexed",
    }


def test_damaged_bytes_are_named(files: tuple[Run, AuditReport]) -> None:
    run, report = files
    result = {
        (row["position"], row["what"].split(":")[0]) for row in report.check("damage").offenders
    }
    assert {row["store"] for row in report.check("damage").offenders} == {"n1"}
    assert (run.placed(3).position, "record") in result
    assert (run.placed(20).position, "hole") in result
    assert (run.log.frames[9][0], "hole") in result
    command = next(at for at, size in run.log.frames if size == 60 + 14 * 20)
    assert (command, "frame") in result
    # The frames around the two records say so too.
    assert report.count("damage") == 6


def test_first_different_byte_is_named(files: tuple[Run, AuditReport]) -> None:
    run, report = files
    rows = report.check("replicas").offenders
    assert {(row["store"], row["unlike"], row["because"]) for row in rows} == {
        ("n1", "n0", "a majority has these bytes")
    }
    assert rows[0]["location"].startswith("commitlog/00000000000000000000:")
    differences = [row["first_difference"] for row in rows]
    first_segment_damage = min(
        run.placed(3).position + 90,
        next(at for at, size in run.log.frames if size == 60 + 14 * 20) + 70,
    )
    assert differences[0] == first_segment_damage
    assert report.count("replicas") == len(rows)


def test_wrong_queue_entries_are_named(files: tuple[Run, AuditReport]) -> None:
    run, report = files
    n2 = [row for row in report.check("queue_index").offenders if row["store"] == "n2"]
    assert sorted((row["position"], row["what"]) for row in n2) == sorted(
        [
            (run.log.end + 5000, "points at no record"),
            (run.placed(4).position, "wrong size"),
            (run.placed(8).position, "wrong tags code"),
            (run.placed(12).position, "record of another offset"),
            (run.placed(14).position, "record of another queue"),
        ]
    )
    others = [row for row in report.check("queue_index").offenders if row["store"] != "n2"]
    # n1's zeroed record has a unit still.
    assert [(r["store"], r["position"]) for r in others] == [("n1", run.placed(20).position)]


def test_records_without_queue_entry_are_named(files: tuple[Run, AuditReport]) -> None:
    run, report = files
    rows = report.check("not_indexed").offenders
    assert [(row["store"], row["position"]) for row in rows] == [
        ("n2", run.placed(number).position) for number in (0, 9, 13, 17)
    ]


@pytest.fixture(scope="module")
def raft(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """Frames that are whole, and break Raft's invariants: in all stores, and in n2 alone."""
    run = Run.plan(tmp_path_factory.mktemp("raft")).store()
    log = run.log
    log.other(9, FrameKind.NOOP)
    log.other(8, FrameKind.NOOP)  # the term falls
    log.other(9, FrameKind.NOOP, index=log.index + 3)  # two indexes are left out
    unlike = log.copy()
    log.other(9, FrameKind.COMMAND, b"one thing")
    unlike.other(9, FrameKind.COMMAND, b"or another")
    for name in NAMES:
        run.logs[name] = unlike if name == "n2" else log
        run.commits[name] = log.end
    # A frame of seven records that says it has eight.
    liar = next(at for at, size in log.frames if size > 60 + 14 * 20)
    for name in NAMES:
        resealed(run.logs[name], liar, 8)
    run.write()
    return audit(run)


def resealed(log: Log, position: int, record_count: int) -> None:
    """Change a frame's record count and seal its header again."""
    head = bytearray(log.byte(position + i) for i in range(56))
    head[44:48] = struct.pack(">i", record_count)
    log.patch(position, bytes(head) + struct.pack(">I", crc32c(bytes(head))))


def test_broken_invariants_fail_the_verdict(raft: AuditReport) -> None:
    assert wrong(raft) == {
        "frame_sequence",
        "frame_agreement",
        "frame_records",
        "replicas",
    }


def test_falling_terms_and_index_gaps_are_named(raft: AuditReport) -> None:
    rows = [row for row in raft.check("frame_sequence").offenders if row["store"] == "n0"]
    steps = [(row["term_before"], row["frame_term"]) for row in rows]
    assert (9, 8) in steps
    assert [r["frame_index"] - r["index_before"] for r in rows if r["frame_term"] == 9] == [3]
    assert raft.count("frame_sequence") == 3 * 2


def test_index_with_two_frames_is_named(raft: AuditReport) -> None:
    (row,) = raft.check("frame_agreement").offenders
    assert row["frame_term_min"] == row["frame_term_max"] == 9


def test_wrong_record_count_is_named(raft: AuditReport) -> None:
    rows = raft.check("frame_records").offenders
    assert [(row["store"], row["record_count"], row["records_found"]) for row in rows] == [
        (name, 8, 7) for name in NAMES
    ]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, AuditReport]:
    """n0 has lost its last segment, n1 one in the middle; with the tail two of three are gone."""
    run = Run.plan(tmp_path_factory.mktemp("cut"), count=150).store()
    run.write()
    names = sorted(run.log.segments)
    assert len(names) >= 3
    (run.root / "n0" / "store" / "commitlog" / f"{names[-1]:020d}").unlink()
    (run.root / "n1" / "store" / "commitlog" / f"{names[-2]:020d}").unlink()
    tail = run.root / "n1" / "store" / "commitlog" / f"{names[-1]:020d}"
    content = tail.read_bytes()
    tail.write_bytes(content[:200] + bytes(len(content) - 200))
    return run, audit(run)


def test_lost_files_fail_the_verdict(cut: tuple[Run, AuditReport]) -> None:
    assert {"missing", "commit", "segments", "damage", "replicas"} <= wrong(cut[1])


def test_commit_that_no_store_has_is_named(cut: tuple[Run, AuditReport]) -> None:
    run, report = cut
    rows = report.check("commit").offenders
    assert [row["store"] for row in rows] == list(NAMES)
    assert {row["commit"] for row in rows} == {run.log.end}


def test_missing_segment_is_named(cut: tuple[Run, AuditReport]) -> None:
    run, report = cut
    names = sorted(run.log.segments)
    assert report.check("segments").offenders == (
        {"store": "n1", "from": names[-2], "to": names[-1]},
    )


def test_log_that_ends_too_early_is_named(cut: tuple[Run, AuditReport]) -> None:
    rows = cut[1].check("damage").offenders
    assert ("n1", "log stops: zeros") in {(row["store"], row["what"]) for row in rows}


def test_messages_on_a_minority_are_missing(cut: tuple[Run, AuditReport]) -> None:
    run, report = cut
    last_segment = max(run.log.segments)
    gone = [p for p in run.log.placed if p.message.topic == TOPIC and p.position > last_segment]
    assert report.count("missing") >= len(gone) - 1 > OFFENDERS_MAX
    assert len(report.check("missing").offenders) == OFFENDERS_MAX


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, AuditReport]:
    """Message 40 was acknowledged and then cut out of n0 and n1, neatly: what follows moved up."""
    run = Run.plan(tmp_path_factory.mktemp("last")).store()
    without = Run.plan(run.root)
    without.messages = [m for m in without.messages if m.id != message_id(40)]
    without.store()
    for name in ("n0", "n1"):
        run.logs[name], run.units[name] = without.logs[name], without.units[name]
        run.commits[name] = without.log.end
    run.write()
    return run, audit(run)


def test_replica_with_the_last_copy_of_a_message_is_named(last: tuple[Run, AuditReport]) -> None:
    run, report = last
    (row,) = [r for r in report.check("missing").offenders if r["id_text"] == message_id(40)]
    at = run.placed(40).position
    base = at - at % run.log.segment_size_bytes
    assert row["held_by"] == [f"n2/commitlog/{base:020d}:{at - base}"]


def test_replica_with_the_last_copy_is_never_blamed(last: tuple[Run, AuditReport]) -> None:
    rows = last[1].check("replicas").offenders
    assert {(row["store"], row["unlike"]) for row in rows} == {("n0", "n2"), ("n1", "n2")}
    assert {row["because"] for row in rows} == {"it has an acknowledged message that others lost"}


@pytest.fixture(scope="module")
def absent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AuditReport]:
    """Audits of n2 alone: n0 and n1 are gone. What tells of them differs."""
    root = tmp_path_factory.mktemp("absent")
    nodes = [{"name": name, "group": "broker-a"} for name in NAMES]
    reports = {}
    for told_by in ("nothing", "cluster.json", "frame", "file"):
        run = Run.plan(root / told_by)
        if told_by == "frame":
            run.log.other(1, FrameKind.CONFIGURATION, CONFIGURATION)
        run.store(first_index=80).write()  # behind the frame of the configuration in the file
        store = run.root / "n2" / "store"
        if told_by == "cluster.json":
            content = {"mode": "raft", "nodes": nodes}
            (run.root / "cluster.json").write_text(json.dumps(content))
        if told_by == "file":
            file = ConfigurationFile(OsDisk(str(store)), "raft")
            file.save(77, decode_configuration(CONFIGURATION))
            file.close()
        only = {"n2": str(store)}
        reports[told_by] = run_audit(only, run.history_path, TOPIC)
    return reports


@pytest.mark.parametrize("told_by", ["cluster.json", "frame", "file"])
def test_absent_stores_are_counted_and_named(absent: dict[str, AuditReport], told_by: str) -> None:
    report = absent[told_by]
    assert report.voters == NAMES
    assert [row["store"] for row in report.check("absent_stores").offenders] == ["n0", "n1"]
    assert report.count("missing") == report.figures["acknowledged"] == 60
    assert report.agreed_end == 0
    assert "absent_stores" in wrong(report)
    assert wrong(absent["nothing"]) == set()  # nobody knows better


def test_stores_under_other_names_than_the_voters_are_rejected(tmp_path: Path) -> None:
    run = Run.plan(tmp_path)
    run.log.other(1, FrameKind.CONFIGURATION, CONFIGURATION)
    run.store().write()
    with pytest.raises(StoreError, match="the voters are n0, n1, n2"):
        run_audit({"a": run.stores["n0"]}, run.history_path, TOPIC)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """A history at odds with itself, and consumers that saw what is not there. Classic logs."""
    run = Run.plan(tmp_path_factory.mktemp("accounts"))
    run.log = Log(framed=False)
    run.outcomes[message_id(1)] = ("ok", 1)
    run.store()
    first, queue_1 = run.placed(0), [p for p in run.log.placed if p.message.queue == 1]
    run.history.ok(run.history.invoke(Message("9" * 32, b""), 0), first)  # acknowledged, missing
    run.history.ok(77_777, first)  # without invoke
    run.history.ok(run.history.op, first)  # a second outcome
    run.history.lost(run.history.invoke(run.messages[6]), "unknown")  # an id used again
    run.history.consume(0, [0, 500], [first.message.id, "8" * 32], TOPIC)  # 500 is not stored
    run.history.consume(1, [0], [first.message.id], TOPIC)  # stored there is another message
    run.history.consume(1, [p.queue_offset for p in queue_1[1:]], [], TOPIC)
    run.history.commit(2, 10_000, TOPIC)
    run.history.drain(True, TOPIC)
    run.write()
    return audit(run)


def test_unfit_history_fails_the_verdict(accounts: AuditReport) -> None:
    assert wrong(accounts) == {
        "history_operations",
        "history_ids",
        "missing",
        "not_consumed",
        "committed_beyond",
    }
    assert all(store.frames == 0 for store in accounts.stores)


def test_history_faults_are_named(accounts: AuditReport) -> None:
    operations = accounts.check("history_operations").offenders
    assert [(row["invokes"], row["outcomes"]) for row in operations] == [(1, 2), (0, 1)]
    assert [row["id_text"] for row in accounts.check("history_ids").offenders] == [message_id(6)]


def test_classic_consumed_but_not_stored_is_named_and_no_fault(accounts: AuditReport) -> None:
    rows = accounts.check("consumed_not_stored").offenders
    assert [(row["queue"], row["offset"]) for row in rows] == [(0, 500), (1, 0)]


def test_never_consumed_is_a_fault_after_the_consumers_were_done(accounts: AuditReport) -> None:
    # Queue 0 but its first, and all of queue 2.
    assert accounts.count("not_consumed") == 19 + 20


def test_offset_committed_beyond_the_end_is_named(accounts: AuditReport) -> None:
    (row,) = accounts.check("committed_beyond").offenders
    assert (row["group"], row["queue"], row["committed"], row["end"]) == ("G", 2, 10_000, 20)


def test_order_of_a_single_store_is_its_own_majority(tmp_path: Path) -> None:
    """One classic store, as an Apache broker without replicas has it."""
    run = Run.plan(tmp_path, count=12)
    run.log = Log(framed=False)
    run.store().write()
    report = run_audit({"n0": run.stores["n0"]}, run.history_path, TOPIC)
    assert wrong(report) == set()
    assert report.figures["stored"] == 12


def test_equal_stores_are_not_checked_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.plan(tmp_path).store()
    run.write()
    requested: list[str] = []
    evaluate = job.evaluate

    def evaluated(checks: list[Check]) -> list[CheckResult]:
        requested.extend(check.name for check in checks if check.table is not None)
        return evaluate(checks)

    monkeypatch.setattr(job, "evaluate", evaluated)
    report = run_audit(run.stores)
    assert report.ok and report.figures["stored"] == len(run.log.placed)
    assert requested == []
    assert {"offset_holes", "damage", "frame_sequence", "queue_index"} <= {
        check.name for check in report.checks
    }
