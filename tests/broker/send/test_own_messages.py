"""A broker's own messages are stored in one frame with the command that belongs to them."""

import pytest

from raftmq.audit.read.log_scanner import walk_range
from raftmq.broker.durations import DURATIONS
from raftmq.broker.errors import Refused
from raftmq.broker.messages.send_request import Outgoing
from raftmq.broker.tables.state import (
    BrokerState,
    commit_offsets,
    decode_command_payload,
    put_topic,
    several,
)
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codes import ResponseCode
from raftmq.store.dispatch import Dispatcher
from raftmq.store.frame import FrameError, FrameKind, parse_frame, parse_header, seal_frame
from raftmq.store.index.key_walker import KeyWalker
from raftmq.store.record import decode_record, walk_records
from tests.broker.send.test_service import BORN, Bench


def outgoing(body=b"moved", topic="T", queue=2, properties=b"KEYS\x01k\x02TAGS\x01a\x02"):
    return Outgoing(topic, queue, body, properties, born_ms=5, born_host=BORN, reconsume=3)


def moved(offset):
    return commit_offsets([("T", "mover", 0, offset)])


class Ends:
    def __init__(self):
        self.told = []

    def __call__(self, error):
        self.told.append((0, "") if error is None else (error.code, error.remark))


def test_own_messages_and_their_command_share_a_frame_with_sends():
    bench, ends = Bench(), Ends()
    bench.send(e="2")
    bench.sends.store([outgoing(), outgoing(b"second")], moved(7), ends)
    bench.send(e="2")
    bench.sends.store([outgoing(b"third", queue=-1)], moved(8), ends)
    frame = bench.log.cut(bench.sends)
    assert frame.record_count == 5
    assert not ends.told  # nothing before commit
    bench.state.apply(frame.index, 0, frame.command)
    assert bench.state.offsets.get("T", "mover", 0) == 8
    bench.answer(frame)
    assert ends.told == [(0, ""), (0, "")]
    first, second = bench.connection.answers()
    assert (first.ext["queueOffset"], second.ext["queueOffset"]) == ("0", "3")
    assert bench.sends.held_bytes == 0
    assert bench.sends.results == {(0, ""): 2}  # of clients' sends

    records = [decode_record(frame.data, at) for at, _ in walk_records(frame.data)]
    assert [r.body for r in records] == [b"x", b"moved", b"second", b"x", b"third"]
    assert records[1].reconsume_times == 3
    assert records[1].born_timestamp_ms == 5
    for record, (at, _) in zip(records, walk_records(frame.data), strict=True):
        assert record.physical_offset == frame.position + at


def test_every_frame_reader_skips_the_command():
    bench = Bench()
    bench.sends.store([outgoing()], moved(7), Ends())
    bench.sends.store([outgoing(b"second", queue=1)], b"", Ends())
    frame = bench.log.cut(bench.sends)
    assert len(frame.command) == len(moved(7))
    assert parse_frame(frame.data) == frame
    entries = Dispatcher().index_frame(frame)
    assert [tuple(u[:3]) for u in entries] == [("T", 2, 0), ("T", 1, 0)]
    assert frame.entries == [tuple(u) for u in entries]
    walk = walk_range(memoryview(frame.data), 0, 0, len(frame.data))
    assert (len(walk.frames), len(walk.records), walk.gaps) == (1, 2, [])
    assert walk.frames[0].size == frame.records_at
    keys = KeyWalker().walk(frame.data, 0)
    assert keys.end == len(frame.data)
    assert len(keys.keys.hashes) == 2


