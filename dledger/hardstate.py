"""Term and vote on disk (Raft figure 2: what must be stable before a replica answers anything).

A `SlotFile` whose content is, big-endian,

    off size field
    0   1    version    2
    1   1    flags      1: this replica may have lost promises (recovery.py)
    2   8    term
    10  2    length of the vote; 0xFFFF: voted for nobody in this term
    12  n    id of the node voted for, UTF-8

Version 1 had neither version nor flags (its first byte, the term's highest, is 0): read as
recovered.

A lost vote lets one replica vote twice in a term, and two leaders in a term lose messages. So a
missing or damaged file is never read as 'no vote': the replica then is not recovered, and must
recover. A file with a term above TERM_MAX counts as damaged: nobody can be elected beyond it.
"""

from __future__ import annotations

import struct

from raftmq.dledger.messages import TERM_MAX, HardState
from raftmq.dledger.slots import SlotFile, SlotsDamaged
from raftmq.store.disk import Disk

_VERSION = 2
_NOT_RECOVERED = 1
_HEAD = struct.Struct(">BBqH")
_HEAD_1 = struct.Struct(">qH")
_NOBODY = 0xFFFF
NODE_ID_SIZE_BYTES_MAX = 255


class HardStateDamaged(Exception):
    """This replica's term and vote are lost."""


class HardStateFile:
    """The file with term and vote. Load once, then save at every election."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._slots = SlotFile(disk, path)
        self._path = path
        self.is_new = False  # set by `load`: there was no file

    def load(self) -> HardState:
        """Return what was saved last; term 0, no vote and not recovered if there is no file.

        Raises HardStateDamaged, after which `save` begins anew, and OSError."""
        try:
            content = self._slots.load()
        except SlotsDamaged as error:
            raise HardStateDamaged(f"term and vote are lost: {error}") from error
        if content is None:
            self.is_new = True
            return HardState(0, None, recovered=False)
        return self._decode(content)

    def save(self, state: HardState) -> None:
        """Save term and vote; durable on return. Raises OSError: then no message may leave."""
        assert 0 <= state.term <= TERM_MAX, state
        flags = 0 if state.recovered else _NOT_RECOVERED
        if state.voted_for is None:
            content = _HEAD.pack(_VERSION, flags, state.term, _NOBODY)
        else:
            vote = state.voted_for.encode()
            assert 0 < len(vote) <= NODE_ID_SIZE_BYTES_MAX, state.voted_for
            content = _HEAD.pack(_VERSION, flags, state.term, len(vote)) + vote
        self._slots.save(content)

    def close(self) -> None:
        """Close the file."""
        self._slots.close()

    def _decode(self, content: bytes) -> HardState:
        if content[:1] == b"\0" and len(content) >= _HEAD_1.size:
            flags = 0
            term, length = _HEAD_1.unpack_from(content)
            vote = content[_HEAD_1.size :]
        elif len(content) >= _HEAD.size and content[0] == _VERSION:
            _, flags, term, length = _HEAD.unpack_from(content)
            vote = content[_HEAD.size :]
        else:
            raise HardStateDamaged(
                f"{self._path}: record {content[:1].hex()}, {len(content)} bytes"
            )
        vote_size = 0 if length == _NOBODY else length
        if not 0 <= term <= TERM_MAX or flags & ~_NOT_RECOVERED or len(vote) != vote_size:
            raise HardStateDamaged(f"{self._path}: term {term}, vote of {len(vote)} bytes")
        try:
            voted_for = None if length == _NOBODY else vote.decode()
        except UnicodeDecodeError as error:
            raise HardStateDamaged(f"{self._path}: the vote is not UTF-8") from error
        return HardState(term, voted_for, not flags & _NOT_RECOVERED)
