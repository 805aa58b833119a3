"""The send path against a hand-made log: what is stored, answered, refused, and when."""

from typing import Any, cast

import pytest

from raftmq.broker.config import BrokerConfig
from raftmq.broker.messages import send_request as sendrequest
from raftmq.broker.messages.send_request import SendRules
from raftmq.broker.send.auto_create_topic import CREATIONS_MAX
from raftmq.broker.send.service import SendHooks, SendLog, SendPath
from raftmq.broker.state_machine import BrokerApplication
from raftmq.broker.tables.state import BrokerState
from raftmq.broker.tables.topics import TopicConfig
from raftmq.dledger.raft.errors import NotLeader
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.remoting.codes import NOT_STORED, ResponseCode
from raftmq.remoting.command import BINARY
from raftmq.remoting.fair_scheduling import finish
from raftmq.remoting.headers import SendResponseHeader
from raftmq.store.record import decode_record, pack_host, walk_records
from tests.broker.doubles import FakeConnection, FakeLog
from tests.broker.send.test_frame_builder import batch_body, fields
from tests.present import present

BORN = pack_host(("10.0.0.9", 4000))


class Bench:
    """One leader's send path."""

    def __init__(self, leading=True, on_request=lambda connection, ext: None, **config):
        self.config = BrokerConfig(**config)
        self.state = BrokerState()
        self.log = FakeLog(self.state)
        self.now_ms = 1_000
        self.clock_ms = 7
        self.leader = "me:1"
        self.ends: dict[Any, Any] = {}
        self.timers_waiting = lambda: 0
        self.unproven = None  # the error of the barrier
        self.rules = rules = SendRules(
            cluster="C",
            trace_on=True,
            store_host=pack_host(("127.0.0.1", 10911)),
            message_size_max=self.config.max_message_size,
            record_bytes_max=1 << 20,
        )
        self.sends = SendPath(
            self.config,
            self.state,
            rules,
            SendLog(
                queue_end=lambda topic, queue: self.ends.get((topic, queue), 0),
                request_cut=self.log.request_cut,
                propose=self.log.propose,
                barrier=lambda done: done(self.unproven),
                leader_address=lambda: self.leader,
            ),
            clock_ms=lambda: self.clock_ms,
            wall_ms=lambda: self.now_ms,
            hooks=SendHooks(on_request=on_request, timers_waiting=lambda: self.timers_waiting()),
        )
        self.state.topics.put(TopicConfig("T", 4, 4), 0)
        if leading:
            self.sends.leadership(1, True)
        self.connection: Any = FakeConnection()
        self.opaque = 0

    def send(self, body=b"x", one_way=False, kind=0, code=310, connection=None, **changes):
        self.opaque += 1
        sender = (connection or self.connection, self.opaque, one_way, kind)
        self.sends.receive(sender, fields(**changes), body, BORN, code)
        return self.opaque

    def commit(self):
        frame = self.log.cut(self.sends)
        self.answer(frame)
        return frame

    def answer(self, frame):
        """Answer the senders of a committed frame, which this replica proposed."""
        pending = self.sends.applied(frame)
        assert pending is not None
        self.sends.answer([pending])


def test_sends_share_a_frame_and_are_answered_after_commit():
    bench = Bench()
    bench.ends["T", 1] = 7
    other = FakeConnection("10.0.0.8:1")
    for _ in range(3):
        bench.send(e="1")
    bench.send(e="1", connection=other)
    bench.sends.wake()
    assert bench.log.cuts_requested == 1
    frame = bench.log.cut(bench.sends)
    assert frame.record_count == 4
    assert not bench.connection.writes  # nothing before commit
    bench.answer(frame)
    assert len(bench.connection.writes) == 1  # one write per connection
    answers = bench.connection.answers()
    assert [answer.opaque for answer in answers] == [1, 2, 3]
    headers = [SendResponseHeader.parse(answer.ext) for answer in answers]
    assert [(header.queue_id, header.queue_offset) for header in headers] == [
        (1, 7),
        (1, 8),
        (1, 9),
    ]
    assert [answer.opaque for answer in other.answers()] == [4]
    for header, (at, _) in zip(headers, walk_records(bytes(frame.payload)), strict=False):
        record = decode_record(frame.payload, at)
        assert header.message_id.endswith(f"{record.physical_offset:016X}")
        assert record.queue_offset == header.queue_offset
        assert record.store_timestamp_ms == 1_000
    assert bench.sends.held_bytes == 0
    assert bench.log.cut(bench.sends) is None


