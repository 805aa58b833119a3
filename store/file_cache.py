"""A bounded cache of open files by path, because a broker has more queues than descriptors."""

from __future__ import annotations

from collections import OrderedDict

from .disk import Disk, File
from .transient_errors import NO_DESCRIPTOR

OPEN_FILES_MAX = 512  # below the usual soft limit of 1024, which sockets share


class FileCache:
    """A cache of open files, which closes the least recently used first. Closing loses nothing,
    because a file is reopened for its sync."""

    def __init__(self, disk: Disk, count_max: int = OPEN_FILES_MAX) -> None:
        assert count_max > 0
        self._disk = disk
        self._count_max = count_max
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """Return the open file, created if missing. Raises OSError."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._opened(path)
        self._files[path] = file
        if len(self._files) > self._count_max:
            self._close_oldest()
        return file

    def forget(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def _opened(self, path: str) -> File:
        """Open the file; if no descriptor is free, close the oldest first."""
        try:
            return self._disk.open(path)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or not self._files:
                raise
        self._close_oldest()
        return self._disk.open(path)

    def _close_oldest(self) -> None:
        self._files.popitem(last=False)[1].close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __len__(self) -> int:
        return len(self._files)
