"""The texts of a pop: handles, and where the messages of an answer are from."""

from __future__ import annotations

import pytest

from raftmq.remoting.errors import HeaderError
from raftmq.remoting.pop_headers import (
    HANDLE_SIZE_MAX,
    BatchAck,
    Handle,
    PopResponseHeader,
    batch_acks,
    by_queue,
    offset_info,
    popped_handle,
    start_info,
)


def test_pop_answer_offsets_round_trip() -> None:
    offsets = [0, 7, 8, (1 << 63) - 1]
    info = ";".join([offset_info("T", 3, offsets), offset_info("%RETRY%g_T", 0, [5])])
    assert by_queue(info) == {("0", 3): offsets, ("1", 0): [5]}
    assert by_queue(start_info("T", 3, -1)) == {("0", 3): [-1]}
    assert by_queue("") == {}


@pytest.mark.parametrize(
    "info",
    [
        *("0 1", "0 1 2 3", "0 1 ", "0 1 1,", "0 1 ,1", "0 1 1,,2", "0 1 1_0,2", "0 x 1"),
        *("0 1 \u0661,2", "0 1 1,\u00b2", "0 1 9223372036854775808", "0 1 --1"),
        "0 1 1,99999999999999999999",
    ],
)
def test_malformed_pop_offsets_are_rejected(info: str) -> None:
    with pytest.raises(HeaderError):
        by_queue(info)


def test_receipt_handle_round_trip() -> None:
    handle = Handle(5, 1_795_462_332_045, 60_000, 0, True, "broker-a", 3, 7)
    assert Handle.decode(handle.encode()) == handle
    assert Handle.decode("5 1 60000 999 0 broker-a 3").offset == -1


def test_only_the_answers_own_handle_is_read_from_a_message() -> None:
    """The property POP_CK may be an old one: a popped message was sent on with all properties."""
    head = PopResponseHeader(1_795_462_332_045, 60_000, 0, 0)
    handle = Handle(5, head.pop_ms, 60_000, 0, True, "broker-a", 3, 7)
    assert popped_handle({"POP_CK": handle.encode()}, head, 3, 7) == handle
    for other in (
        handle._replace(pop_ms=head.pop_ms - 1).encode(),
        handle._replace(queue_id=2).encode(),
        handle._replace(offset=8).encode(),
        "no handle",
        "",
    ):
        assert popped_handle({"POP_CK": other}, head, 3, 7) is None
    assert popped_handle({}, head, 3, 7) is None


@pytest.mark.parametrize(
    "text", ["", "1 2 3 4 0 b", "1 2 3 4 0  3 4", "1 2 x 4 0 b 3 4", "9" * HANDLE_SIZE_MAX + " 2"]
)
def test_malformed_receipt_handle_is_rejected(text: str) -> None:
    with pytest.raises(HeaderError):
        Handle.decode(text)


def test_batch_acknowledgement_round_trip() -> None:
    one = BatchAck("g", "T", 3, 100, 1_795_462_332_045, 60_000, 0, 0b1011)
    assert batch_acks({"brokerName": "b", "acks": [one.to_json("T")]}) == [one]
