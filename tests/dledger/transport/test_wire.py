"""The peer protocol: every message, cut anywhere, damaged anywhere."""

import struct

import pytest
from google_crc32c import value as crc32c

from raftmq.dledger.raft.messages import (
    NUMBER_MAX,
    TERM_MAX,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    PrevFrame,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raftmq.dledger.raft.pace import Pace
from raftmq.dledger.raft.repair import (
    RESPONSE_BYTES_MAX,
    Outcome,
    RepairRequest,
    RepairResponse,
    ResponderState,
)
from raftmq.dledger.raft.snapshot_install import (
    CHUNK_BYTES,
    InstallChunk,
    InstallOffer,
    InstallRequest,
)
from raftmq.dledger.transport import wire
from raftmq.dledger.transport.peer_info_message import Held, PeerInfo
from raftmq.dledger.transport.wire import (
    VERSION,
    Hello,
    HelloAnswer,
    MessageReader,
    PeerMessage,
    WireError,
    decode_answer,
    decode_hello,
    decode_identity,
    encode_answer,
    encode_hello,
    encode_identity,
    encode_message,
    spoken,
)
from raftmq.store.frame import Frame, FrameKind, seal_frame

A, B = "n0", "n1"
NO_ENTRIES = bytes(4)  # of a frame in an AppendRequest


def frame(index: int, payload: bytes = b"payload") -> Frame:
    return seal_frame(index, 3, index * 1000, 99, FrameKind.COMMAND, 0, payload)


MESSAGES: list[PeerMessage] = [
    VoteRequest(A, B, 5, 10, 4, True),
    VoteRequest(A, B, 5, 10, 4, False, True),
    VoteResponse(A, B, 5, 6, True, False),
    VoteRequest(A, B, 5, 10, 4, False, False, 2**62),
    VoteResponse(A, B, 5, 6, False, True),
    VoteResponse(A, B, 5, 6, False, True, 7, 2**64 - 1),
    PrevFrame(A, B, 7, 20, 6, 2**32 - 1),
    AppendRequest(A, B, 7, 20, 6, 18, ()),
    AppendRequest(A, B, 7, 20, 6, 18, (frame(21), frame(22, b""), frame(23, b"x" * 5000))),
    AppendResponse(A, B, 1, 2, True, 3, 4, 5, 6, 7),
    AppendResponse(A, B, 1, 2, False, 3, 4, 5, 2**48 - 1, 2**62 - 1),
    AppendResponse(A, B, 1, 2, True, 3, 4, 5, 6, 7, True),
    AppendResponse(A, B, 1, 2, False, 3, 4, 5, 6, 7, True),
    Heartbeat(A, B, 1, 2, 3),
    Heartbeat(A, B, 1, 2, 3, 2**62),
    HeartbeatResponse(A, B, 1, 2, 3, 4, 5, 6),
    HeartbeatResponse(A, B, 1, 2, 3, 4, 5, 2**48 - 1, 2**62 - 1),
    TimeoutNow(A, B, 9),
    PeerInfo(A, B, 5),
    PeerInfo(A, B, 2**48 - 1, notes={A: Held(4, 9), B: Held(5, 10)}),
    Pace(A, B, 2**62 - 1, 0, 1, 2, 3, 4),
    RepairRequest(A, B, 1, 20, 3, 4, 1 << 20),
    RepairRequest(A, B, 2**62 - 1, 1, 0, 0, 0),
    RepairResponse(A, B, 1, 20, Outcome.FRAMES, ResponderState.LEADS, 30, 4, frame(20).data[5:], 7),
    RepairResponse(A, B, 1, 20, Outcome.TRIMMED, ResponderState.REPAIRS, 0, 0, b"", 0),
    RepairResponse(
        A, B, 9, 2, Outcome.FRAMES, ResponderState.RECOVERED, 1, 2, bytes(RESPONSE_BYTES_MAX), 2
    ),
    InstallOffer(A, B, 3, 20, 2, 2**62 - 1),
    InstallRequest(A, B, 3, 0, 0),
    InstallChunk(A, B, 3, 2**62 - 1, 7, 11, b"some"),
    InstallChunk(A, B, 3, 9, 0, 1 << 20, bytes(CHUNK_BYTES)),
    InstallChunk(A, B, 3, 9, 0, 0, b""),
]


def encoded(message: PeerMessage) -> bytes:
    return b"".join(encode_message(message))


def read(data: bytes) -> list[PeerMessage]:
    return MessageReader(A, B).receive_data(data)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_peer_message_round_trip(message: PeerMessage) -> None:
    assert read(encoded(message)) == [message]


def test_peer_messages_are_read_byte_by_byte() -> None:
    reader = MessageReader(A, B)
    got: list[PeerMessage] = []
    for byte in b"".join(map(encoded, MESSAGES[:-1])):  # all but the one of a megabyte
        got += reader.receive_data(bytes([byte]))
    assert got == MESSAGES[:-1]


@pytest.mark.parametrize("size", [2, 3, 7, 64, 1000, 4096])
def test_peer_messages_are_equal_for_any_split_of_the_bytes(size: int) -> None:
    data = b"".join(map(encoded, MESSAGES * 3))
    reader = MessageReader(A, B)
    got: list[PeerMessage] = []
    for at in range(0, len(data), size):
        got += reader.receive_data(data[at : at + size])
    assert got == MESSAGES * 3


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_truncated_message_is_never_returned(message: PeerMessage) -> None:
    data = encoded(message)
    step = max(1, len(data) // 200)
    for size in range(0, len(data), step):
        assert read(data[:size]) == []


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_message_with_a_flipped_bit_is_never_returned(message: PeerMessage) -> None:
    data = encoded(message)
    for at in range(0, len(data), max(1, len(data) // 150)):
        if isinstance(message, RepairResponse) and at >= len(data) - len(message.data):
            break  # checked by whoever has the whole frames
        bad = bytearray(data)
        bad[at] ^= 1 << (at % 8)
        reader = MessageReader(A, B)
        try:
            # Bytes to spare: whatever the damaged length says is there.
            assert reader.receive_data(bytes(bad) + bytes(300)) == [], at
            pytest.fail(f"byte {at}: neither refused nor given out")
        except WireError:
            pass


def test_frames_are_forwarded_without_rebuilding() -> None:
    frames = (frame(21), frame(22))
    buffers = encode_message(AppendRequest(A, B, 7, 20, 6, 18, frames))
    assert buffers[1] is frames[0].data
    assert buffers[3] is frames[1].data


def sealed(kind: int, *fields: int, tail: bytes = b"", length: int | None = None) -> bytes:
    shape = wire.KINDS[kind].head
    size = shape.size + len(tail) if length is None else length
    head = shape.pack(size, wire.MESSAGE_VERSION, kind, *fields)
    return head + struct.pack(">I", crc32c(head)) + tail


def append_with(tail: bytes, count: int, **more: int) -> bytes:
    return sealed(3, 7, 20, 6, 18, count, tail=tail, **more)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\x10\x09\x05", "version 9"),
        (b"\0\0\0\x10\x01\x63", "kind 99"),
        (sealed(5, 1, 2, 3, 4, tail=b"more"), "kind 5 of 46 bytes"),
        (sealed(5, 1, 2, 3, 4, length=-5), "kind 5 of -1 bytes"),
        (append_with(b"", 0, length=1), "kind 3 of 5 bytes"),
        (append_with(b"", 1, length=wire.MESSAGE_SIZE_BYTES_MAX + 1), "limit"),
        (append_with(b"", -1), "-1 frames"),
        (append_with(b"", wire.FRAMES_PER_MESSAGE_MAX + 1), "65537 frames"),
        (append_with(b"", 1), "cut short"),
        (append_with(frame(21).data[:-1], 1), "cut short"),
        (append_with(frame(22).data, 1), "frame 22 where 21 belongs"),
        (append_with(frame(21).data + NO_ENTRIES + b"!", 1), "1 bytes left over"),
        (append_with(frame(21).data + NO_ENTRIES[1:], 1), "malformed entries"),
        (append_with(frame(21).data, 0), "67 bytes left over"),
        (sealed(2, 1, 2, 7, 0, 0), "flags"),
        (sealed(4, 1, 2, 4, 0, 0, 0, 0, 0), "flags"),
        (sealed(20, 1, 0, 0, 0, 0), "a repair request of"),
        (sealed(20, 1, 5, 0, -1, 0), "message kind 20 of"),
        (sealed(20, 1, 5, 0, 1, -1), "message kind 20 of"),
        (sealed(22, 1, 0, 0, 0), "a log that begins with frame 0"),
        (sealed(22, 1, 5, -1, 0), "message kind 22 of"),
        (sealed(23, 1, 5, -1), "message kind 23 of"),
        (sealed(24, 1, 5, 8, 7), "0 bytes at 8 of a parcel of 7"),
        (sealed(24, 1, 5, 0, (256 << 20) + 1), "of a parcel of"),
        (sealed(20, 1, 5, 0, 1, 0, tail=b"more"), "kind 20 of 50 bytes"),
        (sealed(21, 1, 5, 9, 0, 0, 0, 0), "9 is not a valid Outcome"),
        (sealed(21, 1, 5, 2, 4, 0, 0, 0), "4 is not a valid ResponderState"),
        (sealed(21, 1, 5, 1, 0, 0, 0, 0), "0 bytes with outcome 1"),
        (sealed(21, 1, 5, 2, 0, 0, 0, 0, tail=b"more"), "4 bytes with outcome 2"),
        (sealed(21, 1, 5, 1, 0, 0, 0, 0, length=RESPONSE_BYTES_MAX + 68), "limit"),
    ],
)
def test_malformed_message_is_rejected_with_its_reason(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read(data)


def test_wrong_length_is_rejected_before_its_bytes_arrive() -> None:
    with pytest.raises(WireError, match="limit"):
        read(append_with(b"", 1, length=2**31 - 1))


def test_append_above_the_frame_limit_is_not_encoded() -> None:
    one = frame(1, b"")
    with pytest.raises(AssertionError):
        wire.encode_append(1, 0, 0, 0, [one] * (wire.FRAMES_PER_MESSAGE_MAX + 1))
    assert len(wire.encode_append(1, 0, 0, 0, [one] * wire.FRAMES_PER_MESSAGE_MAX)) == 131_073


def test_hello_round_trip_and_every_truncation() -> None:
    hello = Hello("broker-ä", "n0", "n1")
    data = encode_hello(hello)
    for size in range(len(data)):
        assert decode_hello(data[:size]) is None
    assert decode_hello(data + b"and more") == (hello, len(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"G", "not the peer protocol"),
        (b"GET / HTTP/1.1\r\n", "not the peer protocol"),
        (b"RMQP\x00", "version 0"),
        (encode_hello(Hello("g", "a", "b"))[:-1] + b"?", "checksum"),
    ],
)
def test_wrong_hello_is_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_hello(data)


@pytest.mark.parametrize("group_id", [b"", bytes(range(16))])
def test_group_id_round_trip_and_every_truncation(group_id: bytes) -> None:
    data = encode_identity(group_id)
    for size in range(len(data)):
        assert decode_identity(data[:size]) is None
    assert decode_identity(data + b"and more") == (group_id, len(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"RMQA", "not the peer protocol"),
        (b"RMQI\x00", "version 0"),
        (b"RMQI\x01\x0f", "a group id of 15 bytes"),
        (encode_identity(bytes(16))[:-1] + b"?", "checksum"),
    ],
)
def test_wrong_group_id_is_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_identity(data)


def test_peer_protocol_version_1_bytes() -> None:
    hello = b"RMQP\x01\x01\x02\x02gn0n1"
    hello += struct.pack(">I", crc32c(hello))
    assert decode_hello(hello) == (Hello("g", "n0", "n1", 1), len(hello))
    assert spoken(Hello("g", "n0", "n1", 1)) == 1
    assert encode_answer(HelloAnswer("", 1)) == b"RMQA\x01\x00\x00\x00"
    head = b"\x00\x00\x00\x0e\x01\x07" + struct.pack(">q", 9)  # TimeoutNow, term 9
    assert encoded(TimeoutNow(A, B, 9)) == head + struct.pack(">I", crc32c(head))


def test_newer_program_is_answered_in_the_common_version() -> None:
    newer = Hello("g", "n0", "n1", VERSION + 4)
    decoded = decode_hello(encode_hello(newer))
    assert decoded is not None and decoded[0] == newer
    assert spoken(newer) == spoken(Hello("g", "n0", "n1")) == VERSION
    answer = decode_answer(encode_answer(HelloAnswer("", VERSION)))
    assert answer is not None and answer[0].version == VERSION
    with pytest.raises(WireError, match=f"version {VERSION + 1}"):  # more than was offered
        decode_answer(encode_answer(HelloAnswer("", VERSION + 1)))


@pytest.mark.parametrize("reason", ["", "this is group other, not mine"])
def test_hello_answer_round_trip_and_every_truncation(reason: str) -> None:
    data = encode_answer(HelloAnswer(reason))
    for size in range(len(data)):
        assert decode_answer(data[:size]) is None
    assert decode_answer(data + b"x") == (HelloAnswer(reason), len(data))
    with pytest.raises(WireError):
        decode_answer(b"HTTP")
    with pytest.raises(WireError, match="answer code"):
        decode_answer(b"RMQA\x01\x00\x00\x05hello")


@pytest.mark.parametrize("kind", sorted(wire.KINDS.keys() - {3, 8}), ids=str)
def test_terms_and_numbers_out_of_range_are_rejected_on_decode(kind: int) -> None:
    """One field after the other, of the first sample of its kind: the limit passes (unless another
    field speaks against it), one more and less than nothing do not."""
    sample = next(encoded(m) for m in MESSAGES if encoded(m)[5] == kind and not read_data(m))
    shape = wire.KINDS[kind].head
    fields = list(shape.unpack_from(sample)[3:])
    limits = dict.fromkeys(wire.KINDS[kind].terms, TERM_MAX)
    limits |= dict.fromkeys(wire.KINDS[kind].numbers, NUMBER_MAX)
    assert limits
    limits.pop(4 if kind == 20 else -1, None)  # a repair's offset has 32 bits
    for at, limit in limits.items():
        for value in (limit + 1, 2**63 - 1, -1, -(2**63)):
            with pytest.raises(WireError, match=f"message kind {kind} of"):
                read(sealed(kind, *fields[:at], value, *fields[at + 1 :]))
        if kind != 24:  # a chunk's offset and size bind each other
            assert read(sealed(kind, *fields[:at], limit, *fields[at + 1 :]))


@pytest.mark.parametrize("term", [TERM_MAX + 1, 2**63 - 1, -1])
def test_peer_info_term_out_of_range_is_rejected(term: int) -> None:
    with pytest.raises(WireError, match="message kind 8 of"):
        read(encoded(PeerInfo(A, B, term)))
    assert read(encoded(PeerInfo(A, B, TERM_MAX)))


def test_malformed_peer_info_is_rejected() -> None:
    for body in (b"", bytes(4) + b"x", b"\x01\x00\x01\x00"):
        with pytest.raises(WireError):
            read(sealed(8, 5, tail=body))


def read_data(message: PeerMessage) -> bytes:
    return getattr(message, "data", b"")


@pytest.mark.parametrize("value", [TERM_MAX + 1, 2**63 - 1, -1])
def test_append_request_term_out_of_range_is_rejected(value: int) -> None:
    one = seal_frame(21, value, 0, 0, FrameKind.NOOP, 0, b"")
    with pytest.raises(WireError, match=f"frame 21 of term {value}"):
        read(append_with(one.data, 1))
    far = seal_frame(21, 1, -1, 0, FrameKind.NOOP, 0, b"")
    with pytest.raises(WireError, match="frame 21 of term 1 at -1"):
        read(append_with(far.data, 1))
    for at in range(4):
        fields = [7, 20, 6, 18]
        fields[at] = value if at in (0, 2) else -1
        with pytest.raises(WireError, match="message kind 3 of"):
            read(sealed(3, *fields, 0))
    assert read(sealed(3, TERM_MAX, NUMBER_MAX, TERM_MAX, NUMBER_MAX, 0))
