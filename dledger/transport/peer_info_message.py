"""The PeerInfo message, by which a replica reports facts to its peers, and its bytes.

The body of the message is a list of sections, each present at most once, with a checksum at the
end. A section that is missing means that the sender reports nothing about that subject. A reader
skips sections of unknown tags. Integers are big-endian.

    body        off size field           section     off size field
                0   n    sections                    0   1    tag
                n   4    CRC-32C of 0..n-1           1   2    length n of the value
                                                     3   n    value

    tag         value
    1 group id  16 bytes
    2 address   port (2), host (ASCII): where the sender listens
    3 notes     as in the file `notes`, see below
    4 committed index (8), term (8) and header CRC (4) of the last committed frame
    5 state     wall_ms (8), clock_lead_ms (8), first_position (8), expired_position (8),
                last_term (8), last_index (8), recovered (1), number of founders (1),
                founders (length 1, id), settings as lines key=value, UTF-8

    notes       each: length of the node id (1), node id (UTF-8), term (8), index (8)
                at the end: CRC-32C of all before it
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from google_crc32c import value as crc32c

from ..raft.configuration import MEMBERS_MAX, NAME_SIZE_BYTES_MAX
from ..raft.messages import NUMBER_MAX, TERM_MAX, NodeId

GROUP_ID_SIZE_BYTES = 16
HOST_SIZE_BYTES_MAX = 255
SETTINGS_SIZE_BYTES_MAX = 16_384
VALUE_SIZE_MAX = 256  # characters of a setting's value; the rest is cut off
_CRC = struct.Struct(">I")
_SECTION = struct.Struct(">BH")
_PORT = struct.Struct(">H")
_NOTE = struct.Struct(">qq")
_COMMITTED = struct.Struct(">qqI")
_STATE = struct.Struct(">qqqqqqBB")
_GROUP_ID, _ADDRESS, _NOTES, _COMMITTED_FRAME, _REPLICA_STATE = range(1, 6)
_NOTES_SIZE_BYTES_MAX = MEMBERS_MAX * (1 + NAME_SIZE_BYTES_MAX + _NOTE.size) + _CRC.size
BODY_SIZE_BYTES_MAX = 32_768
assert BODY_SIZE_BYTES_MAX > SETTINGS_SIZE_BYTES_MAX + 3 * _NOTES_SIZE_BYTES_MAX

Settings = Mapping[str, str]


class PeerInfoError(Exception):
    """Bytes that no replica writes; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Held:
    """A note that in `term` a replica held the committed frames up to `index`."""

    term: int
    index: int

    def exceeds(self, term: int, index: int) -> bool:
        """Return whether a replica in `term` with a log up to `index` has lost something."""
        return term < self.term or index < self.index

    def replaces(self, old: Held | None) -> bool:
        """Return whether this note is newer than `old`."""
        return old is None or (self.term, self.index) > (old.term, old.index)


Notes = Mapping[NodeId, Held]


@dataclass(frozen=True, slots=True)
class CommittedFrame:
    """The last frame that the sender has committed."""

    index: int
    term: int
    header_crc: int


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The sender's clock, log, founders and settings. Positions are CommitLog offsets."""

    wall_ms: int  # negative: before 1970
    clock_lead_ms: int  # of its clock over the time of its own log; 0: they agree
    first_position: int  # the log starts here
    expired_position: int  # the log has expired up to here, by the sender's clock and settings
    last_term: int  # of the last frame
    last_index: int
    recovered: bool
    founders: tuple[NodeId, ...] = ()  # sorted; empty once the log defines the members
    settings: Settings = field(default_factory=dict)  # those that should be equal in a group


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Facts about the sender. `term` is the sender's, and no note is of a later term."""

    sender: NodeId
    to: NodeId
    term: int = 0
    group_id: bytes = b""
    address: tuple[str, int] | None = None
    notes: Notes | None = None
    committed: CommittedFrame | None = None
    state: ReplicaState | None = None


def encode_body(info: PeerInfo) -> bytes:
    sections: list[tuple[int, bytes]] = []
    if info.group_id:
        assert len(info.group_id) == GROUP_ID_SIZE_BYTES, info.group_id
        sections.append((_GROUP_ID, info.group_id))
    if info.address is not None:
        host, port = info.address
        sections.append((_ADDRESS, _PORT.pack(port) + host.encode("ascii")))
    if info.notes is not None:
        sections.append((_NOTES, encode_notes(info.notes)))
    if info.committed is not None:
        frame = info.committed
        sections.append(
            (_COMMITTED_FRAME, _COMMITTED.pack(frame.index, frame.term, frame.header_crc))
        )
    if info.state is not None:
        sections.append((_REPLICA_STATE, _encode_state(info.state)))
    data = b"".join(_SECTION.pack(tag, len(value)) + value for tag, value in sections)
    return data + _CRC.pack(crc32c(data))


