"""A real disk that is the same on every machine: half full, and none of its syncs takes long.

What brokers of one process store is read by that process, or by the next: a sync adds nothing to
what such a test can see, and one that takes seconds, on a machine that is busy, costs a leader its
office and a send its answer. And whether a disk is full says what retention takes: how full it is
must be the test's to say. Tests of syncs have disks of their own (tests/simulator, chaos/faults),
those of processes have the machine's.
"""

from __future__ import annotations

from raftmq.store.disk import DiskUsage, OsDisk, OsFile

HALF_FULL = DiskUsage(used_bytes=1 << 39, available_bytes=1 << 39)


class SteadyFile(OsFile):
    """A file whose writes stay in the page cache, where the next process finds them, too."""

    def sync(self) -> None:
        """There is no power cut."""


class SteadyDisk(OsDisk):
    """`space` is how full it is."""

    space = HALF_FULL

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        return SteadyFile(self._path(path), allocate_bytes)

    def sync_directory(self, path: str) -> None:
        """There is no power cut."""

    def usage(self) -> DiskUsage:
        return self.space