def test_frame_header_with_a_command_longer_than_the_payload_is_damage():
    frame = seal_frame(1, 1, 0, 0, FrameKind.MESSAGES, 0, b"payload", 7)
    assert bytes(frame.command) == b"payload"
    assert frame.records_at == len(frame.data)
    with pytest.raises(AssertionError):
        seal_frame(1, 1, 0, 0, FrameKind.MESSAGES, 0, b"payload", 8)
    for kind in (FrameKind.COMMAND, FrameKind.NOOP, FrameKind.CONFIGURATION):
        other = seal_frame(1, 1, 0, 0, kind, 0, b"payload")
        assert parse_header(other.data)[0] == 67
    assert len(seal_frame(1, 1, 0, 0, FrameKind.CONFIGURATION, 0, b"payload").command) == 0
    assert bytes(seal_frame(1, 1, 0, 0, FrameKind.COMMAND, 0, b"payload").command) == b"payload"
    with pytest.raises(FrameError):
        parse_header(frame.data[:3] + b"\xff" + frame.data[4:])


def test_own_message_that_can_never_be_stored_is_rejected_by_check():
    bench = Bench()
    bench.sends.check(outgoing())
    for bad in (
        outgoing(b""),
        outgoing(b"x" * (1 << 20)),
        outgoing(properties=b"A\x01" + b"v" * 32_766),
    ):
        with pytest.raises(Refused) as caught:
            bench.sends.check(bad)
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.log.cut(bench.sends) is None


def test_own_message_callback_gets_each_outcome():
    bench, ends = Bench(), Ends()
    with pytest.raises(Refused, match="not exist"):
        bench.sends.store([outgoing(topic="nope")], b"", ends)
    with pytest.raises(Refused, match="queueId 4"):
        bench.sends.store([outgoing(queue=4)], b"", ends)
    with pytest.raises(Refused, match="do not fit"):
        bench.sends.store([outgoing(bytes(1 << 20))], b"", ends)
    bench.sends.store([outgoing()], moved(1), ends)
    bench.sends.leadership(2, False)
    assert [code for code, _ in ends.told] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    with pytest.raises(Refused, match="NOT_LEADER"):
        bench.sends.store([outgoing()], b"", ends)
    assert len(ends.told) == 1

    bench, ends = Bench(), Ends()
    bench.sends.store([outgoing()], moved(1), ends)
    bench.log.cut(bench.sends)
    bench.clock_ms += DURATIONS.outcome
    bench.sends.sweep()
    bench.sends.truncated(1)
    assert [(code, remark[:17]) for code, remark in ends.told] == [(1, "[OUTCOME_UNKNOWN]")]
    assert bench.connection.writes == []


def test_own_messages_count_for_the_limit_of_waiting_bytes():
    bench = Bench(waiting_bytes_max=10_000)
    stored = 0
    with pytest.raises(Refused, match="BUSY"):
        while True:
            bench.sends.store([outgoing(bytes(1000))], b"", Ends())
            stored += 1
    assert 1 < stored < 10


def test_internal_topic_needs_no_table_entry():
    bench, ends = Bench(), Ends()
    bench.sends.internal_topics["SCHEDULE_TOPIC_XXXX"] = TopicConfig("SCHEDULE_TOPIC_XXXX", 18, 18)
    bench.sends.store([outgoing(topic="SCHEDULE_TOPIC_XXXX", queue=17)], b"", ends)
    frame = bench.log.cut(bench.sends)
    assert len(frame.command) == 0
    bench.answer(frame)
    assert ends.told == [(0, "")]


def test_several_commands_are_applied_at_one_index():
    state = BrokerState()
    topic = put_topic(TopicConfig("New", 1, 1))
    payload = several([topic, moved(3), moved(4)])
    assert decode_command_payload(payload)["op"] == "several"
    assert state.apply(5, 0, payload).topics == ("New",)
    assert state.offsets.get("T", "mover", 0) == 4
    state.offsets.applied_index = 0
    again = BrokerState()
    again.topics.applied_index = 5  # of a newer snapshot than the rest
    assert again.apply(5, 0, payload).topics == ()
    assert again.offsets.get("T", "mover", 0) == 4
    assert several([topic]) == topic
