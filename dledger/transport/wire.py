"""The peer protocol's bytes, for handshake and messages.

A directed link is one TCP connection that the sender dials. After the handshake (`Hello`, an
answer, both group ids, a second answer) messages flow in one direction. Integers are big-endian.

    hello       off size field              message     off size field
                0   4    magic "RMQP"                   0   4    length, of all that follows it
                4   1    version                        4   1    version
                5   1    group name length              5   1    kind (table KINDS)
                6   1    sender id length               6   n    fields of that kind
                7   1    receiver id length             6+n 4    CRC-32C of bytes 0..6+n-1
                8   n    group, sender, receiver        10+n     frames (AppendRequest), each with
                                                                 its entries behind it; bytes of
                                                                 the log (RepairResponse); of a
                                                                 parcel (InstallChunk); the body
                                                                 of a PeerInfo
                8+n 4    CRC-32C of bytes 0..8+n-1
    answer      magic "RMQA", version, code (0 welcome), reason length (2), reason (UTF-8)
    identity    magic "RMQI", version, size (0 or 16), group id, CRC-32C of all before it

A hello has the highest version of its sender, the answer has the version to use, which is the lower
of both sides' highest. Hello and answer look the same in every version, so the replicas of a group
can be upgraded one by one. Each side then sends its group id (size 0: not known yet), the acceptor
right behind its answer, and the acceptor's second answer accepts or refuses the link.

Sender and receiver of a message are those of its connection and are not repeated. The frames of an
AppendRequest are the bytes of the log; both their checksums are verified here, and the checksum of
their ConsumeQueue entries (store.frame_entries). The bytes of a
RepairResponse may be a part of a frame, those of an InstallChunk a part of a parcel; they are
verified where the parts are joined (dledger.raft.repair, dledger.raft.snapshot_install). Malformed
data raises WireError, and its connection has to be closed. A term above TERM_MAX, in a message or
in a frame, is malformed, and so is an index, offset or round that is negative or above NUMBER_MAX.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from google_crc32c import value as crc32c

from raftmq.store.frame import (
    HEADER_SIZE_BYTES,
    PAYLOAD_SIZE_BYTES_MAX,
    Frame,
    FrameError,
    parse_frame,
)
from raftmq.store.frame_entries import decode_entries, encode_entries

from ..raft.messages import (
    NUMBER_MAX,
    TERM_MAX,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    NodeId,
    PrevFrame,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ..raft.pace import Pace
from ..raft.repair import (
    RESPONSE_BYTES_MAX,
    Outcome,
    RepairRequest,
    RepairResponse,
    ResponderState,
)
from ..raft.snapshot_install import (
    CHUNK_BYTES,
    GROUP_SNAPSHOT_BYTES_MAX,
    InstallChunk,
    InstallMessage,
    InstallOffer,
    InstallRequest,
)
from .peer_info_message import (
    BODY_SIZE_BYTES_MAX,
    GROUP_ID_SIZE_BYTES,
    PeerInfo,
    PeerInfoError,
    decode_body,
    encode_body,
)

VERSION = 1  # the highest that this program supports
VERSION_MIN = 1  # the lowest that this program supports
MESSAGE_VERSION = 1  # in each message, the last version that changed a message
# Twice the largest frame, for the other frames of a request.
MESSAGE_SIZE_BYTES_MAX = 2 * (PAYLOAD_SIZE_BYTES_MAX + HEADER_SIZE_BYTES)
FRAMES_PER_MESSAGE_MAX = 65_536
_TERM_BITS = TERM_MAX.bit_length()
_NUMBER_BITS = NUMBER_MAX.bit_length()
_HEAD = struct.Struct(">iBB")
_CRC = struct.Struct(">I")
_CRC_SIZE = _CRC.size

APPEND_REQUEST = 3
_APPEND_RESPONSE = 4


PeerMessage = Message | RepairRequest | RepairResponse | InstallMessage | PeerInfo | Pace


class WireError(Exception):
    """The peer sent data that violates this protocol, with a `reason`. Close the connection."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Kind:
    """A kind of message, with the fields of its head, and its size limit.

    `fields` lists the message's attributes in the order of the head, each with its kind (table
    _LETTERS). Two adjacent flags share a byte."""

    def __init__(self, message: type[PeerMessage], fields: str, bytes_max: int = 0) -> None:
        pairs = [field.split(":") for field in fields.split()]
        held = [what for _, what in pairs if what != "flag1"]
        self.message = message
        # Version and kind are part of it, for a single pack per message.
        self.head: struct.Struct = struct.Struct(
            ">iBB" + "".join([_LETTERS[what] for what in held])
        )
        length_max = min(self.head.size + bytes_max, MESSAGE_SIZE_BYTES_MAX)
        self.length_max = length_max if bytes_max else 0
        self.flags_at = held.index("flag0") if "flag0" in held else None
        self.terms = [at for at, what in enumerate(held) if what == "term"]
        self.numbers = [at for at, what in enumerate(held) if what in ("number", "offset")]
        # The getter makes a tuple only for several attributes.
        self._attributes = attrgetter("to", *[name for name, _ in pairs])

    def fields(self, message: PeerMessage) -> list[int]:
        _, *fields = self._attributes(message)
        at = self.flags_at
        if at is not None:
            fields[at : at + 2] = [fields[at] | fields[at + 1] << 1]
        return fields

    def check(self, fields: tuple[int, ...]) -> None:
        """Refuse terms and numbers out of range. They are joined by "or" first, which keeps a
        negative sign and excess bits, so a single comparison covers all."""
        terms = numbers = 0
        for at in self.terms:
            terms |= fields[at]
        for at in self.numbers:
            numbers |= fields[at]
        if terms >> _TERM_BITS or numbers >> _NUMBER_BITS:
            raise WireError(f"message kind {_KIND_OF[self.message]} of {fields}")


