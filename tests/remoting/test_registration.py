"""The body of 103 in all its forms, the version at its head, and damage."""

import json
import struct
import zlib

import orjson
import pytest

from raftmq.remoting.errors import BodyError, HeaderError
from raftmq.remoting.large_bodies import VALUE_BYTES_MAX
from raftmq.remoting.registration import (
    TOPICS_PER_STEP,
    BodyLimits,
    BrokerHeader,
    DataVersion,
    RegisterBrokerHeader,
    TopicConfig,
    body_crc,
    decode_register_body,
    encode_register_body,
    peek_data_version,
    reading_register_body,
)

VERSION = DataVersion(3, 0, 1795239982842)
TOPICS = [
    TopicConfig("TopicTest", 4, 8, 6),
    TopicConfig("%RETRY%group", 1, 1, 6),
    TopicConfig("dataVersion", 1, 1, 4, 0, "MULTI_TAG"),
    TopicConfig("Orders", 4, 4, 6, message_type="FIFO"),
]


@pytest.mark.parametrize("compressed", [False, True])
def test_register_body_round_trip(compressed: bool) -> None:
    body = encode_register_body(VERSION, TOPICS, compressed)
    assert decode_register_body(body, compressed) == (VERSION, TOPICS)
    assert peek_data_version(body, compressed) == VERSION


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_compressed_register_body_of_5x_is_read() -> None:
    """With attributes behind the topic, which hold blanks, and queue mappings at the end."""
    stream = (
        sized(b'{"counter":7,"stateVersion":2,"timestamp":5}')
        + struct.pack(">i", 2)
        + sized(b'A 4 4 6 SINGLE_TAG {"+message.type": "NORMAL DELAY"}')
        + sized(b'B 1 2 2 MULTI_TAG {"reserve.time": "-1", "message.type": "DELAY"}')
        + sized(b"[]")
        + struct.pack(">i", 1)
        + sized(b'{"bname":"b"}')
    )
    body = zlib.compress(stream, 9)
    version, topics = decode_register_body(body, True)
    assert version == DataVersion(7, 2, 5)
    assert topics == [
        TopicConfig("A", 4, 4, 6),
        TopicConfig("B", 1, 2, 2, 0, "MULTI_TAG", message_type="DELAY"),
    ]


@pytest.mark.parametrize("text", ["7", "[1]", '{"message.type": 7}', '{"message.type": "a b"}'])
def test_topic_attributes_without_a_message_type(text: str) -> None:
    fields = {"attributes": json.loads(text)}
    assert TopicConfig.from_fields("A", fields).message_type == ""


def test_plain_register_body_of_4x_is_read() -> None:
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
        b'"timestamp":9},"topicConfigTable":{"T":{"order":true,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":2,"writeQueueNums":4}}}}'
    )
    version, topics = decode_register_body(body, False)
    assert version == DataVersion(1, 0, 9) == peek_data_version(body, False)
    assert topics == [TopicConfig("T", 4, 4, 6, 2, order=True)]


def test_register_body_with_two_versions_is_rejected() -> None:
    one = orjson.dumps(VERSION.as_fields())
    body = b'{"x":{"dataVersion":' + one + b'},"dataVersion":' + one + b"}"
    assert peek_data_version(body, False) is None


@pytest.mark.parametrize("compressed", [False, True])
def test_every_truncation_of_a_register_body_is_rejected(compressed: bool) -> None:
    body = encode_register_body(VERSION, TOPICS, compressed)
    for cut in range(1, len(body)):
        with pytest.raises(BodyError):
            decode_register_body(body[:cut], compressed)
        peek_data_version(body[:cut], compressed)  # raises nothing


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        struct.pack(">i", -1),
        struct.pack(">i", 1 << 30),
        sized(b"{}") + struct.pack(">i", 1),
        sized(b"{}") + struct.pack(">i", 1) + sized(b"A 4 4"),
        sized(b"{}") + struct.pack(">i", 1) + sized(b"A four 4 6"),
        sized(b"{}") + struct.pack(">i", 1) + sized(b"\xff 4 4 6"),
        sized(b"[]") + struct.pack(">i", 0),
        sized(b'{"counter":"1"}') + struct.pack(">i", 0),
    ],
)
def test_malformed_register_streams_are_rejected(stream: bytes) -> None:
    with pytest.raises(BodyError):
        decode_register_body(zlib.compress(stream), True)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":1}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"6"}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"readQueueNums":null}}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":1}}',
    ],
)
def test_malformed_register_json_is_rejected(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_register_body(body, False)


@pytest.mark.parametrize(
    "part",
    [
        b'"A":{"perm":6},"A":{"perm":4}',  # two readers would see different topics
        b'"A":{"perm":6,"perm":4}',
        b'"A":{"perm":6,"attributes":{"x":"' + b"y" * VALUE_BYTES_MAX + b'"}}',
        b'"' + b"A" * 2_000 + b'":{}',
        b'"A":' + b"[" * 60_000,
        b'"A":{"perm":' + b"9" * 5_000 + b"}",
    ],
)
def test_register_json_is_read_part_by_part(part: bytes) -> None:
    wrapper = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%s}}}'
    with pytest.raises(BodyError):
        decode_register_body(wrapper % part, False)


