"""Timer messages: what a send's properties ask for, where it waits, and what names it."""

import pytest

from raftmq.broker.errors import Refused
from raftmq.broker.messages.send_request import PROPERTIES_SIZE_MAX, Outgoing
from raftmq.broker.messages.timer_message import (
    Key,
    Timing,
    handle_of,
    key_of,
    recall_message,
    recalls,
    rolled,
    timed,
)
from raftmq.broker.send.topic_redirect import Redirects, delayed_or_timed, delivered
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.recall_handle import RecallHandle
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC, timer_code
from raftmq.store.properties import decode_properties, joined
from raftmq.store.record import pack_host

NOW = 1_800_000_000_123
HOST = pack_host(("10.0.0.9", 4000))


def timing(enabled=True, count_max=100, waiting=0):
    return Timing(enabled, 3 * 86_400_000, count_max, lambda: NOW, lambda: waiting)


def sent(**properties):
    return Outgoing("T", 3, b"x", joined({"UNIQ_KEY": "K", **properties}), 1, HOST)


def parked(**properties):
    message = sent(**properties)
    redirects = Redirects((1_000, 5_000), timing(), "b")
    return delayed_or_timed(message, decode_properties(message.properties), redirects)


@pytest.mark.parametrize(
    ("properties", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, NOW + 1_999),
        ({"TIMER_DELAY_MS": "70"}, NOW + 69),
        ({"TIMER_DELIVER_MS": str(NOW + 5)}, NOW + 4),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW),
        ({"TIMER_DELAY_MS": "70", "TIMER_DELAY_SEC": "2"}, NOW + 1_999),
        ({"TIMER_DELIVER_MS": str(NOW + 9), "TIMER_DELAY_MS": "70"}, NOW + 69),
        ({"TIMER_DELAY_SEC": "259200"}, NOW + 259_199_999),
    ],
)
def test_timer_message_is_stored_in_the_timer_topic_with_its_time(properties, out_ms):
    message = parked(**properties)
    assert (message.topic, message.queue_id) == (TIMER_TOPIC, 0)
    there = decode_properties(message.properties)
    assert there == {
        "UNIQ_KEY": "K",
        **properties,
        "TIMER_OUT_MS": str(out_ms),
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert timer_code(there) == out_ms
    back = delivered(message)
    assert (back.topic, back.queue_id, back.force) == ("T", 3, True)
    assert decode_properties(back.properties) == there
    assert (
        delayed_or_timed(back, decode_properties(back.properties), ANY) is back
    )  # sent on, it is not timed


ANY = Redirects((1_000,), timing(), "b")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_MS": "-5"},
        {"TIMER_DELIVER_MS": str(NOW)},
        {"TIMER_DELIVER_MS": "+17"},
        {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "5"},  # it was delivered, and is sent on
    ],
)
def test_timer_message_that_is_due_is_stored_in_its_own_topic(properties):
    message = parked(**properties)
    assert (message.topic, message.queue_id) == ("T", 3)


def test_delay_level_precedes_a_delivery_time():
    message = parked(DELAY="1", TIMER_DELAY_SEC="9", TIMER_DELIVER_MS="1", TIMER_DELAY_MS="2")
    assert message.topic == SCHEDULE_TOPIC
    assert not any(name.startswith("TIMER") for name in decode_properties(message.properties))


@pytest.mark.parametrize(
    ("properties", "part"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, "259200000 ms at most"),
        ({"TIMER_DELAY_SEC": "9" * 18}, "ms at most"),
        ({"TIMER_DELAY_MS": "9" * 19}, "is no number"),
        ({"TIMER_DELAY_MS": "259200001"}, "ms at most"),
        ({"TIMER_DELIVER_MS": str(NOW + 259_200_001)}, "ms at most"),
        ({"TIMER_DELIVER_MS": "1.5"}, "is no number"),
        ({"TIMER_DELAY_SEC": " 1"}, "is no number"),
        ({"TIMER_DELIVER_MS": "7", "TIMER_DEL_UNIQKEY": "K"}, "is over"),
    ],
)
def test_timer_message_with_an_invalid_time_is_rejected(properties, part):
    with pytest.raises(Refused, match=part) as caught:
        parked(**properties)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_timer_message_is_rejected_with_timers_disabled():
    message = sent(TIMER_DELAY_SEC="1")
    with pytest.raises(Refused, match="timerWheelEnable=false") as caught:
        timed(message, decode_properties(message.properties), timing(enabled=False))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_waiting_timer_messages_are_limited():
    message = sent(TIMER_DELAY_SEC="1")
    properties = decode_properties(message.properties)
    assert timed(message, properties, timing(count_max=2, waiting=1)).topic == TIMER_TOPIC
    with pytest.raises(Refused, match=r"\[BUSY\] 2 timer messages wait") as caught:
        timed(message, properties, timing(count_max=2, waiting=2))
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    assert caught.value.retriable


def test_timer_message_counts_its_second_storage_if_it_has_room():
    once = rolled(parked(TIMER_DELAY_SEC="1"))
    assert decode_properties(rolled(once).properties)["TIMER_ROLL_TIMES"] == "2"
    full = sent(A="v" * (PROPERTIES_SIZE_MAX - 20))
    assert rolled(full) == full


def test_recall_handle_round_trip_and_its_recall_has_the_same_slot():
    message = parked(TIMER_DELAY_MS="2345")
    text = handle_of(message, "group-a")
    handle = RecallHandle.decode(text)
    assert handle[:2] == ("T", "group-a")
    assert handle.unique_key == "K"
    assert RecallHandle.encode(handle) == text
    recall = recall_message(handle, "PG", NOW, HOST)
    recall = timed(recall, decode_properties(recall.properties), timing())
    there = decode_properties(recall.properties)
    assert timer_code(there) == -timer_code(decode_properties(message.properties))
    assert recalls(recall) == key_of(message) == Key("T", "K")
    assert recalls(message) is None


def test_recall_handle_of_an_apache_broker_is_read():
    """Made by 5.3's RecallMessageHandle.HandleV1.buildHandle."""
    text = "djEgVG9waWMgYnJva2VyLWEgMTczNjIyMzA2NjAwMSAwQUIwMDAwMQ=="
    assert RecallHandle.decode(text) == ("Topic", "broker-a", 1736223066001, "0AB00001")


@pytest.mark.parametrize("text", ["", "%%%", "djEgVA==", "a" * 3_000, "djIgYSBiIDEgYw=="])
def test_malformed_recall_handle_is_rejected(text):
    with pytest.raises(ValueError, match=r".*"):
        RecallHandle.decode(text)


def test_only_waiting_timer_messages_have_a_recall_handle():
    assert handle_of(sent(), "b") == ""
    retry = sent(TIMER_DELAY_SEC="1")
    retry = timed(
        Outgoing("%RETRY%g", 0, b"x", retry.properties, 1, HOST),
        decode_properties(retry.properties),
        timing(),
    )
    assert handle_of(retry, "b") == ""
