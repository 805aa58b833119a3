"""Typed headers against recorded ones: what is read means the same, and writes back the same."""

from typing import Any

import orjson
import pytest

from raftmq.remoting.admin_headers import (
    ConsumeDirectlyHeader,
    QueryMessageHeader,
    ReplyPushHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    TopicHeader,
)
from raftmq.remoting.errors import HeaderError
from raftmq.remoting.fields import boolean_or, integer
from raftmq.remoting.headers import (
    PULL_SUBSCRIPTION,
    CheckTransactionHeader,
    ConsumerOffsetHeader,
    EndTransactionHeader,
    PullHeader,
    PullResponseHeader,
    QueueOffsetHeader,
    SendBackHeader,
    SendHeader,
    SendResponseHeader,
    UnregisterClientHeader,
)
from tests.remoting import recorded


def ext_of(header: bytes) -> dict[str, str]:
    ext = orjson.loads(header)["extFields"]
    ext.pop("ReqT", None)  # the request type of a newer client; of no meaning
    return ext


def test_send_header_of_a_java_client() -> None:
    ext = ext_of(recorded.SEND_REQUEST)
    header = SendHeader.parse(ext)
    assert header.topic == "cmp_auto_mwpzoxt1"
    assert header.default_topic_queue_count == 4
    assert header.queue_id == 1
    assert header.born_timestamp_ms == 1795240250622
    assert header.properties.startswith("UNIQ_KEY\x01FD")
    assert (header.unit_mode, header.batch) == (False, False)
    assert header.max_reconsume_times is None
    assert header.broker_name == "RaftNode00"
    assert header.to_ext() == ext


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325, 326])
def test_send_header_with_long_and_short_names(code: int) -> None:
    header = SendHeader("g", "t", "TBW102", 4, -1, 4, 5, 6, "A\x01b\x02", 7, True, 8, True, "b")
    ext = header.to_ext(code)
    assert ("topic" in ext) == (code in (10, 324, 326))
    assert ("b" in ext) == (code in (310, 320, 325))
    assert SendHeader.parse(ext, code) == header


WITH_RECORDING: list[tuple[Any, bytes, set[str]]] = [
    (SendResponseHeader, recorded.SEND_RESPONSE, set()),
    (PullHeader, recorded.PULL_REQUEST, set()),
    (PullResponseHeader, recorded.PULL_NOT_FOUND, {"groupSysFlag", "topicSysFlag"}),
    (ConsumerOffsetHeader, recorded.OFFSET_UPDATE, {"bname"}),
    (SendBackHeader, recorded.SEND_BACK, {"bname"}),
    (EndTransactionHeader, recorded.END_TRANSACTION, {"bname"}),
    (TopicHeader, recorded.CREATE_TOPIC, {"force"}),
    (ReplyPushHeader, recorded.REPLY_PUSH, set()),
]


@pytest.mark.parametrize(("kind", "header", "dropped"), WITH_RECORDING)
def test_recorded_headers_are_written_back_equally(
    kind: Any, header: bytes, dropped: set[str]
) -> None:
    ext = ext_of(header)
    written = kind.parse(ext).to_ext()
    optional = {"batch": "false"}  # written by us where Java leaves it out
    expected = {key: value for key, value in ext.items() if key not in dropped}
    assert written == expected | {k: v for k, v in optional.items() if k in written}


def test_pull_header_fields() -> None:
    header = PullHeader.parse(ext_of(recorded.PULL_REQUEST))
    assert header.sys_flag == PULL_SUBSCRIPTION
    assert (header.queue_offset, header.message_count_max) == (0, 16)
    assert (header.suspend_timeout_ms, header.subscription) == (20000, "*")
    assert header.bytes_max == 2147483647


@pytest.mark.parametrize(
    "header",
    [
        QueueOffsetHeader("t", 1, 5, "UPPER"),
        QueueOffsetHeader("t", 1),
        ConsumerOffsetHeader("g", "t", 1, None, False),
        CheckTransactionHeader(1, 2, "m", "x", "o"),
        UnregisterClientHeader("c", "p", None),
        UnregisterClientHeader("c", None, "g"),
        QueryMessageHeader("t", "k", 32, 1, 2, True),
        ResetOffsetHeader("t", "g", -1, True, 3, 4),
        RunningInfoHeader("g", "c", True),
        ConsumeDirectlyHeader("g", "c", None, "b"),
    ],
)
def test_header_round_trip(header: Any) -> None:
    ext = header.to_ext()
    assert all(type(value) is str for value in ext.values())
    assert type(header).parse(ext) == header


@pytest.mark.parametrize("name", "abefgh")
def test_missing_header_field_is_named(name: str) -> None:
    ext = ext_of(recorded.SEND_REQUEST)
    del ext[name]
    with pytest.raises(HeaderError, match=f"<{name}> is null"):
        SendHeader.parse(ext)


def test_header_without_ext_fields() -> None:
    with pytest.raises(HeaderError):
        PullHeader.parse(None)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("0", 0),
        ("-1", -1),
        ("9223372036854775807", (1 << 63) - 1),
        ("-9223372036854775808", -(1 << 63)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("9" * 5000, None),
        ("1_000", None),
        (" 1", None),
        ("+1", None),
        ("--1", None),
        ("-", None),
        ("1.0", None),
        ("٣", None),
        ("0x10", None),
    ],
)
def test_header_integers_are_java_longs(value: str, number: int | None) -> None:
    if number is None:
        with pytest.raises(HeaderError):
            integer({"n": value}, "n")
    else:
        assert integer({"n": value}, "n") == number


def test_optional_header_fields_and_defaults() -> None:
    needed = {"topic": "t", "queueId": "1"}
    assert QueueOffsetHeader.parse(needed | {"timestamp": ""}).timestamp_ms is None
    assert QueueOffsetHeader.parse(needed | {"boundaryType": "upper"}).boundary == "UPPER"
    assert QueueOffsetHeader.parse(needed) == QueueOffsetHeader("t", 1)
    # What a peer leaves out is not always what we write when nothing is said.
    reset = ResetOffsetHeader.parse({"topic": "t", "group": "g", "timestamp": "1"})
    assert (reset.force, ResetOffsetHeader("t", "g", 1).force) == (False, True)
    assert boolean_or({"b": "TRUE"}, "b", False) is True
    assert boolean_or({"b": "yes"}, "b", True) is False
    assert boolean_or(None, "b", True) is True
