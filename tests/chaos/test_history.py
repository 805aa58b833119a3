"""The history file is read back as written; torn tails are tolerated, nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raftmq.chaos.history import files as module
from raftmq.chaos.history.assembly import assemble
from raftmq.chaos.history.deferred_events import all_sends
from raftmq.chaos.history.events import HistoryError, Kind, Outcome
from raftmq.chaos.history.files import Follower, HistoryWriter, Records, read_history
from raftmq.chaos.report.figures import load_of
from tests.chaos.builder import HistoryBuilder, clean


def test_round_trip_of_every_kind_of_event(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path, seed=7) as writer:
        op = writer.next_op()
        send = {"id": "U", "topic": "T", "key": "K", "order": "o", "seq": 3, "crc": 5}
        writer.event("invoke", "send", "p", op, **send)
        position = {"queue": 2, "offset": 9, "msg_id": "M", "attempts": 1}
        writer.event("ok", "send", "p", op, **position)
        op = writer.next_op()
        kill = {"fault": 1, "kind": "kill", "nodes": ["n0"], "pid": 4, "role": "leader"}
        writer.event("invoke", "inject", "nemesis", op, **kill)
        writer.event("ok", "inject", "nemesis", op, **kill)
        batch = {"topic": "T", "queue": 2, "offsets": [9], "ids": ["U"]}
        writer.event("ok", "consume", "c", writer.next_op(), **batch)
        offset = {"topic": "T", "group": "G", "queue": 2, "offset": 10}
        writer.event("ok", "commit", "c", writer.next_op(), **offset)
        writer.event("ok", "leader", "observer", writer.next_op(), node="n1", term=2)
        drain = {"topic": "T", "group": "G", "complete": True}
        writer.event("ok", "drain", "runner", writer.next_op(), **drain)
    history = read_history(path)
    assert history.meta["seed"] == 7
    (sent,) = history.sends
    assert (sent.outcome, sent.queue, sent.offset, sent.msg_id) == (Outcome.OK, 2, 9, "M")
    assert history.start_ns <= sent.invoked_ns <= sent.done_ns
    (fault,) = history.faults
    assert (fault.kind, fault.node, fault.role, fault.pid) == ("kill", "n0", "leader", 4)
    assert history.consumes[0].ids == ("U",)
    assert history.commits[0].offset == 10
    assert history.leaders[0].term == 2
    assert history.drains[0].complete


def test_events_reach_the_file_without_close(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as writer:
        writer.event("ok", "leader", "observer", 1, node="n0", term=1)
        deadline = time.monotonic() + 60
        while len(path.read_bytes().splitlines()) < 2:
            assert time.monotonic() < deadline, "the flush thread did not write"
            time.sleep(0.01)


def test_full_buffer_is_written_by_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_INTERVAL_MS", 3_600_000)
    monkeypatch.setattr(module, "BUFFER_BYTES_MAX", 1000)
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as writer:
        size = 0
        while size == 0:
            writer.event("ok", "leader", "observer", 1, node="n" * 50, term=1)
            size = path.stat().st_size
        assert 1000 <= size < 1300


def test_killed_writer_leaves_a_readable_history(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    program = (
        "import sys, pathlib, time\n"
        "from raftmq.chaos.history.files import HistoryWriter\n"
        "w = HistoryWriter(pathlib.Path(sys.argv[1]))\n"
        "w.event('ok', 'leader', 'observer', 1, node='n0', term=1)\n"
        "w.flush(); print('ready', flush=True)\n"
        "while True: w.event('ok', 'leader', 'observer', 1, node='n0', term=1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
    assert len(read_history(path).leaders) >= 1


def test_round_trip_of_offsets_metadata_faults_and_observations(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as writer:
        position = {"topic": "T", "group": "G", "broker": "broker-a", "queue": 2}
        op = writer.next_op()
        begun_ns = writer.event("invoke", "commit", "c", op, **position, offset=7)
        writer.event("ok", "commit", "c", op, **position, offset=7)
        writer.event("invoke", "commit", "c", writer.next_op(), **position, offset=8)
        op = writer.next_op()
        writer.event("invoke", "commit", "c", op, **position, offset=9)
        writer.event("unknown", "commit", "c", op, **position, offset=9)
        writer.event("ok", "fetch", "o", writer.next_op(), **position, offset=None, invoked_ns=3)
        writer.event("ok", "reset", "a", writer.next_op(), **position, offset=0)
        writer.event("ok", "join", "c.1", writer.next_op(), group="G")
        writer.event("ok", "leave", "c.1", writer.next_op(), group="G")
        fault = {"fault": 4, "kind": "pause", "whom": "leader", "nodes": ["n0", "n1"]}
        fault |= {"role": "leader", "pid": 0, "detail": "frozen"}
        for function in ("inject", "heal"):
            op = writer.next_op()
            writer.event("invoke", function, "nemesis", op, **fault)
            writer.event("ok", function, "nemesis", op, **fault)
        op = writer.next_op()
        writer.event("invoke", "inject", "nemesis", op, **(fault | {"fault": 5}))
        writer.event("fail", "inject", "nemesis", op, **(fault | {"fault": 5}), error="no leader")
        meta = {"what": "topic", "name": "X", "broker": "broker-a"}
        op = writer.next_op()
        writer.event("invoke", "meta_write", "m", op, **meta, version=3)
        writer.event("unknown", "meta_write", "m", op, **meta, version=3)
        op = writer.next_op()
        writer.event("invoke", "meta_read", "m", op, **meta)
        writer.event("ok", "meta_read", "m", op, **meta, version=None)
        writer.event("ok", "leader", "o", writer.next_op(), node="n1", term=2, group="broker-a")
        writer.event("ok", "log_line", "o", writer.next_op(), node="n1", line="x", level="ERROR")
        writer.event("ok", "logs", "o", writer.next_op(), lines={"n1": 5})
        parts = {"n0": {"0": "aa"}, "n1": {"0": "bb"}}
        result = {"group": "broker-a", "start": 0, "end": 9, "parts": parts, "errors": {}}
        writer.event("ok", "replicas", "r", writer.next_op(), **result)
        writer.event("ok", "note", "r", writer.next_op(), text="anything")
    history = read_history(path)
    commit, fetch = history.commits
    assert (commit.invoked_ns, commit.broker, commit.offset) == (begun_ns, "broker-a", 7)
    assert commit.t_ns > begun_ns
    assert (fetch.fetched, fetch.offset, fetch.invoked_ns) == (True, None, 3)
    assert [c.offset for c in history.unanswered] == [8, 9]
    assert [c.offset for c in history.resets] == [0]
    assert (history.joins[0].process, history.leaves[0].group) == ("c.1", "G")
    (pause,) = history.faults
    assert (pause.number, pause.kind, pause.nodes, pause.node) == (4, "pause", ("n0", "n1"), "n0")
    assert pause.invoked_ns < pause.done_ns < pause.healed_ns
    (write,), (read,) = history.meta_writes, history.meta_reads
    assert (write.outcome, write.version) == (Outcome.UNKNOWN, 3)
    assert (read.outcome, read.version, read.name) == (Outcome.OK, None, "X")
    assert history.leaders[0].group == "broker-a"
    assert (history.log_lines[0].line, history.logs[0].lines) == ("x", {"n1": 5})
    assert history.replicas[0].parts == {"n0": {0: "aa"}, "n1": {0: "bb"}}
    kinds = [kind for kind, _ in history.timeline()]
    assert sorted(set(kinds)) == sorted(
        {kind for kind in Kind if kind < Kind.POSTED}
        - {Kind.SEND_INVOKED, Kind.SEND_DECIDED, Kind.CONSUMED, Kind.DRAINED}
    )


def test_history_of_deferred_messages_is_read_in_write_order(tmp_path: Path) -> None:
    plant = HistoryBuilder()
    plant.posted("a", "unknown", 2, delay_ms=1000)
    plant.decided("t", "commit", "unknown")
    plant.checked("t", "rollback")
    plant.delivered("a", 4, store_ms=9, times=1, accepted=False)
    plant.given_back("a", 1, seen=2, tries=3, dead=True)
    plant.stored("a", 5)
    plant.scanned()
    plant.worked(2, 3, 1, done=False)
    plant.popped("a")
    plant.pop_ended("a")
    plant.locked("c")
    plant.posted("b")
    history = plant.build()
    kinds = [kind for kind, _ in history.timeline()]
    assert kinds == [kind for kind, _ in history.later]
    assert set(kinds) == {kind for kind in Kind if kind >= Kind.POSTED}
    started, ended = (event for kind, event in history.later[:2])
    assert (started.outcome, ended.outcome, ended.attempts) == (Outcome.OPEN, Outcome.UNKNOWN, 2)
    first, second = all_sends(history)
    assert (first.id, first.outcome, first.attempts) == ("a", Outcome.UNKNOWN, 2)
    assert (second.outcome, second.done_ns > second.invoked_ns) == (Outcome.OK, True)
    assert (load_of(history).sent, load_of(history).ok) == (2, 1)


def test_commits_and_sends_without_the_optional_fields_are_read() -> None:
    builder = clean()
    history = builder.build()
    assert {send.broker for send in history.sends} == {""}
    assert all(send.due_ns == send.invoked_ns and send.promised for send in history.sends)
    assert [c.invoked_ns == c.t_ns for c in history.commits] == [True, True]


def test_follower_reads_a_history_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as writer, Follower(path) as follower:
        writer.flush()
        assert [r["type"] for r in follower.poll()] == ["meta"]
        assert follower.poll() == []
        for number in range(3):
            writer.event("ok", "leader", "o", number, node="n0", term=number)
        writer.flush()
        assert [r["term"] for r in follower.poll()] == [0, 1, 2]


def test_follower_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    line = b'{"type":"ok","f":"leader"}\n'
    with path.open("wb", buffering=0) as file:
        with Follower(path) as follower:
            for cut in range(1, len(line)):
                file.write(line[cut - 1 : cut])
                assert follower.poll() == []
            file.write(line[-1:] + b"nonsense\n")
            with pytest.raises(HistoryError, match=r"h\.jsonl:2"):
                follower.poll()


def test_follower_reads_a_part_of_the_file_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES_MAX", 20)
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path) as writer:
        for number in range(50):
            writer.event("ok", "leader", "o", number, node="n0", term=number)
    with Follower(path) as follower:
        result = [record for batch in iter(follower.poll, []) for record in batch]
    assert [record.get("term") for record in result] == [None, *range(50)]


def test_torn_last_line_is_ignored_and_a_torn_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    meta = b'{"type":"meta","version":1,"t_ns":0}\n'
    line = b'{"type":"ok","f":"leader","op":1,"t_ns":1,"p":"o","node":"n0","term":1}\n'
    for cut in range(1, len(line)):
        path.write_bytes(meta + line[:cut])
        records = Records(path)
        assert len(list(records)) in (1, 2)  # 2: only the newline is missing
        assert records.torn is (cut < len(line) - 1)
        assert read_history(path).torn is records.torn
    path.write_bytes(meta + line[:20] + b"\n" + line)
    with pytest.raises(HistoryError, match=r"h\.jsonl:2"):
        list(Records(path))


def test_existing_history_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    HistoryWriter(path).close()
    with pytest.raises(FileExistsError):
        HistoryWriter(path)


def test_failed_write_is_raised_at_every_later_call(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "h.jsonl")
    writer.flush()
    with open("/dev/full", "wb", buffering=0) as full:
        os.dup2(full.fileno(), writer._fd)
    writer.event("ok", "leader", "observer", 1, node="n0", term=1)
    with pytest.raises(OSError):
        writer.flush()
    with pytest.raises(OSError):
        writer.event("ok", "leader", "observer", 1, node="n0", term=1)
    with pytest.raises(OSError):
        writer.close()


META_READ = {
    "type": "invoke", "f": "meta_read", "op": 1, "t_ns": 1, "p": "m", "what": "topic", "name": "X"
}  # fmt: skip
SEND_OK = {"type": "ok", "f": "send", "op": 1, "t_ns": 2, "queue": 0, "offset": 0}


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "begins with a meta line"),
        ([{"type": "ok", "f": "send"}], "begins with a meta line"),
        ([{"type": "meta", "version": 2}], "version 2"),
        (
            [{"type": "meta", "version": 1}, {"type": "ok", "f": "send", "op": 1, "t_ns": 1}],
            "no invoke",
        ),
        ([{"type": "meta", "version": 1}, {"type": "ok", "f": "commit"}], "commit record without"),
        ([{"type": "meta", "version": 1}, {"type": "ok", "f": "x"}], "unknown kind"),
        ([{"type": "meta", "version": 1}, META_READ, META_READ], "invoked twice"),
        ([{"type": "meta", "version": 1}, META_READ, SEND_OK], "ends as another kind"),
    ],
)
def test_contradictory_history_is_rejected(records: list[dict[str, object]], words: str) -> None:
    with pytest.raises(HistoryError, match=words):
        assemble(records)
