import struct

import pytest
from google_crc32c import value as crc32c

from raftmq.store.frame import Frame, FrameError, FrameKind, seal_frame
from raftmq.store.frame_entries import decode_entries, encode_entries
from raftmq.store.record import encode_record
from tests.store.make import index_payload, record

POSITION = 1 << 33
COMMAND = b"command"


def message_frame() -> Frame:
    """Three messages of two queues behind a command, with their entries."""
    records = [record(topic="主题", queue_offset=7), record(topic="主题", queue_offset=8)]
    records.append(record(topic="B", queue_id=3, body=b"longer"))
    payload = COMMAND + b"".join(map(encode_record, records))
    frame = seal_frame(5, 2, POSITION, 9, FrameKind.MESSAGES, 3, payload, len(COMMAND))
    start = frame.payload_position + len(COMMAND)
    frame.entries = index_payload(frame.data[frame.records_at :], start)
    return frame


FRAME = message_frame()
assert FRAME.entries is not None
FIRST, LAST = FRAME.entries


@pytest.mark.parametrize("entries", [None, FRAME.entries])
def test_frames_entries_round_trip(entries: list[tuple[str, int, int, bytes]] | None) -> None:
    data = b"before" + encode_entries(entries)
    assert decode_entries(data + b"behind", 6, FRAME) == (entries, len(data))


def test_command_frames_may_have_empty_entries_of_no_queue() -> None:
    frame = seal_frame(5, 2, POSITION, 9, FrameKind.MESSAGES, 0, COMMAND, len(COMMAND))
    data = encode_entries([])
    assert decode_entries(data, 0, frame) == ([], len(data))


def test_truncated_or_damaged_entries_are_refused() -> None:
    data = encode_entries(FRAME.entries)
    for size in range(len(data)):
        with pytest.raises(FrameError):
            decode_entries(data[:size], 0, FRAME)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 1 << (at % 8)
        with pytest.raises(FrameError):
            decode_entries(bytes(bad), 0, FRAME)


def moved(entries: bytes, by: int) -> bytes:
    return struct.pack(">q", int.from_bytes(entries[:8], "big") + by) + entries[8:]


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [FIRST],
        [LAST, FIRST],
        [FIRST, LAST, LAST],
        [(*FIRST[:3], FIRST[3][:20]), LAST],
        [(*FIRST[:3], moved(FIRST[3], 1)), LAST],
        [FIRST, (*LAST[:3], moved(LAST[3], -1))],
        [FIRST, (*LAST[:3], b"")],
        [FIRST, (*LAST[:3], LAST[3][:-1])],
    ],
)
def test_entries_that_do_not_cover_the_records_are_refused(
    entries: list[tuple[str, int, int, bytes]],
) -> None:
    with pytest.raises(FrameError):
        decode_entries(encode_entries(entries), 0, FRAME)


def test_entries_of_a_frame_without_records_are_refused() -> None:
    noop = seal_frame(5, 2, POSITION, 9, FrameKind.NOOP, 0, b"")
    with pytest.raises(FrameError):
        decode_entries(encode_entries([]), 0, noop)


def test_malformed_queue_behind_a_right_checksum_is_refused() -> None:
    for body in (
        b"\0",
        struct.pack(">HiqI", 9, 0, 0, 20),
        struct.pack(">HiqI", 1, 0, 0, 0) + b"\xff",
    ):
        data = struct.pack(">II", 4 + len(body), crc32c(body)) + body
        with pytest.raises(FrameError):
            decode_entries(data, 0, FRAME)