# The struct format of each kind of field. Terms, numbers and offsets have limits. A "flag1" is the
# second bit of the byte whose first bit is the "flag0" before it.
_LETTERS = {
    "term": "q",
    "number": "q",
    "offset": "i",
    "choice": "B",
    "id": "Q",
    "flag0": "B",
}
KINDS: dict[int, _Kind] = {
    1: _Kind(
        VoteRequest,
        "term:term last_index:number last_term:term pre_vote:flag0 transfer:flag1 incarnation:id",
    ),
    2: _Kind(
        VoteResponse,
        "term:term request_term:term pre_vote:flag0 granted:flag1 request_incarnation:id"
        " recovering:id",
    ),
    APPEND_REQUEST: _Kind(
        AppendRequest,
        "term:term prev_index:number prev_term:term commit_index:number frame_count:offset",
        MESSAGE_SIZE_BYTES_MAX,
    ),
    _APPEND_RESPONSE: _Kind(
        AppendResponse,
        "term:term request_term:term success:flag0 recovering:flag1 match_index:number"
        " prev_index:number conflict_index:number conflict_term:term last_index:number",
    ),
    5: _Kind(Heartbeat, "term:term commit_index:number round:number certified:id"),
    6: _Kind(
        HeartbeatResponse,
        "term:term request_term:term round:number last_index:number verified_index:number"
        " match_index:number recovering:id",
    ),
    7: _Kind(TimeoutNow, "term:term"),
    8: _Kind(PeerInfo, "term:term", BODY_SIZE_BYTES_MAX),
    9: _Kind(PrevFrame, "term:term index:number index_term:term header_crc:id"),
    10: _Kind(
        Pace,
        "sent_us:number echo_us:number held_us:number write_us:number flush_us:number"
        " cost_us:number",
    ),
    20: _Kind(RepairRequest, "number:number index:number prev_term:term term:term offset:offset"),
    21: _Kind(
        RepairResponse,
        "number:number index:number outcome:choice responder:choice commit_index:number"
        " next_term:term term:term",
        RESPONSE_BYTES_MAX,
    ),
    22: _Kind(InstallOffer, "term:term first_index:number previous_term:term end_position:number"),
    23: _Kind(InstallRequest, "term:term number:number offset:number"),
    24: _Kind(InstallChunk, "term:term number:number offset:number size_bytes:number", CHUNK_BYTES),
}
_KIND_OF = {kind.message: number for number, kind in KINDS.items()}
# These two are the most frequent messages, so they are encoded and parsed without the table.
_APPEND = KINDS[APPEND_REQUEST].head
_APPENDED = KINDS[_APPEND_RESPONSE].head


