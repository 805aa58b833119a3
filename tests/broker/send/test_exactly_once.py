"""Requests of writers on the leader: stored once, in their order, and by nobody who was fenced."""

import pytest

from raftmq.broker.durations import DURATIONS
from raftmq.broker.errors import Refused
from raftmq.broker.send.exactly_once import checked_name
from raftmq.broker.tables.writers import NAME_LENGTH_MAX, NUMBER_MAX, open_writer
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.store.record import decode_record, walk_records
from tests.broker.send.test_frame_builder import batch_body
from tests.broker.send.test_service import Bench

KEY = ("T", "w")
CODE = int(RequestCode.SEND_WRITER_BATCH)
FENCED, UNKNOWN, GAP = "[FENCED]", "[UNKNOWN_WRITER]", "[OUT_OF_SEQUENCE]"


class Writing(Bench):
    """A leader with an open writer, at epoch 5."""

    def __init__(self, **config):
        super().__init__(**config)
        self.open(5)

    def open(self, epoch):
        command = {"op": "open_writer", "topic": "T", "writer": "w", "epoch": epoch}
        self.state.writers.apply(command, 1)

    def write(self, batch, sequence=0, *, queue="1", epoch=5, count=2, writer="w", **changes):
        body = batch_body(*[(b"%d" % n, b"", 0) for n in range(count)])
        ext = {"writer": writer, "epoch": str(epoch), "batch": str(batch)}
        ext |= {"sequence": str(sequence), "m": "true", "i": "", "e": queue}
        return self.send(body, code=CODE, **(ext | changes))

    def stored(self):
        """Commit the next frame; return its number of records, 0 if there is none."""
        frame = self.log.cut(self.sends)
        if frame is None:
            return 0
        pending = self.sends.applied(frame)
        assert pending is not None
        if len(frame.command):
            at = frame.position + frame.records_at
            self.state.apply(frame.index, frame.timestamp_ms, frame.command, at)
        self.sends.answer([pending])
        return len([decode_record(frame.data, at) for at, _ in walk_records(frame.data)])

    def told(self):
        return [
            (answer.code, (answer.remark or "").partition(" ")[0])
            for answer in self.connection.answers()
        ]

    @property
    def marks(self):
        return dict(self.state.writers.writers[KEY].watermarks)


def test_writer_batch_is_stored_once_and_answered_every_time():
    bench = Writing()
    bench.write(3)
    assert bench.stored() == 2
    assert bench.marks == {1: (3, 0)}
    for batch, sequence in ((3, 0), (2, 9), (0, 0)):
        bench.write(batch, sequence)
    assert bench.stored() == 0
    assert bench.told() == [(0, "")] * 4
    assert bench.sends.writers.repeat_count == 3
    bench.write(3, queue="2")  # of another queue: new there
    bench.write(3, 1)
    assert bench.stored() == 4
    assert bench.marks == {1: (3, 1), 2: (3, 0)}
    bench.write(9)  # a later batch; there may have been none between for this queue
    assert bench.stored() == 2


def test_writer_watermark_is_in_the_frame_of_its_messages():
    bench = Writing()
    bench.write(3)
    bench.send()
    frame = bench.log.cut(bench.sends)
    assert frame.record_count == 3 and b'"op":"wrote"' in bytes(frame.command)


def test_one_writer_batch_per_queue_is_in_flight():
    bench = Writing()
    bench.write(3)
    bench.write(3)  # nobody knows yet
    bench.write(3, 1)
    assert bench.told() == [(int(ResponseCode.SYSTEM_BUSY), "[BUSY]")] * 2
    bench.write(3, queue="0")
    assert bench.stored() == 4
    bench.write(3, 1)
    assert bench.stored() == 2


@pytest.mark.parametrize(
    ("batch", "sequence", "remark"), [(3, 2, GAP), (4, 1, GAP), (3, 5, GAP), (5, 3, GAP)]
)
def test_writer_batch_that_leaves_a_gap_is_rejected(batch, sequence, remark):
    bench = Writing()
    bench.write(batch, sequence)
    bench.write(3)
    bench.stored()
    bench.write(batch, sequence)
    assert bench.stored() == 0
    assert [each[1] for each in bench.told()] == [remark, "", remark]


