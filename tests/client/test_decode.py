"""client.decode against store.record: each message has what its record says, and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import sys
import zlib
from dataclasses import replace

import pytest

from raftmq.client.decode import decode_messages
from raftmq.client.message import MessageExt
from raftmq.store.record import (
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    MessageRecord,
    RecordError,
    check_record,
    decode_record,
    encode_record,
    pack_host,
)

FIELDS = [field.name for field in dataclasses.fields(MessageExt) if field.init]
USUAL = MessageRecord(
    topic="T",
    body=b"a body",
    properties=b"UNIQ_KEY\x01U\x02TAGS\x01A\x02KEYS\x01k l\x02",
    queue_id=3,
    flag=-7,
    queue_offset=1 << 40,
    physical_offset=1 << 50,
    sys_flag=0,
    born_timestamp_ms=1_700_000_000_001,
    born_host=("10.0.0.1", 50_001),
    store_timestamp_ms=1_700_000_000_002,
    store_host=("10.0.0.2", 10_911),
    reconsume_times=2,
    prepared_transaction_offset=99,
)
BORN_V6 = replace(USUAL, sys_flag=SYS_BORN_HOST_V6, born_host=("fe80::1", 50_001))
STORE_V6 = replace(USUAL, sys_flag=SYS_STORE_HOST_V6, store_host=("fe80::2", 10_911))
RECORDS = [
    USUAL,
    replace(USUAL, queue_offset=0, physical_offset=0, flag=0, reconsume_times=0),
    replace(USUAL, body=b""),
    replace(USUAL, properties=b""),
    replace(USUAL, body=b"", properties=b"", topic="Other"),
    replace(USUAL, topic=""),
    replace(USUAL, topic="Тема"),
    replace(USUAL, topic="T" * 127),
    replace(USUAL, topic="T" * 128),
    replace(USUAL, topic="TT"),
    replace(USUAL, properties=b"no pair"),
    replace(USUAL, properties=b"TAGS\x01\xff\x02"),
    replace(USUAL, body=b"x" * 100_000),
    replace(USUAL, sys_flag=0x8),
    BORN_V6,
    STORE_V6,
    replace(BORN_V6, sys_flag=0x30, store_host=("fe80::2", 10_911), topic="L" * 300),
]


def read(record: MessageRecord, size_bytes: int) -> MessageExt:
    """Return the message that a record is, made by the constructor."""
    return MessageExt(
        topic=record.topic,
        body=record.body,
        properties_raw=record.properties,
        broker_name="g0",
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        commit_log_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        flag=record.flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host_raw=pack_host(record.born_host),
        store_timestamp_ms=record.store_timestamp_ms,
        store_host_raw=pack_host(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        store_size_bytes=size_bytes,
    )


def slowly(body: bytes) -> list[MessageExt]:
    """Decode a pull body by store.record alone. Raises RecordError."""
    result = []
    offset = 0
    while offset < len(body):
        size = check_record(body, offset)
        result.append(read(decode_record(body, offset), size))
        offset += size
    return result


def fields_of(message: MessageExt) -> dict[str, object]:
    return {name: getattr(message, name) for name in FIELDS}


def told(message: MessageExt) -> dict[str, object]:
    """Return all that a message says."""
    return fields_of(message) | {
        "repr": repr(message),
        "properties": message.properties,
        "queue": message.queue,
        "tags": message.tags,
        "keys": message.keys,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "born_host": message.born_host,
        "store_host": message.store_host,
    }


def test_decoded_message_has_all_fields_of_its_record() -> None:
    for pair in itertools.product(RECORDS, repeat=2):  # whatever record is read before it
        data = [encode_record(record) for record in pair]
        messages = decode_messages(b"".join(data), "g0")
        expected = [read(record, len(one)) for record, one in zip(pair, data, strict=True)]
        assert [told(message) for message in messages] == [told(message) for message in expected]


def test_decoded_compressed_message_differs_by_its_body_and_a_bit() -> None:
    packed = replace(USUAL, body=zlib.compress(b"plain"), sys_flag=0x301)
    data = encode_record(packed)
    (message,) = decode_messages(data, "g0")
    assert told(message) == told(read(replace(packed, body=b"plain", sys_flag=0x300), len(data)))


def test_damaged_record_is_rejected_for_any_damaged_byte() -> None:
    good = [encode_record(record) for record in (USUAL, USUAL, BORN_V6)]
    before = len(good[0])
    for position in range(before, sum(map(len, good))):
        for bits in (0x01, 0x55, 0x80):
            body = bytearray(b"".join(good))
            body[position] ^= bits
            try:
                expected = slowly(bytes(body))
            except RecordError:
                with pytest.raises(RecordError):
                    decode_messages(bytes(body), "g0")
                continue
            messages = decode_messages(bytes(body), "g0")
            assert [fields_of(message) for message in messages] == [fields_of(m) for m in expected]


def test_truncated_pull_body_is_rejected_at_any_length() -> None:
    data = encode_record(USUAL)
    for cut in range(1, len(data)):
        with pytest.raises(RecordError):
            decode_messages(data + data[:cut], "g0")


def test_decoded_message_can_be_changed_copied_and_pickled() -> None:
    (message,) = decode_messages(encode_record(USUAL), "g0")
    for other in (
        copy.copy(message),
        copy.deepcopy(message),
        pickle.loads(pickle.dumps(message)),
        replace(message),
    ):
        assert told(other) == told(message)
        assert other != message, "a message equals only itself"
    changed = replace(message, topic="U")
    for name in FIELDS:
        setattr(message, name, getattr(changed, name))
    assert told(message) == told(changed)


def test_kept_message_does_not_keep_its_batch_in_memory() -> None:
    neighbour = replace(USUAL, body=b"x" * 200_000)
    body = encode_record(neighbour) + encode_record(USUAL) + encode_record(neighbour)
    references = sys.getrefcount(body)
    kept = decode_messages(body, "g0")[1]
    assert sys.getrefcount(body) == references
    assert sum(sys.getsizeof(getattr(kept, name)) for name in FIELDS) < 2_000
