"""Parse and cut: record bytes and consume-queue entries are what the store would make of them."""

import random
import struct

import pytest

from raftmq.broker.errors import Refused
from raftmq.broker.messages.send_request import (
    SendQueue,
    SendRules,
    SendTopic,
    parse_batch,
    parse_single,
    v2_fields,
)
from raftmq.broker.send.frame_builder import build_frame
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.fair_scheduling import finish
from raftmq.remoting.headers import SendHeader
from raftmq.store.frame import HEADER_SIZE_BYTES, parse_frame
from raftmq.store.frame_entries import decode_entries, encode_entries
from raftmq.store.properties import decode_properties
from raftmq.store.record import (
    MessageRecord,
    encode_record,
    pack_host,
    walk_records,
)
from tests.store.make import index_payload

STORE = ("127.0.0.1", 10911)
BORN = ("10.0.0.7", 50_000)


def rules(store=STORE, size_max=4096, record_bytes_max=100_000):
    return SendRules(
        cluster="C",
        trace_on=True,
        store_host=pack_host(store),
        message_size_max=size_max,
        record_bytes_max=record_bytes_max,
    )


def fields(properties="UNIQ_KEY\x01ABC123\x02WAIT\x01true\x02", **changes):
    ext = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000"}
    ext |= {"h": "3", "i": properties, "j": "0", "k": "false", "m": "false"}
    return ext | changes


def batch_body(*items):
    parts = []
    for body, properties, flag in items:
        size = 22 + len(body) + len(properties)
        parts.append(struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body)
        parts.append(struct.pack(">h", len(properties)) + properties)
    return b"".join(parts)


class Parsed:
    def __init__(self, records, size_bytes, unique_key):
        self.records, self.size_bytes, self.unique_key = records, size_bytes, unique_key


def parse_send(ext, body, queue, topic, born, the_rules, batch):
    arguments = ext, body, queue, topic, born, the_rules
    parsed = finish(parse_batch(*arguments)) if batch else parse_single(*arguments)
    return Parsed(*parsed[:3])


def cut(records, base=1000, now_ms=1700000000123, store=STORE):
    size = sum(record[1] for record in records)
    requested = []

    def place(length):
        requested.append(length)
        return base

    result = build_frame(records, size, 7, 3, place, now_ms, pack_host(store))
    assert requested == [HEADER_SIZE_BYTES + size]
    return result


@pytest.mark.parametrize("born", [BORN, ("2001:db8::1", 9)])
@pytest.mark.parametrize("store", [STORE, ("::1", 10911)])
@pytest.mark.parametrize("name", ["T", "t" * 127, "%RETRY%" + "g" * 140])
def test_record_bytes_equal_the_stores(born, store, name):
    topic = SendTopic(TopicConfig(name))
    queue = SendQueue(name, 2, 41)
    made = parse_send(fields(f="1"), b"hello", queue, topic, pack_host(born), rules(store), False)
    frame, positions, offsets = cut(made.records, store=store)
    flags = (0x10 if ":" in born[0] else 0) | (0x20 if ":" in store[0] else 0)
    stored = (
        b"UNIQ_KEY\x01ABC123\x02WAIT\x01true\x02"
        b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01C\x02"
    )
    expected = MessageRecord(
        name,
        b"hello",
        stored,
        2,
        3,
        41,
        1060,
        1 | flags,
        1700000000000,
        born,
        1700000000123,
        store,
        0,
        0,
    )
    assert bytes(frame.payload) == encode_record(expected)
    assert (positions, offsets, queue.next_offset) == ([1060], [41], 42)
    assert parse_frame(frame.data) == frame
    assert (frame.index, frame.term, frame.record_count) == (7, 3, 1)


TAG_CASES = [
    "",
    "TAGS\x01TagA\x02",
    "TAGS\x01TagA",
    "KEYS\x01k\x02TAGS\x01标签\x02",
    "XTAGS\x01no\x02",
    "XTAGS\x01no\x02TAGS\x01yes\x02",
    "TAGS\x01\x02",
    "TAGS\x01a\x02TAGS\x01b\x02",
    "TAGS\x01a\x01b\x02",
    "MSG_REGION\x01r\x02TAGS\x01x\x02TRACE_ON\x01false\x02CLUSTER\x01q\x02",
    "UNIQ_KEY\x01K\x02TAGS\x01x || y\x02",
]


