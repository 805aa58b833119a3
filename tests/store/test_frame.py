import pytest

from raftmq.store.frame import (
    HEADER_SIZE_BYTES,
    PAYLOAD_SIZE_BYTES_MAX,
    Frame,
    FrameError,
    FrameKind,
    parse_frame,
    parse_header,
    seal_frame,
)


@pytest.mark.parametrize("kind", list(FrameKind))
@pytest.mark.parametrize("payload", [b"", b"x", bytes(1000)])
def test_frame_round_trip(kind: FrameKind, payload: bytes) -> None:
    frame = seal_frame(7, 3, 1 << 40, 1234, kind, 2, payload)
    again = parse_frame(b"ab" + frame.data + b"c", 2)
    assert again == frame
    assert (again.index, again.term, again.position, again.timestamp_ms) == (7, 3, 1 << 40, 1234)
    assert (again.kind, again.record_count, bytes(again.payload)) == (kind, 2, payload)
    assert again.end == again.payload_position + len(payload) == (1 << 40) + again.size_bytes
    hop = HEADER_SIZE_BYTES + (0 if kind == FrameKind.MESSAGES else len(payload))
    assert parse_header(frame.data)[0] == hop


def test_every_truncation_and_flipped_byte_of_a_frame_is_detected() -> None:
    data = seal_frame(7, 3, 99, 1234, FrameKind.COMMAND, 0, b"payload").data
    for end in range(len(data)):
        with pytest.raises(FrameError):
            parse_frame(data[:end])
    for at in range(len(data)):
        for bit in (1, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= bit
            with pytest.raises(FrameError):
                parse_frame(bytes(damaged))


def test_frame_payload_limit() -> None:
    with pytest.raises(AssertionError):
        seal_frame(1, 1, 0, 0, FrameKind.COMMAND, 0, bytes(PAYLOAD_SIZE_BYTES_MAX + 1))


def test_frame_equality_and_repr() -> None:
    frame = seal_frame(1, 2, 0, 0, FrameKind.NOOP, 0, b"")
    assert frame == Frame(1, 2, 0, 0, FrameKind.NOOP, 0, frame.data)
    assert frame != object()
    assert hash(frame) == hash(parse_frame(frame.data))
    assert repr(frame) == "<Frame 1@2 noop at 0 +60>"