def decode_body(sender: NodeId, to: NodeId, term: int, body: bytes) -> PeerInfo:
    """Decode the sections of a message. Raises PeerInfoError."""
    data = _checked(body, "a peer info")
    sections: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        if len(data) - at < _SECTION.size:
            raise PeerInfoError("a peer info that ends within a section")
        tag, size = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        if tag in sections or len(data) - at < size:
            raise PeerInfoError(f"a peer info with section {tag} of {size} bytes")
        sections[tag] = data[at : at + size]
        at += size
    try:
        return PeerInfo(
            sender,
            to,
            term,
            _decode_group_id(sections.get(_GROUP_ID, b"")),
            _decode_address(sections[_ADDRESS]) if _ADDRESS in sections else None,
            decode_notes(sections[_NOTES]) if _NOTES in sections else None,
            _decode_committed(sections[_COMMITTED_FRAME]) if _COMMITTED_FRAME in sections else None,
            _decode_state(sections[_REPLICA_STATE]) if _REPLICA_STATE in sections else None,
        )
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise PeerInfoError(f"a peer info: {error}") from error


def encode_notes(notes: Notes) -> bytes:
    """Encode notes, in the order of their ids."""
    parts = []
    for node_id, held in sorted(notes.items()):
        parts += [_name(node_id), _NOTE.pack(held.term, held.index)]
    data = b"".join(parts)
    return data + _CRC.pack(crc32c(data))


def decode_notes(data: bytes) -> dict[NodeId, Held]:
    """Decode what `encode_notes` wrote. Raises PeerInfoError."""
    notes: dict[NodeId, Held] = {}
    body = _checked(data, "notes")
    at = 0
    try:
        while at < len(body):
            name, at = _name_at(body, at)
            term, index = _NOTE.unpack_from(body, at)
            at += _NOTE.size
            if name in notes:
                raise PeerInfoError(f"two notes of {name!r}")
            _check(term, index)
            notes[name] = Held(term, index)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise PeerInfoError(f"notes of {len(data)} bytes: {error}") from error
    if len(notes) > MEMBERS_MAX:
        raise PeerInfoError(f"{len(notes)} notes, a group has {MEMBERS_MAX} members at most")
    return notes


def cut_settings(settings: Settings) -> dict[str, str]:
    """Return the settings as they are sent, with cut values, and without line breaks."""
    return {key: value.replace("\n", " ")[:VALUE_SIZE_MAX] for key, value in settings.items()}


def _encode_state(state: ReplicaState) -> bytes:
    head = _STATE.pack(
        state.wall_ms,
        state.clock_lead_ms,
        state.first_position,
        state.expired_position,
        state.last_term,
        state.last_index,
        state.recovered,
        len(state.founders),
    )
    return head + b"".join(map(_name, state.founders)) + _encode_settings(state.settings)


def _decode_state(data: bytes) -> ReplicaState:
    wall_ms, lead_ms, first, expired, term, index, recovered, count = _STATE.unpack_from(data)
    _check(term, index, first, expired, abs(wall_ms), abs(lead_ms))
    if recovered > 1 or count > MEMBERS_MAX:
        raise PeerInfoError(f"a state with flag {recovered} and {count} founders")
    at = _STATE.size
    founders = []
    for _ in range(count):
        name, at = _name_at(data, at)
        founders.append(name)
    settings = _decode_settings(data[at:])
    return ReplicaState(
        wall_ms, lead_ms, first, expired, term, index, bool(recovered), tuple(founders), settings
    )


def _encode_settings(settings: Settings) -> bytes:
    """Encode settings as lines, up to the limit of bytes."""
    lines: list[bytes] = []
    size = 0
    for key, value in cut_settings(settings).items():
        line = f"{key}={value}\n".encode()
        size += len(line)
        if size > SETTINGS_SIZE_BYTES_MAX:
            break
        lines.append(line)
    return b"".join(lines)


def _decode_settings(data: bytes) -> dict[str, str]:
    """Return the settings; lines without "=" are left out."""
    pairs = [line.split("=", 1) for line in data.decode(errors="replace").split("\n")]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _decode_group_id(value: bytes) -> bytes:
    if len(value) not in (0, GROUP_ID_SIZE_BYTES):
        raise PeerInfoError(f"a group id of {len(value)} bytes")
    return value


def _decode_address(value: bytes) -> tuple[str, int]:
    (port,) = _PORT.unpack_from(value)
    host = value[_PORT.size :]
    if not port or not 0 < len(host) <= HOST_SIZE_BYTES_MAX:
        raise PeerInfoError(f"an address of host {host!r}, port {port}")
    return host.decode("ascii"), port


def _decode_committed(value: bytes) -> CommittedFrame:
    index, term, crc = _COMMITTED.unpack(value)
    _check(term, index)
    return CommittedFrame(index, term, crc)


def _check(term: int, *numbers: int) -> None:
    if not 0 <= term <= TERM_MAX or not all(0 <= number <= NUMBER_MAX for number in numbers):
        raise PeerInfoError(f"numbers out of range: term {term}, {numbers}")


def _name(node_id: NodeId) -> bytes:
    name = node_id.encode()
    assert 0 < len(name) <= NAME_SIZE_BYTES_MAX, node_id
    return bytes([len(name)]) + name


def _name_at(data: bytes, at: int) -> tuple[NodeId, int]:
    """Return the name at `at`, and where it ends. Raises IndexError, UnicodeDecodeError."""
    end = at + 1 + data[at]
    if end > len(data) or end == at + 1:
        raise IndexError("a name that does not end, or is empty")
    return data[at + 1 : end].decode(), end


def _checked(data: bytes, what: str) -> bytes:
    body, crc = data[: -_CRC.size], data[-_CRC.size :]
    if crc != _CRC.pack(crc32c(body)):
        raise PeerInfoError(f"{what} of {len(data)} bytes: the checksum does not match")
    return body
