"""Rows as messages to be staged: what a task takes, a broker can store."""

import pyarrow as pa
import pytest

from raftmq.broker.messages.send_request import SendQueue, SendRules, SendTopic, parse_batch
from raftmq.broker.tables.topics import TopicConfig
from raftmq.client.message import MessageQueue
from raftmq.remoting.fair_scheduling import finish
from raftmq.spark.plan import Requests, new_plan
from raftmq.spark.sink_rows import PROPERTIES_BYTES_MAX, RowError, staged
from raftmq.store.record import pack_host
from tests.broker.send.test_frame_builder import fields

HOST = pack_host(("10.0.0.7", 10911))
RULES = SendRules(
    cluster="c" * 40,
    trace_on=False,
    store_host=HOST,
    message_size_max=4 << 20,
    record_bytes_max=4 << 20,
)


def rows(size_bytes: int, name: str) -> pa.RecordBatch:
    """A row whose properties have a size as on the wire, with `name` and two separators."""
    value = "v" * (size_bytes - len(name) - 2)
    if name == "KEYS":
        return pa.record_batch([pa.array([b"x"]), pa.array([value])], names=["body", "keys"])
    properties = pa.array([[(name, value)]], pa.map_(pa.string(), pa.string()))
    return pa.record_batch([pa.array([b"x"]), properties], names=["body", "properties"])


@pytest.mark.parametrize("name", ["KEYS", "n"])
def test_longest_properties_that_a_task_accepts_are_stored(name: str) -> None:
    plan = new_plan("T", "w", 0, [MessageQueue("T", "broker-a", 0)], ["f"], 1, "")
    requests = Requests(plan, lambda queue, batch: "A" * 24)
    assert list(requests.add(staged(rows(PROPERTIES_BYTES_MAX, name)))) == []
    ((_, _, body),) = requests.rest()
    queue, topic = SendQueue("T", 0, 0), SendTopic(TopicConfig("T"))
    parsed = parse_batch(fields("WAIT\x01true\x02"), body, queue, topic, HOST, RULES)
    assert len(finish(parsed)[0]) == 1


@pytest.mark.parametrize("name", ["KEYS", "n"])
@pytest.mark.parametrize("size_bytes", [PROPERTIES_BYTES_MAX + 1, 32_726, 32_767, 32_768])
def test_longer_properties_fail_the_task(size_bytes: int, name: str) -> None:
    with pytest.raises(RowError, match="a row's properties"):
        staged(rows(size_bytes, name))


def test_rows_go_to_the_queues_of_their_numbers_and_others_by_key() -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(3)]
    bodies = pa.array([b"first", b"second", b"third"])
    columns = [bodies, pa.array(["k", "k", "k"]), pa.array([0, 4, None])]
    rows = pa.record_batch(columns, names=["body", "sharding_key", "queue_id"])
    requests = Requests(new_plan("T", "w", 0, queues, ["f"], 3, ""), lambda queue, batch: "A" * 24)
    assert list(requests.add(staged(rows))) == []
    made = {queue.queue_id: body for queue, _, body in requests.rest()}
    assert b"first" in made[0] and b"second" in made[1]
    assert b"third" in made[107 % 3]  # the key's hash


def test_negative_queue_id_fails_the_task() -> None:
    columns = [pa.array([b"a"]), pa.array([-1], pa.int32())]
    with pytest.raises(RowError, match="queue_id is negative"):
        staged(pa.record_batch(columns, names=["body", "queue_id"]))
