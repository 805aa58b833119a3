"""Which queues' ends a classic master tells, and how a slave takes them."""

import pytest

from raftmq.broker.tables.queue_ends_sync import KEY, apply_ends, decode, encode
from raftmq.store.disk import OsDisk
from tests.store.make import append_classic, record
from tests.store.stores import classic_store


def ends(store):
    return sorted(
        (queue.topic, queue.queue_id, queue.max_offset) for queue in store.queues.queues()
    )


async def test_master_sends_the_ends_of_queues_without_a_recent_message(tmp_path):
    master = classic_store(OsDisk(str(tmp_path / "master")))
    append_classic(master, [record(topic="Old")] * 5, 1_000)
    append_classic(master, [record(topic="Idle", queue_id=2)] * 50, 1_000)
    append_classic(master, [record(topic="Busy")] * 50, 1_000)
    first, *_, last = master.commitlog.segments()
    value = {KEY: encode(master.queues, last.start)}
    assert sorted(decode(value)) == [("Idle", 2, 50), ("Old", 0, 5)]
    assert encode(master.queues, first.start) == []
    slave = classic_store(OsDisk(str(tmp_path / "slave")))
    append_classic(slave, [record(topic="Old")], 1_000)  # the log has it
    await apply_ends(slave.queues, decode(value))
    assert ends(slave) == [("Idle", 2, 50), ("Old", 0, 1)]
    slave.close()
    again = classic_store(OsDisk(str(tmp_path / "slave")))
    assert ends(again) == [("Idle", 2, 50), ("Old", 0, 1)]
    assert append_classic(again, [record(topic="Idle", queue_id=2)], 1)[0].queue_offset == 50


def test_master_answer_without_queue_ends_is_empty():
    assert decode({}) == []


@pytest.mark.parametrize(
    "ends",
    [
        5,
        [5],
        [["T", 0]],
        [["T", 0, 0]],
        [["T", 0, -1]],
        [["T", 0, 1 << 60]],
        [["T", 0, "5"]],
        [["T", 0.5, 5]],
        [["T", -1, 5]],
        [[7, 0, 5]],
        [["", 0, 5]],
        [["..", 0, 5]],
        [["a/b", 0, 5]],
    ],
)
def test_malformed_queue_ends_are_rejected(ends):
    with pytest.raises((TypeError, ValueError)):
        decode({KEY: ends})
