"""Term, vote and commit index of a SyncObj on disk, as its FileJournal keeps them.

A JSON object, written to a new file that replaces the old file. As there, without any fsync, so
that a power cut may leave the old file, the new file, an empty file or none. An unreadable file
counts as missing, so the replica may vote again in an old term.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import orjson

from raftmq.store.disk import Disk

log = logging.getLogger("raftmq.chaos.pysyncobj")


@dataclass(frozen=True, slots=True)
class Meta:
    """SyncObj's term, vote and commit index. `commit_index` is written once a second only; it may
    be ahead of a log that lost its tail."""

    term: int = 0
    voted_for: str | None = None
    commit_index: int = 1


class MetaFile:
    """The meta file `path` of `disk`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def load(self) -> Meta:
        """Return the saved values, or the default if the file is unreadable. Raises OSError."""
        if not self._disk.exists(self._path):
            return Meta()
        file = self._disk.open(self._path)
        try:
            data = file.pread(0, file.size_bytes)
        finally:
            file.close()
        try:
            value = orjson.loads(data)
            voted_for = value["votedForNodeId"]
            return Meta(
                int(value["currentTerm"]),
                None if voted_for is None else str(voted_for),
                int(value["raftCommitIndex"]),
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            log.warning("meta_unreadable path=%s error=%r: taken for none", self._path, error)
            return Meta()

    def save(self, meta: Meta) -> None:
        """Save `meta`, without any fsync. Raises OSError."""
        data = orjson.dumps(
            {
                "currentTerm": meta.term,
                "votedForNodeId": meta.voted_for,
                "raftCommitIndex": meta.commit_index,
            }
        )
        self._disk.makedirs(self._path.rpartition("/")[0])
        temporary = self._path + ".tmp"
        file = self._disk.open(temporary)
        try:
            file.truncate(0)
            file.pwrite(0, data)
        finally:
            file.close()
        self._disk.rename(temporary, self._path)
