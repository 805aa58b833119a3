"""Stand-in until dledger.log and store.commitlog exist."""

from __future__ import annotations

from dledger.index import LogIndex
from store.disk import Disk
from store.frame import Frame, FrameError, parse_frame


class Ticket:
    def __init__(self, log: "RaftLog", last: int, cuts: int) -> None:
        self.log, self.last, self.cuts = log, last, cuts

    def run(self) -> None:
        self.log.file.sync()


class CommitLog:
    def __init__(self, disk: Disk, directory: str, segment_size_bytes: int) -> None:
        self.disk, self.directory = disk, directory

    def open(self) -> None:
        pass

    def place(self, length: int) -> int:
        return self.log.index.end_position


class RaftLog:
    def __init__(self, commitlog: CommitLog) -> None:
        self.commitlog = commitlog
        commitlog.log = self
        self.index = LogIndex()
        self.cache: list[Frame] = []
        self.cuts = 0

    def open(self) -> None:
        disk = self.commitlog.disk
        disk.makedirs(self.commitlog.directory)
        self.file = disk.open(self.commitlog.directory + "/log")
        disk.sync_directory(self.commitlog.directory)
        data = self.file.pread(0, self.file.size_bytes)
        at = 0
        while at < len(data):
            try:
                frame = parse_frame(data, at)
            except FrameError:
                break
            if frame.index != self.index.last_index + 1 or frame.position != at:
                break
            self.index.append(frame)
            self.cache.append(frame)
            at = frame.end
        self.file.truncate(at)
        self.file.sync()
        self.synced = self.index.last_index

    def append(self, frames) -> None:
        for frame in frames:
            self.index.append(frame)
            self.cache.append(frame)
        self.file.pwrite(frames[0].position, b"".join(f.data for f in frames))

    def truncate(self, from_index: int) -> None:
        self.index.truncate(from_index)
        del self.cache[from_index - 1 :]
        self.file.truncate(self.index.end_position)
        self.synced = min(self.synced, from_index - 1)
        self.cuts += 1

    def frames(self, first, last, max_bytes):
        return tuple(self.cache[first - 1 : last])

    def begin_sync(self):
        if self.synced == self.index.last_index:
            return None
        return Ticket(self, self.index.last_index, self.cuts)

    def finish_sync(self, ticket):
        if ticket.cuts != self.cuts:
            return None
        self.synced = max(self.synced, ticket.last)
        return ticket.last
