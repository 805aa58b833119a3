"""Half, message, op and check: what each says, against remoting-protocol 9.4."""

from typing import Any

import pytest

from raftmq.broker.errors import Refused
from raftmq.broker.messages import half_message as conversion
from raftmq.broker.messages.send_request import PROPERTIES_SIZE_MAX
from raftmq.store.properties import decode_properties, joined
from raftmq.store.record import MessageRecord, decode_record
from tests.present import present

SENT = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "U1", "TAGS": "a", "KEYS": "k"}


def stored(told, **changes):
    fields: dict[str, Any] = {
        "topic": conversion.HALF_TOPIC,
        "body": b"order 7",
        "properties": joined(told),
        "queue_id": 0,
        "flag": 9,
        "queue_offset": 12,
        "physical_offset": 4096,
        "sys_flag": 0,
        "born_timestamp_ms": 50,
        "born_host": ("10.0.0.1", 7),
        "store_timestamp_ms": 1_000,
        "store_host": ("10.0.0.2", 8),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    return MessageRecord(**fields | changes)


def a_half(**more):
    return stored(conversion.half_properties(SENT, "Orders", 3) | more)


def test_half_message_stores_its_topic_and_queue_as_properties():
    assert conversion.half_properties(SENT, "Orders", 3) == SENT | {
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
        "__transactionId__": "U1",
    }
    noted = {"TRAN_PREPARED_QUEUE_OFFSET": "3", "TRAN_FIRST_STORED_MS": "1"}
    copied = SENT | noted | {"TRANSACTION_CHECK_TIMES": "14", "REAL_TOPIC": "x", "REAL_QID": "8"}
    assert conversion.half_properties(copied, "Orders", 3) == conversion.half_properties(
        SENT, "Orders", 3
    )
    with pytest.raises(Refused, match="PGROUP"):
        conversion.half_properties({"TRAN_MSG": "true"}, "Orders", 3)


def test_half_message_check_time_follows_the_brokers_clock():
    half = conversion.half_of(a_half(), 6_000, 30_000, 5_000)
    assert (half.offset, half.position) == (12, 4096)
    assert half.root == (12, "Orders", "pg", "U1")
    assert (half.due_ms, half.checks) == (7_000, 0)
    patient = a_half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    assert conversion.half_of(patient, 6_000, 30_000, 5_000).due_ms == 61_000
    odd = a_half(CHECK_IMMUNITY_TIME_IN_SECONDS="-1", TRANSACTION_CHECK_TIMES="x")
    assert conversion.half_of(odd, 6_000, 30_000, 5_000).due_ms == 7_000


def test_half_message_of_a_clock_ahead_waits_no_longer_than_the_timeout():
    ahead = stored({}, properties=a_half().properties, store_timestamp_ms=86_401_000)
    assert conversion.half_of(ahead, 6_000, 30_000, 1_000).due_ms == 7_000


def test_half_message_stored_again_keeps_its_root():
    again = present(conversion.stored_again(a_half(), 12, 1))
    assert (again.topic, again.queue_id, again.body) == (conversion.HALF_TOPIC, 0, b"order 7")
    assert conversion.root_of(a_half()) == conversion.half_of(a_half(), 0, 0, 0).root
    twice = stored({}, properties=again.properties, queue_offset=15, store_timestamp_ms=2_000)
    half = conversion.half_of(twice, 6_000, 30_000, 5_000)
    assert (half.offset, half.checks, half.due_ms) == (15, 1, 32_000)
    assert half.root == conversion.root_of(a_half())
    assert conversion.first_stored_ms(twice) == conversion.first_stored_ms(a_half()) == 1_000
    third = present(conversion.stored_again(twice, 12, 2))
    assert conversion.first_stored_ms(stored({}, properties=third.properties)) == 1_000


def test_committed_half_message_equals_the_sent_message():
    again = present(conversion.stored_again(a_half(), 12, 1))
    message = conversion.committed(stored({}, properties=again.properties))
    assert (message.topic, message.queue_id, message.body) == ("Orders", 3, b"order 7")
    assert decode_properties(message.properties) == SENT | {
        "__transactionId__": "U1",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
        "TRANSACTION_CHECK_TIMES": "1",
    }
    assert (message.sys_flag & 0xC, message.prepared_offset, message.flag) == (8, 4096, 9)
    assert message.born_ms == 50
    for missing in ({"REAL_TOPIC": "T"}, {"REAL_QID": "1"}, {"REAL_TOPIC": "T", "REAL_QID": "x"}):
        with pytest.raises(Refused):
            conversion.committed(stored(missing))


@pytest.mark.parametrize("free_bytes", [0, 40, 32_000])
def test_half_message_with_any_properties_can_be_committed_and_checked(free_bytes):
    """One that has no room for the count is not stored again."""
    value = "a\x01b"
    rest = len(a_half(K=value, WAIT="true").properties) + free_bytes
    half = a_half(K=value + "v" * (PROPERTIES_SIZE_MAX - rest), WAIT="true")
    assert len(half.properties) == PROPERTIES_SIZE_MAX - free_bytes
    properties = decode_properties(half.properties)
    assert decode_properties(conversion.committed(half).properties) == properties
    check = decode_record(conversion.check_body(half))
    assert decode_properties(check.properties)["K"] == properties["K"]
    again = conversion.stored_again(half, 12, 1)
    assert (again is None) == (free_bytes < 100)
    assert again is None or decode_properties(again.properties).items() > properties.items()


def test_op_messages_of_either_version_are_read():
    op = conversion.op_record(12, a_half(), 77)
    assert (op.topic, op.body, op.properties) == (conversion.OP_TOPIC, b"12", b"TAGS\x01d\x02")
    for body, halves in (
        (b"12", [12]),
        (b"12,13,", [12, 13]),
        (b"", []),
        (b"x,7,-1,\xff", [7]),
    ):
        assert conversion.ended_halves(stored({}, body=body)) == halves


def test_transaction_check_has_the_message_as_it_was_sent():
    again = present(conversion.stored_again(a_half(WAIT="true"), 12, 1))
    record = decode_record(conversion.check_body(stored({}, properties=again.properties)))
    assert (record.topic, record.queue_id, record.body) == ("Orders", 3, b"order 7")
    properties = decode_properties(record.properties)
    assert (properties["PGROUP"], properties["WAIT"]) == ("pg", "false")
    assert not {"TRAN_PREPARED_QUEUE_OFFSET", "TRAN_FIRST_STORED_MS"} & set(properties)
