"""The file with term, vote (Raft figure 2), and their owner.

A `SlotFile` whose content is, big-endian,

    off  size field
    0    1    version    3
    1    1    flags      1: this replica may have lost promises (dledger/raft/recovery.py)
    2    8    term
    10   2    length of the vote; 0xFFFF: voted for nobody in this term
    12   16   id of the group that the promises were made in; zeros: not known yet
    28   1    length of the owner's id; 0: not noted
    29   m    id of the node that made the promises, UTF-8
    29+m n    id of the node voted for, UTF-8

Version 2 had neither group nor owner; the vote starts at byte 12. Such a file belongs to the node
of the store's identity (store/identity.py), which a broker compares first.

A lost vote lets a replica vote twice in a term, and two leaders in a term lose messages. So a
missing or damaged file never means 'no vote': the replica must recover. A file with a term above
TERM_MAX counts as damaged. A file of another node or group has the promises of another replica, so
this replica must also recover (startup_state.py).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from raftmq.store.disk import Disk

from ..raft.messages import TERM_MAX, HardState, NodeId
from .two_slot_file import SlotFile, SlotsDamaged

_VERSION = 3
_VERSION_WITHOUT_OWNER = 2
_NOT_RECOVERED = 1
_HEAD = struct.Struct(">BBqH")
_OWNER = struct.Struct(">16sB")
_NOBODY = 0xFFFF
NODE_ID_SIZE_BYTES_MAX = 255


class HardStateDamaged(Exception):
    """This replica's term and vote are lost."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The node that made the promises, "" if unknown, and the id of its group, b"" if unknown."""

    node_id: NodeId = ""
    group_id: bytes = b""

    def differs(self, own: Owner) -> str:
        """Return the owner of these promises if it is not `own`, else ""."""
        if self.node_id and self.node_id != own.node_id:
            return f"replica {self.node_id}"
        if self.group_id and own.group_id not in (b"", self.group_id):
            return f"a replica of group id {self.group_id.hex()}"
        return ""


class HardStateFile:
    """The file with term and vote. Load once, then save at every election."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._slots = SlotFile(disk, path)
        self._path = path
        self.is_new = False  # set by `load`: there was no file
        self.owner = Owner()  # owner of the file after `load`; written by later saves

    def load(self) -> HardState:
        """Return the last saved state. Without a file it has term 0 and no vote, and is not
        recovered.

        Raises HardStateDamaged, after which `save` makes a new file, and OSError."""
        try:
            content = self._slots.load()
        except SlotsDamaged as error:
            raise HardStateDamaged(f"term and vote are lost: {error}") from error
        if content is None:
            self.is_new = True
            return HardState(0, None, recovered=False)
        state, self.owner = self._decode(content)
        return state

    def save(self, state: HardState) -> None:
        """Save term and vote; durable on return. After an OSError no message may be sent."""
        assert 0 <= state.term <= TERM_MAX, state
        flags = 0 if state.recovered else _NOT_RECOVERED
        vote = b"" if state.voted_for is None else state.voted_for.encode()
        noted = self.owner  # read once, because the loop may change it
        owner = noted.node_id.encode()
        assert (state.voted_for is None) == (not vote), state
        assert max(len(vote), len(owner)) <= NODE_ID_SIZE_BYTES_MAX, (state, noted)
        length = _NOBODY if state.voted_for is None else len(vote)
        head = _HEAD.pack(_VERSION, flags, state.term, length)
        self._slots.save(head + _OWNER.pack(noted.group_id, len(owner)) + owner + vote)

    def close(self) -> None:
        self._slots.close()

    def _decode(self, content: bytes) -> tuple[HardState, Owner]:
        version = content[0] if len(content) >= _HEAD.size else 0
        at, group_id, owner = _HEAD.size, b"", b""
        if version == _VERSION and len(content) >= at + _OWNER.size:
            group_id, size = _OWNER.unpack_from(content, at)
            at += _OWNER.size + size
            owner = content[at - size : at]
        elif version != _VERSION_WITHOUT_OWNER:
            raise HardStateDamaged(
                f"{self._path}: record {content[:1].hex()}, {len(content)} bytes"
            )
        _, flags, term, length = _HEAD.unpack_from(content)
        vote = content[at:]
        vote_size = 0 if length == _NOBODY else length
        if not 0 <= term <= TERM_MAX or flags & ~_NOT_RECOVERED or len(vote) != vote_size:
            raise HardStateDamaged(f"{self._path}: term {term}, vote of {len(vote)} bytes")
        try:
            voted_for = None if length == _NOBODY else vote.decode()
            known = Owner(owner.decode(), group_id if any(group_id) else b"")
        except UnicodeDecodeError as error:
            raise HardStateDamaged(f"{self._path}: an id is not UTF-8") from error
        return HardState(term, voted_for, not flags & _NOT_RECOVERED), known


def distrust(disk: Disk, directory: str) -> None:
    """Make the next start recover, by a note in an existing vote file that promises may be lost.
    Durable on return. Blocking. Raises OSError."""
    votes = HardStateFile(disk, f"{directory}/hardstate")
    try:
        state = votes.load()
        if not votes.is_new:
            votes.save(replace(state, recovered=False))
    except HardStateDamaged:
        pass  # the next start finds that promises are lost
    finally:
        votes.close()
