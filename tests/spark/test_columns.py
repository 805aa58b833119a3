"""Records as Arrow columns, field by field, against what the store's codec wrote."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from raftmq.audit.read import log_reader as parse
from raftmq.audit.read.files import View
from raftmq.audit.read.log_reader import (
    LOG_SCHEMA,
    RECORD_BODY_SCHEMA,
    RECORD_SCHEMA,
    Copy,
    record_batches,
    shared_items,
)
from raftmq.audit.read.store_files import Store, units
from raftmq.spark.columns import PROPERTY_NAMES, pairs_of, properties_of, tags_codes, unpack_body
from raftmq.spark.layout import ItemKind
from raftmq.store.properties import FIELDS_SUM_MAX, decode_properties, fields_sum
from raftmq.store.record import MessageRecord, encode_record
from tests.audit.stores import Log, Message


def one(record: MessageRecord) -> dict[str, object]:
    data = memoryview(encode_record(record) + bytes(8))
    table = pa.Table.from_batches(
        record_batches(Copy("n0", View(data)), record.physical_offset, 0, len(data)),
        RECORD_BODY_SCHEMA,
    )
    assert table.num_rows == 1
    row: dict[str, object] = table.to_pylist()[0]
    return row


def record(**changed: object) -> MessageRecord:
    fields: dict[str, object] = {
        "topic": "Flights",
        "body": b"hello",
        "properties": b"UNIQ_KEY\x01ABC\x02KEYS\x01k1 k2\x02TAGS\x01TagA\x02__SHARDINGKEY\x01N",
        "queue_id": 1,
        "flag": 2,
        "queue_offset": 3,
        "physical_offset": 1 << 40,
        "sys_flag": 0,
        "born_timestamp_ms": 5,
        "born_host": ("127.0.0.1", 1),
        "store_timestamp_ms": 6,
        "store_host": ("127.0.0.1", 2),
        "reconsume_times": 7,
        "prepared_transaction_offset": 8,
    }
    return MessageRecord(**(fields | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"sys_flag": 0x10, "born_host": ("::1", 1)},
        {"sys_flag": 0x20, "store_host": ("::1", 1)},
        {"sys_flag": 0x30, "born_host": ("::1", 1), "store_host": ("::1", 1)},
        {"topic": "t" * 127},
        {"topic": "t" * 128},
        {"topic": "t" * 1000, "sys_flag": 0x30, "born_host": ("::1", 1), "store_host": ("::1", 1)},
        {"body": b""},
        {"properties": b""},
        {"topic": "", "properties": b"", "body": b""},
    ],
)
def test_columns_equal_every_field_of_the_record(changed: dict[str, object]) -> None:
    want = record(**changed)
    row = one(want)
    properties = decode_properties(want.properties)
    assert row["position"] == row["physical_offset"] == want.physical_offset
    assert row["topic"] == want.topic
    assert row["body"] == want.body
    assert row["intact"] is True
    assert row["content_crc"] == row["body_crc"] == zlib.crc32(want.body) & 0x7FFFFFFF
    assert (row["queue_id"], row["flag"], row["queue_offset"]) == (1, 2, 3)
    assert (row["born_timestamp"], row["store_timestamp"], row["reconsume_times"]) == (5, 6, 7)
    assert row["uniq_key"] == properties.get("UNIQ_KEY")
    assert row["keys"] == properties.get("KEYS")
    assert row["tags"] == properties.get("TAGS")
    assert row["sharding_key"] == properties.get("__SHARDINGKEY")
    assert row["tags_code"] == (2598919 if properties else 0)


def test_column_intact_is_false_for_a_wrong_body() -> None:
    data = bytearray(encode_record(record(physical_offset=0)) + bytes(8))
    data[88] ^= 1
    (batch,) = record_batches(Copy("n0", View(memoryview(data))), 0, 0, len(data))
    assert batch["intact"].to_pylist() == [False]


PROPERTIES = [
    b"",
    b"KEYS\x01a\x02",
    b"KEYS\x01a",
    b"XKEYS\x01no\x02KEYS\x01yes\x02",
    b"A\x01KEYS\x02KEYS\x01v\x01w\x02",
    b"KEYS\x01\x02TAGS\x01t",
    b"\x01x\x02KEYS\x01b\x02KEYS\x01c\x02",
    b"KEYS\x02KEYS",
    b"\x02\x02TAGS\x01t\x02\x02",
    b"UNIQ_KEY\x01\xe6\xa0\x87",
    b"TAGS\x01\xff\xfe",
    b"KEYS\x01last",
]


def test_property_columns_equal_the_stores_decoder() -> None:
    """All together, so that no string can leak into its neighbour, and each alone."""
    for strings in (PROPERTIES, PROPERTIES[::-1], *[[p] for p in PROPERTIES], []):
        properties = properties_of(pa.array(strings, pa.binary()), PROPERTY_NAMES)
        for column, name in PROPERTY_NAMES.items():
            want = [decode_properties(text).get(name.decode()) for text in strings]
            assert properties[column].to_pylist() == want, column


def test_checksum_columns_equal_the_stores() -> None:
    for strings in (PROPERTIES, PROPERTIES[::-1], [], [b"A\x01b\x02"] * 3):
        once = [s for s in strings if s.count(b"KEYS\x01") < 2 and b"\xff" not in s]
        result = pairs_of(pa.array(once, pa.binary())).sums() & FIELDS_SUM_MAX
        assert result.tolist() == [fields_sum(0, decode_properties(text)) for text in once]
    given = {"KEYS": "k", "TAGS": "t", "colour": "red"}
    added = {"UNIQ_KEY": "0A", "WAIT": "true", "CLUSTER": "c"}
    assert fields_sum(7, given) == fields_sum(7, added | given) == fields_sum(0, given) + 7
    assert len({fields_sum(0, given | {name: "x"}) for name in (*given, "new")}) == 4


def test_tags_codes_equal_javas() -> None:
    assert tags_codes(pa.array(["TagA", None, "标签", "TagA"])).to_pylist() == [
        2598919,
        0,
        857175,
        2598919,
    ]


def test_compressed_body_is_recognized_by_its_content() -> None:
    content = b"row " * 500
    packed = {
        0x001: zlib.compress(content),
        0x301: zlib.compress(content),
        0x101: compressed(content, "lz4"),
        0x201: compressed(content, "zstd"),
    }
    for flag, body in packed.items():
        row = one(record(sys_flag=flag, body=body))
        assert row["body"] == body
        assert row["content_crc"] == zlib.crc32(content) & 0x7FFFFFFF
        assert row["intact"] is True
    assert one(record(sys_flag=1, body=b"no zlib"))["content_crc"] is None
    assert unpack_body(zlib.compress(content)[:-6], 1) is None


def compressed(content: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


def copy_of(log: Log) -> Copy:
    return Copy("n0", View(memoryview(bytes(log.segments[0]))))


def item_batches(copy: Copy, start: int, end: int) -> Iterator[pa.RecordBatch]:
    (items,) = shared_items([copy], 0, start, end)
    yield from items.batches


def test_columns_topic_body_and_until_can_be_selected() -> None:
    log = Log(8192)
    half = Message("C" * 32, b"half", sys_flag=0x4)
    log.frame(1, [Message("A" * 32, b"a"), Message("B" * 32, b"b", topic="Other"), half])
    log.frame(1, [Message("D" * 32, b"d")])
    copy = copy_of(log)

    def bodies(**options: object) -> list[bytes]:
        batches = record_batches(copy, 0, 0, 8192, **options)  # type: ignore[arg-type]
        return [body for batch in batches for body in batch["body"].to_pylist()]

    assert bodies() == [b"a", b"b", b"half", b"d"]
    assert bodies(topic="Flights") == [b"a", b"d"]
    end_of_first = log.placed[0].position + log.placed[0].size
    assert bodies(until=end_of_first) == [b"a"]
    assert bodies(until=end_of_first - 1) == []
    (batch,) = record_batches(copy, 0, 0, 8192, body=False)
    assert batch.schema == RECORD_SCHEMA


def test_column_batches_are_limited_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends at the limit of records, and with bodies at the limit of bytes."""
    monkeypatch.setattr(parse, "BATCH_RECORDS_MAX", 10)
    monkeypatch.setattr(parse, "BATCH_BODY_BYTES_MAX", 4096)
    log = Log(1 << 20, framed=False)
    log.frame(1, [Message("A" * 32, b"", tag="")] * 11)
    for batches in (
        record_batches(copy_of(log), 0, 0, 1 << 20),
        (b for b in item_batches(copy_of(log), 0, 1 << 20) if b["kind"][0].as_py() == 0),
    ):
        assert [batch.num_rows for batch in batches] == [10, 1]
    log.frame(1, [Message("B" * 32, b"b" * 3000)] * 3)
    with_bodies = record_batches(copy_of(log), 0, 0, 1 << 20, body=True)
    assert [batch.num_rows for batch in with_bodies] == [10, 3, 1]


