"""The client's pure parts, by table."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import cast

import orjson
import pytest

from raftmq.client.compression import (
    BODY_SIZE_BYTES_MAX,
    Compression,
    CompressionType,
    decompress,
)
from raftmq.client.consumer.consume_service import restore_topics
from raftmq.client.consumer.offsets import OffsetMoved, OffsetTable
from raftmq.client.consumer.process_queue import CacheBudget, CacheLimits, ProcessQueue
from raftmq.client.decode import decode_messages
from raftmq.client.errors import ClientError, SendFailed, SendOutcomeUnknown, UnsupportedCompression
from raftmq.client.message import Message, MessageExt, UniqueKeys
from raftmq.client.metadata import parse_addresses
from raftmq.client.producer.channel import Channel, StoredAnswer
from raftmq.client.producer.fault_tolerance import FaultAvoidance
from raftmq.client.producer.pending_send import Pending, Verdict, judge
from raftmq.client.producer.send_frame import (
    SendTemplate,
    encoded_properties,
    outgoing,
    outgoing_batch,
)
from raftmq.client.route import REPLICAS_MAX, ReplicaGroup, RouteError, parse_route
from raftmq.client.subscription import subscribe, tag_of
from raftmq.remoting.allocation import allocate_averagely
from raftmq.remoting.codec import FrameReader, RawFrame, decode_command
from raftmq.remoting.connection import Connection
from raftmq.remoting.headers import PullResponseHeader, SendHeader
from raftmq.store.record import RecordError
from tests.client.fakes import SharedLog, queue

# ---- addresses of name servers


@pytest.mark.parametrize("given", ["a:1;b:2", "a:1, b:2;", ["a:1", " b:2 "]])
def test_name_servers_are_parsed_as_in_brokers_and_commands(given: str | list[str]) -> None:
    assert parse_addresses(given) == ("a:1", "b:2")


@pytest.mark.parametrize("given", ["", " ;", []])
def test_empty_name_server_list_is_rejected(given: str | list[str]) -> None:
    with pytest.raises(ValueError, match="no name server"):
        parse_addresses(given)


# ---- unique keys


def test_unique_keys_never_repeat_with_a_stopped_or_backward_clock() -> None:
    times = iter([5, 5, 5, 3])
    last = 5

    def clock() -> int:
        nonlocal last
        last = next(times, last)
        return last

    keys = UniqueKeys(b"\x7f\x00\x00\x01", 0x1234, 0xCAFE0001, clock)
    made = [keys.next() for _ in range(200_000)]
    assert len(set(made)) == len(made)
    assert made[0] == "7F0000011234CAFE0001000000050000"
    assert all(len(key) == 32 for key in made)


# ---- judgement

JUDGED = [
    (0, "", Verdict.STORED),
    (10, "", Verdict.STORED),
    (11, "", Verdict.STORED),
    (12, "", Verdict.STORED),
    (14, "[NOT_LEADER] x", Verdict.NOT_LEADER),
    (14, "service not available", Verdict.NOT_LEADER),
    (14, "[DISK_FULL] x", Verdict.RETRY),
    (1500, "", Verdict.NOT_LEADER),
    (1, "[OUTCOME_UNKNOWN]", Verdict.UNKNOWN),
    (1, "in-sync replicas not enough", Verdict.UNKNOWN),
    (2, "[BUSY]", Verdict.RETRY),
    (16, "", Verdict.RETRY),
    (17, "", Verdict.RETRY),
    (13, "", Verdict.REFUSED),
    (29, "", Verdict.REFUSED),
    (3, "", Verdict.REFUSED),
]


@pytest.mark.parametrize(("code", "remark", "verdict"), JUDGED)
def test_judge_returns_a_verdict_for_each_response(
    code: int, remark: str, verdict: Verdict
) -> None:
    assert judge(code, remark) is verdict


def test_error_is_unknown_if_any_attempt_was() -> None:
    item = outgoing(Message("T", b"x"), "K" * 32, 1)
    pending = Pending(item, queue(), False, 1.0, lambda r, e: None)
    assert type(pending.error()) is SendFailed
    pending.failed_attempt(14, "refused", False)
    assert type(pending.error()) is SendFailed
    pending.failed_attempt(-1, "broken", True)
    pending.failed_attempt(14, "refused", False)
    error = pending.error()
    assert type(error) is SendOutcomeUnknown
    assert "broken" in str(error) and "refused" not in str(error)


# ---- rebalance

QUEUES = [queue(n) for n in range(8)]
ALLOCATED = [
    (8, ["a"], "a", [0, 1, 2, 3, 4, 5, 6, 7]),
    (8, ["a", "b"], "a", [0, 1, 2, 3]),
    (8, ["b", "a"], "b", [4, 5, 6, 7]),
    (8, ["a", "b", "c"], "a", [0, 1, 2]),
    (8, ["a", "b", "c"], "b", [3, 4, 5]),
    (8, ["a", "b", "c"], "c", [6, 7]),
    (2, ["a", "b", "c"], "c", []),
    (8, ["a", "b"], "stranger", []),
    (8, ["a", "a", "b"], "b", [4, 5, 6, 7]),
    (0, ["a"], "a", []),
]


@pytest.mark.parametrize(("count", "clients", "me", "expected"), ALLOCATED)
def test_allocate_averagely_equals_javas(
    count: int, clients: list[str], me: str, expected: list[int]
) -> None:
    got = allocate_averagely(list(reversed(QUEUES[:count])), clients, me)
    assert [q.queue_id for q in got] == expected


@pytest.mark.parametrize("count", range(0, 9))
@pytest.mark.parametrize("clients", range(1, 12))
def test_allocate_averagely_gives_every_queue_one_owner(count: int, clients: int) -> None:
    names = [f"c{n:02}" for n in range(clients)]
    owned = [q for name in names for q in allocate_averagely(QUEUES[:count], names, name)]
    assert sorted(owned) == sorted(QUEUES[:count])


# ---- route


def test_route_without_a_leader_keeps_its_queues() -> None:
    body = {
        "queueDatas": [
            {"brokerName": "b", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6},
            {"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 4},
        ],
        "brokerDatas": [
            {"cluster": "c", "brokerName": "b", "brokerAddrs": {"1": "h:1"}},
            {"cluster": "c", "brokerName": "a", "brokerAddrs": {"0": "h:2"}},
        ],
    }
    route = parse_route(body)
    assert [(q.broker_name, q.queue_id) for q in route.write_queues("T")] == [("b", 0), ("b", 1)]
    assert [q.broker_name for q in route.read_queues("T")] == ["a", "b", "b", "b"]
    assert route.brokers[0].leader is None and route.brokers[1].leader == "h:2"


@pytest.mark.parametrize("body", [{"queueDatas": [{}]}, {"brokerDatas": [{"brokerName": 1}]}])
def test_malformed_route_is_rejected(body: dict[str, object]) -> None:
    with pytest.raises(RouteError):
        parse_route(body)


def test_replica_group_script() -> None:
    group = ReplicaGroup("g")
    assert group.candidates() == ()
    assert group.learn({0: "a", 1: "b", 2: "c"}) == ("a", "b", "c")
    assert group.leader == "a" and group.candidates() == ("a", "b", "c")
    group.doubt("a", "c")
    assert group.leader is None and group.candidates() == ("c", "b", "a")
    version = group.version
    group.doubt("b")
    assert group.version == version, "a follower's refusal is no news"
    group.learn({0: "a", 1: "b", 2: "c"})
    assert group.leader is None, "an unchanged route is not news"
    group.accepted("c")
    version = group.version
    group.learn({0: "a", 1: "b", 2: "c"})
    assert group.leader == "c" and group.version == version
    group.learn({0: "b", 1: "a", 2: "c"})
    assert group.leader == "b", "a changed route is believed at once"
    group.doubt("b", "new:1")
    assert group.candidates()[0] == "new:1"


def test_classic_group_sends_only_to_its_master() -> None:
    group = ReplicaGroup("g")
    group.learn({0: "master", 1: "slave"})
    assert group.send_targets() == ("master",)
    group.doubt("master")
    assert group.candidates() == ("slave", "master"), "what may be asked of a slave goes there"
    assert group.send_targets() == ("master",)
    group.learn({1: "slave"})
    assert group.send_targets() == ()
    group.doubt("slave", "promoted")
    assert group.send_targets() == ("promoted",), "a refusal names the master"
    group.raft = True
    assert group.send_targets() == group.candidates()


def test_replica_group_returns_to_a_leader_that_is_named_again() -> None:
    group = ReplicaGroup("g")
    group.learn({0: "a", 1: "b"})
    group.doubt("a")
    assert (group.leader, group.target, group.absent_leader) == (None, "b", "a")
    group.learn({0: "a", 1: "b"})
    assert group.leader is None, "an unchanged route is not news"
    group.learn({1: "b"})
    assert (group.absent_leader, group.route_leader, group.target) == (None, None, "b")
    group.learn({0: "a", 1: "b"})
    assert group.leader == "a"


def test_replica_group_returns_to_a_leader_that_answers_again() -> None:
    group = ReplicaGroup("g")
    group.learn({0: "a", 1: "b"})
    group.doubt("a")
    version = group.version
    group.presume("a")
    assert (group.leader, group.absent_leader, group.version) == ("a", None, version + 1)
    group.doubt("a", "b")
    assert (group.absent_leader, group.target) == (None, "b"), "there is a hint to follow"
    group.accepted("b")
    group.presume("a")
    assert group.leader == "b", "who was accepted is not presumed away"
    assert (group.replica(0), group.replica(1), group.replica(2)) == ("a", "b", None)


def test_replica_group_drops_the_oldest_address_at_the_limit() -> None:
    group = ReplicaGroup("g")
    for number in range(REPLICAS_MAX + 5):
        group.learn({1: f"h:{number}"})
    assert len(group.addresses) == REPLICAS_MAX and "h:0" not in group.addresses


# ---- fault avoidance


def test_fault_avoidance_periods() -> None:
    fault = FaultAvoidance()
    assert fault.quiet and fault.available("g", 0)
    fault.failed("g", 0)
    assert not fault.quiet and not fault.available("g", 499) and fault.available("g", 500)
    fault.answered("g", 600, 1000)
    assert not fault.available("g", 1999) and fault.available("g", 2000)
    fault.answered("g", 2000, 3000)
    assert not fault.available("g", 5999)
    fault.answered("g", 5, 5500)
    assert fault.quiet


# ---- send frames


@pytest.mark.parametrize("topic", ["T", "%RETRY%g%d", 'q"uote', "標題"])
def test_send_frame_is_read_by_the_codec(topic: str) -> None:
    item = outgoing(Message(topic, b"body", tags="a%d", properties={"ключ": '"v\\'}), "K" * 32, 7)
    frame = SendTemplate("grp%s", topic, "b-0", item.code).frame(item, 3, 99, 2)
    reader = FrameReader()
    reader.receive_data(frame)
    raw = reader.next_frame()
    assert raw is not None and reader.next_frame() is None
    command = decode_command(raw)
    assert (command.code, command.opaque, command.flag, command.body) == (310, 99, 2, b"body")
    header = SendHeader.parse(command.ext)
    assert (header.producer_group, header.topic, header.broker_name) == ("grp%s", topic, "b-0")
    assert (header.queue_id, header.born_timestamp_ms, header.sys_flag) == (3, 7, 0)
    assert header.properties == (
        f'UNIQ_KEY\x01{"K" * 32}\x02WAIT\x01true\x02TAGS\x01a%d\x02ключ\x01"v\\\x02'
    )


def test_batch_body_by_bytes() -> None:
    item = outgoing_batch([Message("T", b"ab", flag=5), Message("T", b"c")], ["K1", "K2"], 1)
    properties = b"UNIQ_KEY\x01K1\x02WAIT\x01true\x02"
    size = 22 + 2 + len(properties)
    first = struct.pack(">iiiii", size, 0, 0, 5, 2) + b"ab"
    assert item.body.startswith(first + struct.pack(">h", len(properties)) + properties)
    assert item.unique_key == "K1,K2" and item.code == 320


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("T", b"")],
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x", delay_level=1)],
    ],
)
def test_malformed_batch_is_rejected(messages: list[Message]) -> None:
    with pytest.raises(ClientError):
        outgoing_batch(messages, ["K"] * len(messages), 1)


def test_incompressible_body_is_sent_unchanged() -> None:
    body = random.Random(1).randbytes(5000)
    item = outgoing(Message("T", body), "K", 1)
    assert item.body == body and item.sys_flag == 0


# ---- decoding


def body_of(log: SharedLog) -> bytes:
    return b"".join(data for items in log.records.values() for data in items)


def test_decode_messages_returns_all_fields() -> None:
    log = SharedLog()
    log.append("T", 3, b"one", "TAGS\x01A\x02UNIQ_KEY\x01U1\x02KEYS\x01k\x02")
    log.append("T", 3, b"two", "")
    messages = decode_messages(body_of(log), "g0")
    assert [m.body for m in messages] == [b"one", b"two"]
    first, second = messages
    assert (first.topic, first.queue, first.queue_offset) == ("T", queue(3), 0)
    assert (first.tags, first.keys, first.msg_id) == ("A", "k", "U1")
    assert second.queue_offset == 1 and second.properties == {} and second.tags is None
    assert second.msg_id == second.offset_msg_id
    assert second.offset_msg_id == f"7F00000100002A9F{first.store_size_bytes:016X}"
    assert first.born_host == ("127.0.0.1", 1) and first.store_host == ("127.0.0.1", 10911)


def test_tags_are_compared_as_strings() -> None:
    # "Aa" and "BB" have the same Java hash: the broker lets both through.
    log = SharedLog()
    for tags in ("Aa", "BB", "", "xAa"):
        log.append("T", 0, b"b", f"OTHERTAGS\x01Aa\x02TAGS\x01{tags}\x02" if tags else "")
    expected = subscribe("T", "Aa", 1).subscribed_tags()
    assert [m.tags for m in decode_messages(body_of(log), "g", expected)] == ["Aa"]
    assert (
        subscribe("T", "Aa", 1).to_json()["codeSet"] == subscribe("T", "BB", 1).to_json()["codeSet"]
    )


@pytest.mark.parametrize("cut", [1, 5, 87, 90, -1, -2])
def test_damaged_body_is_rejected(cut: int) -> None:
    log = SharedLog()
    log.append("T", 0, b"hello", "TAGS\x01A\x02")
    with pytest.raises(RecordError):
        decode_messages(body_of(log)[:cut], "g")


@pytest.mark.parametrize("position", [8, 90, 87, 93, 95, 96])
def test_flipped_byte_is_rejected(position: int) -> None:
    log = SharedLog()
    log.append("T", 0, b"hello", "TAGS\x01A\x02")
    data = bytearray(body_of(log))
    data[position] ^= 0x55
    with pytest.raises(RecordError):
        decode_messages(bytes(data), "g")


def test_long_topic_and_compressed_bodies() -> None:
    log = SharedLog()
    log.append("L" * 200, 0, b"v2")
    log.append("T", 0, zlib.compress(b"plain"), sys_flag=0x301)
    log.append("T", 0, zlib.compress(b"old"), sys_flag=0x1)
    assert [m.body for m in decode_messages(body_of(log), "g")] == [b"v2", b"plain", b"old"]


@pytest.mark.parametrize("kind", list(CompressionType))
@pytest.mark.parametrize("size", [4096, 4097, 3_000_000])
def test_every_compression_algorithm_round_trip(kind: CompressionType, size: int) -> None:
    body = (b"the same again " * (size // 15 + 1))[:size]
    packed, sys_flag = Compression(kind).apply(body)
    assert len(packed) < size // 4 and sys_flag == 0x1 | kind.value
    log = SharedLog()
    log.append("T", 0, packed, sys_flag=sys_flag)
    (message,) = decode_messages(body_of(log), "g")
    assert message.body == body and not message.sys_flag & 0x1


def test_body_that_compression_would_not_shrink_is_unchanged() -> None:
    noise = random.Random(1).randbytes(5000)
    assert Compression().apply(noise) == (noise, 0)
    assert Compression().apply(b"a" * 4095) == (b"a" * 4095, 0)
    assert Compression(from_bytes=0).apply(b"a" * 10_000) == (b"a" * 10_000, 0)
    assert Compression(from_bytes=10).apply(b"a" * 100)[1] == 0x301


# What Java's Compressor implementations of rocketmq-common 5.3.3 made of 200 bytes "ab".
JAVA_PACKED = [
    (0x101, "04224d186070730c0000002f61620200ae50626162616200000000"),
    (0x201, "28b52ffd00584c00001061620100c3288705010000"),
    (0x301, "785e4b4c4a1c161000e98f4c2d"),
]


@pytest.mark.parametrize(("sys_flag", "packed"), JAVA_PACKED)
def test_body_compressed_by_java_is_read(sys_flag: int, packed: str) -> None:
    assert decompress(bytes.fromhex(packed), sys_flag) == b"ab" * 100


@pytest.mark.parametrize(
    ("body", "sys_flag", "error"),
    [
        (b"x", 0x401, UnsupportedCompression),
        (b"not zlib", 0x301, RecordError),
        (b"not lz4", 0x101, RecordError),
        (b"not zstd", 0x201, RecordError),
        (zlib.compress(b"cut short")[:-3], 0x301, RecordError),
        (Compression(CompressionType.LZ4).apply(b"a" * 5000)[0][:-5], 0x101, RecordError),
        (Compression(CompressionType.ZSTD).apply(b"a" * 5000)[0][:-3], 0x201, RecordError),
        (zlib.compress(bytes(BODY_SIZE_BYTES_MAX + 1)), 0x301, RecordError),
    ],
)
def test_body_that_cannot_be_decompressed_is_delivered_unchanged(
    body: bytes, sys_flag: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        decompress(body, sys_flag)
    log = SharedLog()
    log.append("T", 0, body, sys_flag=sys_flag)
    log.append("T", 0, b"behind it")
    bad, good = decode_messages(body_of(log), "g")
    assert bad.body == body and bad.sys_flag == sys_flag
    assert good.body == b"behind it"


def test_tag_of_does_not_find_a_name_inside_a_value() -> None:
    assert tag_of(b"A\x01TAGS\x02TAGS\x01x") == b"x"
    assert tag_of(b"A\x01b\x02") == b""


@pytest.mark.parametrize("expression", ["A||", "||", "A|| ||B"])
def test_empty_tag_is_rejected(expression: str) -> None:
    with pytest.raises(ClientError):
        subscribe("T", expression, 1)


# ---- process queue


def messages_at(*offsets: int) -> list[MessageExt]:
    return [
        MessageExt("T", b"b", b"", "g0", 0, o, o, 0, 0, 0, b"", 0, b"", 0, 0, 100) for o in offsets
    ]


def test_process_queue_commits_only_before_the_first_unfinished() -> None:
    pq = ProcessQueue(10, CacheLimits())
    assert pq.committable == 10
    pq.add(messages_at(10, 11, 12, 13), 20)
    assert pq.committable == 10
    first, second = pq.take(2), pq.take(5)
    assert first is not None and second is not None and pq.take(1) is None
    assert (first.first, first.end) == (10, 12) and (second.first, second.end) == (12, 20)
    assert pq.finish(second) == 10, "the first batch holds it back"
    pq.add([], 25)
    assert pq.finish(first) == 25, "filtered offsets behind the last one count as done"
    assert pq.cached_count == 0 and pq.cached_bytes == 0


def test_process_queue_of_filtered_pulls_only() -> None:
    pq = ProcessQueue(0, CacheLimits())
    pq.add([], 7)
    assert pq.committable == 7


@pytest.mark.parametrize(
    ("limits", "full_after"), [(CacheLimits(3, 10**9), 3), (CacheLimits(10**9, 250), 3)]
)
def test_process_queue_limits(limits: CacheLimits, full_after: int) -> None:
    pq = ProcessQueue(0, limits)
    for offset in range(full_after):
        assert not pq.full
        pq.add(messages_at(offset), offset + 1)
    assert pq.full
    batch = pq.take(1)
    assert batch is not None and pq.full, "what is with the listener still counts"
    pq.finish(batch)
    assert not pq.full


def test_process_queue_counts_bytes_as_received_despite_user_changes() -> None:
    budget = CacheBudget(CacheLimits())
    pq = ProcessQueue(0, CacheLimits(), budget)
    pq.add(messages_at(0, 1, 2), 3)
    pq.add(messages_at(3, 4), 5)
    sizes = [500]
    while (batch := pq.take(2)) is not None:
        for message in batch.messages:
            message.store_size_bytes = 7
        pq.finish(batch)
        sizes.append(pq.cached_bytes)
    assert sizes == [500, 300, 100, 0]
    assert (budget.count, budget.size_bytes) == (0, 0)


# ---- listeners


@pytest.mark.parametrize(
    ("topics", "shown"),
    [
        ([], []),
        ([("T", "U")], ["T"]),
        ([("%RETRY%g", "U"), ("%RETRY%g", "V")], ["U", "V"]),
        ([("%RETRY%g", ""), ("%RETRY%g", "V")], ["%RETRY%g", "V"]),
    ],
)
def test_retried_messages_have_their_original_topic(
    topics: list[tuple[str, str]], shown: list[str]
) -> None:
    messages = messages_at(*range(len(topics)))
    for message, (topic, sent_to) in zip(messages, topics, strict=True):
        message.topic = topic
        message.properties_raw = f"RETRY_TOPIC\x01{sent_to}\x02".encode()
    for _ in range(2):  # a message that is delivered again has its topic already
        restore_topics(messages)
        assert [message.topic for message in messages] == shown


# ---- offsets


def test_offset_table_dirty_and_finished_offsets() -> None:
    table = OffsetTable()
    table.start(queue(0), 5)
    table.sent(queue(0), 5)
    table.start(queue(1), 0)
    assert table.dirty() == {queue(1): 0}
    table.advance(queue(0), 9)
    table.advance(queue(0), 7)
    assert table.dirty([queue(0)]) == {queue(0): 9}, "never back"
    table.sent(queue(0), 9)
    assert queue(0) not in table.dirty()
    table.forget_sent("g0")
    assert table.dirty() == {queue(0): 9, queue(1): 0}
    table.start(queue(0), 2)
    assert table.dirty()[queue(0)] == 2, "a reset does go back"
    table.drop(queue(0))
    table.advance(queue(0), 50)
    table.sent(queue(0), 50)
    assert table.finished() == {queue(1): 0}


MOVED = [
    # requested, (next, min, max) each time → action each time
    (5, [(50, 50, 90), (50, 50, 90)], ["keep", "move"]),
    (5, [(50, 50, 90), (60, 60, 90), (60, 60, 90)], ["keep", "keep", "move"]),
    (100, [(90, 50, 90)] * 3, ["keep", "keep", "move"]),
    (100, [(90, 50, 90), (90, 50, 90), (95, 50, 95), (95, 50, 95)], ["keep"] * 4),
    (100, [(0, 0, 0)] * 2, ["keep"] * 2),
    (100, [(0, 70, 50)] * 5, ["keep"] * 5),
    (100, [(200, 0, 50)] * 5, ["keep"] * 5),
    (100, [(-1, -1, 50)] * 5, ["keep"] * 5),
]


@pytest.mark.parametrize(("requested", "answers", "actions"), MOVED)
def test_offset_moved_needs_repeated_backward_answers(
    requested: int, answers: list[tuple[int, int, int]], actions: list[str]
) -> None:
    moved = OffsetMoved(backward_confirmations=3)
    got = [moved.believes(requested, PullResponseHeader(0, *answer)) for answer in answers]
    assert got == [action == "move" for action in actions]


def test_offset_moved_restarts_after_a_normal_answer() -> None:
    moved = OffsetMoved(backward_confirmations=2)
    answer = PullResponseHeader(0, next_offset=0, offset_min=0, offset_max=10)
    assert not moved.believes(50, answer)
    moved.clear()
    assert not moved.believes(50, answer)


@pytest.mark.parametrize(
    ("message", "key", "suffix"),
    [
        (Message("T", b"x"), "K" * 32, ""),
        (Message("T", b"x"), "K" * 32, "IDEMPOTENT\x01true\x02"),
        (Message("T", b"x"), 'odd " \\ key', ""),
        (Message("T", b"x"), "ключ", ""),
        (Message("T", b"x", tags="a"), "K", ""),
        (Message("T", b"x", keys="a b"), "K", ""),
        (Message("T", b"x", properties={"a": "b"}), "K", ""),
        (Message("T", b"x", delay_level=3), "K", ""),
        (Message("T", b"x", wait_store=False), "K", ""),
    ],
)
def test_plain_message_is_encoded_as_by_the_general_path(
    message: Message, key: str, suffix: str
) -> None:
    item = outgoing(message, key, 1, suffix=suffix)
    assert item.properties_json == orjson.dumps(encoded_properties(message, key) + suffix)


@pytest.mark.parametrize("odd", [(0, 0, 0), (1, 0, 0), (0, -3, 0), (0, 0, 2), (8, 7, 2)])
def test_send_frame_has_equal_fields_with_unusual_flags(
    odd: tuple[int, int, int],
) -> None:
    sys_flag, flag, rpc_flag = odd
    item = outgoing(Message("T", b"b", flag=flag), "K" * 32, 7, sys_flag=sys_flag)
    template = SendTemplate('g"f":"%d"},"flag":%d,', "T", "b", item.code)
    reader = FrameReader()
    reader.receive_data(template.frame(item, 3, 99, rpc_flag))
    raw = reader.next_frame()
    assert raw is not None
    command = decode_command(raw)
    ext = command.ext or {}
    assert (ext["f"], ext["h"], command.flag) == (str(sys_flag), str(flag), rpc_flag)
    assert (ext["e"], ext["g"], command.opaque) == ("3", "7", 99)
    assert ext["a"] == 'g"f":"%d"},"flag":%d,'


class Answered:
    """A channel whose connection is not there, and what it makes of answers."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, str, int, int]] = []
        self.general: list[tuple[int, dict[str, str]]] = []
        self.dispatched: list[bytes] = []
        self.takes = True
        self.channel = Channel("a:1", cast("Connection", self), self._answer, _lost, self._ok)

    def write(self, data: bytes) -> bool:
        raise AssertionError("nothing is written")

    def on_close(self, callback: object) -> None: ...

    def hand_to(self, handler: Callable[[Connection, list[RawFrame]], None]) -> None:
        self.handler = handler

    def dispatch(self, frame: RawFrame) -> None:
        self.dispatched.append(frame[1])

    def _ok(self, channel: Channel, pending: Pending, answer: StoredAnswer) -> bool:
        if self.takes:
            del channel.outstanding[answer.opaque]
            position = answer.position
            self.stored.append(
                (answer.opaque, position.message_id, position.queue_id, position.queue_offset)
            )
        return self.takes

    def _answer(
        self, channel: Channel, pending: Pending, code: int, remark: str, ext: dict[str, str]
    ) -> None:
        self.general.append((code, ext))

    def receive(self, header: bytes) -> None:
        self.handler(cast("Connection", self), [(0, header, b"")])


