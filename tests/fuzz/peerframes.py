"""Bytes that no replica, slave or TLS client sends: Raft messages with right checksums and wrong
fields, reports of the HA stream, damaged TLS records. Pure."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from google_crc32c import value as crc32c

from raftmq.dledger.transport import wire
from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.frame_entries import encode_entries
from tests.fuzz.samples import Sample
from tests.fuzz.values import EDGES, damaged

# The head of each kind: length, version, kind, fields.
SHAPES = {number: kind.head for number, kind in wire.KINDS.items()}
_HEAD_FIELDS = 3
_CRC_SIZE = 4
# Terms that the group may live through; what is over wire's limit has to be refused. Between them
# a valid term would use up all terms that there are: whoever has the secret may do that.
TERMS = (0, 1, 2, 3, 4, 5, 10, 100, 1 << 20, 2**48 + 1, 2**53, 2**62, 2**63 - 2, 2**63 - 1, -1,
         -(2**63))  # fmt: skip
INDEXES = (0, 1, 2, 3, 5, 8, 13, 100, 1 << 20, 2**31, 2**53, 2**63 - 1, -1, -(2**63))


class RaftMaker:
    """Messages of a peer, after the recorded ones."""

    def __init__(self, rng: random.Random, samples: Sequence[Sample]) -> None:
        self.rng = rng
        self._recorded = [s.data for s in samples if s.kind.startswith("message")]

    def message(self) -> bytes:
        """The next one."""
        rng = self.rng
        if rng.random() < 0.4:
            return self._made_up()
        data = bytearray(rng.choice(self._recorded))
        kind = data[5]
        size = SHAPES[kind].size
        if rng.random() < 0.05:
            return damaged(bytes(data), rng)
        head, tail = bytes(data[:size]), bytes(data[size + _CRC_SIZE :])
        fields = list(SHAPES[kind].unpack(head))
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            at = rng.randrange(_HEAD_FIELDS, len(fields)) if rng.random() < 0.97 else 0
            fields[at] = rng.choice(INDEXES if at > _HEAD_FIELDS else TERMS)
        if tail and rng.random() < 0.5:
            tail = damaged(tail, rng)
        return _sealed(kind, fields, tail, rng.random() < 0.9)

    def _made_up(self) -> bytes:
        rng = self.rng
        kind = rng.choice(list(SHAPES))
        shape = SHAPES[kind]
        fields = [0, wire.MESSAGE_VERSION, kind]
        count = len(shape.unpack(bytes(shape.size))) - _HEAD_FIELDS
        for at in range(count):
            fields.append(
                rng.choice(TERMS if at == 0 else INDEXES if at > 1 else (*TERMS, *INDEXES))
            )
        tail = b""
        if kind == wire.APPEND_REQUEST:
            fields[-1], tail = self._frames(fields[4])
        elif wire.KINDS[kind].length_max and rng.random() < 0.7:
            tail = rng.randbytes(rng.choice((1, 60, 4_096)))
        if rng.random() < 0.02:
            fields[1] = rng.randrange(256)
        return _sealed(kind, fields, tail, True)

    def _frames(self, prev_index: int) -> tuple[int, bytes]:
        """Return (number, whole frames of any content behind `prev_index`)."""
        rng = self.rng
        count = rng.choice((0, 1, 1, 2, 5))
        frames = []
        for number in range(count):
            payload = rng.randbytes(rng.choice((0, 1, 16, 300)))
            index = max(-(2**62), min(2**62, prev_index)) + 1 + number
            kind = rng.choice(tuple(FrameKind))
            frame = seal_frame(index, rng.choice((0, 1, 2, 5)), rng.choice((0, 60, 4_096)), 0, kind,
                               rng.choice((0, 1, 2**31 - 1)), payload)  # fmt: skip
            entries = rng.choice((None, None, [], [("T", 0, 0, bytes(20))]))
            frames.append(frame.data + encode_entries(entries))
        return count if rng.random() < 0.95 else rng.choice((-1, 65_537, 3)), b"".join(frames)


def _sealed(kind: int, fields: list[int], tail: bytes, true_length: bool) -> bytes:
    """Fields cut down to what fits, length and checksum put right."""
    shape = SHAPES[kind]
    sizes = {"i": 32, "q": 64, "Q": 64, "B": 8}
    letters = shape.format[1:]
    packed = []
    for letter, value in zip(letters, fields, strict=True):
        value &= (1 << sizes[letter]) - 1
        if letter.islower() and value >> (sizes[letter] - 1):
            value -= 1 << sizes[letter]
        packed.append(value)
    packed[2] = kind
    if true_length:
        packed[0] = shape.size + len(tail)
    head = shape.pack(*packed)
    return head + struct.pack(">I", crc32c(head)) + tail


def is_readable(data: bytes) -> bool:
    """Whether a replica reads it as one message: one that it cannot read ends the connection."""
    try:
        return len(wire.MessageReader("z9", "z0").receive_data(data)) == 1
    except wire.WireError:
        return False


def damaged_opening(samples: Sequence[Sample], rng: random.Random) -> bytes:
    """A hello that is not quite one; its checksum may be right."""
    openings = [s.data for s in samples if not s.kind.startswith("message")]
    made = damaged(rng.choice(openings), rng)
    if rng.random() < 0.5 and len(made) > 4:
        made = made[:-4] + struct.pack(">I", crc32c(made[:-4]))
    return made


def reports(samples: Sequence[Sample], rng: random.Random) -> bytes:
    """Yield reports that a slave sends, and some that none would."""
    made = b"".join(
        struct.pack(">Q", rng.choice(EDGES) % 2**64)
        if rng.random() < 0.3
        else struct.pack(">q", rng.choice((0, 0, 1, 60, 4_096, 1 << 20)))
        for _ in range(rng.randrange(1, 6))
    )
    if rng.random() < 0.5:
        made = rng.choice(samples).data + made
    return damaged(made, rng) if rng.random() < 0.3 else made
