import random
import struct

import pytest

from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.index import key_walker
from raftmq.store.index.index_keys import has_key, key_hash, keys_of
from raftmq.store.index.key_walker import (
    _ENDING_MAX,
    _SHAPES_MAX,
    _SIZES_MAX,
    KeyWalker,
    Walk,
)
from raftmq.store.properties import decode_properties, java_string_hash
from raftmq.store.record import BLANK, MAGIC_BLANK, MessageRecord, decode_record, encode_record
from tests.store.make import PLAIN, record

LONG_TOPIC = "t" * 200  # a V2 record
V6 = ("2001:db8::1", 10911)


def slowly(item: MessageRecord) -> list[tuple[int, int, int]]:
    """The keys of a record by the rules, without any of the walker's shortcuts."""
    hashes = []
    for key in keys_of(decode_properties(item.properties)):
        value = abs(java_string_hash(f"{item.topic}#{key}"))
        hashes.append(0 if value == 1 << 31 else value)
    return [(h, item.physical_offset, item.store_timestamp_ms) for h in hashes]


def row(items: list[MessageRecord], base: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """The records one behind the other, and their keys."""
    data, keys = b"", []
    for item in items:
        placed = record(
            **{name: getattr(item, name) for name in item.__slots__}
            | {"physical_offset": base + len(data)}
        )
        data += encode_record(placed)
        keys += slowly(placed)
    return data, keys


def units_of(items: list[MessageRecord], data: bytes, base: int) -> bytes:
    """The ConsumeQueue entries of records as dispatch makes them, each record in its own queue, in
    any order. A rolled-back or prepared record has none."""
    entries, at = [], 0
    for item in items:
        size = int.from_bytes(data[at : at + 4], "big")
        if item.sys_flag & 0xC in (0, 0x8):
            entries.append(struct.pack(">qiq", base + at, size, 0))
        at += size
    random.Random(len(data)).shuffle(entries)
    return b"".join(entries)


def listed(walked: Walk) -> list[tuple[int, int, int]]:
    hashes, offsets, stamps = walked.keys
    return list(zip(hashes.tolist(), offsets.tolist(), stamps.tolist(), strict=True))


def walk(
    data: bytes, base: int = 0, entries: bytes = b""
) -> tuple[int, list[tuple[int, int, int]]]:
    walked = KeyWalker().walk(data, base, entries)
    assert not walked.error
    return walked.end - base, listed(walked)


@pytest.mark.parametrize(
    ("topic", "key", "hashed"),
    [
        ("TopicTest", "KEY1", 1656969516),  # the protocol sheet's
        ("T", "k", abs(java_string_hash("T#k"))),
        ("标签", "emoji 😀", abs(java_string_hash("标签#emoji 😀"))),
    ],
)
def test_key_hash_equals_apaches(topic: str, key: str, hashed: int) -> None:
    assert key_hash(topic, key) == hashed


def test_key_hash_of_the_smallest_int_is_0_as_in_java() -> None:
    text = "polygenelubricants"  # hashes to -2147483648
    assert java_string_hash(text) == -(1 << 31)
    # topic#key with that hash: the part behind `T#` made up for what the prefix adds
    prefix = java_string_hash("T#") & 0xFFFFFFFF
    expected = (1 << 31) - prefix * 31**7 & 0xFFFFFFFF
    characters = []
    for power in (6, 5, 4, 3, 2, 1, 0):  # digits base 31, kept printable by borrowing 33 of each
        expected -= 33 * 31**power
    expected %= 1 << 32
    for power in (6, 5, 4, 3, 2, 1, 0):
        digit, expected = divmod(expected, 31**power)
        characters.append(chr(33 + digit))
    key = "".join(characters)
    assert java_string_hash("T#" + key) == -(1 << 31)
    assert key_hash("T", key) == 0
    item = record(properties=f"UNIQ_KEY\x01{key}\x02".encode())
    assert walk(encode_record(item))[1][0][0] == 0


@pytest.mark.parametrize(
    "properties",
    [
        "",
        "UNIQ_KEY\x017F0000010ABC18B4AAC2000000000001\x02",
        "KEYS\x01a b  c\x02UNIQ_KEY\x01u\x02TAGS\x01t\x02",
        "UNIQ_KEY\x01u\x02KEYS\x01only",  # no closing separator
        "KEYS\x01a\x02UNIQ_KEY\x01u",
        "XKEYS\x01no\x02",
        "XUNIQ_KEY\x01no\x02UNIQ_KEY\x01u\x02",
        "UNIQ_KEY\x01u\x02XUNIQ_KEY\x01no\x02",
        "note\x01see KEYS\x01x\x02KEYS\x01k\x02",
        "KEYS\x01k\x02note\x01see KEYS\x01x\x02",
        "KEYS\x01first\x02KEYS\x01second\x02",
        "KEYS\x01kept\x02KEYS\x01\x02",
        "UNIQ_KEY\x01\x02KEYS\x01 \x02",
        "UNIQ_KEY\x01same\x02KEYS\x01same same\x02",
        "KEYS\x01标签 😀 ascii\x02UNIQ_KEY\x01ключ\x02",
        "UNIQ_KEY\x01" + "0" * 56 + "\x02",  # of an IPv6 producer
        "UNIQ_KEY\x01abcdefghijkl\x02KEYS\x01abcdefghijk x\x02",  # twelve, eleven characters
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"topic": "标签"},
        {"topic": LONG_TOPIC},
        {"born_host": V6, "sys_flag": 0x10},
        {"store_host": V6, "born_host": V6, "sys_flag": 0x30},
        {"sys_flag": 0x4},  # prepared, and committed: indexed
        {"sys_flag": 0x8},
        {"body": b"UNIQ_KEY\x01in the body\x02KEYS\x01too\x02"},
    ],
)
@pytest.mark.parametrize("repeats", [1, 9])  # decoded one by one, as a shape
def test_key_walker_reads_every_form_of_record(
    properties: str, changes: dict[str, object], repeats: int
) -> None:
    item = record(properties=properties.encode(), **changes)
    items = [PLAIN, *[item] * repeats, PLAIN]
    data, keys = row(items, 4096)
    assert walk(data, 4096) == (len(data), keys)
    assert walk(data, 4096, units_of(items, data, 4096)) == (len(data), keys)


