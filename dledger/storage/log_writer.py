"""Writes frames into the log, and holds frames during a shortage of resources.

On a full disk the allocation of a segment fails, and without a free descriptor its opening. No byte
of the frame is written then, and the log is unchanged. After such a shortage
(store.transient_errors) frames are held in memory until they can be written. They are not
acknowledged, sent or applied. The core then accepts no more frames (`RaftCore.disk_fails`), so at
most the frames of a single message or proposal are held. Any other error of the disk is raised, and
the node ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftmq.store.frame import Frame
from raftmq.store.transient_errors import passes

from .durations import Durations
from .log_storage import RaftLog


class FrameWriter:
    def __init__(self, log: RaftLog, durations: Durations) -> None:
        self.held: list[Frame] = []
        self.durations = durations
        self._log = log

    def append(self, frames: Sequence[Frame]) -> OSError | None:
        """Write `frames`. After a shortage hold the rest and return the error. Raises OSError."""
        if self.held:
            self.held += frames
            return None
        self.durations.start()
        try:
            self._log.append(frames)
        except OSError as error:
            if not passes(error):
                raise
            self.held = [frame for frame in frames if frame.index > self._log.last_index]
            return error
        self.durations.end()
        return None

    def truncate(self, from_index: int) -> None:
        """Truncate the held frames, then the log, as RaftLog.truncate does. Raises OSError."""
        self.held = [frame for frame in self.held if frame.index < from_index]
        if from_index <= self._log.last_index:
            self._log.truncate(from_index)

    def retry(self) -> bool:
        """Try to write the held frames; return whether all are written. Raises OSError."""
        held, self.held = self.held, []
        return self.append(held) is None
