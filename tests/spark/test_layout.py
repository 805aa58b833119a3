"""The audit's own layouts against the store's codecs: held twice, they must say the same."""

import numpy as np
import pytest

from raftmq.spark import layout
from raftmq.store import properties, record
from raftmq.store.record import MessageRecord, encode_record

RECORD = MessageRecord(
    topic="T",
    body=b"hi",
    properties=b"TAGS\x01TagA",
    queue_id=3,
    flag=4,
    queue_offset=5,
    physical_offset=6,
    sys_flag=0x8,
    born_timestamp_ms=1_700_000_000_000,
    born_host=("127.0.0.1", 50000),
    store_timestamp_ms=1_700_000_000_001,
    store_host=("127.0.0.1", 10911),
    reconsume_times=7,
    prepared_transaction_offset=8,
)


def test_layout_of_record_head_and_tail_equals_the_stores_codec() -> None:
    data = encode_record(RECORD)
    head = np.frombuffer(data, layout.RECORD_HEAD, 1)[0]
    assert head["size"] == len(data)
    assert head["magic"] == layout.RECORD_MAGIC_V1
    assert head["body_crc"] == record.body_crc(b"hi")
    assert head["queue_id"] == 3
    assert head["flag"] == 4
    assert head["queue_offset"] == 5
    assert head["physical_offset"] == 6
    assert head["sysflag"] == 0x8
    assert head["born_timestamp"] == 1_700_000_000_000
    tail = np.frombuffer(data, layout.RECORD_TAIL, 1, layout.BODY_AT - 16)[0]
    assert tail["reconsume_times"] == 7
    assert tail["prepared_transaction_offset"] == 8
    assert tail["body_length"] == 2
    assert data[layout.BODY_AT : layout.BODY_AT + 2] == b"hi"


def test_layout_constants_equal_the_stores() -> None:
    assert layout.RECORD_MAGIC_V1 == record.MAGIC_V1
    assert layout.RECORD_MAGIC_V2 == record.MAGIC_V2
    assert layout.BLANK_MAGIC == record.MAGIC_BLANK
    assert layout.BLANK_SIZE_BYTES == record.BLANK_SIZE_BYTES
    assert layout.RECORD_SIZE_BYTES_MIN == record.FIXED_SIZE_BYTES
    assert layout.SYSFLAG_TRANSACTION == record.SYS_TRANSACTION_MASK
    assert layout.SYSFLAG_BORN_IPV6 == record.SYS_BORN_HOST_V6
    assert layout.SYSFLAG_STORE_IPV6 == record.SYS_STORE_HOST_V6
    assert layout.SYSFLAG_COMPRESSED == record.SYS_COMPRESSED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TagA", 2598919),
        ("order_created", 848461559),
        ("标签", 857175),
        ("", 0),
        ("polygenelubricants", -2147483648),
    ],
)
def test_layout_java_hash_equals_the_stores(text: str, expected: int) -> None:
    assert layout.java_hash(text) == expected
    assert properties.java_string_hash(text) == expected
