import pytest

from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.record import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MessageRecord,
    RecordError,
    StopReason,
    body_crc,
    check_record,
    decode_offset_message_id,
    decode_record,
    encode_record,
    offset_message_id,
    pack_host,
    store_timestamp_at,
    unpack_host,
    walk_records,
)
from tests.store.make import PLAIN, record

VECTOR = bytes.fromhex(
    "00000068daa320a758932aac000000000000000000000000000000000000000000000000000000000000018bcfe5"
    "68007f0000010000c3500000018bcfe568017f00000100002a9f0000000000000000000000000000000268690154"
    "000a54414753015461674102"
)
V6 = ("2001:db8::1", 10911)
VARIANTS = [
    PLAIN,
    record(sys_flag=0x10, born_host=V6),
    record(sys_flag=0x20, store_host=V6),
    record(sys_flag=0x30, born_host=V6, store_host=V6),
    record(topic="t" * 127),
    record(topic="t" * 128),  # V2
    record(topic="主" * 100, sys_flag=0x30, born_host=V6, store_host=V6),
    record(body=b"", properties=b"", topic=""),
    record(
        body=bytes(5000),
        sys_flag=0x1 | 0x8 | 0x100,
        queue_id=7,
        flag=-5,
        queue_offset=1 << 40,
        physical_offset=1 << 50,
        reconsume_times=3,
        prepared_transaction_offset=1 << 41,
    ),
]


def test_record_test_vectors() -> None:
    assert encode_record(PLAIN) == VECTOR
    assert decode_record(VECTOR) == PLAIN
    assert body_crc(b"hello") == 907060870
    assert offset_message_id(("127.0.0.1", 10911), 1024) == "7F00000100002A9F0000000000000400"


@pytest.mark.parametrize("item", VARIANTS)
def test_record_round_trip(item: MessageRecord) -> None:
    data = encode_record(item)
    assert decode_record(data) == item
    assert decode_record(memoryview(b"xxx" + data + b"yy"), 3) == item
    assert check_record(data, 0, item.physical_offset) == len(data)
    assert store_timestamp_at(data, 0) == item.store_timestamp_ms
    magic = MAGIC_V2 if len(item.topic.encode()) > 127 else MAGIC_V1
    assert BLANK.unpack_from(data) == (len(data), magic)


@pytest.mark.parametrize("item", VARIANTS[:7])
def test_every_truncation_of_a_record_is_detected(item: MessageRecord) -> None:
    data = encode_record(item)
    for end in range(len(data)):
        with pytest.raises(RecordError) as caught:
            check_record(data[:end])
        assert caught.value.reason is StopReason.TRUNCATED


@pytest.mark.parametrize(
    ("at", "new", "reason"),
    [
        (0, b"\0\0\0\x67", StopReason.BAD_SIZE),
        (0, b"\0\0\0\x69", StopReason.TRUNCATED),
        (0, b"\0\0\0\x10", StopReason.BAD_SIZE),
        (0, b"\x7f\0\0\0", StopReason.BAD_SIZE),
        (4, b"\0\0\0\0", StopReason.ZEROS),
        (4, b"\xda\xa3\x20\xab", StopReason.BAD_SIZE),  # V2 claimed: topic length is elsewhere
        (4, b"abcd", StopReason.BAD_MAGIC),
        (8, b"\0\0\0\1", StopReason.BAD_CRC),
        (28, b"\0\0\0\0\0\0\0\1", StopReason.BAD_POSITION),
        (36, b"\0\0\0\x10", StopReason.BAD_SIZE),  # IPv6 claimed
        (84, b"\xff\xff\xff\xff", StopReason.BAD_SIZE),
        (84, b"\0\0\0\x08", StopReason.BAD_SIZE),
        (88, b"H", StopReason.BAD_CRC),
        (90, b"\x80", StopReason.BAD_SIZE),  # TOPICLEN is signed
        (92, b"\x00\x09", StopReason.BAD_SIZE),
        (92, b"\xff\xff", StopReason.BAD_SIZE),
    ],
)
def test_each_record_damage_has_its_reason(at: int, new: bytes, reason: StopReason) -> None:
    data = bytearray(VECTOR)
    data[at : at + len(new)] = new
    with pytest.raises(RecordError) as caught:
        check_record(data, 0, 0)
    assert caught.value.reason is reason