def test_rolled_back_records_have_no_keys() -> None:
    item = record(properties=b"UNIQ_KEY\x01u\x02", sys_flag=0xC)
    assert walk(encode_record(item)) == (len(encode_record(item)), [])


def test_key_walker_continues_after_a_slice_that_ends_anywhere() -> None:
    items = [
        record(properties=b"UNIQ_KEY\x01u%d\x02" % n, body=b"x" * n, topic=topic)
        for n, topic in enumerate(["T", LONG_TOPIC, "T", "U"])
    ]
    data, keys = row(items, 0)
    for entries in (b"", units_of(items, data, 0)):
        for end in range(len(data) + 1):
            walker = KeyWalker()
            first = walker.walk(data[:end], 0, entries)
            assert first.end <= end
            second = walker.walk(data[first.end :], first.end, entries)
            assert second.end == len(data)
            assert listed(first) + listed(second) == keys


def test_key_walker_skips_frame_headers_commands_and_blank_records() -> None:
    first, keys = row([record(properties=b"UNIQ_KEY\x01u\x02")], 60)
    frame = seal_frame(1, 1, 0, 5, FrameKind.MESSAGES, 1, first).data
    command = seal_frame(2, 1, len(frame), 5, FrameKind.COMMAND, 0, b"UNIQ_KEY\x01no\x02").data
    noop = seal_frame(3, 1, len(frame + command), 5, FrameKind.NOOP, 0, b"").data
    data = frame + command + noop
    assert walk(data) == (len(data), keys)
    blank = BLANK.pack(50, MAGIC_BLANK)
    assert walk(data + blank) == (len(data) + 50, keys)
    # A command that goes beyond the slice: go on behind it.
    assert walk(data[: len(frame) + 60]) == (len(frame + command), keys)


def test_key_walker_finds_records_between_queue_entries() -> None:
    prepared = record(properties=b"UNIQ_KEY\x01p\x02", sys_flag=0x4)
    data, keys = b"", []
    entries = b""
    for index in range(1, 30):
        items = [record(properties=b"UNIQ_KEY\x01u%02d\x02" % index)] * (index % 4)
        if index % 7 == 0:
            items.append(prepared)
        base = len(data) + 60
        payload, result = row(items, base)
        kind = FrameKind.MESSAGES if items else FrameKind.NOOP
        data += seal_frame(index, 1, len(data), 5, kind, len(items), payload).data
        keys += result
        entries += units_of(items, payload, base)
    assert walk(data, 0, entries) == (len(data), keys)


@pytest.mark.parametrize("lie", ["shifted", "overlapping", "of another part of the log"])
def test_key_walker_ignores_queue_entries_that_contradict_the_log(lie: str) -> None:
    items = [record(properties=b"UNIQ_KEY\x01u%d\x02" % n) for n in range(8)]
    data, keys = row(items, 0)
    size = len(data) // 8
    first, length = {"shifted": (4, size), "overlapping": (0, 2 * size)}.get(lie, (1 << 40, size))
    entries = b"".join(struct.pack(">qiq", first + n * size, length, 0) for n in range(7))
    assert walk(data, 0, entries) == (len(data), keys)