def test_prepared_queue_entries_equal_the_dispatched_ones():
    random_ = random.Random(5)
    topics = {name: SendTopic(TopicConfig(name)) for name in ("A", "B", "c" * 130)}
    queues = {(n, q): SendQueue(n, q, random_.randrange(9)) for n in topics for q in range(3)}
    the_rules = rules()
    records = []
    for number in range(300):
        name, queue_id = random_.choice(list(queues))
        properties = random_.choice(TAG_CASES)
        born = pack_host(random_.choice([BORN, ("::2", 1)]))
        queue, topic = queues[name, queue_id], topics[name]
        body = bytes([number % 256]) * random_.randrange(1, 50)
        if number % 5 == 0:
            body = batch_body((b"x", properties.encode(), 1), (b"yy", b"", 2))
        send = parse_send(fields(properties), body, queue, topic, born, the_rules, number % 5 == 0)
        records += send.records
    frame, positions, offsets = cut(records)
    result = [tuple(group) for group in index_payload(frame.payload, frame.payload_position)]
    assert frame.entries == result
    data = encode_entries(frame.entries)
    assert decode_entries(data, 0, frame) == (result, len(data))
    walk = walk_records(bytes(frame.payload), frame.payload_position)
    assert [frame.payload_position + at for at, _ in walk] == sorted(positions)
    assert len(offsets) == len(records) == frame.record_count
    second = cut(records[:3])[0]  # the collected entries were reset
    assert sum(len(group[3]) for group in second.entries) == 60


def test_missing_properties_are_added_once():
    topic, queue = SendTopic(TopicConfig("T")), SendQueue("T", 0, 0)
    text = "MSG_REGION\x01R\x02CLUSTER\x01X\x02A\x01UNIQ_KEY"
    send = parse_send(fields(text), b"b", queue, topic, pack_host(BORN), rules(), False)
    tail = send.records[0][10]
    stored = decode_properties(tail[4:])
    assert stored["MSG_REGION"] == "R"
    assert stored["CLUSTER"] == "X"
    assert stored["TRACE_ON"] == "true"
    assert stored["UNIQ_KEY"] == send.unique_key
    assert len(send.unique_key) == 32


@pytest.mark.parametrize(
    ("ext", "body", "code", "part"),
    [
        (fields(), b"", 13, "0 bytes"),
        (fields(), b"x" * 4097, 13, "4097 bytes"),
        (fields("A\x01" + "v" * 32_766), b"x", 13, "properties"),
        (fields(h="4294967296"), b"x", 13, "range"),
        (fields(g="-1"), b"x", 13, "range"),
    ],
)
def test_invalid_send_is_rejected_with_its_code(ext, body, code, part):
    topic, queue = SendTopic(TopicConfig("T")), SendQueue("T", 0, 0)
    with pytest.raises(Refused) as caught:
        parse_send(ext, body, queue, topic, pack_host(BORN), rules(), False)
    assert caught.value.code == code
    assert part in caught.value.remark


def test_send_limits_are_exact():
    topic, queue = SendTopic(TopicConfig("T")), SendQueue("T", 0, 0)
    send = parse_send(fields(), b"x" * 4096, queue, topic, pack_host(BORN), rules(), False)
    assert len(send.records) == 1
    standard = len(rules().standard)
    exact = "UNIQ_KEY\x01K\x02A\x01" + "v" * (32_767 - standard - 14) + "\x02"
    parse_send(fields(exact), b"x", queue, topic, pack_host(BORN), rules(), False)
    with pytest.raises(Refused):
        parse_send(fields("B" + exact), b"x", queue, topic, pack_host(BORN), rules(), False)


@pytest.mark.parametrize("cut_at", range(1, 23))
def test_truncated_batch_is_rejected(cut_at):
    topic, queue = SendTopic(TopicConfig("T")), SendQueue("T", 0, 0)
    body = batch_body((b"x", b"", 0), (b"y", b"", 0))
    with pytest.raises(Refused) as caught:
        parse_send(fields(), body[:-cut_at], queue, topic, pack_host(BORN), rules(), True)
    assert caught.value.code == 13


def test_batch_limit_counts_stored_bytes():
    topic, queue = SendTopic(TopicConfig("T")), SendQueue("T", 0, 0)
    body = batch_body(*[(b"x", b"", 0)] * 100)
    with pytest.raises(Refused, match="as stored"):
        parse_send(
            fields(), body, queue, topic, pack_host(BORN), rules(record_bytes_max=9_000), True
        )


def test_long_property_names_become_letters():
    header = SendHeader(
        "pg", "T", "TBW102", 4, 1, 0, 5, 6, "A\x01b\x02", 2, False, None, True, "bn"
    )
    short = header.to_ext(310)
    assert v2_fields(header.to_ext(10)) == short
