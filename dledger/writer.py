"""Writes frames into the log, and keeps those that a full disk had no room for.

On a full disk the allocation of a segment fails (what is allocated can be written): before any byte
of the frame was written, and with the log unchanged. Such frames are held here, in memory, until
there is room: they are not acknowledged, not sent, and not applied. The core takes no more frames
meanwhile (`RaftCore.disk_fails`), so at most the frames of one message, or of one proposal, are
held. Any other error of the disk is raised: the node ends.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from raftmq.dledger.log import RaftLog
from raftmq.dledger.slowwrites import SlowWrites
from raftmq.store.frame import Frame

FULL = (errno.ENOSPC, errno.EDQUOT)


class FrameWriter:
    """Writes one member's frames into its log."""

    def __init__(self, log: RaftLog, speed: SlowWrites) -> None:
        self.held: list[Frame] = []
        self.speed = speed
        self._log = log

    def append(self, frames: Sequence[Frame]) -> OSError | None:
        """Write `frames`. If there is no room, hold the rest and return the error. Raises OSError
        for any other error."""
        if self.held:
            self.held += frames
            return None
        self.speed.begin()
        try:
            self._log.append(frames)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.held = [frame for frame in frames if frame.index > self._log.last_index]
            return error
        self.speed.end()
        return None

    def truncate(self, from_index: int) -> None:
        """Truncate the frames held, then the log, as RaftLog.truncate does. Raises OSError."""
        self.held = [frame for frame in self.held if frame.index < from_index]
        if from_index <= self._log.last_index:
            self._log.truncate(from_index)

    def retry(self) -> bool:
        """Try again to write the frames held; return whether none is held any more. Raises
        OSError."""
        held, self.held = self.held, []
        return self.append(held) is None