def test_batch_is_answered_once_with_all_ids():
    bench = Bench()
    body = batch_body((b"a", b"UNIQ_KEY\x01A\x02", 0), (b"b", b"", 0), (b"c", b"", 0))
    bench.send(body, code=320, e="2", i="UNIQ_KEY\x01A,B,C\x02")
    bench.send(e="2")
    frame = bench.commit()
    first, second = bench.connection.answers()
    header = SendResponseHeader.parse(first.ext)
    assert len(header.message_id.split(",")) == 3
    assert header.transaction_id == "A,B,C"
    assert (header.queue_offset, frame.record_count) == (0, 4)
    assert SendResponseHeader.parse(second.ext).queue_offset == 3


def many(count):
    return batch_body(*[(b"x", b"", 0)] * count)


def test_batch_of_too_many_messages_is_rejected_before_parsing(monkeypatch):
    bench = Bench()
    monkeypatch.setattr(sendrequest, "stored_properties", lambda text, rules: 1 / 0)
    bench.send(many(sendrequest.BATCH_COUNT_MAX + 1), code=320)
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark.startswith("a batch holds at most 8192 messages")
    assert bench.sends.held_bytes == 0


def test_large_batch_is_parsed_in_steps_and_stored_in_one_frame():
    bench = Bench()
    bench.send()  # makes the topic known
    bench.commit()
    bench.connection.answers()
    count = 4_000  # as many as the bench's frames have room for
    sender = (bench.connection, 1, 0, 0)
    steps = bench.sends.receive_batch(sender, fields(), many(count), BORN, 320)
    assert len(list(steps)) == count // sendrequest.BATCH_STEP
    assert bench.commit().record_count == count


def test_batch_is_rejected_if_the_leader_changes_during_parsing():
    bench = Bench()
    bench.send()
    bench.commit()
    bench.connection.answers()
    sender = (bench.connection, 1, 0, 0)
    steps = bench.sends.receive_batch(sender, fields(), many(1_000), BORN, 320)
    next(steps)
    bench.sends.leadership(2, False)
    bench.sends.leadership(3, True)
    finish(steps)
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark.startswith("[NOT_LEADER]")
    assert bench.sends.held_bytes == 0


def test_binary_request_gets_a_binary_answer_and_a_one_way_request_none():
    bench = Bench()
    bench.send(kind=BINARY)
    bench.send(one_way=True)
    bench.commit()
    (answer,) = bench.connection.answers()
    assert answer.serialize_type == BINARY
    assert SendResponseHeader.parse(answer.ext).queue_offset == 0
    bench.send(b"", one_way=True)
    assert not bench.connection.writes


def test_send_with_a_negative_queue_goes_round_robin():
    bench = Bench()
    for _ in range(8):
        bench.send(e="-1")
    bench.commit()
    queues = [SendResponseHeader.parse(a.ext).queue_id for a in bench.connection.answers()]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"e": "4"}, ResponseCode.SYSTEM_ERROR, "queueId 4"),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR, "malformed"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": "no spaces"}, ResponseCode.SYSTEM_ERROR, "characters"),
        ({"b": "t" * 128}, ResponseCode.SYSTEM_ERROR, "128 characters"),
        ({"b": "U", "c": "other"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"b": "TBW102"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"b": "R"}, ResponseCode.NO_PERMISSION, "not writable"),
    ],
)
def test_rejected_send_has_its_code_and_not_stored_mark(changes, code, part):
    bench = Bench()
    bench.state.topics.put(TopicConfig("R", 4, 4, 4), 0)
    bench.send(**changes)
    (answer,) = bench.connection.answers()
    assert answer.code == code
    assert part in answer.remark
    said = answer.ext.get(NOT_STORED)  # by the code alone it might be stored
    assert said == ("true" if code == ResponseCode.SYSTEM_ERROR else None)
    assert bench.log.cut(bench.sends) is None
    assert bench.sends.held_bytes == 0


def test_unproven_leader_does_not_reject_an_unknown_topic():
    """To a producer a missing topic is final; the leader in office may have it."""
    bench = Bench()
    bench.unproven = NotLeader("n1")
    bench.send(b="U", c="other")
    (answer,) = bench.connection.answers()
    assert (answer.code, answer.remark[:12]) == (14, "[NOT_LEADER]")
    assert answer.ext["leaderAddr"] == "me:1"