def test_columns_cover_frames_and_gaps() -> None:
    log = Log(8192)
    log.frame(4, [Message("A" * 32, b"a"), Message("B" * 32, b"b")])
    log.other(5, 2, b"command")
    log.flip(log.placed[0].position + 88)  # body of the first record
    log.flip(log.end - 1)  # the command
    for step in (100, 8192):
        table = pa.Table.from_batches(
            [
                batch
                for start in range(0, 8192, step)
                for batch in item_batches(copy_of(log), start, min(start + step, 8192))
            ],
            LOG_SCHEMA,
        )
        rows = sorted(table.to_pylist(), key=lambda row: row["position"])
        assert [(row["kind"], row["intact"]) for row in rows] == [
            (ItemKind.FRAME, False),
            (ItemKind.RECORD, False),
            (ItemKind.RECORD, True),
            (ItemKind.FRAME, False),
            (ItemKind.END, None),
        ]
        frame = rows[0]
        assert (frame["frame_index"], frame["frame_term"], frame["frame_kind"]) == (1, 4, 1)
        assert frame["record_count"] == frame["records_found"] == 2
        assert rows[3]["records_found"] == 0
        assert rows[4]["reason"] == "zeros"


def test_apache_store_reads_without_a_defect(apache_store: Path) -> None:
    """515 records of Apache RocketMQ 5.3.3, and a ConsumeQueue unit for each visible one."""
    rows = []
    for segment in Store("apache", str(apache_store)).segments:
        (items,) = shared_items(
            [Copy("apache", segment.file.view())], segment.base, 0, segment.file.size_bytes
        )
        for batch in items.batches:
            rows += batch.to_pylist()
    records = {row["position"]: row for row in rows if row["kind"] == ItemKind.RECORD}
    assert len(records) == 515
    assert all(row["intact"] for row in records.values())
    assert sum(row["kind"] == ItemKind.BLANK for row in rows) == 2
    assert not any(row["kind"] in (ItemKind.HOLE, ItemKind.FRAME) for row in rows)
    assert sum(row["sysflag"] & 1 for row in records.values()) == 1
    pointed = 0
    for file in Store("apache", str(apache_store)).queue_files():
        offsets, content = units(file)
        for offset, unit in zip(offsets.tolist(), content.tolist(), strict=True):
            position, size, tags_code = unit
            row = records[position]
            assert (row["topic"], row["queue_id"]) == (file.topic, file.queue_id)
            assert (row["queue_offset"], row["size"]) == (offset, size)
            if file.topic != "SCHEDULE_TOPIC_XXXX":
                assert row["tags_code"] == tags_code
            pointed += 1
    assert pointed == sum(row["sysflag"] & 0xC in (0, 8) for row in records.values())
