"""A real disk whose writes and syncs fail while a test says so."""

import errno

from raftmq.store.disk import OsDisk, OsFile


class FailingFile(OsFile):
    disk: "FailingDisk"

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        room = self.disk.bytes_per_write
        super().pwrite(offset, data[:room])
        if room is not None:
            raise OSError(errno.ENOSPC, "full")

    def sync(self) -> None:
        if self.disk.sync_fails:
            raise OSError(errno.EIO, "broken")
        super().sync()


class FailingDisk(OsDisk):
    bytes_per_write: int | None = None  # written before each write fails; None: none fails
    sync_fails = False

    def open(self, path: str, *, allocate_bytes: int | None = None) -> OsFile:
        file = FailingFile(self._path(path), allocate_bytes)
        file.disk = self
        return file