@pytest.mark.parametrize(
    "damage",
    [bytes(100), b"\xff" * 100, BLANK.pack(4, MAGIC_BLANK) + bytes(92)],
)
def test_key_walker_stops_at_damage(damage: bytes) -> None:
    data, keys = row([record(properties=b"UNIQ_KEY\x01u\x02")], 0)
    walked = KeyWalker().walk(data + damage, 0)
    assert walked.end == len(data)
    assert walked.error
    assert listed(walked) == keys


@pytest.mark.parametrize("repeats", [1, 9])
def test_key_walker_stops_at_a_record_with_inconsistent_lengths(repeats: int) -> None:
    good, bad = record(properties=b"UNIQ_KEY\x01u\x02"), record(properties=b"UNIQ_KEY\x01v\x02")
    data, keys = row([good] * 8, 0)
    broken = bytearray(encode_record(bad))
    broken[84:88] = (1 << 20).to_bytes(4, "big")  # its body is longer than it
    walked = KeyWalker().walk(data + bytes(broken) * repeats + data, 0)
    assert walked.end == len(data)
    assert "body" in walked.error or "size" in walked.error
    assert listed(walked) == keys


def test_key_walker_shape_cache_is_bounded_and_correct() -> None:
    walker = KeyWalker()
    for number in range(700, 1100):  # sizes of endings, and of each more shapes than are kept
        items = [
            record(
                topic="T",
                properties=f"P{n % 12:02d}\x01{'v' * number}\x02UNIQ_KEY\x01k{n:02d}".encode(),
            )
            for n in range(96)
        ]
        data, keys = row(items, 0)
        assert listed(walker.walk(data, 0)) == keys
    assert 0 < len(walker._shapes) <= _SIZES_MAX
    assert max(map(len, walker._shapes.values())) == _SHAPES_MAX
    assert max(walker._shapes) <= _ENDING_MAX


def test_key_walker_decodes_no_record_with_a_queue_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[int] = []

    def counted(data: bytes, check_body: bool) -> MessageRecord:
        decoded.append(len(data))
        return decode_record(data, check_body=check_body)

    monkeypatch.setattr(key_walker, "decode_record", counted)
    items = [
        record(topic=f"topic-{n % 700:03d}", properties=f"UNIQ_KEY\x01{n:032d}\x02".encode())
        for n in range(3000)
    ]
    data, keys = row(items, 0)
    assert walk(data, 0, units_of(items, data, 0)) == (len(data), keys)
    assert decoded == []


KEYS_OF_ONE = [
    "K" * 5,
    "K" * 32,
    "K" * 11,
    "K" * 12,
    "ключ" * 3,
    "a b",
    "UNIQ_KEY\x01k",
    "KEYS\x01k",
]
ENDINGS = [
    "",
    "\x02",
    "\x02WAIT\x01true\x02",
    "\x02TAGS\x01a\x02",
    "\x02KEYS\x01x\x02",
    "\x02KEYS\x01",
]


@pytest.mark.parametrize("seed", range(20))
def test_key_walker_reads_records_similar_to_the_previous_one(seed: int) -> None:
    rng = random.Random(seed)
    items: list[MessageRecord] = []
    for _ in range(300):
        again = rng.random() < 0.7 and items
        if not again:
            topic = rng.choice(["T", "U", "TU", "#U", LONG_TOPIC, "标签"])
            front = rng.choice(
                ["", "A\x01b\x02", "KEYS\x01\x02", "KEYS\x01k\x02", "XUNIQ_KEY\x01y\x02"]
            )
            key, ending = rng.choice(KEYS_OF_ONE), rng.choice(ENDINGS)
        if rng.random() < 0.7:  # another key of this length
            count = rng.choice([1, 4, 8, 12])
            key = key[:-count] + "".join(rng.choices("0AZ\x01\x02", [9, 9, 9, 1, 1], k=count))
        text = f"{front}UNIQ_KEY\x01{key}{ending}"
        changes = {"sys_flag": 0x10, "born_host": V6} if rng.random() < 0.05 else {}
        body = rng.randbytes(rng.choice([1, 7, 7, 50]))
        items.append(record(topic=topic, properties=text.encode(), body=body, **changes))
    data, keys = row(items, 4096)
    assert walk(data, 4096) == (len(data), keys)
    assert walk(data, 4096, units_of(items, data, 4096)) == (len(data), keys)


def test_has_key_checks_topic_and_each_key() -> None:
    item = record(properties=b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02")
    assert [has_key(item, "T", key) for key in ("a", "b", "u", "a b", "")] == [True] * 3 + [
        False
    ] * 2
    assert not has_key(item, "U", "a")