def _lost(channel: Channel, pendings: list[Pending]) -> None: ...


PLACE = b'"msgId":"00","queueId":"2","queueOffset":"5"'


def test_plain_ok_answer_uses_the_fast_path_and_others_the_general_one() -> None:
    seen = Answered()
    waiting = cast("Pending", object())
    ok = b'{"code":0,"extFields":{%b},"flag":1,"opaque":%d}'

    def answer(header: bytes) -> None:
        seen.channel.outstanding = {7: waiting}
        seen.receive(header)

    answer(ok % (PLACE, 7))
    assert seen.stored == [(7, "00", 2, 5)] and not seen.general
    for header in (
        ok % (b'"msgId":"00","queueId":"x","queueOffset":"5"', 7),
        ok % (b'"msgId":"00"', 7),
        b'{"opaque":7,"code":0,"extFields":{%b},"flag":1}' % PLACE,
        b'{"code":0,"flag":1,"opaque":7}',
        b'{"code":0,"extFields":{%b},"flag":1,"opaque":7,"code":10}' % PLACE,
    ):
        answer(header)
    assert len(seen.stored) == 1
    assert [code for code, _ in seen.general] == [0, 0, 0, 0, 10]
    seen.takes = False
    answer(ok % (PLACE, 7))
    assert seen.general[-1] == (0, {"msgId": "00", "queueId": "2", "queueOffset": "5"})
    assert not seen.dispatched
    for header in (  # not an answer to a send; no response; damaged
        ok % (PLACE, 8),
        b'{"code":0,"extFields":{%b},"flag":0,"opaque":7}' % PLACE,
        b'{"code":0,',
    ):
        answer(header)
        assert seen.dispatched.pop() == header
    assert len(seen.general) == 6


def test_unique_keys_do_not_repeat_when_their_counter_wraps() -> None:
    ticks = iter(range(5, 100_000))
    keys = UniqueKeys(b"\x7f\x00\x00\x01", 1, 2, lambda: next(ticks) // 200)
    made = [keys.next() for _ in range(0x10100)]
    assert len(set(made)) == len(made)
    assert [key[28:] for key in made[:0x10000]] == [f"{n:04X}" for n in range(0x10000)]
    assert made[0x10000][28:] == "0000"
    assert made[0x10000][20:28] > made[0xFFFF][20:28]
