"""Delivery of delayed messages, by a leader over a hand-made log: what is delivered when."""

from types import SimpleNamespace
from typing import Any

from raftmq.broker.delayed.delay_levels import (
    COUNT_MAX,
    HISTORY_MAX,
    HISTORY_STEP_MS,
    RETRY_MS,
    DelayService,
    OffsetHistory,
)
from raftmq.broker.durations import DURATIONS
from raftmq.broker.replication.classic import keep_within
from raftmq.broker.scheduler import IDLE_MS
from raftmq.broker.tables.delay_offsets import DelayOffsets
from raftmq.broker.tables.state import delay_progress
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES, SCHEDULE_TOPIC
from raftmq.store.errors import StoreDamaged
from raftmq.store.properties import decode_properties
from raftmq.store.record import decode_record, walk_records
from tests.broker.send.test_service import Bench
from tests.present import present

LEVELS = "1s 2s 60s"


class Queue:
    """A queue's entries and records."""

    def __init__(self, queue_id):
        self.queue_id = queue_id
        self.min_offset = 0
        self.packed = b""
        self.records = []

    @property
    def max_offset(self):
        return len(self.records)

    def entries(self, offset, count):
        if not self.min_offset <= offset < self.max_offset:
            return b""
        return self.packed[offset * QUEUE_ENTRY_BYTES : (offset + count) * QUEUE_ENTRY_BYTES]


class Stage:
    """One leader: sends, queues, tables, delivery."""

    def __init__(self, **config):
        self.bench = Bench(message_delay_level=LEVELS, **config)
        self.queues = {}
        self.turns = []
        self.leading = True
        self.unreadable = None
        self.failed_reads = []
        self.service = self.leader()

    def leader(self):
        return DelayService(self.context(self), self.bench.sends, self.turns.append)

    def context(self, reads):
        """The broker's parts that deliveries use; `reads`: who looks messages up."""
        bench = self.bench
        return SimpleNamespace(
            config=bench.config,
            state=bench.state,
            store=SimpleNamespace(queues=self, reads=reads),
            durations=DURATIONS,
            log=SimpleNamespace(propose_then=bench.log.propose, read_failed=self.read_failed),
            roles=self,
            clock_ms=lambda: bench.clock_ms,
            wall_ms=lambda: bench.now_ms,
        )

    def queue(self, topic, queue_id):
        return self.queues.get((topic, queue_id))

    def end_of(self, topic, queue_id):
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def read_failed(self, error, again):
        self.failed_reads.append(error)

    def get_messages(self, topic, queue_id, offset, count, size):
        if self.unreadable is not None:
            raise self.unreadable
        result = self.queues[topic, queue_id].records[offset : offset + count]
        return SimpleNamespace(buffers=result, next_offset=offset + len(result))

    def send(self, level, count=1, **changes):
        for _ in range(count):
            self.bench.send(i=f"UNIQ_KEY\x01A\x02DELAY\x01{level}\x02TAGS\x01t\x02", **changes)
        return self.commit()

    def commit(self):
        """The next frame is applied; returns its records, None if there is none."""
        frame = self.bench.log.cut(self.bench.sends)
        if frame is None:
            return None
        pending = present(self.bench.sends.applied(frame))
        for topic, queue_id, _, packed in frame.entries:
            queue = self.queues.setdefault((topic, queue_id), Queue(queue_id))
            queue.packed += packed
        records = []
        for at, size in walk_records(frame.data):
            record = decode_record(frame.data, at)
            self.queues[record.topic, record.queue_id].records.append(frame.data[at : at + size])
            records.append(record)
        if len(frame.command):
            self.bench.state.apply(frame.index, 0, frame.command)
        assert pending is not None
        self.bench.sends.answer([pending])
        return records

    def passes(self, ms):
        self.bench.now_ms += ms
        self.bench.clock_ms += ms
        self.service.tick()

    def progress(self, level):
        return self.bench.state.delays.get(level)


def test_delayed_message_is_delivered_once_when_due():
    stage = Stage()
    (parked,) = stage.send(2, e="3", j="4")
    stage.passes(1_999)
    assert stage.commit() is None
    stage.passes(1)
    (message,) = stage.commit()
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 0)
    assert message.store_timestamp_ms == parked.store_timestamp_ms + 2_000
    assert message.born_timestamp_ms == parked.born_timestamp_ms
    assert message.born_host == parked.born_host
    assert message.reconsume_times == 4
    properties = decode_properties(message.properties)
    assert properties["DELAY"] == "2"
    assert properties["UNIQ_KEY"] == "A"
    assert stage.progress(2) == 1
    stage.service = stage.leader()  # the next leader has the same tables
    stage.passes(100_000)
    assert stage.commit() is None


