"""Sends that are stored elsewhere first: what is parked where, and what their senders hear."""

import pytest

from raftmq.broker.config import STANDARD_LEVELS, BrokerConfig, build_config, parse_delay_levels
from raftmq.broker.errors import Refused
from raftmq.broker.messages.half_message import HALF_TOPIC
from raftmq.broker.messages.send_request import PROPERTIES_SIZE_MAX, Outgoing
from raftmq.broker.send.topic_redirect import TIMER_OUT_BYTES, delayed, delivered
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.state import put_group
from raftmq.broker.tables.topics import TopicConfig
from raftmq.ops.options import ConfigError, Setting
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.headers import SendResponseHeader
from raftmq.store.dispatch import DELAY_LEVELS_MS, QUEUE_ENTRY, SCHEDULE_TOPIC, Dispatcher
from raftmq.store.properties import decode_properties, joined, tags_code
from raftmq.store.record import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    decode_record,
    walk_records,
)
from tests.broker.send.test_frame_builder import batch_body
from tests.broker.send.test_service import BORN, Bench

LEVELS = (100, 2_000, 30_000)
KEY = "UNIQ_KEY\x01A\x02"


def records(frame):
    return [decode_record(frame.data, at) for at, _ in walk_records(frame.data)]


def test_default_delay_levels_equal_the_stores():
    assert parse_delay_levels(STANDARD_LEVELS) == DELAY_LEVELS_MS
    assert BrokerConfig().delay_levels_ms == DELAY_LEVELS_MS
    assert parse_delay_levels("5ms 1s  2m\t3h 4d") == (5, 1_000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "0 levels"),
        ("1s 2x", "'2x' is no time"),
        ("1s,2s", "'1s,2s' is no time"),
        ("-1s", "no time"),
        ("367d", "longer than a year"),
        ("1s " * 129, "129 levels"),
    ],
)
def test_malformed_delay_levels_are_rejected(text, part):
    with pytest.raises(ConfigError, match=part) as error:
        build_config([Setting("messageDelayLevel", text, "broker.conf:3")])
    assert str(error.value).startswith("broker.conf:3: messageDelayLevel=")


def test_delayed_send_is_stored_in_its_levels_queue_and_answered_as_sent():
    bench = Bench()
    bench.ends[SCHEDULE_TOPIC, 2] = 40
    bench.send(e="3", i=KEY + "DELAY\x013\x02TAGS\x01t\x02WAIT\x01true\x02")
    bench.send(e="3")
    bench.send(e="1", i=KEY + "DELAY\x0199\x02")  # above the last: the last
    frame = bench.commit()
    first, second, third = (SendResponseHeader.parse(a.ext) for a in bench.connection.answers())
    assert [(h.queue_id, h.queue_offset) for h in (first, second, third)] == [
        (3, 40),
        (3, 0),
        (1, 0),
    ]
    parked, plain, last = records(frame)
    assert (parked.topic, parked.queue_id, parked.queue_offset) == (SCHEDULE_TOPIC, 2, 40)
    assert first.message_id.endswith(f"{parked.physical_offset:016X}")
    assert first.transaction_id == "A"
    properties = decode_properties(parked.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"], properties["DELAY"]) == (
        "T",
        "3",
        "3",
    )
    assert properties["CLUSTER"] == "C"
    assert plain.topic == "T"
    assert (last.topic, last.queue_id) == (SCHEDULE_TOPIC, 17)
    assert decode_properties(last.properties)["DELAY"] == "18"
    assert bench.sends.held_bytes == 0


def test_queue_entries_of_delayed_messages_have_the_delivery_time():
    bench = Bench(message_delay_level="100ms 2s 0s")
    for level in ("1", "2", "1", "3", "7"):
        bench.now_ms += 10
        bench.send(i=f"DELAY\x01{level}\x02TAGS\x01t\x02")
    bench.send(i="TAGS\x01t\x02")
    frame = bench.log.cut(bench.sends)
    entries = frame.entries
    assert [tuple(u) for u in Dispatcher((100, 2_000, 0)).index_frame(frame)] == [
        tuple(u) for u in entries
    ]
    codes = {
        (topic, queue): [unit[2] for unit in QUEUE_ENTRY.iter_unpack(packed)]
        for topic, queue, _, packed in entries
    }
    now_ms = bench.now_ms
    assert codes == {
        (SCHEDULE_TOPIC, 0): [now_ms + 100] * 2,
        (SCHEDULE_TOPIC, 1): [now_ms + 2_000],
        (SCHEDULE_TOPIC, 2): [now_ms] * 2,
        ("T", 0): [tags_code("t")],
    }


@pytest.mark.parametrize("text", ["0", "-1", "", "false"])
def test_send_with_an_invalid_delay_level_is_not_delayed(text):
    bench = Bench()
    bench.send(i=f"DELAY\x01{text}\x02TRAN_MSG\x01false\x02TAGS\x01t\x02")
    (record,) = records(bench.commit())
    assert record.topic == "T"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"i": "DELAY\x01soon\x02"}, "DELAY=soon is no number"),
        ({"i": "DELAY\x01" + "1" * 20 + "\x02"}, "is no number"),
        ({"i": "TIMER_DELIVER_MS\x01soon\x02"}, "TIMER_DELIVER_MS=soon is no number"),
        ({"i": "DELAY\x013\x02A\x01" + "v" * 32_700}, "allowed are 32767"),
        ({"f": "8"}, "speaks of a transaction"),
        ({"f": "4"}, "speaks of a transaction"),
        ({"i": "DELAY\x013\x02", "h": "4294967296"}, "out of range"),
        ({"i": "DELAY\x013\x02", "g": "-1"}, "out of range"),
        ({"b": SCHEDULE_TOPIC}, "forbidden"),
    ],
)
def test_invalid_special_sends_are_rejected(changes, part):
    bench = Bench()
    bench.send(i="DELAY\x011\x02")  # the parked topic is known from here on
    bench.send(**changes)
    assert bench.log.cut(bench.sends).record_count == 1
    answers = bench.connection.answers()
    assert [part in answer.remark for answer in answers] == [True]
    assert answers[0].code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION)


