import random

import pytest

from raftmq.store.dispatch import (
    DELAY_LEVELS_MS,
    QUEUE_ENTRY,
    SCHEDULE_TOPIC,
    Dispatcher,
    DispatchError,
    QueueEntries,
)
from raftmq.store.properties import decode_properties, java_string_hash, tags_code
from raftmq.store.record import MessageRecord, encode_record, walk_records
from tests.store.make import index_payload, record

V6 = ("::1", 1)
BASE = 1 << 33


def payload_of(items: list[MessageRecord]) -> bytes:
    return b"".join(map(encode_record, items))


def code_of(properties: bytes, **changes: object) -> int:
    (entries,) = index_payload(payload_of([record(properties=properties, **changes)]), BASE)
    return int(QUEUE_ENTRY.unpack(entries.entries)[2])


def test_dispatch_groups_records_by_queue_in_order_of_appearance() -> None:
    items = [
        record(topic="A", queue_id=1, queue_offset=5, body=b"1"),
        record(topic="B", queue_id=1, queue_offset=0, body=b"22"),
        record(topic="A", queue_id=0, queue_offset=9),
        record(topic="A", queue_id=1, queue_offset=6),
    ]
    sizes = [len(encode_record(i)) for i in items]
    at = [BASE + sum(sizes[:n]) for n in range(4)]
    tag = java_string_hash("TagA")
    assert index_payload(payload_of(items), BASE) == [
        QueueEntries(
            "A",
            1,
            5,
            QUEUE_ENTRY.pack(at[0], sizes[0], tag) + QUEUE_ENTRY.pack(at[3], sizes[3], tag),
        ),
        QueueEntries("B", 1, 0, QUEUE_ENTRY.pack(at[1], sizes[1], tag)),
        QueueEntries("A", 0, 9, QUEUE_ENTRY.pack(at[2], sizes[2], tag)),
    ]
    assert index_payload(b"", BASE) == []
    data = payload_of(items)
    padded = b"head" + data + b"tail"
    assert Dispatcher().index(padded, BASE, 4, 4 + len(data)) == index_payload(
        memoryview(data), BASE
    )


@pytest.mark.parametrize(
    ("properties", "tags"),
    [
        (b"", None),
        (b"KEYS\x01k\x02", None),
        (b"TAGS\x01a", "a"),
        (b"TAGS\x01a\x02", "a"),
        (b"KEYS\x01k\x02TAGS\x01a||b\x02X\x01y\x02", "a||b"),
        (b"KEYS\x01k\x02TAGS\x01" + "标签".encode(), "标签"),
        (b"MYTAGS\x01no\x02", None),  # the name only ends so
        (b"MYTAGS\x01no\x02TAGS\x01yes\x02", "yes"),
        (b"TAGS\x01yes\x02MYTAGS\x01no\x02", "yes"),
        (b"K\x01TAGS\x02TAGS\x01t\x02", "t"),
        (b"K\x01xTAGS\x01no\x02", None),  # inside a value
        (b"TAGS\x01\x02", None),  # an empty value is no pair
        (b"TAGS\x01a\x02TAGS\x01\x02", "a"),
        (b"TAGS\x01a\x02TAGS\x01b\x02", "b"),  # the later counts
    ],
)
def test_dispatch_tag_codes(properties: bytes, tags: str | None) -> None:
    assert decode_properties(properties).get("TAGS") == tags
    assert code_of(properties) == tags_code(tags)
    assert code_of(properties, body=b"TAGS\x01body\x02") == tags_code(tags)


def test_dispatch_shortcut_for_equal_endings_is_correct() -> None:
    """Against decoding each record's properties, for many mixes in one payload."""
    rng = random.Random(1)
    pieces = [b"", b"K\x01v\x02", b"TAGS\x01a\x02", b"TAGS\x01bb\x02", b"MYTAGS\x01x\x02"]
    pieces += [b"TAGS\x01\x02", b"TAGS\x01a", b"W\x01true\x02"]
    for _ in range(200):
        items = [
            record(properties=b"".join(rng.choices(pieces, k=3)), queue_offset=n) for n in range(8)
        ]
        (entries,) = index_payload(payload_of(items), 0)
        codes = [code for _, _, code in QUEUE_ENTRY.iter_unpack(entries.entries)]
        assert codes == [tags_code(decode_properties(i.properties).get("TAGS")) for i in items]