def test_delay_level_has_one_delivery_in_flight():
    stage = Stage()
    stage.send(1, 2)
    stage.passes(1_000)
    stage.passes(50)
    assert len(stage.commit()) == 2
    assert stage.commit() is None
    assert stage.service.delivered_count == 2


def test_delay_levels_do_not_wait_for_each_other():
    stage = Stage()
    stage.send(3)
    stage.send(1)
    stage.passes(1_000)
    assert len(stage.commit()) == 1
    stage.passes(59_000)
    assert len(stage.commit()) == 1
    assert (stage.progress(1), stage.progress(3)) == (1, 1)


def test_delayed_deliveries_per_turn_are_limited_and_continue_at_once():
    stage = Stage()
    stage.send(1, COUNT_MAX)
    stage.send(2, COUNT_MAX)
    stage.passes(2_000)
    first = stage.commit()
    assert len(first) == COUNT_MAX
    for total in (2, 3):  # no time passes
        while stage.turns:
            stage.turns.pop()()
        assert (stage.commit() is None) == (total == 3)
    assert (stage.progress(1), stage.progress(2)) == (COUNT_MAX, COUNT_MAX)


def test_follower_delivers_no_delayed_messages():
    stage = Stage()
    stage.send(1)
    stage.leading = False
    stage.passes(5_000)
    assert stage.commit() is None


def test_delayed_delivery_waits_for_an_unknown_outcome():
    stage = Stage()
    stage.send(1)
    stage.passes(1_000)
    frame = stage.bench.log.cut(stage.bench.sends)
    stage.bench.clock_ms += DURATIONS.outcome
    stage.bench.sends.sweep()
    stage.passes(60_000)
    assert stage.bench.log.cut(stage.bench.sends) is None
    stage.bench.state.apply(frame.index, 0, frame.command)  # it was committed after all
    stage.bench.sends.applied(frame)
    stage.send(1)
    stage.passes(1_000)
    assert len(stage.commit()) == 1
    assert stage.progress(1) == 2


def test_delayed_delivery_lost_with_leadership_is_repeated():
    stage = Stage()
    stage.send(1)
    stage.passes(1_000)
    stage.bench.log.cut(stage.bench.sends)
    stage.service.leadership_changed()
    stage.bench.sends.truncated(1)
    stage.bench.sends.leadership(2, False)
    stage.bench.log.term = 2
    stage.bench.sends.leadership(2, True)
    stage.passes(1)
    assert len(stage.commit()) == 1


def test_rejected_delayed_delivery_is_retried_after_a_pause():
    stage = Stage()
    stage.send(1)
    stage.bench.sends.disk_full = "no room"
    stage.passes(1_000)
    stage.bench.sends.disk_full = ""
    stage.passes(RETRY_MS - 1)
    assert stage.commit() is None
    stage.passes(1)
    assert len(stage.commit()) == 1


def test_unreadable_delayed_message_is_retried():
    stage = Stage()
    stage.send(1)
    for error in (OSError("bad sector"), StoreDamaged(0, "no record")):
        stage.unreadable = error
        stage.passes(1_000)
        assert stage.commit() is None
    assert [str(error) for error in stage.failed_reads] == ["bad sector"]
    stage.unreadable = None
    stage.passes(RETRY_MS)
    assert len(stage.commit()) == 1


def test_clock_behind_delays_no_message_beyond_its_level():
    stage = Stage()
    stage.send(2)
    stage.bench.now_ms -= 3_600_000
    stage.passes(0)  # the new leader's first look
    stage.passes(1_999)
    assert stage.commit() is None
    stage.passes(1)
    assert len(stage.commit()) == 1


def test_delay_offset_history_returns_waited_offsets_and_is_bounded():
    history = OffsetHistory(10_000)
    history.record(5, 0)
    history.record(9, HISTORY_STEP_MS - 1)  # too soon after the other
    history.record(9, HISTORY_STEP_MS)
    assert history.waited_before(9_999) == 0
    assert history.waited_before(10_000) == 5
    assert history.waited_before(10_000 + HISTORY_STEP_MS) == 9
    history.clear()
    assert history.waited_before(100_000) == 0
    day = OffsetHistory(86_400_000)
    for number in range(2 * HISTORY_MAX):
        day.record(number + 1, number * 30_000)
    now_ms = 2 * HISTORY_MAX * 30_000
    waited = day.waited_before(now_ms)
    assert 0 <= (now_ms - 86_400_000) / 30_000 + 1 - waited < 2
    assert len(day._marks) <= HISTORY_MAX