@pytest.mark.parametrize(
    ("topic", "level", "times", "flags", "stored"),
    [
        ("%RETRY%g", "4", "1", "4", SCHEDULE_TOPIC),
        ("%RETRY%g", "4", "1", "0", SCHEDULE_TOPIC),
        ("%RETRY%g", "4", "17", "4", "%DLQ%g"),
        ("T", "4", "0", "4", HALF_TOPIC),
        ("T", "0", "1", "4", HALF_TOPIC),
    ],
)
def test_retry_with_a_transaction_property_is_no_half_message(topic, level, times, flags, stored):
    """Consumers before 4.6.1 send the properties on that the message came with."""
    bench = Bench()
    for name in ("%RETRY%g", "%DLQ%g"):
        bench.state.topics.put(TopicConfig(name, 1, 1), 0)
    bench.state.apply(1, 0, put_group(SubscriptionGroup("g")))
    half = f"{KEY}TRAN_MSG\x01true\x02PGROUP\x01pg\x02DELAY\x01{level}\x02"
    bench.send(b=topic, i=half, j=times, f=flags)
    (record,) = records(bench.commit())
    assert (record.topic, record.sys_flag & SYS_TRANSACTION_MASK) == (stored, 0)
    assert decode_properties(record.properties)["TRAN_MSG"] == "true"


def test_half_message_without_room_for_its_timer_property_is_rejected():
    bench = Bench()
    deliver_ms = bench.now_ms + 60_000
    half = f"{KEY}TRAN_MSG\x01true\x02PGROUP\x01pg\x02TIMER_DELIVER_MS\x01{deliver_ms}\x02V\x01"
    bench.send(i=half)
    (record,) = records(bench.commit())
    room = PROPERTIES_SIZE_MAX - len(record.properties) - len("V\x01\x02")
    bench.send(i=half + "v" * room)
    bench.send(i=half + "v" * (room - TIMER_OUT_BYTES))
    assert bench.log.cut(bench.sends).record_count == 1
    assert "allowed are 32767" in bench.connection.answers()[-1].remark


def test_batch_with_a_delayed_or_half_message_is_rejected():
    bench = Bench()
    bench.send(batch_body((b"a", b"", 0), (b"b", b"DELAY\x013\x02", 0)), code=320)
    bench.send(batch_body((b"a", b"", 0)), code=320, i="DELAY\x013\x02")
    bench.send(batch_body((b"a", b"", 0)), code=320, f="4")
    answers = bench.connection.answers()
    assert [answer.code for answer in answers] == [ResponseCode.MESSAGE_ILLEGAL] * 3
    assert bench.log.cut(bench.sends) is None


def test_delayed_message_is_restored_to_its_topic_and_queue():
    sent = Outgoing("T", 3, b"x", b"WAIT\x01true\x02TAGS\x01t\x02DELAY\x012\x02", 5, BORN, 7, 1)
    parked = delayed(sent, decode_properties(sent.properties), LEVELS)
    assert (parked.topic, parked.queue_id) == (SCHEDULE_TOPIC, 1)
    again = delivered(parked)
    assert (again.topic, again.queue_id, again.flag, again.born_ms) == ("T", 3, 7, 5)
    assert decode_properties(again.properties) == {
        "WAIT": "true",
        "TAGS": "t",
        "DELAY": "2",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert again.properties == parked.properties
    with pytest.raises(ValueError, match="REAL_TOPIC"):
        delivered(sent)


def test_unusual_properties_survive_a_delay():
    text = b"A\x01b\x01c\x02DELAY\x011\x02K\x01 spaced \x02"
    assert joined(decode_properties(text)) == text
    parked = delayed(Outgoing("T", 0, b"x", text, 5, BORN), decode_properties(text), LEVELS)
    assert decode_properties(delivered(parked).properties)["A"] == "b\x01c"


def test_committed_transaction_may_be_delayed():
    sent = Outgoing("T", 0, b"x", b"DELAY\x011\x02", 5, BORN, sys_flag=SYS_TRANSACTION_COMMIT)
    parked = delayed(sent, decode_properties(sent.properties), LEVELS)
    assert parked.sys_flag == SYS_TRANSACTION_COMMIT


def test_own_message_to_a_deleted_topic_needs_force_and_an_existing_queue():
    bench = Bench()
    gone = Outgoing("Gone", 5, b"x", b"", 5, BORN)
    with pytest.raises(Refused, match="not exist"):
        bench.sends.store([gone], b"", print)
    for topic in ("Gone", "T"):  # T has four queues
        message = Outgoing(
            topic, 5, b"x", b"REAL_TOPIC\x01%b\x02REAL_QID\x015\x02" % topic.encode(), 5, BORN
        )
        bench.sends.store([delivered(message)], b"", lambda *_: None)
    result = records(bench.commit())
    assert [(r.topic, r.queue_id, r.queue_offset) for r in result] == [("Gone", 5, 0), ("T", 1, 0)]
    bench.send(e="5")
    bench.send(b="Gone", c="")
    assert [answer.code != 0 for answer in bench.connection.answers()] == [True, True]