def encode_append(
    term: int, prev_index: int, prev_term: int, commit_index: int, frames: Sequence[Frame]
) -> list[bytes]:
    """Encode an AppendRequest as contiguous buffers; frames are not copied."""
    assert len(frames) <= FRAMES_PER_MESSAGE_MAX, len(frames)
    size = _APPEND.size  # length counts behind its own 4 bytes; the CRC has 4 as well
    tail: list[bytes] = []
    for frame in frames:
        entries = encode_entries(frame.entries)
        tail += (frame.data, entries)
        size += len(frame.data) + len(entries)
    assert size <= MESSAGE_SIZE_BYTES_MAX, size
    head = _APPEND.pack(
        size,
        MESSAGE_VERSION,
        APPEND_REQUEST,
        term,
        prev_index,
        prev_term,
        commit_index,
        len(frames),
    )
    return [head + _CRC.pack(crc32c(head)), *tail]


def encode_message(message: PeerMessage) -> list[bytes]:
    if isinstance(message, AppendRequest):
        return encode_append(
            message.term,
            message.prev_index,
            message.prev_term,
            message.commit_index,
            message.frames,
        )
    if isinstance(message, AppendResponse):
        head = _APPENDED.pack(
            _APPENDED.size,
            MESSAGE_VERSION,
            _APPEND_RESPONSE,
            message.term,
            message.request_term,
            message.success | message.recovering << 1,
            message.match_index,
            message.prev_index,
            message.conflict_index,
            message.conflict_term,
            message.last_index,
        )
        return [head + _CRC.pack(crc32c(head))]
    number = _KIND_OF[type(message)]
    kind = KINDS[number]
    data = b""
    if isinstance(message, RepairResponse | InstallChunk):
        data = message.data
    elif isinstance(message, PeerInfo):
        data = encode_body(message)
    size = kind.head.size + len(data)
    head = kind.head.pack(size, MESSAGE_VERSION, number, *kind.fields(message))
    return [head + _CRC.pack(crc32c(head)), *([data] if data else [])]