def test_automatic_topic_creation_holds_the_send_until_it_commits():
    bench = Bench(default_topic_queue_nums=3)
    bench.send(b="New", d="5", e="2")
    bench.send(b="New", d="5", e="1")
    assert len(bench.log.commands) == 1
    assert bench.log.cut(bench.sends) is None
    bench.log.commit_commands(bench.sends.topic_changed)
    assert bench.state.topics.get("New") == TopicConfig("New", 3, 3, 6)
    assert bench.log.cuts_requested == 1
    bench.commit()
    assert [answer.code for answer in bench.connection.answers()] == [0, 0]
    assert bench.sends.held_bytes == 0


def test_failed_topic_creation_rejects_the_send():
    bench = Bench()
    bench.send(b="New")
    ((_, done),) = bench.log.commands
    done(RuntimeError("no leader"))
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.ext["leaderAddr"] == "me:1"
    assert bench.sends.held_bytes == 0


def test_automatic_topic_creations_are_limited():
    bench = Bench()
    for number in range(CREATIONS_MAX):
        bench.send(b=f"New{number}")
    assert not bench.connection.writes
    bench.send(b="OneMore")
    assert bench.connection.answers()[0].code == ResponseCode.SYSTEM_BUSY


def test_retry_topics_are_created_on_demand():
    bench = Bench(auto_create_topic_enable=False)
    bench.send(b="%RETRY%g", c="x")
    bench.log.commit_commands(bench.sends.topic_changed)
    assert present(bench.state.topics.get("%RETRY%g")).write_queue_count == 1


def test_waiting_send_bytes_are_limited_and_released():
    bench = Bench(waiting_bytes_max=20_000)
    count = 0
    while not bench.connection.writes:
        bench.send(b"x" * 1000)
        count += 1
        assert count < 50
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark.startswith("[BUSY]")
    assert bench.sends.held_bytes <= 20_000
    bench.commit()
    assert bench.sends.held_bytes == 0
    bench.connection.answers()
    bench.send(b"x" * 1000)
    assert not bench.connection.writes


def test_frames_are_limited_in_size_and_a_large_message_has_its_own():
    bench = Bench(frame_size_max=4096)
    for size in (1500, 1500, 1500, 9000, 10):
        bench.send(b"x" * size)
    counts = [bench.commit().record_count for _ in range(4)]
    assert counts == [2, 1, 1, 1]
    assert len(bench.connection.answers()) == 5


def test_send_rejected_by_a_follower_and_by_a_full_disk():
    bench = Bench(leading=False)
    bench.leader = "leader:1"
    bench.sends.leadership(3, False)
    bench.send()
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark.startswith("[NOT_LEADER]")
    assert answer.ext == {"leaderAddr": "leader:1"}
    bench = Bench()
    bench.send()
    bench.sends.disk_full = "95 percent used"
    bench.send()
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark.startswith("[DISK_FULL]")


def test_lost_leadership_rejects_waiting_sends_and_keeps_proposed_ones():
    bench = Bench()
    cut = bench.send()
    frame = bench.log.cut(bench.sends)
    waiting = bench.send()
    bench.sends.leadership(1, False)
    (answer,) = bench.connection.answers()
    assert (answer.opaque, answer.code) == (waiting, ResponseCode.SERVICE_NOT_AVAILABLE)
    bench.answer(frame)  # committed by the next leader after all
    (answer,) = bench.connection.answers()
    assert (answer.opaque, answer.code) == (cut, 0)
    assert bench.sends.held_bytes == 0


