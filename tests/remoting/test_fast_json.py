"""The dialect: recorded bodies, round trips, and damage."""

from time import process_time

import orjson
import pytest

from raftmq.remoting.errors import BodyError
from raftmq.remoting.fast_json import (
    DIALECT_VALUES_MAX,
    VALUES_MAX,
    MessageQueue,
    dumps,
    loads,
    loads_object,
    loads_request,
)
from tests.remoting import recorded


def test_fastjson_number_keys_without_quotes() -> None:
    body = loads(recorded.CLUSTER_BODY)
    group = body["brokerAddrTable"]["RaftNode00"]
    assert group["brokerAddrs"] == {
        "0": "127.0.0.1:30931",
        "1": "127.0.0.1:30911",
        "2": "127.0.0.1:30921",
    }
    assert group["enableActingMaster"] is False
    assert body["clusterAddrTable"] == {"AnchorCluster": ["RaftNode00"]}


def test_fastjson_object_keys_in_both_directions() -> None:
    body = loads(recorded.STATS_BODY)
    queue = MessageQueue("cmp_st_mwpzoxt1", "RaftNode00", 1)
    assert body["offsetTable"][queue]["lastUpdateTimestamp"] == 1795240385893
    assert body["topicPutTps"] == 0.0
    assert dumps(body) == recorded.STATS_BODY  # to the byte


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [1, -2, 3.5, True, False, None, "é\n\u0001", {"b": []}]},
        {"big": 9_223_372_036_854_775_807},
        {MessageQueue("t", "b", 0): [{"x": MessageQueue("u", "b", 2).as_fields()}], "n": 1.5},
    ],
)
def test_fastjson_round_trip(value: object) -> None:
    assert loads(dumps(value)) == value


def test_number_keys_are_written_quoted() -> None:
    assert dumps({0: "a", 1: "b"}) == b'{"0":"a","1":"b"}'
    queue = MessageQueue("t", "b", 0)
    assert dumps({queue: {3: "x"}}) == (b'{{"brokerName":"b","queueId":0,"topic":"t"}:{"3":"x"}}')
    assert dumps([queue, {queue: 1}]).startswith(b'[{"brokerName":"b","queueId":0,"topic":"t"},{{')


@pytest.mark.parametrize("value", [b"{0:1}", b' { 0 : [ 1 , { -3 : "}" } ] } ', b"{1:{}, 2:[]}"])
def test_fastjson_whitespace_and_nesting(value: bytes) -> None:
    assert isinstance(loads(value), dict)


DAMAGED = [
    b"",
    b"{0:",
    b"{0:1",
    b"{0:1,",
    b"{0 1}",
    b"{0:1}x",
    b"{0:[1 2]}",
    b"{0:[1,]}",
    b"{0:NaN}",
    b"{0:-}",
    b'{0:"\xff"}',
    b'{0:"abc',
    b"{true:1}",
    b"{[1]:1}",
    b'{{"topic":"t"}:1}',
    b'{{"topic":"t","brokerName":"b","queueId":"0"}:1}',
]


@pytest.mark.parametrize("data", DAMAGED)
def test_malformed_fastjson_is_rejected(data: bytes) -> None:
    with pytest.raises(BodyError):
        loads(data)


@pytest.mark.parametrize("body", [recorded.CLUSTER_BODY, recorded.STATS_BODY])
def test_every_truncation_of_fastjson_is_rejected(body: bytes) -> None:
    for cut in range(len(body)):
        with pytest.raises(BodyError):
            loads(body[:cut])


@pytest.mark.parametrize("outer", [b"{0:%s}", b'{{"topic":"t","brokerName":"b","queueId":0}:%s}'])
def test_fastjson_nesting_is_limited(outer: bytes) -> None:
    def nested(depth: int) -> bytes:
        before, _, after = outer.partition(b"%s")
        return before * depth + b"1" + after * depth

    assert loads(nested(64))
    with pytest.raises(BodyError):
        loads(nested(5_000))


# Each is not JSON, and has the reader look far ahead from as many places as it can.
HOSTILE = [
    b"[0,",
    b"{",
    b'{"',
    b'"\\',
    b'{"a",',
    b'{"}',
    b'"a"{',
    b"{0:",
    b"{-",
    b"{1",
    b'{"a":1 ',
    b"{} ",
]


@pytest.mark.parametrize("part", HOSTILE)
def test_fastjson_body_takes_memory_of_its_length(part: bytes) -> None:
    def took_s(count: int) -> float:
        began = process_time()
        for _ in range(3):
            with pytest.raises(BodyError):
                loads(b'{0:"' + part * count if part == b'"\\' else b"{0:1," + part * count)
        return process_time() - began

    assert took_s(64_000) < 16 * 8 * (took_s(4_000) + 1e-3)


@pytest.mark.parametrize(
    "value", [b'"\\ud800"', b'"\\udfff"', b'{"a":"\\ud800x"}', b"NaN", b"Infinity"]
)
@pytest.mark.parametrize("key", [b"0", b'"0"', b'{"topic":"t","brokerName":"b","queueId":0}'])
def test_fastjson_that_cannot_be_written_is_not_read(key: bytes, value: bytes) -> None:
    with pytest.raises(BodyError):
        loads(b"{%s:%s}" % (key, value))


@pytest.mark.parametrize("number", [b"9" * 60, b"-" + b"9" * 60, b"1e300"])
def test_large_numbers_can_be_written_again(number: bytes) -> None:
    assert loads(dumps(loads(b"{0:%s}" % number)))


def test_value_that_cannot_be_encoded_raises() -> None:
    with pytest.raises(orjson.JSONEncodeError):
        dumps({MessageQueue("t", "b", 0): object()})


def test_fastjson_body_must_be_an_object() -> None:
    assert loads_object(b"{}") == {}
    with pytest.raises(BodyError):
        loads_object(b"[]")


def test_request_with_too_many_values_is_rejected_unread() -> None:
    for entry in (b"{}", b"[]", b"1", b'""'):
        body = b'{"a":[%b]}' % b",".join([entry] * VALUES_MAX)
        with pytest.raises(BodyError, match="at most 32768"):
            loads_request(body)
    assert len(loads_request(b'{"a":[%b]}' % b",".join([b"1"] * 30_000))["a"]) == 30_000


def test_fastjson_request_has_a_smaller_limit() -> None:
    def body(count: int) -> bytes:
        return b"{%b}" % b",".join(b"%d:1" % number for number in range(count))

    assert len(loads_request(body(DIALECT_VALUES_MAX - 2))) == DIALECT_VALUES_MAX - 2
    with pytest.raises(BodyError, match="not JSON"):
        loads_request(body(DIALECT_VALUES_MAX))
    with pytest.raises(BodyError, match="not a JSON object"):
        loads_request(b"[%b]" % b",".join([b"1"] * DIALECT_VALUES_MAX))
