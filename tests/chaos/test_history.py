"""The history file: what is written is read back, torn tails are tolerated, nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.history import files as module
from chaos.history.assembly import assemble
from chaos.history.events import HistoryError, Outcome
from chaos.history.files import HistoryWriter, read_history, read_records


def test_round_trip_of_every_kind_of_event(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with HistoryWriter(path, seed=7) as writer:
        op = writer.next_op()
        send = {"id": "U", "topic": "T", "key": "K", "order": "o", "seq": 3, "crc": 5}
        writer.event("invoke", "send", "p", op, **send)
        place = {"queue": 2, "offset": 9, "msg_id": "M", "attempts": 1}
        writer.event("ok", "send", "p", op, **place)
        op = writer.next_op()
        writer.event("invoke", "kill", "nemesis", op, node="n0", pid=4, role="leader")
        writer.event("ok", "kill", "nemesis", op, node="n0", pid=4, role="leader")
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
        deadline = time.monotonic() + 10
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
        "from chaos.history.files import HistoryWriter\n"
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


def test_torn_last_line_is_left_out_and_a_torn_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    meta = b'{"type":"meta","version":1,"t_ns":0}\n'
    line = b'{"type":"ok","f":"leader","op":1,"t_ns":1,"p":"o","node":"n0","term":1}\n'
    for cut in range(1, len(line)):
        path.write_bytes(meta + line[:cut])
        assert len(list(read_records(path))) in (1, 2)  # 2: only the newline is missing
    path.write_bytes(meta + line[:20] + b"\n" + line)
    with pytest.raises(HistoryError, match=r"h\.jsonl:2"):
        list(read_records(path))


def test_a_history_is_never_mixed_with_another(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    HistoryWriter(path).close()
    with pytest.raises(FileExistsError):
        HistoryWriter(path)


def test_failed_write_surfaces_at_every_later_call(tmp_path: Path) -> None:
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
    ],
)
def test_histories_that_prove_nothing(records: list[dict[str, object]], words: str) -> None:
    with pytest.raises(HistoryError, match=words):
        assemble(records)