def test_truncated_frames_are_not_stored():
    bench = Bench()
    bench.send()
    first = bench.log.cut(bench.sends)
    bench.send()
    bench.log.cut(bench.sends)
    bench.sends.truncated(first.index + 1)
    (answer,) = bench.connection.answers()
    assert (answer.opaque, answer.code) == (2, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert bench.sends.pending_count == 1


def test_replaced_frame_is_not_answered_ok():
    bench = Bench()
    bench.send()
    frame = bench.log.cut(bench.sends)
    other = Bench()
    other.log.term = 2
    other.sends.leadership(2, True)
    other.send()
    replacement = other.log.cut(other.sends)
    assert replacement.index == frame.index
    assert bench.sends.applied(replacement) is None
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_unknown_send_outcome_is_answered_once_after_the_time_out():
    bench = Bench()
    bench.send()
    frame = bench.log.cut(bench.sends)
    bench.clock_ms += 2_999
    bench.sends.sweep()
    assert not bench.connection.writes
    bench.clock_ms += 1
    bench.sends.sweep()
    bench.sends.sweep()
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("[OUTCOME_UNKNOWN]")
    assert bench.sends.held_bytes == 0
    pending = bench.sends.applied(frame)
    assert pending is not None
    bench.sends.answer([pending])
    assert not bench.connection.writes


def test_proposed_send_has_an_unknown_outcome_when_the_broker_stops():
    bench = Bench()
    bench.send()
    bench.log.cut(bench.sends)
    bench.sends.close()
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("[OUTCOME_UNKNOWN]")


def test_store_timestamps_never_decrease():
    bench = Bench()
    bench.send()
    bench.log.cut(bench.sends)
    bench.now_ms -= 900
    bench.send()
    frame = bench.log.cut(bench.sends)
    assert frame.timestamp_ms == decode_record(frame.payload).store_timestamp_ms == 1_000


class NoFiles:
    """ConsumeQueues that nobody reads."""

    def write_full_tails(self):
        pass

    def dispatch_frame(self, frame):
        return []


def test_new_leaders_store_timestamps_start_at_the_applied_ones():
    before, bench = Bench(), Bench(leading=False)
    before.send()
    application = BrokerApplication(
        bench.state,
        bench.sends,
        cast(Any, NoFiles()),
        log_index=LogIndex,
        on_entries=lambda _: None,
        on_topics=lambda _: None,
        on_role=lambda _: None,
    )
    application.apply([before.log.cut(before.sends)])
    bench.now_ms -= 900
    bench.sends.leadership(1, True)
    bench.send()
    assert bench.log.cut(bench.sends).timestamp_ms == 1_000


def test_new_leader_continues_queue_offsets_of_the_consume_queues():
    """Not from what it had cut before, which another leader replaced."""
    bench = Bench()
    bench.send(e="1")
    bench.log.cut(bench.sends)
    bench.sends.leadership(2, False)
    bench.sends.truncated(1)
    bench.ends["T", 1] = 5
    bench.log.term = 3
    bench.sends.leadership(3, True)
    bench.send(e="1")
    assert decode_record(bench.log.cut(bench.sends).payload).queue_offset == 5


def test_frame_request_of_another_term_gets_none():
    bench = Bench()
    bench.send()
    assert bench.sends.next_frame(2, 1, bench.log.allocate) is None
    assert bench.sends.next_frame(1, 1, bench.log.allocate) is not None


def test_failed_allocation_loses_no_send():
    bench = Bench()
    bench.send()

    def full(length):
        raise OSError(28, "no space left")

    with pytest.raises(OSError, match="no space"):
        bench.sends.next_frame(1, 1, full)
    assert bench.commit().record_count == 1
    assert SendResponseHeader.parse(bench.connection.answers()[0].ext).queue_offset == 0


def test_queues_of_a_deleted_topic_are_forgotten_once_no_record_is_in_flight():
    bench = Bench()

    def change(name, *, exists):
        if exists:
            bench.state.topics.put(TopicConfig(name, 4, 4), 1)
        else:
            bench.state.topics.delete(name, 1)
        bench.sends.topic_changed(name)

    def stored_at():
        """Send to the topic, created again and then deleted again; return the queue offset."""
        change("T", exists=True)
        bench.send(e="0")
        frame = bench.commit()
        change("T", exists=False)
        *_, (at, _) = walk_records(bytes(frame.payload))
        return decode_record(frame.payload, at).queue_offset

    assert stored_at() == 0
    assert stored_at() == 1  # the ConsumeQueue lacks the first
    bench.ends["T", 0] = 2
    change("T", exists=True)
    bench.send(e="0")  # waits
    change("T", exists=False)
    bench.ends["T", 0] = 9  # which only a forgotten queue would show
    assert stored_at() == 3
    bench.ends["T", 0] = 4
    bench.clock_ms += 5
    change("U", exists=False)
    bench.ends["T", 0] = 9
    assert stored_at() == 9


def test_queue_offsets_survive_a_topic_change_and_restart_per_leadership():
    bench = Bench()
    bench.send(e="0")
    bench.log.cut(bench.sends)  # not applied: the consume queue does not know it
    bench.state.topics.put(TopicConfig("T", 8, 8), 1)
    bench.sends.topic_changed("T")
    bench.send(e="0")
    bench.send(e="7")
    frame = bench.log.cut(bench.sends)
    records = [decode_record(frame.payload, at) for at, _ in walk_records(bytes(frame.payload))]
    assert [(r.queue_id, r.queue_offset) for r in records] == [(0, 1), (7, 0)]
    bench.sends.leadership(1, False)
    bench.ends["T", 0] = 2
    bench.sends.leadership(5, True)
    bench.log.term = 5
    bench.send(e="0")
    frame = bench.log.cut(bench.sends)
    assert decode_record(frame.payload, 0).queue_offset == 2
