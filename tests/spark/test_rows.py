"""Records as rows: what a broker stores, decoded in arrays."""

import datetime as dt
import zlib
from dataclasses import replace
from typing import Any

import pytest

from raftmq.spark.rows import MESSAGE_FIELDS, DamagedMessages, arrow_schema, rows
from raftmq.store.record import MessageRecord, encode_record

ALL = [*[name for name, _ in MESSAGE_FIELDS], "properties"]
HOST = ("127.0.0.1", 10911)
BORN_MS = 1_700_000_000_123


def record(offset: int, body: bytes = b"body", **more: Any) -> bytes:
    plain = MessageRecord(
        topic="Orders",
        queue_id=3,
        queue_offset=offset,
        body=body,
        flag=7,
        sys_flag=0,
        physical_offset=1000 + offset,
        born_timestamp_ms=BORN_MS,
        born_host=HOST,
        store_timestamp_ms=BORN_MS + 1,
        store_host=HOST,
        reconsume_times=2,
        prepared_transaction_offset=0,
        properties=b"UNIQ_KEY\x01id%d\x02TAGS\x01A\x02KEYS\x01k\x02color\x01red\x02" % offset,
    )
    return encode_record(replace(plain, **more))


def read(data: bytes, start: int = 0, end: int = 100, columns: list[str] = ALL) -> list[dict]:
    return rows(memoryview(data), "broker-a", start, end, columns).to_pylist()


def test_rows_have_every_column_of_the_record() -> None:
    (result,) = read(record(5))
    born = dt.datetime.fromtimestamp(BORN_MS / 1000, dt.UTC)
    assert dict(result.pop("properties")) == {
        "UNIQ_KEY": "id5",
        "TAGS": "A",
        "KEYS": "k",
        "color": "red",
    }
    assert result == {
        "topic": "Orders",
        "broker": "broker-a",
        "queue_id": 3,
        "queue_offset": 5,
        "msg_id": "id5",
        "tags": "A",
        "keys": "k",
        "body": b"body",
        "flag": 7,
        "reconsume_times": 2,
        "born_time": born,
        "store_time": born + dt.timedelta(milliseconds=1),
    }


def test_rows_hold_only_the_offset_range() -> None:
    data = b"".join(map(record, range(10)))
    assert [row["queue_offset"] for row in read(data, 3, 7)] == [3, 4, 5, 6]
    assert read(data, 20, 30) == []
    assert rows(memoryview(b""), "b", 0, 1, ALL).schema == arrow_schema(ALL)


def test_rows_omit_columns_that_are_not_selected() -> None:
    assert read(record(1), columns=["queue_offset"]) == [{"queue_offset": 1}]


def test_rows_have_decompressed_bodies() -> None:
    packed = zlib.compress(b"much " * 100)
    data = record(0) + record(1, packed, sys_flag=1) + record(2, b"")
    assert [row["body"] for row in read(data)] == [b"body", b"much " * 100, b""]


def test_rows_have_properties_as_a_map() -> None:
    data = record(0, properties=b"a\x011\x02b\x012\x02a\x013\x02") + record(1, properties=b"")
    data += record(2, properties=b"c\x01\x02d\x014")
    assert [dict(row["properties"]) for row in read(data)] == [{"a": "3", "b": "2"}, {}, {"d": "4"}]
    assert [row["keys"] for row in read(data)] == [None, None, None]


@pytest.mark.parametrize(
    ("ms", "found"),
    [
        (0, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        (-1, dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC)),
        (253_402_300_799_999, dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, dt.UTC)),
        (253_402_300_800_000, None),
        (-62_135_596_800_000, dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
        (-62_135_596_800_001, None),
        ((1 << 63) - 1, None),
        (-(1 << 63), None),
    ],
)
def test_rows_have_null_for_a_time_outside_the_calendar(ms: int, found: dt.datetime | None) -> None:
    row, after = read(record(0, born_timestamp_ms=ms, store_timestamp_ms=ms) + record(1))
    assert (row["born_time"], row["store_time"]) == (found, found)
    assert after["born_time"] and after["store_time"]


def test_rows_with_an_ipv6_host_are_decoded() -> None:
    host = ("::1", 10911)
    data = record(0, born_host=host, store_host=host, sys_flag=0x30) + record(1)
    assert [row["body"] for row in read(data)] == [b"body", b"body"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (record(4)[:-1], "cut short"),
        (record(4) + b"\0\0", "cut short"),
        (bytes(100), "a record of 0 bytes"),
        (record(4).replace(b"body", b"bodx"), "message 4 of queue 3 is damaged"),
        (record(4)[:84] + b"\x7f\0\0\0" + record(4)[88:], "ends before|is damaged"),
        (record(4, b"not packed", sys_flag=1), "message 4 cannot be unpacked"),
        (record(4, sys_flag=0x80), "message 4 of queue 3 holds a batch"),
    ],
)
def test_rows_of_damaged_records_raise_an_error(data: bytes, told: str) -> None:
    with pytest.raises(DamagedMessages, match=told):
        read(data)