@pytest.mark.parametrize(
    "changes",
    [
        {"sys_flag": 0x10, "born_host": V6},
        {"sys_flag": 0x20, "store_host": V6},
        {"sys_flag": 0x38, "born_host": V6, "store_host": V6},
        {"topic": "t" * 200},
        {"sys_flag": 0x8},
        {"body": bytes(100_000)},
    ],
)
def test_dispatch_reads_unusual_records(changes: dict[str, object]) -> None:
    item = record(queue_offset=3, **changes)
    data = encode_record(item)
    (entries,) = index_payload(data, BASE)
    code = java_string_hash("TagA")
    assert entries == QueueEntries(item.topic, 0, 3, QUEUE_ENTRY.pack(BASE, len(data), code))


def test_half_and_rolled_back_messages_have_no_queue_entries() -> None:
    items = [record(sys_flag=0x4), record(queue_offset=0), record(sys_flag=0xC)]
    (entries,) = index_payload(payload_of(items), 0)
    assert len(entries.entries) == 20
    assert index_payload(payload_of([items[0]]), 0) == []


@pytest.mark.parametrize(
    ("delay", "expected_ms"),
    [("1", 1000), ("3", 10_000), ("18", 7_200_000), ("19", 7_200_000), ("99", 7_200_000)],
)
@pytest.mark.parametrize("born_v6", [False, True])
def test_delayed_messages_have_their_delivery_time_as_tag_code(
    delay: str, expected_ms: int, born_v6: bool
) -> None:
    item = record(
        topic=SCHEDULE_TOPIC,
        properties=f"TAGS\x01a\x02DELAY\x01{delay}\x02".encode(),
        **({"sys_flag": 0x10, "born_host": V6} if born_v6 else {}),
    )
    (entries,) = index_payload(encode_record(item), 0)
    assert QUEUE_ENTRY.unpack(entries.entries)[2] == item.store_timestamp_ms + expected_ms


@pytest.mark.parametrize("properties", [b"TAGS\x01a\x02", b"TAGS\x01a\x02DELAY\x01x\x02"])
def test_delayed_message_without_a_level_keeps_its_tag_code(properties: bytes) -> None:
    assert code_of(properties, topic=SCHEDULE_TOPIC) == tags_code("a")


def test_dispatch_with_configured_delay_levels() -> None:
    item = record(topic=SCHEDULE_TOPIC, properties=b"DELAY\x012\x02")
    (entries,) = Dispatcher((7, 8)).index(encode_record(item), 0)
    assert QUEUE_ENTRY.unpack(entries.entries)[2] == item.store_timestamp_ms + 8
    assert len(DELAY_LEVELS_MS) == 18


def test_contradictory_records_are_never_dispatched() -> None:
    first, again = record(queue_offset=3), record(queue_offset=3)
    for second in (again, record(queue_offset=5), record(queue_offset=2)):
        with pytest.raises(DispatchError, match="queue offset"):
            index_payload(payload_of([first, second]), 0)
    data = payload_of([first, record(queue_offset=4)])
    for end in range(len(data)):
        if end == len(encode_record(first)):
            continue
        if end:
            with pytest.raises(DispatchError):
                index_payload(data[:end], 0)
    for at in (0, 4, 84):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises((DispatchError, IndexError)):
            index_payload(bytes(damaged), 0)


def test_tag_code_cache_is_bounded() -> None:
    dispatcher = Dispatcher()
    for n in range(20_000):
        dispatcher.index(encode_record(record(properties=b"TAGS\x01t%d\x02" % n)), 0)
    assert len(dispatcher._codes) <= 16_384


def test_dispatch_agrees_with_the_record_walk() -> None:
    rng = random.Random(2)
    offsets: dict[tuple[str, int], int] = {}
    items = []
    for _ in range(500):
        key = (f"topic-{rng.randrange(4)}", rng.randrange(3))
        offsets[key] = offsets.get(key, -1) + 1
        items.append(
            record(
                topic=key[0],
                queue_id=key[1],
                queue_offset=offsets[key],
                body=bytes(rng.randrange(300)),
            )
        )
    data = payload_of(items)
    positions = sorted(
        (at, size)
        for entries in index_payload(data, 0)
        for at, size, _ in QUEUE_ENTRY.iter_unpack(entries.entries)
    )
    assert positions == list(walk_records(data))