def test_unused_parts_of_register_json_are_skipped() -> None:
    """Also a map of Apache's with number keys, which is not JSON."""
    body = (
        b' { "more" : [1, {"a": "}"}, -2.5e3] , "topicConfigSerializeWrapper" : {"x":null, "y":1,'
        b'"topicQueueMappingInfoMap":{"T":{"currIdMap":{0:0,1:1}}}, "topicConfigTable" :'
        b' { "T" : { "perm" : 6 } } } , "filterServerList":null } '
    )
    assert decode_register_body(body, False) == (DataVersion(), [TopicConfig("T", 16, 16, 6)])
    for cut in range(1, len(body) - 1):
        with pytest.raises(BodyError):
            decode_register_body(body[:cut], False)


@pytest.mark.parametrize("compressed", [False, True])
def test_register_body_limits(compressed: bool) -> None:
    topics = [TopicConfig(f"topic-{number}", 1, 1, 6) for number in range(500)]
    body = encode_register_body(VERSION, topics, compressed)
    size = len(zlib.decompress(body) if compressed else body)
    assert decode_register_body(body, compressed, BodyLimits(size, 500)) == (VERSION, topics)
    with pytest.raises(BodyError, match="registrationBytesMax"):
        decode_register_body(body, compressed, BodyLimits(size - 1, 500))
    with pytest.raises(BodyError, match="499 at most"):
        decode_register_body(body, compressed, BodyLimits(size, 499))
    steps = sum(1 for _ in reading_register_body(body, compressed, BodyLimits()))
    assert steps >= 500 // TOPICS_PER_STEP


def test_register_headers_round_trip_and_reject_malformed_fields() -> None:
    header = RegisterBrokerHeader(
        "b", "127.0.0.1:10911", "c", "127.0.0.1:10912", 2, True, 5, 9000, 7, "leader",
        "0a" * 16, 3, f"{'0b' * 16},{'0c' * 16}", True, VERSION, "127.0.0.1:10915",
    )  # fmt: skip
    assert RegisterBrokerHeader.parse(header.to_ext()) == header
    apache = {k: v for k, v in header.to_ext().items() if k not in ("topicDelta", "topicDeltaBase")}
    assert RegisterBrokerHeader.parse(apache).topic_delta is None
    for wrong in ("x", "0A" * 16, "0a" * 15, "0a" * 17):
        with pytest.raises(HeaderError):
            RegisterBrokerHeader.parse(header._replace(raft_group_id=wrong).to_ext())
    for wrong in ("x", ",", "none", ",".join(["0b" * 16] * 101)):
        with pytest.raises(HeaderError, match="removedGroups"):
            RegisterBrokerHeader.parse(header._replace(removed_groups=wrong).to_ext())
    unknown = header._replace(raft_group_id="none")
    assert RegisterBrokerHeader.parse(unknown.to_ext()) == unknown
    plain = RegisterBrokerHeader("b", "127.0.0.1:10911", "c", "", 0)
    assert RegisterBrokerHeader.parse(plain.to_ext()) == plain
    assert BrokerHeader.parse(plain.to_ext()) == BrokerHeader("b", "127.0.0.1:10911", "c", 0)
    beat = BrokerHeader("b", "127.0.0.1:10911", "c", 1, 5000)
    assert BrokerHeader.parse(beat.to_ext()) == beat
    with pytest.raises(HeaderError):
        RegisterBrokerHeader.parse({"brokerName": "b"})
    with pytest.raises(BodyError):
        RegisterBrokerHeader.parse(plain.to_ext() | {"topicDeltaBase": "nonsense"})


def test_register_crc_is_masked() -> None:
    assert body_crc(b"hello") == 907060870