def test_record_body_check_can_be_omitted() -> None:
    data = VECTOR[:88] + b"HI" + VECTOR[90:]
    assert decode_record(data, check_body=False).body == b"HI"
    with pytest.raises(RecordError):
        decode_record(data)


@pytest.mark.parametrize(
    "item", [record(sys_flag=0x10), record(born_host=V6), record(topic="x" * 40_000)]
)
def test_encode_record_rejects_invalid_fields(item: MessageRecord) -> None:
    with pytest.raises(ValueError):
        encode_record(item)


@pytest.mark.parametrize("host", [("127.0.0.1", 1), ("10.0.0.255", 65_535), V6])
def test_hosts_and_message_ids_round_trip(host: tuple[str, int]) -> None:
    packed = pack_host(host)
    assert unpack_host(packed) == host
    text = offset_message_id(host, 123_456_789_012)
    assert len(text) == (32 if len(packed) == 8 else 56)
    assert decode_offset_message_id(text) == (host, 123_456_789_012)
    assert decode_offset_message_id(text.lower()) == (host, 123_456_789_012)


@pytest.mark.parametrize("text", ["", "7F", "zz" * 16, "00" * 17, " " * 32])
def test_malformed_message_ids_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        decode_offset_message_id(text)


def walked(data: bytes, base: int | None) -> tuple[list[tuple[int, int]], StopReason, int]:
    walk = walk_records(data, base)
    return list(walk), walk.stop, walk.end


def three() -> tuple[bytes, list[tuple[int, int]]]:
    parts, positions, position = [], [], 1000
    for i in range(3):
        data = encode_record(record(physical_offset=position, body=b"x" * i))
        positions.append((position - 1000, len(data)))
        position += len(data)
        parts.append(data)
    return b"".join(parts), positions


def test_record_walk_and_its_stop_reasons() -> None:
    data, positions = three()
    assert walked(data, 1000) == (positions, StopReason.END_OF_BUFFER, len(data))
    assert walked(data, None)[0] == positions
    assert walked(data, 999) == ([], StopReason.BAD_POSITION, 0)
    assert walked(data + bytes(8), 1000) == (positions, StopReason.ZEROS, len(data))
    blank = BLANK.pack(50, MAGIC_BLANK)
    assert walked(data + blank, 1000) == (positions, StopReason.BLANK, len(data))
    assert walked(data + b"garbage!", 1000) == (positions, StopReason.BAD_MAGIC, len(data))
    last = positions[2][0]
    for end in range(last + 1, len(data)):
        assert walked(data[:end], 1000) == (positions[:2], StopReason.TRUNCATED, last)


def test_record_walk_skips_frame_headers() -> None:
    data, positions = three()
    message = seal_frame(1, 1, 940, 0, FrameKind.MESSAGES, 3, data).data
    command = seal_frame(2, 1, 1000 + len(data), 0, FrameKind.COMMAND, 0, b"secret" * 9).data
    both = message + command
    shifted = [(offset + 60, size) for offset, size in positions]
    assert walked(both, 940) == (shifted, StopReason.END_OF_BUFFER, len(both))
    assert walked(both[:-1], 940)[:2] == (shifted, StopReason.TRUNCATED)
    assert walked(both[:70], 940)[1] is StopReason.TRUNCATED
    torn = bytearray(both)
    torn[20] ^= 1
    assert walked(bytes(torn), 940) == ([], StopReason.BAD_FRAME, 0)
