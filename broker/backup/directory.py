"""The files in a backup's directory, and the order of writes. Blocking.

    DIR/manifest.json       what this is; written last, put in place by a rename
    DIR/progress.json       while a backup is in progress; before the first, it is the first file
    DIR/commitlog/%020d     segments, as long as they were copied
    DIR/states/%020d-%08x.json  tables and queues' beginnings as of that frame (as in group
                            snapshots); the file's CRC-32C
    DIR/lock                held while a backup is taken

A directory without manifest.json is no backup. Everything named in a manifest is durable before the
manifest. A directory with foreign files is rejected before the first write, because a replica's
store also has a commitlog/ with such file names.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from raftmq.store.store_lock import FILE_MODE, make_directory

from .manifest import (
    BackupDamaged,
    BackupError,
    Manifest,
    SegmentCopy,
    StateFile,
    decode,
    decode_progress,
    encode,
    encode_progress,
)

READ_BYTES = 1 << 20
OF_DISKS = frozenset({"lost+found"})  # file systems create these


class SegmentFile:
    """A segment's file for appends from `length_bytes` on; the rest is truncated."""

    def __init__(self, path: Path, length_bytes: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        os.ftruncate(self._fd, length_bytes)
        self._at = length_bytes

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, self._at)
            self._at += written
            view = view[written:]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class BackupDirectory:
    """The files of a backup. `path` need not exist before the first write."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._commitlog = self.path / "commitlog"
        self._states = self.path / "states"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises BackupError if a backup is in progress here, or for a foreign
        directory; BackupDamaged, OSError."""
        self._check_own()
        make_directory(str(self.path))
        with open(self.path / "lock", "w", opener=_private) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(f"{self.path}: another backup is being taken here") from None
            if self.manifest() is None and not self.progress():
                self._replace("progress.json", encode_progress([]))
            make_directory(str(self._commitlog))
            make_directory(str(self._states))
            yield

    def _check_own(self) -> None:
        if not self.path.exists() or self.manifest() is not None:
            return
        names = {path.name for path in self.path.iterdir()}
        if "progress.json" in names:
            return
        unfinished = {"progress.json.tmp"}
        lock = self.path / "lock"
        if lock.is_file() and not lock.stat().st_size:  # a store's lock file names its owner
            unfinished.add("lock")
        strange = sorted(names - unfinished - OF_DISKS)
        if strange:
            raise BackupError(
                f"{self.path} has other things in it ({', '.join(strange[:5])}): name a directory"
                " that is new, empty, or a backup's"
            )

    def manifest(self) -> Manifest | None:
        """Return the manifest or None. Raises BackupDamaged, BackupError, OSError."""
        try:
            data = (self.path / "manifest.json").read_bytes()
        except FileNotFoundError:
            return None
        return decode(data)

    def required(self) -> Manifest:
        """Return the manifest. Raises BackupError if it is missing, BackupDamaged, OSError."""
        manifest = self.manifest()
        if manifest is None:
            raise BackupError(
                f"{self.path} is no backup: it has no manifest.json (one that was not finished has"
                " none: take it again, what is there is used)"
            )
        return manifest

    def progress(self) -> list[SegmentCopy]:
        try:
            return decode_progress((self.path / "progress.json").read_bytes())
        except FileNotFoundError:
            return []

    def chunks(self, segment: SegmentCopy) -> Iterator[bytes]:
        """Yield a part's bytes in order. Raises BackupDamaged if some are missing, OSError."""
        path = self._commitlog / segment_name(segment.start)
        left = segment.length_bytes
        try:
            with open(path, "rb", buffering=0) as file:
                while left:
                    data = file.read(min(left, READ_BYTES))
                    if not data:
                        raise BackupDamaged(
                            f"{path}: cut short at byte {segment.length_bytes - left} of"
                            f" {segment.length_bytes}"
                        )
                    left -= len(data)
                    yield data
        except FileNotFoundError:
            raise BackupDamaged(f"{path}: the file is missing") from None

    def has(self, segment: SegmentCopy) -> bool:
        """Return whether the part exists and matches its checksum."""
        checksum = 0
        try:
            for data in self.chunks(segment):
                checksum = crc32c_extend(checksum, data)
        except BackupDamaged:
            return False
        return checksum == segment.crc32c

    def state(self, state: StateFile) -> bytes:
        """Return a state's content. Raises BackupDamaged, OSError."""
        path = self._states / state.name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise BackupDamaged(f"{path}: the file is missing") from None
        if len(data) != state.size_bytes or crc32c(data) != state.crc32c:
            raise BackupDamaged(f"{path}: the checksum does not match")
        return data

    def segment(self, start: int, length_bytes: int) -> SegmentFile:
        """Open a segment's file to append to. Raises OSError."""
        return SegmentFile(self._commitlog / segment_name(start), length_bytes)

    def save_progress(self, parts: list[SegmentCopy]) -> None:
        """Record that the files of these parts are durable."""
        _sync_directory(self._commitlog)
        self._replace("progress.json", encode_progress(parts))

    def save_state(self, index: int, time_ms: int, data: bytes) -> StateFile:
        """Write a state durably. Raises OSError."""
        state = StateFile(index, len(data), int(crc32c(data)), time_ms)
        self._replace(f"states/{state.name}", data)
        return state

    def save_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, then delete files that no manifest names. Raises OSError."""
        _sync_directory(self._commitlog)
        self._replace("manifest.json", encode(manifest))
        (self.path / "progress.json").unlink(missing_ok=True)
        named = {segment_name(segment.start) for segment in manifest.segments}
        named |= {state.name for state in manifest.states}
        for directory in (self._commitlog, self._states):
            for path in directory.iterdir():
                if path.name not in named:
                    path.unlink()

    def _replace(self, name: str, data: bytes) -> None:
        path = self.path / name
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)


def _private(path: str, flags: int) -> int:
    """An opener that creates files not readable by everybody."""
    return os.open(path, flags, FILE_MODE)


def segment_name(start: int) -> str:
    return f"{start:020d}"


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
