"""Notes of how far each replica's log has reached, by which an older store is recognised. Pure.

Raft assumes that a replica's store never goes back. An operator can make it go back: by a disk or
a machine that is set back to an earlier image, or by the old disk of a replica that was filled anew
on another one. Such a store is in order, and says nothing of what its replica has promised since;
believed, it could help a leader into office that lacks an acknowledged frame.

So the others remember for it. A *note* says of a replica: in the term `term` it held the committed
frames up to `index`, durably, and did so while it was recovered. Leaders make notes of all replicas
every few seconds (`Leading.held`), and only of those that have a frame of the leader's own term: so
a note of a higher term never says less, unless a majority's disks were lost, when all promises are
void. Replicas tell each other their notes in a `Recollection`: a leader when it has made new ones,
and everybody first of all on each new link. What is told is merged: the higher term wins, and in
one term the higher index. It is kept on disk (dledger/node/rollback_detection.py).

A replica that hears more of itself than it holds, or of a term that it has not reached, has an
older store. It recovers from then on (recovery.py), like one whose disk is empty. It hears that in
time: whatever a peer that knows it asks for, and whatever it grants, comes over a link that begins
with what the peer knows.

Not recognised: what was promised after the last note was told, and what nobody knows who is there.

    notes       off size field
    each        0   1    n         length of the node id
                1   n    node id   UTF-8
                1+n 8    term      int64, big-endian
                9+n 8    index     int64, big-endian
    at the end  0   4    CRC-32C of all before it: in a message nothing else covers them
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from google_crc32c import value as crc32c

from .configuration import MEMBERS_MAX, NAME_SIZE_BYTES_MAX
from .messages import NUMBER_MAX, TERM_MAX, NodeId

_NUMBERS = struct.Struct(">qq")
_CRC = struct.Struct(">I")
NOTES_SIZE_BYTES_MAX = MEMBERS_MAX * (1 + NAME_SIZE_BYTES_MAX + _NUMBERS.size) + _CRC.size


class NotesError(Exception):
    """Notes that no replica writes; the text says why."""


@dataclass(frozen=True, slots=True)
class Held:
    """A note: in `term` the replica held the committed frames up to `index`."""

    term: int
    index: int

    def exceeds(self, term: int, index: int) -> bool:
        """Return whether a replica that is in `term`, and whose log ends at `index`, has lost
        something."""
        return term < self.term or index < self.index

    def replaces(self, old: Held | None) -> bool:
        """Return whether this note takes the place of that one."""
        return old is None or (self.term, self.index) > (old.term, old.index)


Notes = Mapping[NodeId, Held]


@dataclass(frozen=True, slots=True)
class Recollection:
    """The sender's notes. `term`: the sender's own; no note is of a later one."""

    sender: NodeId
    to: NodeId
    term: int
    notes: Notes


class Memory:
    """One replica's notes."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes: dict[NodeId, Held] = {}

    def learn(self, told: Iterable[tuple[NodeId, Held]]) -> set[NodeId]:
        """Merge notes; return of whom there was news."""
        news = {node_id: held for node_id, held in told if held.replaces(self.notes.get(node_id))}
        self.notes.update(news)
        return set(news)

    def keep(self, members: Collection[NodeId]) -> bool:
        """Forget all but these replicas; return whether there was another one. One that is added
        again under an id that was removed has promised nothing yet."""
        gone = [node_id for node_id in self.notes if node_id not in members]
        for node_id in gone:
            del self.notes[node_id]
        return bool(gone)

    def outdates(self, node_id: NodeId, told: Held) -> bool:
        """Return whether a later note of that replica is here than the one that was told."""
        known = self.notes.get(node_id)
        return known is not None and known.replaces(told)


def encode_notes(notes: Notes) -> bytes:
    """Encode notes, in the order of their ids."""
    parts = []
    for node_id, held in sorted(notes.items()):
        name = node_id.encode()
        assert len(name) <= NAME_SIZE_BYTES_MAX, node_id
        parts += [bytes([len(name)]), name, _NUMBERS.pack(held.term, held.index)]
    data = b"".join(parts)
    return data + _CRC.pack(crc32c(data))


def decode_notes(data: bytes) -> dict[NodeId, Held]:
    """Decode what `encode_notes` wrote. Raises NotesError."""
    notes: dict[NodeId, Held] = {}
    body, crc = data[: -_CRC.size], data[-_CRC.size :]
    if crc != _CRC.pack(crc32c(body)):
        raise NotesError(f"notes of {len(data)} bytes: their checksum does not match")
    at = 0
    try:
        while at < len(body):
            size = body[at]
            name = body[at + 1 : at + 1 + size].decode()
            term, index = _NUMBERS.unpack_from(body, at + 1 + size)
            if not name or name in notes:
                raise NotesError(f"a note of {name!r}")
            if not (0 <= term <= TERM_MAX and 0 <= index <= NUMBER_MAX):
                raise NotesError(f"a note of term {term}, frame {index}")
            notes[name] = Held(term, index)
            at += 1 + size + _NUMBERS.size
    except (struct.error, UnicodeDecodeError) as error:
        raise NotesError(f"notes of {len(data)} bytes: {error}") from error
    if len(notes) > MEMBERS_MAX:
        raise NotesError(f"{len(notes)} notes, a group has {MEMBERS_MAX} members at most")
    return notes