def test_fenced_or_unknown_writer_is_rejected():
    bench = Writing()
    bench.write(1, epoch=4)
    bench.write(1, epoch=6)
    bench.write(1, writer="v")
    bench.write(1)
    assert bench.stored() == 2
    assert [each[1] for each in bench.told()] == [FENCED, UNKNOWN, UNKNOWN, ""]
    bench.open(6)
    bench.write(1)  # though it is stored: the old writer is not to go on
    bench.write(1, epoch=6)
    assert [each[1] for each in bench.told()] == [FENCED, ""]


def test_writer_batch_that_was_not_stored_may_be_repeated():
    bench = Writing()
    bench.write(3)
    bench.log.cut(bench.sends)
    bench.sends.truncated(1)
    bench.write(3)
    assert bench.told()[0][1] == "[NOT_LEADER]"
    bench.sends.leadership(2, False)
    assert bench.told()[0][1] == "[NOT_LEADER]"
    bench.sends.leadership(3, True)
    bench.log.term = 3
    bench.write(3)
    assert bench.stored() == 2


def test_writer_batch_of_unknown_outcome_blocks_further_batches():
    bench = Writing()
    bench.write(3)
    frame = bench.log.cut(bench.sends)
    bench.clock_ms += DURATIONS.outcome
    bench.sends.sweep()
    bench.write(3)
    bench.write(4)
    with pytest.raises(Refused, match="BUSY"):
        bench.sends.writers.start_change(KEY)
    assert [each[1] for each in bench.told()] == ["[OUTCOME_UNKNOWN]", "[BUSY]", "[BUSY]"]
    bench.answer(frame)
    bench.sends.writers.start_change(KEY)


def test_writer_batches_are_rejected_while_it_is_opened_or_deleted():
    bench = Writing()
    requests = bench.sends.writers
    requests.start_change(KEY)
    with pytest.raises(Refused, match="BUSY"):
        requests.start_change(KEY)
    bench.write(3)
    assert bench.told() == [(int(ResponseCode.SYSTEM_BUSY), "[BUSY]")]
    requests.finish_change(KEY)
    bench.write(3)
    assert bench.stored() == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": "-1"},
        {"sequence": "x"},
        {"epoch": str(NUMBER_MAX + 1)},
        {"e": "-1"},
        {"e": "9"},
        {"b": "%RETRY%g"},
    ],
)
def test_malformed_writer_batch_is_rejected_and_not_in_flight(changes):
    bench = Writing()
    ext = {"writer": "w", "epoch": "5", "batch": "1", "sequence": "0", "e": "1"}
    bench.send(batch_body((b"a", b"", 0)), code=CODE, **(ext | changes))
    bench.log.commit_commands(bench.sends.topic_changed)
    assert bench.stored() == 0
    assert bench.told()[0][0] != 0
    bench.write(1)
    assert bench.stored() == 2


def test_rejected_writer_batch_is_not_in_flight():
    bench = Writing()
    ext = {"writer": "w", "epoch": "5", "batch": "1", "sequence": "0"}
    bench.send(b"no batch", code=CODE, e="1", **ext)
    bench.send(batch_body((b"a", b"DELAY\x012\x02", 0)), code=CODE, e="1", **ext)
    assert [each[0] for each in bench.told()] == [int(ResponseCode.MESSAGE_ILLEGAL)] * 2
    bench.write(1)
    assert bench.stored() == 2


@pytest.mark.parametrize("name", ["", "a\nb", "x" * (NAME_LENGTH_MAX + 1)])
def test_writer_names_are_limited(name):
    with pytest.raises(Refused):
        checked_name(name)
    assert checked_name("x" * NAME_LENGTH_MAX)


def test_writer_is_opened_by_a_command():
    assert b'"epoch":5' in open_writer("T", "w", 5)