class MessageReader:
    """Splits a connection's bytes into messages from `sender` to `to`.

    Holds at most an incomplete message of MESSAGE_SIZE_BYTES_MAX and a further read."""

    def __init__(self, sender: NodeId, to: NodeId) -> None:
        self._sender = sender
        self._to = to
        self._parts: list[bytes] = []  # unparsed bytes, joined only when there are enough
        self._have = 0
        self._need = _HEAD.size

    def receive_data(self, data: bytes) -> list[PeerMessage]:
        """Return all messages that `data` completes. After a WireError the reader is dead."""
        self._have += len(data)
        if self._have < self._need:
            self._parts.append(data)
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
        messages: list[PeerMessage] = []
        at = 0
        end = len(data)
        size = _HEAD.size
        while at < end:
            size = self._message_size(data, at, end)
            if end - at < size:
                break
            messages.append(self._parse(data, at, at + size))
            at += size
        self._need = size if at < end else _HEAD.size
        self._have = end - at
        if at < end:
            self._parts.append(data[at:] if at else data)
        return messages

    def _message_size(self, data: bytes, at: int, end: int) -> int:
        """Return the bytes of the message at `at` that are needed to parse it or check it further.
        The head is checked first, so that a damaged length does not make us wait for megabytes."""
        have = end - at
        if have < _HEAD.size:
            return _HEAD.size
        length, version, number = _HEAD.unpack_from(data, at)
        if version != MESSAGE_VERSION:
            raise WireError(f"message version {version}, this program knows {MESSAGE_VERSION}")
        kind = KINDS.get(number)
        if kind is None:
            raise WireError(f"unknown message kind {number}")
        crc_at = at + kind.head.size
        head_size = kind.head.size + _CRC_SIZE
        if have < head_size:
            return head_size
        if _CRC.unpack_from(data, crc_at)[0] != crc32c(data[at:crc_at]):
            raise WireError(f"checksum of message kind {number} does not match")
        size: int = length + 4
        if size != head_size:
            if size < head_size or not kind.length_max:
                raise WireError(f"message kind {number} of {size} bytes")
            if length > kind.length_max:
                raise WireError(f"message of {length} bytes, limit {kind.length_max}")
        return size

    def _parse(self, data: bytes, at: int, end: int) -> PeerMessage:
        number = data[at + 5]
        if number == APPEND_REQUEST:
            return self._parse_append(data, at, end)
        kind, sender, to = KINDS[number], self._sender, self._to
        f = fields = kind.head.unpack_from(data, at)[3:]
        kind.check(fields)
        if number == _APPEND_RESPONSE:
            success, recovering = _two_flags(f[2])
            return AppendResponse(
                sender, to, f[0], f[1], success, f[3], f[4], f[5], f[6], f[7], recovering
            )
        flags_at, message = kind.flags_at, kind.message
        if flags_at is not None:
            fields = (*fields[:flags_at], *_two_flags(fields[flags_at]), *fields[flags_at + 1 :])
        if kind.length_max:
            tail = data[at + kind.head.size + _CRC_SIZE : end]
            if message is RepairResponse:
                return self._parse_repair_response(fields, tail)
            if message is InstallChunk:
                return self._parse_chunk(fields, tail)
            return self._parse_peer_info(fields, tail)
        if message is RepairRequest and fields[1] < 1:
            raise WireError(f"a repair request of {fields}")
        if message is InstallOffer and fields[1] < 1:
            raise WireError(f"a log that begins with frame {fields[1]}")
        return message(sender, to, *fields)

    def _parse_repair_response(self, fields: tuple[int, ...], data: bytes) -> RepairResponse:
        number, index, outcome, responder, commit_index, next_term, term = fields
        try:
            verdict = Outcome(outcome), ResponderState(responder)
        except ValueError as error:
            raise WireError(f"a repair response: {error}") from error
        if (verdict[0] is Outcome.FRAMES) != bool(data):
            raise WireError(f"{len(data)} bytes with outcome {outcome}")
        return RepairResponse(
            self._sender, self._to, number, index, *verdict, commit_index, next_term, data, term
        )

    def _parse_peer_info(self, fields: tuple[int, ...], body: bytes) -> PeerInfo:
        try:
            return decode_body(self._sender, self._to, fields[0], body)
        except PeerInfoError as error:
            raise WireError(str(error)) from error

    def _parse_chunk(self, fields: tuple[int, ...], data: bytes) -> InstallChunk:
        term, number, offset, size_bytes = fields
        if size_bytes > GROUP_SNAPSHOT_BYTES_MAX or offset + len(data) > size_bytes:
            raise WireError(f"{len(data)} bytes at {offset} of a parcel of {size_bytes}")
        return InstallChunk(self._sender, self._to, term, number, offset, size_bytes, data)

    def _parse_append(self, data: bytes, at: int, end: int) -> AppendRequest:
        _, _, _, term, prev_index, prev_term, commit, count = _APPEND.unpack_from(data, at)
        if (term | prev_term) >> _TERM_BITS or (prev_index | commit) >> _NUMBER_BITS:
            fields = (term, prev_index, prev_term, commit)
            raise WireError(f"message kind {APPEND_REQUEST} of {fields}")
        if not 0 <= count <= FRAMES_PER_MESSAGE_MAX:
            raise WireError(f"{count} frames in one message")
        frames = []
        position = at + _APPEND.size + _CRC_SIZE
        try:
            for index in range(prev_index + 1, prev_index + 1 + count):
                frame = parse_frame(data, position)
                if frame.index != index:
                    raise WireError(f"frame {frame.index} where {index} belongs")
                if frame.term >> _TERM_BITS or frame.position >> _NUMBER_BITS:
                    raise WireError(f"frame {index} of term {frame.term} at {frame.position}")
                frame.entries, position = decode_entries(data, position + len(frame.data), frame)
                frames.append(frame)
        except FrameError as error:
            raise WireError(f"frame in an append request: {error.reason}") from error
        if position != end:
            raise WireError(f"{end - position} bytes left over behind the frames")
        return AppendRequest(
            self._sender, self._to, term, prev_index, prev_term, commit, tuple(frames)
        )


def _two_flags(value: int) -> tuple[bool, bool]:
    if value > 3:
        raise WireError(f"flags {value:#x}")
    return bool(value & 1), bool(value & 2)


# -- handshake ------------------------------------------------------------------------------------

_HELLO_MAGIC = b"RMQP"
_ANSWER_MAGIC = b"RMQA"
_HELLO = struct.Struct(">4sBBBB")
_ANSWER = struct.Struct(">4sBBH")
_IDENTITY_MAGIC = b"RMQI"
_IDENTITY = struct.Struct(">4sBB")
WELCOME = 0
REFUSED = 1
REASON_SIZE_BYTES_MAX = 512


