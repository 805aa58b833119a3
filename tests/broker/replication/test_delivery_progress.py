"""Progress of deliveries that is ahead of the log, as a classic master may find it."""

import json
import time

import pytest

from raftmq.broker.messages.half_message import GROUP, HALF_TOPIC, OP_TOPIC
from raftmq.broker.replication.classic import keep_within
from raftmq.broker.tables.state import BrokerState
from raftmq.broker.tables.timer_wheel import Progress
from raftmq.broker.transactions.book import COMMIT
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.broker.replication.ha.pair import Classic
from tests.broker.transactions.test_service import bodies, end, half
from tests.waiting import until

ENDS = {(SCHEDULE_TOPIC, 0): 5, (TIMER_TOPIC, 0): 4, (HALF_TOPIC, 0): 3, (OP_TOPIC, 0): 2}


def end_of(topic, queue_id):
    return ENDS.get((topic, queue_id), 0)


def tables(level=5, timer=(900, 2, 4, 4), half=3, op=2):
    state = BrokerState()
    state.delays.advance(1, level)
    state.delays.advance_timer(Progress(*timer))
    state.offsets.commit([(HALF_TOPIC, GROUP, 0, half), (OP_TOPIC, GROUP, 0, op)])
    return state


@pytest.mark.parametrize(
    "ahead",
    [
        {"level": 6},
        {"timer": (900, 2, 9, 4)},
        {"timer": (900, 2, 9, 8)},
        {"half": 4},
        {"op": 9},
    ],
)
def test_progress_ahead_of_the_log_is_reset_to_the_queue_ends(ahead):
    state = tables(**ahead)
    assert keep_within(state, end_of)
    expected = tables()
    assert state.delays.offsets == expected.delays.offsets
    assert state.delays.timer == expected.delays.timer
    assert state.offsets.offsets == expected.offsets.offsets
    assert not keep_within(state, end_of)


def test_consumers_ahead_of_the_log_continue_at_the_queue_ends():
    ENDS.update({("T", 0): 7, ("T", 1): 7, ("T", 2): 7})
    state = tables()
    state.offsets.commit([("T", "pulls", 0, 9), ("T", "pulls", 1, 7), ("gone", "pulls", 0, 3)])
    for queue_id, popped in ((0, 10), (1, 7), (2, 10)):
        take = ["take", "T", "pops", queue_id, 0, popped, 0, 1_000, 61_000, popped, "", "", False]
        done = 0b111 if queue_id == 2 else (1 << popped) - 1
        ended = ["done", "T", "pops", queue_id, 0, 1_000, done]
        state.pops.apply({"steps": [take, ended]})
        state.offsets.commit([("T", "pops", queue_id, popped)])
    assert keep_within(state, end_of)
    assert state.offsets.offsets["T", "pulls"] == {0: 7, 1: 7}
    assert state.offsets.offsets["gone", "pulls"] == {0: 0}
    assert state.offsets.offsets["T", "pops"] == {0: 7, 1: 7, 2: 3}
    assert [queue.next for _, queue in state.pops.all_queues()] == [7, 7, 3]
    # Handles of what was popped beyond the end are not those of what will be stored there.
    assert [queue.popped_to for _, queue in state.pops.all_queues()] == [7, 7, 7]
    assert state.pops.batch_count == 0
    assert not keep_within(state, end_of)


def test_progress_within_the_log_is_unchanged():
    for state in (tables(), tables(4, (900, 1, 2, 1), 1, 0), BrokerState()):
        before = state.delays.to_json(), state.offsets.to_json()
        assert not keep_within(state, end_of)
        assert (state.delays.to_json(), state.offsets.to_json()) == before


async def test_classic_master_with_tables_ahead_delivers_new_messages(tmp_path):
    """As a slave that becomes master while it was catching up, or a master after a power cut."""
    levels = {"messageDelayLevel": "50ms 60s", "transactionTimeOut": 3_600_000}
    async with Classic(tmp_path, slaves=0, role="ASYNC_MASTER", **levels) as pair:
        for topic in ("T", "Orders"):
            await pair.create_topic(pair.master, topic)
        now_ms = int(time.time() * 1000)
        state = pair.master.state
        state.delays.advance(1, 10)
        state.delays.advance_timer(Progress(now_ms + 500, 9, 10, 10))
        state.offsets.commit([(HALF_TOPIC, GROUP, 0, 10), (OP_TOPIC, GROUP, 0, 10)])
        await pair.stop("master")
        master = await pair.start("master")
        saved = json.loads((tmp_path / "master/config/delayOffset.json").read_text())
        assert (saved["offsetTable"], saved["timer"]["end"]) == ({"1": 0}, 0)
        for number in range(3):
            await pair.send(master, "T", b"delayed %d" % number, properties="DELAY\x011\x02")
            timer = f"TIMER_DELIVER_MS\x01{now_ms + 1_000}\x02"
            await pair.send(master, "T", b"timer %d" % number, properties=timer)
            sent = await half(pair, master, f"half {number}")
            assert (await end(pair, master, sent, COMMIT)).code == 0
        await until(lambda: len(bodies(master, "T", 0)) == 6)
        assert sorted(bodies(master, "T", 0)) == [
            *(f"delayed {number}" for number in range(3)),
            *(f"timer {number}" for number in range(3)),
        ]
        assert bodies(master) == [f"half {number}" for number in range(3)]
