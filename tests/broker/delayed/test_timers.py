"""Delivery of timer messages, by leaders over a hand-made log: what is delivered when."""

import random
from typing import Any

import pytest

from raftmq.broker.delayed import timers
from raftmq.broker.delayed.timers import (
    COUNT_MAX,
    RECALL_MS,
    RETRY_MS,
    STEP_MS,
    TimerService,
)
from raftmq.broker.durations import DURATIONS
from raftmq.broker.messages.timer_message import Key, recall_message, timed
from raftmq.broker.scheduler import IDLE_MS
from raftmq.broker.tables.timer_wheel import NOTHING, TimerWheel
from raftmq.remoting.recall_handle import RecallHandle
from raftmq.store.dispatch import QUEUE_ENTRY, TIMER_TOPIC
from raftmq.store.errors import StoreDamaged
from raftmq.store.properties import decode_properties
from raftmq.store.record import decode_record
from tests.broker.delayed import test_delay_levels as test_delay
from tests.broker.send.test_service import BORN

NOW = 1_800_000_000_000
KEPT_MS = 7_200_000


class Stage(test_delay.Stage):
    """One leader: sends, queues, tables, delivery. Its messages go to topic T."""

    def __init__(self, **config):
        super().__init__(file_reserved_time=KEPT_MS // 3_600_000, **config)
        self.bench.now_ms = NOW
        self.service = self.leader()
        self.at = {}  # position → record

    def leader(self):
        wheel = TimerWheel()
        self.bench.timers_waiting = lambda: wheel.count
        return TimerService(self.context(self), self.bench.sends, wheel, self.turns.append)

    def starts_ahead(self, ms):
        self.bench.now_ms += ms
        self.service = self.leader()

    def read_failed(self, error, again):
        self.failed_reads.append((error, again))

    def message_at(self, position, budget=None):
        if self.unreadable is not None:
            raise self.unreadable
        return self.at[position]

    def offset_by_time(self, topic, queue_id, ms):
        assert (topic, queue_id) == (TIMER_TOPIC, 0)
        times = [decode_record(r).store_timestamp_ms for r in self.waiting().records]
        return next((n for n, stored in enumerate(times) if stored >= ms), len(times))

    def waiting(self):
        return self.queues[TIMER_TOPIC, 0]

    def admit(self, key, delay_ms, body=b"x"):
        self.bench.send(body, i=f"UNIQ_KEY\x01{key}\x02TIMER_DELAY_MS\x01{delay_ms}\x02")

    def send_timer(self, key, delay_ms, **changes):
        self.admit(key, delay_ms, **changes)
        return self.commit()

    def commit(self):
        """Keys of what the next frame has for consumers; None without a frame."""
        records = super().commit()
        self.bench.log.commit_commands()
        if records is None:
            return None
        for record in records:
            packed = self.queues[record.topic, record.queue_id].records[record.queue_offset]
            self.at[record.physical_offset] = packed
        result = [decode_properties(r.properties) for r in records if r.topic == "T"]
        return [properties["UNIQ_KEY"] for properties in result]

    def loses_leadership(self):
        self.service.leadership_changed()
        self.bench.sends.truncated(1)
        term = self.bench.log.term = self.bench.log.term + 1
        self.bench.sends.leadership(term, False)
        self.bench.ends = {key: queue.max_offset for key, queue in self.queues.items()}
        self.bench.sends.leadership(term, True)

    def recall(self, key, delay_ms):
        sends, timing = self.bench.sends, self.service.timing
        handle = RecallHandle("T", "b", self.bench.now_ms + delay_ms, key)
        message = recall_message(handle, "pg", 1, BORN)
        message = timed(message, decode_properties(message.properties), timing)
        over = self.service.recalling(handle.deliver_ms - 1, Key("T", key))
        sends.store([message], b"", lambda *_: over())
        return over

    @property
    def timer(self):
        return self.bench.state.delays.timer


@pytest.mark.parametrize("seed", range(12))
def test_timer_messages_are_delivered_once_in_order_over_leader_changes(seed):
    rng = random.Random(seed)
    stage = Stage()
    due, delivered, under_way = {}, [], 0
    for number in range(300):
        step = rng.randrange(12)
        if step < 5:
            delay_ms = rng.choice((1, 5, 40, 900, 20_000))
            stage.admit(f"K{number}", delay_ms)
            due[f"K{number}"] = stage.bench.now_ms + delay_ms
        elif step < 9:
            for key in stage.commit() or ():
                assert stage.bench.now_ms >= due[key]
                delivered.append(key)
        elif step < 11 or under_way > 3:
            stage.passes(rng.choice((1, 30, 700, 10_000)))
        else:
            under_way += 1
            lost = {key for key in due if key not in delivered}
            stage.loses_leadership()
            waits = {decode_properties(decode_record(r).properties)["UNIQ_KEY"]
                     for r in (stage.waiting().records if stage.queues else ())}  # fmt: skip
            for key in lost - waits:
                del due[key]  # its send was not committed
            if rng.random() < 0.5:
                stage.service = stage.leader()  # another replica
    for _ in range(60):
        stage.passes(10_000)
        delivered += stage.commit() or ()
        delivered += stage.commit() or ()
    assert sorted(delivered) == sorted(due)
    assert stage.service.view()[:2] == (0, 0)


@pytest.mark.parametrize("lasts", [False, True])
def test_clock_jump_ahead_is_used_after_a_time_for_peers_to_contradict(lasts):
    stage = Stage()
    stage.send_timer("soon", 1_000)
    stage.send_timer("late", 60_000)
    stage.bench.now_ms += 3_600_000
    stage.passes(1_000)
    assert stage.commit() is None
    stage.bench.now_ms -= 0 if lasts else 3_600_000  # set right again
    stage.passes(DURATIONS.timer_hold - 1)
    assert stage.commit() is None
    stage.passes(1)
    assert stage.commit() == (["soon", "late"] if lasts else ["soon"])


def test_slewed_clock_delays_no_timer_message():
    stage = Stage()
    for number in range(10):
        stage.send_timer(f"K{number}", 1_000)
        stage.bench.now_ms += STEP_MS
        stage.passes(1_000)
        assert stage.commit() == [f"K{number}"]


def test_timer_message_committed_after_a_later_delivery_is_late_not_lost():
    stage = Stage()
    stage.send_timer("first", 10)
    stage.admit("second", 5)  # on its way into the log
    stage.passes(20)
    assert stage.timer == NOTHING
    assert stage.commit() == ["first"]  # one frame has both: the delivery and the later message
    assert stage.timer.end == 1
    stage.passes(0)
    assert stage.commit() == ["second"]
    assert stage.timer[1:3] == (0, 2)


def test_timer_deliveries_per_turn_are_limited_and_continue_at_once():
    stage = Stage()
    for number in range(COUNT_MAX + 5):
        stage.admit(f"K{number}", 10)
    stage.commit()
    stage.passes(10)
    assert len(stage.commit()) == COUNT_MAX
    stage.turns.pop()()  # no time passes
    assert len(stage.commit()) == 5
    assert stage.service.delivered_count == COUNT_MAX + 5


def test_follower_tracks_timer_messages_and_delivers_none():
    stage = Stage()
    stage.send_timer("K", 1_000)
    stage.leading = False
    stage.passes(5_000)
    assert stage.commit() is None
    assert stage.service.view() == (1, 4_000, 0, 1)


def test_timer_delivery_waits_for_an_unknown_outcome():
    stage = Stage()
    stage.send_timer("K", 10)
    stage.passes(10)
    frame = stage.bench.log.cut(stage.bench.sends)
    stage.bench.clock_ms += DURATIONS.outcome
    stage.bench.sends.sweep()
    stage.passes(60_000)
    assert stage.bench.log.cut(stage.bench.sends) is None
    stage.bench.state.apply(frame.index, 0, frame.command)  # it was committed after all
    stage.bench.sends.applied(frame)
    stage.passes(1)
    assert stage.service.view().waiting == 0
    assert stage.bench.log.cut(stage.bench.sends) is None


def test_timer_delivery_retries_after_a_rejection_or_read_error():
    stage = Stage()
    stage.send_timer("K", 10)
    stage.bench.sends.disk_full = "no room"
    stage.passes(10)
    stage.bench.sends.disk_full = ""
    stage.passes(RETRY_MS - 1)
    assert stage.commit() is None
    for error in (OSError("bad sector"), StoreDamaged(0, "no record")):
        stage.unreadable = error
        stage.passes(RETRY_MS)
        assert stage.commit() is None
    ((error, again),) = stage.failed_reads
    assert str(error) == "bad sector"
    with pytest.raises(StoreDamaged):
        again()
    stage.unreadable = None
    again()
    stage.passes(RETRY_MS)
    assert stage.commit() == ["K"]


def test_timer_message_above_the_size_limit_does_not_block_later_ones(caplog):
    stage = Stage(max_message_size=2 << 20)
    stage.send_timer("A", 10)
    stage.send_timer("large", 10, body=b"x" * (1 << 20))
    stage.send_timer("B", 10)
    delivered: list[Any] = []
    for _ in range(8):
        stage.passes(RETRY_MS)
        delivered += stage.commit() or []
    assert delivered == ["A", "B"]
    assert "timer_undeliverable" in caplog.text


def test_timer_message_without_a_target_or_lost_by_the_log_is_skipped(caplog):
    stage = Stage()
    for key in "ABC":
        stage.send_timer(key, 10)
    record = stage.waiting().records[1].replace(b"REAL_QID\x010", b"REAL_QID\x01x")
    stage.at[decode_record(record).physical_offset] = record
    stage.passes(0)
    stage.waiting().min_offset = 1
    stage.passes(10)
    assert stage.commit() == ["C"]
    assert "timer_lost offset=0" in caplog.text
    assert "timer_without_target" in caplog.text


def test_due_timer_message_waits_for_its_undecided_recall():
    stage = Stage()
    for key in ("before", "doubtful", "behind"):
        stage.admit(key, 1_000)
    stage.commit()
    handle_slot = stage.bench.now_ms + 999
    stage.passes(999)
    refused = stage.service.recalling(handle_slot, Key("T", "doubtful"))
    stage.passes(1)
    assert stage.commit() == ["before"]
    for _ in range(3):
        stage.passes(RECALL_MS)
        assert not stage.commit()
    refused()
    stage.passes(RECALL_MS)
    assert stage.commit() == ["doubtful", "behind"]


def test_recall_still_on_its_way_into_the_log_stops_the_delivery():
    stage = Stage()
    for key in ("stays", "goes", "goes too"):
        stage.admit(key, 1_000)
    stage.commit()
    stage.recall("goes", 1_000)
    stage.commit()
    stage.passes(999)
    stage.recall("goes too", 1)
    stage.bench.now_ms += 1
    stage.service.tick()
    assert stage.commit() == ["stays"]
    stage.passes(RECALL_MS)
    stage.commit()
    stage.passes(0)
    assert stage.service.view().waiting == 0
    assert stage.service.is_delivered(NOW + 999)


def test_timer_message_that_blocks_retention_is_stored_again():
    stage = Stage()
    stage.send_timer("far", 3 * KEPT_MS)
    stage.send_timer("near", 1_000)
    first = QUEUE_ENTRY.unpack(stage.waiting().entries(0, 1))[0]
    second = QUEUE_ENTRY.unpack(stage.waiting().entries(1, 1))[0]
    stage.passes(0)
    assert stage.service.spare(first) == first  # nothing waits before it
    assert stage.service.spare(second + 1) == first
    stage.passes(0)
    assert stage.commit() == []
    assert stage.timer.floor == 2
    stage.passes(0)
    assert stage.service.spare(second + 1) == second + 1
    assert stage.service.rolled_count == 2
    stage.passes(2_000)
    assert stage.commit() == ["near"]
    rolled = decode_properties(decode_record(stage.waiting().records[2]).properties)
    assert rolled["TIMER_ROLL_TIMES"] == "1"
    stage.passes(KEPT_MS // 2 - 5_000)
    assert stage.commit() is None  # not for so long
    stage.passes(20_000)
    assert stage.commit() == []
    assert (stage.service.rolled_count, stage.timer.floor) == (3, 4)
    for _ in range(20):
        stage.passes(KEPT_MS // 4)
        result = stage.commit()
        if result:
            break
    assert result == ["far"]
    assert stage.bench.now_ms >= NOW + 3 * KEPT_MS
    stage.passes(1)
    assert stage.service.view().waiting == 0


def test_timer_queue_entries_of_an_apache_broker_are_read_from_the_log():
    stage = Stage()
    stage.send_timer("K", 1_000)
    queue = stage.waiting()
    at, size, _ = QUEUE_ENTRY.unpack(queue.packed)
    queue.packed = QUEUE_ENTRY.pack(at, size, 65)
    stage.passes(999)
    assert stage.commit() is None
    stage.passes(1)
    assert stage.commit() == ["K"]


def test_timer_queue_that_lost_its_end_is_read_again():
    stage = Stage()
    stage.send_timer("A", 1_000)
    stage.send_timer("B", 1_000)
    stage.passes(1)
    queue = stage.waiting()
    queue.records.pop()
    queue.packed = queue.packed[: QUEUE_ENTRY.size]
    stage.passes(1)
    assert stage.service.view()[:1] == (1,)
    assert stage.bench.timers_waiting() == 1  # the send path counts by the same wheel


def rest_ms(stage):
    (chore,) = stage.service.service().chores
    return chore.rest_ms()


def test_timer_service_is_due_at_its_first_message():
    stage = Stage()
    assert rest_ms(stage) == IDLE_MS
    stage.send_timer("K", 1_000)
    assert rest_ms(stage) <= 0, "it is to be taken in"
    stage.passes(0)
    left = rest_ms(stage)
    assert 900 <= left <= 1_000
    stage.passes(left - 1)
    assert stage.commit() is None
    assert rest_ms(stage) == 1
    stage.passes(1)
    assert rest_ms(stage) == IDLE_MS, "it is on its way"
    assert stage.commit() == ["K"]
    stage.passes(0)
    assert rest_ms(stage) == IDLE_MS
    stage.send_timer("L", 10)
    stage.passes(0)
    stage.leading = False
    assert rest_ms(stage) == IDLE_MS


HOUR_MS = 3_600_000


def comes(stage, rounds=12):
    """Keys of what comes without more time."""
    result: list[Any] = []
    for _ in range(rounds):
        stage.passes(0)
        result += stage.commit() or ()
    return result


@pytest.mark.parametrize("another", [False, True])
def test_timer_messages_are_on_time_after_a_clock_that_was_ahead(another, caplog):
    """One message delivered hours ahead made all that came later be delivered at once."""
    stage = Stage()
    for number in range(3 * COUNT_MAX):
        stage.send_timer(f"far{number}", 10 * HOUR_MS)
    stage.starts_ahead(5 * HOUR_MS)
    stage.send_timer("ahead", 2_000)
    stage.passes(3_000)
    assert comes(stage) == ["ahead"]
    stage.bench.now_ms -= 5 * HOUR_MS
    if another:
        stage.loses_leadership()
        stage.service = stage.leader()
    stage.send_timer("hours", 4 * HOUR_MS)
    stage.send_timer("minutes", 600_000)
    stage.send_timer("seconds", 2_000)
    assert comes(stage, 30) == []
    assert caplog.text.count("timers_ahead") == 1
    assert stage.service.rolled_count > 3 * COUNT_MAX
    for key, ms in (("seconds", 2_001), ("minutes", 598_000), ("hours", 4 * HOUR_MS)):
        assert comes(stage) == []
        stage.passes(ms)
        assert comes(stage) == [key]
    assert stage.service.view().waiting == 3 * COUNT_MAX
    stage.passes(7 * HOUR_MS)
    assert len(set(comes(stage, 30))) == 3 * COUNT_MAX


def test_new_leader_restarts_timer_storage_after_a_clock_that_was_ahead():
    stage = Stage()
    stage.starts_ahead(5 * HOUR_MS)
    stage.send_timer("ahead", 2_000)
    stage.passes(3_000)
    assert comes(stage) == ["ahead"]
    stage.bench.now_ms -= 5 * HOUR_MS
    stage.send_timer("hours", 4 * HOUR_MS)
    stage.leading = False
    stage.service.tick()
    stage.leading = True
    (chore,) = stage.service.service().chores
    assert chore.rest_ms() <= 0
    assert comes(stage) == []
    assert 0 < chore.rest_ms() <= 4 * HOUR_MS


def test_timer_service_waits_for_a_clock_slightly_ahead():
    stage = Stage()
    stage.starts_ahead(5_000)
    stage.send_timer("ahead", 2_000)
    stage.passes(3_000)
    assert comes(stage) == ["ahead"]
    stage.bench.now_ms -= 8_000
    stage.send_timer("late", 6_000)
    assert comes(stage) == []
    stage.passes(6_001)
    assert comes(stage) == ["late"]
    assert stage.service.rolled_count == 0


def far(stage, count, ahead_ms):
    """Many wait for long; a clock that was ahead by so much has delivered one."""
    for number in range(count):
        stage.send_timer(f"far{number}", 10 * HOUR_MS)
    stage.starts_ahead(ahead_ms)
    stage.send_timer("ahead", 2_000)
    stage.passes(3_000)
    assert comes(stage) == ["ahead"]
    stage.bench.now_ms -= ahead_ms + 3_000


def test_recalled_timer_message_is_not_delivered_during_a_second_storage():
    stage = Stage()
    far(stage, 6 * COUNT_MAX, 5 * HOUR_MS)
    stage.send_timer("hours", 4 * HOUR_MS)
    for number in range(COUNT_MAX + 20):  # more than one delivery
        stage.send_timer(f"soon{number}", 5_000)
    stage.send_timer("recalled", 5_000)
    stage.recall("recalled", 5_000)
    stage.commit()
    result: list[Any] = []
    for _ in range(40):
        stage.passes(1_000)
        result += stage.commit() or ()
    assert sorted(result + comes(stage)) == sorted(f"soon{n}" for n in range(COUNT_MAX + 20))


def test_recalled_timer_message_stays_recalled_if_storage_is_slow():
    stage = Stage()
    far(stage, 3 * COUNT_MAX, 40_000)
    stage.send_timer("recalled", 60_000)
    stage.recall("recalled", 60_000)
    stage.commit()
    stage.send_timer("late", 38_000)
    result: list[Any] = []
    for _ in range(10):  # a delivery takes 20 s
        stage.passes(20_000)
        result += stage.commit() or ()
    assert result + comes(stage) == ["late"]


def test_recalled_timer_message_stays_recalled_after_a_lost_delivery():
    stage = Stage()
    far(stage, 6 * COUNT_MAX, 5 * HOUR_MS)
    stage.send_timer("hours", 4 * HOUR_MS)
    stage.send_timer("recalled", 5_000)
    stage.recall("recalled", 5_000)
    stage.commit()
    while not stage.service._popped:
        stage.passes(1_000)
        if not stage.service._popped:
            assert not stage.commit()
    stage.passes(10)  # in flight
    stage.loses_leadership()
    for _ in range(20):
        stage.passes(1_000)
        assert not stage.commit()


def test_timer_messages_are_stored_again_once_despite_a_rejected_move():
    stage = Stage()
    far(stage, COUNT_MAX, HOUR_MS // 4)
    stage.send_timer("late", 20_000)
    stage.passes(0)
    assert stage.commit() == []  # as many as one delivery takes
    stage.bench.sends.disk_full = "no room"
    for _ in range(3):
        stage.passes(RETRY_MS)
        assert stage.commit() is None
    stage.bench.sends.disk_full = ""
    stage.passes(RETRY_MS)
    assert comes(stage) == []
    assert stage.service.rolled_count == COUNT_MAX + 1
    stage.passes(20_000)
    assert comes(stage) == ["late"]


def test_unreadable_timer_message_does_not_block_others_after_a_bad_clock():
    stage = Stage()
    stage.send_timer("rotten", 10 * HOUR_MS)
    (position,) = stage.at
    good, stage.at[position] = stage.at[position], None
    far(stage, 3, HOUR_MS // 2)
    stage.send_timer("late", 20 * 60_000)
    stage.send_timer("soon", 5_000)
    result: list[Any] = []
    for _ in range(120):
        stage.passes(15_000)
        result += stage.commit() or ()
    assert result == ["late", "soon"]
    stage.at[position] = good
    stage.passes(10 * HOUR_MS)
    assert sorted(comes(stage)) == ["far0", "far1", "far2", "rotten"]


@pytest.mark.parametrize("seed", range(12))
def test_timer_messages_are_delivered_once_and_not_early_with_any_clocks(seed):
    rng = random.Random(seed)
    stage = Stage()
    due, delivered, recalled = {}, [], set()
    for number in range(300):
        step = rng.randrange(12)
        if step < 5:
            delay_ms = rng.choice((1, 40, 900, 20_000, HOUR_MS))
            if stage.send_timer(f"K{number}", delay_ms):
                break
            due[f"K{number}"] = stage.bench.now_ms + delay_ms
            slot_ms = due[f"K{number}"] - 1
            if rng.random() < 0.2 and not stage.service.is_delivered(slot_ms):
                stage.recall(f"K{number}", delay_ms)
                stage.commit()
                recalled.add(f"K{number}")
        elif step < 11:
            stage.passes(rng.choice((0, 1, 30, 700, 10_000)))
            for key in comes(stage, 3):
                assert stage.bench.now_ms >= due[key]
                delivered.append(key)
        else:
            delivered += comes(stage, 3)
            stage.bench.now_ms += rng.choice((-HOUR_MS, -20_000, -1_000, 1_000, 20_000, HOUR_MS))
            if rng.random() < 0.5:
                stage.loses_leadership()
                stage.service = stage.leader()
    for _ in range(60):
        stage.passes(HOUR_MS)
        delivered += comes(stage, 3)
    assert sorted(delivered) == sorted(due.keys() - recalled)
    assert stage.service.view()[:2] == (0, 0)


async def test_timer_window_has_the_first_waiting_messages_without_recalled_ones(monkeypatch):
    monkeypatch.setattr(timers, "COUNT_MAX", 3)
    stage = Stage()
    for key, delay_ms in (("due", 1), ("a", KEPT_MS), ("b", 2 * KEPT_MS), ("c", KEPT_MS)):
        stage.send_timer(key, delay_ms)
    stage.recall("a", KEPT_MS)
    position = QUEUE_ENTRY.unpack(stage.waiting().entries(1, 1))[0]
    assert stage.service.open_window("broker-a") is None  # the queue is not read
    stage.passes(2)
    assert stage.commit() == ["due"]
    stage.passes(0)
    opened = stage.service.open_window("broker-a")
    assert opened is not None and stage.service.is_opening
    assert stage.service.open_window("broker-a") is None  # one at a time
    stage.bench.log.commit_commands()
    stage.passes(0)
    (window,) = stage.bench.state.group.moving.windows
    assert (window.start, window.end) == (0, 4) and stage.timer.floor == 4
    moved = [decode_properties(r.properties) for _, r in stage.service.window_messages(window)]
    assert [one["UNIQ_KEY"] for one in moved] == ["b", "c"]
    assert stage.service.spare(10**9) <= position  # retention waits for the window
    assert stage.service.open_window("broker-a") is not None
    stage.bench.log.commit_commands()
    stage.passes(0)
    window = stage.bench.state.group.moving.windows[1]
    (recall,) = [decode_properties(r.properties) for _, r in stage.service.window_messages(window)]
    assert recall["TIMER_DEL_UNIQKEY"] == "a"
    assert stage.service.wheel.count == 0
    stage.passes(3 * KEPT_MS)
    assert stage.commit() is None  # nothing is delivered here
    assert stage.service.open_window("broker-a") is None
