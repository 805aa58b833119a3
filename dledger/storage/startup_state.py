"""The decision at a start whether a replica has all its promises, or must recover.

A replica's promises are its votes (the vote file) and its acknowledgements (the log). It starts
recovering (dledger/raft/recovery.py) unless it certainly has them all:

1. There is no vote file, as at a first start, after a restored backup or a lost disk.
2. The vote file is damaged, or belongs to another replica (hard_state.py), or is that of a
   recovered replica although the log is empty.
3. The previous process acknowledged frames before they were durable (ASYNC_FLUSH), did not stop
   cleanly, and the machine was restarted since: `Disk.boot_id` differs from the noted id. A killed
   process loses nothing, and under SYNC_FLUSH neither does a power cut.
4. `give_up` was called, because durable frames are gone.
5. It was recovering when it stopped, or its store was adopted since (broker/startup.py).
6. The note for 3 is damaged, or of a different version, so the previous flush policy is unknown.
   Without a note, this process's own policy applies.

It may also learn later, from a peer, that its store is older than its promises
(dledger/node/rollback_detection.py).

A process notes its flush policy and its end in a second `SlotFile`, big-endian:

    off size field
    0   1    version  1
    1   1    flags    1: acknowledged before durable; 2: stopped cleanly, everything durable
    2   n    boot id of the machine, ASCII; none if it was unknown

Both files are durable before `open` returns, the vote file first, so that the next start after a
crash decides the same.
"""

from __future__ import annotations

from collections.abc import Callable

from raftmq.store.disk import Disk

from ..raft.messages import HardState
from .hard_state import HardStateDamaged, HardStateFile, Owner
from .two_slot_file import SlotFile, SlotsDamaged

_VERSION = 1
_UNSYNCED = 1
_CLEAN = 2
BOOT_ID_SIZE_BYTES_MAX = 128


class Promises:
    """A replica's promises. Call `open` once the log is open and durable, `close` in the end."""

    def __init__(
        self, disk: Disk, directory: str, unsynced: bool, owner: Callable[[], Owner] = Owner
    ) -> None:
        """`unsynced` processes acknowledge frames before they are durable. `owner()` is this
        replica, with its group's id if known."""
        self.hard_state = HardStateFile(disk, f"{directory}/hardstate")
        self.recovering: str | None = None  # why it has not recovered, or did not start recovered
        # this process detected an older store (dledger/node/rollback_detection.py)
        self.set_back = False
        self._boot = SlotFile(disk, f"{directory}/boot")
        self._disk = disk
        self._unsynced = unsynced
        self._owner = owner
        self._opened = False
        self._noted = b""

    def give_up(self, reason: str) -> None:
        """Note, before `open`, that promised data of this replica is gone."""
        assert not self._opened
        self.recovering = reason

    def last_term(self) -> int:
        """Return, before `open`, the highest term with a promise of this replica; 0 if that is
        lost. Blocking. Raises OSError."""
        try:
            return self.hard_state.load().term
        except HardStateDamaged:
            return 0  # it will recover, without its earlier promises

    def open(self, log_is_empty: bool) -> HardState:
        """Return the initial hard state. Blocking. Raises OSError."""
        assert not self._opened
        try:
            state = self.hard_state.load()
            lost = self._whose(state, log_is_empty)
        except HardStateDamaged as error:
            state = HardState(0, None, recovered=False)
            lost = str(error)
        if lost is None and not state.recovered:
            lost = "it was recovering when it stopped"
        lost = self._power_was_cut(log_is_empty) or lost
        self.recovering = self.recovering or lost
        if self.recovering is not None:
            state = HardState(state.term, state.voted_for, recovered=False)
        noted = self.hard_state.owner
        self.note_owner()
        if self.recovering is not None or noted != self.hard_state.owner:
            self.hard_state.save(state)
        self._opened = True
        self._note(_UNSYNCED if self._unsynced else 0)
        return state

    def note_owner(self) -> None:
        """Write this replica as the owner into the vote file from the next save on."""
        self.hard_state.owner = self._owner()

    def _whose(self, state: HardState, log_is_empty: bool) -> str | None:
        """Return the reason why the vote file is not about this replica's promises, or None."""
        if self.hard_state.is_new:
            return "there is no vote file"
        other = self.hard_state.owner.differs(self._owner())
        if other:
            return f"the vote file is that of {other}"
        if state.recovered and log_is_empty:
            return "the log is gone: the vote file is that of a replica with frames"
        return None

    def close(self, clean: bool) -> None:
        """Close the files; `clean` if all acknowledged is durable. Raises OSError."""
        if clean and self._opened:
            self._note((_UNSYNCED if self._unsynced else 0) | _CLEAN)
        self.hard_state.close()
        self._boot.close()

    def _power_was_cut(self, log_is_empty: bool) -> str | None:
        """Return the reason why the previous process may have lost acknowledged data, or None."""
        try:
            noted = self._boot.load()
        except SlotsDamaged as error:
            return f"whether the machine went down is not known: {error}"
        if noted is None:
            asynchronous = self._unsynced and not log_is_empty
            return "whether the machine went down is not noted" if asynchronous else None
        if len(noted) < 2 or noted[0] != _VERSION:
            return f"whether the machine went down is not known: the note is {noted[:2].hex()}"
        self._noted = noted
        flags, boot_id = noted[1], noted[2:]
        if not flags & _UNSYNCED or flags & _CLEAN:
            return None
        if boot_id and boot_id == self._boot_id():
            return None
        return "the machine went down, and frames were acknowledged before they were durable"

    def _note(self, flags: int) -> None:
        content = bytes([_VERSION, flags]) + self._boot_id()
        if content != self._noted:
            self._boot.save(content)
            self._noted = content

    def _boot_id(self) -> bytes:
        return self._disk.boot_id().encode()[:BOOT_ID_SIZE_BYTES_MAX]