def test_delayed_messages_removed_by_retention_are_skipped(caplog):
    stage = Stage()
    stage.send(1, 3)
    stage.queues[SCHEDULE_TOPIC, 0].min_offset = 2
    stage.passes(500)
    stage.passes(500)
    assert len(stage.commit()) == 1
    assert stage.progress(1) == 3
    said = [
        record.getMessage() for record in caplog.records if record.name == "raftmq.broker.delay"
    ]
    assert said == ["delayed_lost level=1 count=2: retention took them"]


def test_delay_progress_beyond_a_truncated_queue_resumes_with_new_messages():
    stage = Stage()
    stage.send(1)
    stage.bench.state.delays.advance(1, 7)  # classic mode alone loses a log's end
    (view,) = stage.service.view()
    assert (view.offset, view.max_offset) == (1, 1)
    assert keep_within(stage.bench.state, stage.end_of)
    stage.send(1, 3)
    stage.passes(5_000)
    assert [record.queue_offset for record in stage.commit()] == [0, 1, 2]
    assert stage.progress(1) == 4


def test_delayed_record_without_a_target_is_skipped():
    stage = Stage()
    stage.send(1)
    queue = stage.queues[SCHEDULE_TOPIC, 0]
    queue.records[0] = queue.records[0].replace(b"REAL_QID\x010", b"REAL_QID\x01x")
    stage.passes(1_000)
    assert stage.commit() is None
    stage.bench.log.commit_commands()
    assert stage.progress(1) == 1
    stage.send(1)
    stage.passes(1_000)
    assert len(stage.commit()) == 1


def test_delayed_message_above_the_size_limit_does_not_block_its_level():
    stage = Stage(max_message_size=2 << 20)
    stage.send(1)
    stage.bench.send(b"x" * (1 << 20), i="DELAY\x011\x02")
    stage.commit()
    stage.send(1)
    stage.passes(1_000)
    delivered: list[Any] = []
    for _ in range(6):
        delivered += stage.commit() or []
        stage.bench.log.commit_commands()
        stage.passes(RETRY_MS)
    assert [len(record.body) for record in delivered] == [1, 1]
    assert stage.progress(1) == 3


def test_delay_level_view_has_offsets_and_waiting_counts():
    stage = Stage()
    stage.send(1, 2)
    stage.send(3)
    stage.bench.now_ms += 1_500
    assert stage.service.view() == [(1, 1_000, 0, 2, 500), (3, 60_000, 0, 1, 0)]


def test_delay_table_is_apaches_file():
    table = DelayOffsets()
    table.load({"offsetTable": {"1": 10, "3": 7}}, 5)  # 4.x writes no dataVersion
    assert (table.get(1), table.get(2), table.applied_index) == (10, 0, 5)
    twin = DelayOffsets()
    twin.offsets = table.offsets
    twin.own()
    table.advance(2, 1)
    assert twin.get(2) == 0
    again = DelayOffsets()
    again.load(table.to_json(), 5)
    assert again.offsets == {1: 10, 2: 1, 3: 7}
    assert again.counter == 1


def test_reapplied_delay_progress_changes_nothing():
    stage = Stage()
    state = stage.bench.state
    state.apply(3, 0, delay_progress(1, 9))
    state.apply(4, 0, delay_progress(1, 11))
    state.apply(3, 0, delay_progress(1, 9))
    assert state.delays.get(1) == 11


def rest_ms(stage):
    (chore,) = stage.service.service().chores
    return chore.rest_ms()


def test_delay_service_is_due_at_its_first_message():
    stage = Stage()
    assert rest_ms(stage) == IDLE_MS
    stage.send(2)
    stage.bench.now_ms += 500
    stage.bench.clock_ms += 500
    assert rest_ms(stage) == 1_500
    stage.send(1)
    assert rest_ms(stage) == 1_000
    stage.passes(1_000)
    assert rest_ms(stage) == 500, "the first is on its way: of the other level"
    stage.commit()
    stage.passes(600)
    stage.commit()
    assert rest_ms(stage) == IDLE_MS
    stage.send(1)
    stage.leading = False
    assert rest_ms(stage) == IDLE_MS


def test_delay_service_pauses_after_a_rejection():
    stage = Stage()
    stage.send(1)
    stage.bench.sends.disk_full = "no room"
    stage.passes(1_000)
    assert rest_ms(stage) == RETRY_MS
