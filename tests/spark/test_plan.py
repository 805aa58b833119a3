"""Requests follow from a batch's plan: which queue, in which order, cut where."""

import pyarrow as pa
import pytest

from raftmq.client.message import MessageQueue
from raftmq.client.producer.exactly_once_writer import WritePosition
from raftmq.spark.plan import REQUEST_BYTES, REQUEST_MESSAGES, STAGED, Request, Requests, new_plan

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]


def rows(*bodies: bytes, hashes: list[int | None] | None = None) -> pa.RecordBatch:
    count = len(bodies)
    columns = [list(bodies), [b""] * count, [0] * count, hashes or [None] * count]
    return pa.record_batch(columns, schema=STAGED)


def requests_of(batch: pa.RecordBatch, queues: list[MessageQueue] = QUEUES) -> list[list[object]]:
    """The queue, the place, the size and the bodies' number of each request."""
    plan = new_plan("T", "w", 7, queues, ["f"], len(batch), "")
    requests = Requests(plan, lambda queue, batch: "A" * 24)
    made = [*requests.add(batch), *requests.rest()]
    return [
        [queue.queue_id, position, len(body), body.count(b"UNIQ_KEY")]
        for queue, position, body in made
    ]


def test_parts_of_the_queues_have_the_requests_of_all() -> None:
    batch = rows(*(b"%d" % n for n in range(5000)), hashes=[n % 7 or None for n in range(5000)])
    plan = new_plan("T", "w", 7, QUEUES, ["f"], len(batch), "")

    def made(*only: int) -> list[Request]:
        requests = Requests(plan, lambda queue, batch: "A" * 24, only or None)
        return sorted([*requests.add(batch), *requests.rest()])

    assert sorted([*made(0, 2), *made(1)]) == made()


@pytest.mark.parametrize("hash", [0, 1, 5, -1, -5, -(1 << 31), (1 << 31) - 1])
def test_message_with_a_key_goes_to_the_queue_of_javas_selector(hash: int) -> None:
    """Its remainder has the sign of the hash, and only then the amount counts."""
    chosen = abs(hash) % len(QUEUES)
    assert [one[0] for one in requests_of(rows(b"x", hashes=[hash]))] == [chosen]


def test_send_request_is_limited_in_messages() -> None:
    requests = requests_of(rows(*[b"x"] * (REQUEST_MESSAGES * 2 + 1)), QUEUES[:1])
    assert [one[3] for one in requests] == [REQUEST_MESSAGES, REQUEST_MESSAGES, 1]
    assert [one[1] for one in requests] == [
        WritePosition(7, 0),
        WritePosition(7, 1),
        WritePosition(7, 2),
    ]


def test_send_request_is_limited_in_bytes_except_a_single_message() -> None:
    third = bytes(REQUEST_BYTES // 3)
    requests = requests_of(rows(third, third, third, bytes(REQUEST_BYTES)), QUEUES[:1])
    assert [one[3] for one in requests] == [2, 1, 1]


def test_rows_without_a_key_are_spread_over_queues_in_runs() -> None:
    requests = requests_of(rows(*[b"x"] * (REQUEST_MESSAGES * 3 + 1)))
    assert sorted((one[0], one[3]) for one in requests) == [
        (0, 1),
        (0, REQUEST_MESSAGES),
        (1, REQUEST_MESSAGES),
        (2, REQUEST_MESSAGES),
    ]