@dataclass(frozen=True, slots=True)
class Hello:
    """The opening of a connection, with group, dialler, and intended receiver."""

    group: str
    sender: NodeId
    receiver: NodeId
    version: int = VERSION  # the dialler's highest


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """The answer to a hello: `reason` is empty if admitted; then `version` is used."""

    reason: str
    version: int = VERSION


def spoken(hello: Hello) -> int:
    """Return the protocol version used after this hello."""
    return min(hello.version, VERSION)


def encode_hello(hello: Hello) -> bytes:
    names = [name.encode() for name in (hello.group, hello.sender, hello.receiver)]
    for name in names:
        assert 0 < len(name) <= 255, name
    head = _HELLO.pack(_HELLO_MAGIC, hello.version, *map(len, names)) + b"".join(names)
    return head + _CRC.pack(crc32c(head))


def decode_hello(data: bytes) -> tuple[Hello, int] | None:
    """Return the hello at the start of `data` and its size; None while it is incomplete. Raises
    WireError at the first wrong byte."""
    _check_opening(data, _HELLO_MAGIC, 255)
    if len(data) < _HELLO.size:
        return None
    _, version, group, sender, receiver = _HELLO.unpack_from(data)
    end = _HELLO.size + group + sender + receiver
    if len(data) < end + _CRC_SIZE:
        return None
    if _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise WireError("checksum of the hello does not match")
    names = data[_HELLO.size : end]
    try:
        texts = (
            names[:group].decode(),
            names[group : group + sender].decode(),
            names[group + sender :].decode(),
        )
    except UnicodeDecodeError as error:
        raise WireError("a name in the hello is not UTF-8") from error
    if not all(texts):
        raise WireError("an empty name in the hello")
    return Hello(*texts, version), end + _CRC_SIZE


def encode_answer(answer: HelloAnswer) -> bytes:
    """Return the bytes of the answer to a hello; a long reason is cut."""
    reason = answer.reason.encode()[:REASON_SIZE_BYTES_MAX]
    code = REFUSED if reason else WELCOME
    return _ANSWER.pack(_ANSWER_MAGIC, answer.version, code, len(reason)) + reason


def decode_answer(data: bytes) -> tuple[HelloAnswer, int] | None:
    """Return the answer at the start of `data` and its size, or None. Raises WireError."""
    _check_opening(data, _ANSWER_MAGIC, VERSION)
    if len(data) < _ANSWER.size:
        return None
    _, version, code, length = _ANSWER.unpack_from(data)
    if length > REASON_SIZE_BYTES_MAX or (code == WELCOME) != (length == 0):
        raise WireError(f"answer code {code} with a reason of {length} bytes")
    end = _ANSWER.size + length
    if len(data) < end:
        return None
    reason = data[_ANSWER.size : end].decode(errors="replace")
    return HelloAnswer(reason, version), end


def encode_identity(group_id: bytes) -> bytes:
    """Encode `group_id`, which is empty if unknown."""
    assert len(group_id) in (0, GROUP_ID_SIZE_BYTES), group_id
    data = _IDENTITY.pack(_IDENTITY_MAGIC, VERSION, len(group_id)) + group_id
    return data + _CRC.pack(crc32c(data))


def decode_identity(data: bytes) -> tuple[bytes, int] | None:
    """Return the group id at the start of `data` (empty: unknown) and the record's size; None while
    it is incomplete. Raises WireError."""
    _check_opening(data, _IDENTITY_MAGIC, 255)
    if len(data) < _IDENTITY.size:
        return None
    _, _, size = _IDENTITY.unpack_from(data)
    if size not in (0, GROUP_ID_SIZE_BYTES):
        raise WireError(f"a group id of {size} bytes")
    end = _IDENTITY.size + size
    if len(data) < end + _CRC_SIZE:
        return None
    if _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise WireError("checksum of the group id does not match")
    return data[_IDENTITY.size : end], end + _CRC_SIZE


def _check_opening(data: bytes, magic: bytes, version_max: int) -> None:
    """Refuse at the first wrong byte of magic and version."""
    if data[:4] != magic[: len(data)]:
        raise WireError("not the peer protocol of this program")
    if len(data) > 4 and not VERSION_MIN <= data[4] <= version_max:
        raise WireError(
            f"protocol version {data[4]}, this program knows {VERSION_MIN} to {VERSION}"
        )
