"""Term and vote on disk (Raft figure 2: what must be stable before a replica answers anything).

A `SlotFile` whose content is

    off size field
    0   8    term
    8   2    length of the vote; 0xFFFF: voted for nobody in this term
    10  n    id of the node voted for, UTF-8

A lost vote lets one replica vote twice in a term, and two leaders in a term lose messages. So a
damaged file is an error that stops the node, and never read as 'no vote'.
"""

from __future__ import annotations

import struct

from dledger.messages import HardState
from dledger.slots import SlotFile, SlotsDamaged
from store.disk import Disk

_HEAD = struct.Struct(">qH")
_NOBODY = 0xFFFF
NODE_ID_SIZE_BYTES_MAX = 255


class HardStateDamaged(Exception):
    """Term and vote of this replica are lost. It must not take part with the state it has: remove
    its whole store directory and let it come back as an empty replica, one replica at a time."""


class HardStateFile:
    """Load once, then save at every election."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._slots = SlotFile(disk, path)
        self._path = path
        self.is_new = False  # set by `load`: there was no file
        self.saves = 0

    def load(self) -> HardState:
        """What was saved last; term 0 and no vote if there is no file. Raises HardStateDamaged."""
        try:
            content = self._slots.load()
        except SlotsDamaged as error:
            raise HardStateDamaged(f"term and vote are lost: {error}") from error
        if content is None:
            self.is_new = True
            return HardState(0, None)
        return self._decode(content)

    def save(self, state: HardState) -> None:
        """Returns once term and vote are durable. Raises OSError: then no message may leave."""
        assert state.term >= 0, state
        if state.voted_for is None:
            content = _HEAD.pack(state.term, _NOBODY)
        else:
            vote = state.voted_for.encode()
            assert 0 < len(vote) <= NODE_ID_SIZE_BYTES_MAX, state.voted_for
            content = _HEAD.pack(state.term, len(vote)) + vote
        self._slots.save(content)
        self.saves += 1

    def close(self) -> None:
        self._slots.close()

    def _decode(self, content: bytes) -> HardState:
        if len(content) < _HEAD.size:
            raise HardStateDamaged(f"{self._path}: record of {len(content)} bytes")
        term, length = _HEAD.unpack_from(content)
        vote = content[_HEAD.size :]
        if term < 0 or len(vote) != (0 if length == _NOBODY else length):
            raise HardStateDamaged(f"{self._path}: term {term}, vote of {len(vote)} bytes")
        try:
            return HardState(term, None if length == _NOBODY else vote.decode())
        except UnicodeDecodeError as error:
            raise HardStateDamaged(f"{self._path}: the vote is not UTF-8") from error
