"""Writes frames into the log, and keeps those that a full disk had no room for.

Allocating a segment is what fails when a disk is full (what is allocated can be written): before
anything of the frame was written, and with the log as it was. Such frames are held here, in
memory, until there is room: they are not acknowledged, not sent, and not applied. The core takes
no more of them meanwhile (`RaftCore.disk_fails`), so what is held is at most what one message, or
one proposal, had brought. Any other error of the disk passes through: the node ends.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from raftmq.dledger.log import RaftLog
from raftmq.store.frame import Frame

FULL = (errno.ENOSPC, errno.EDQUOT)


class FrameWriter:
    """One per member."""

    def __init__(self, log: RaftLog) -> None:
        self.held: list[Frame] = []
        self._log = log

    def append(self, frames: Sequence[Frame]) -> OSError | None:
        """Write `frames`, or hold what there is no room for: then the error. Raises OSError."""
        if self.held:
            self.held += frames
            return None
        try:
            self._log.append(frames)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.held = [frame for frame in frames if frame.index > self._log.last_index]
            return error
        return None

    def truncate(self, from_index: int) -> None:
        """As RaftLog.truncate; frames held go first. Raises OSError."""
        self.held = [frame for frame in self.held if frame.index < from_index]
        if from_index <= self._log.last_index:
            self._log.truncate(from_index)

    def retry(self) -> bool:
        """Try again; True if nothing is held any more. Raises OSError."""
        held, self.held = self.held, []
        return self.append(held) is None
