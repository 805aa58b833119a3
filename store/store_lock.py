"""The lock of a store directory, for a single owner, broker or writing tool.

The lock is taken before anything in the directory is opened. It is the lock of Apache's brokers
(DefaultMessageStore: `tryLock(0, 1, false)` of the file `lock`), an exclusive POSIX record lock on
the first byte, so that neither opens a store in use. The kernel releases it when its process ends
in any way.

    bytes 0 to 3   "lock", as Apache's brokers write; "ours" since a broker of ours had it open
    then           a line of JSON, which they do not read: {"host": …, "pid": …, "what": …}

POSIX locks have two awkward properties. They belong to a process, so two brokers in the same
process would both get the lock; a table therefore has the locks of this process, by device and
inode. And closing *any* descriptor of the file releases the lock. While it is held, nothing in this
process may open and close that file; a descriptor that had to be opened stays open until the
release.

A failed attempt changes nothing in the directory. store.identity distinguishes the directories of
different nodes.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import orjson

from .errors import StoreError

log = logging.getLogger("raftmq.store.store_lock")

LOCK_FILE = "lock"
APACHE_TEXT = b"lock"
OUR_TEXT = b"ours"
OWNER_BYTES_MAX = 4096
DIRECTORY_MODE = 0o750  # messages are not readable by every user of this machine
FILE_MODE = 0o640
_FLOCK = struct.Struct("@hhqqi4x")  # Linux's struct flock: type, whence, start, length, pid

FileId = tuple[int, int]  # device and inode of a lock file


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a store, as far as known. `what` is "" if it is unknown (Apache's brokers do not
    write it). `pid` is 0 for an owner on a different host or in a different container."""

    host: str
    pid: int
    what: str

    def __str__(self) -> str:
        process = f"process {self.pid}" if self.pid else "a process that cannot be seen from here"
        if self.what:
            return f"{self.what}: {process} on {self.host}"
        return (
            f"{process} on {self.host or 'this host or another'}, which does not say what it is"
            " (Apache's brokers do not)"
        )


class StoreInUse(StoreError):
    """A different process, or part of this process, owns the directory. Nothing changed."""

    code = "STORE_IN_USE"
    retriable = True

    def __init__(self, root: str, owner: Owner) -> None:
        super().__init__(
            f"the store {root} is in use by {owner}. A store has one owner: stop that one first, or"
            " set another storePathRootDir"
        )
        self.owner = owner


class StoreLock:
    """The lock on a store; `release` it when every file there is closed. `foreign` means that the
    last broker there was not ours."""

    def __init__(
        self, root: str, file_id: FileId, descriptor: int, owner: Owner, *, foreign: bool
    ) -> None:
        self.root = root
        self.owner = owner
        self.foreign = foreign
        self._file_id = file_id
        self._descriptors = [descriptor]

    def release(self) -> None:
        """Release the lock. Idempotent."""
        with _guard:
            if not self._descriptors:
                return
            try:
                os.ftruncate(self._descriptors[0], len(APACHE_TEXT))
            except OSError as error:  # the text stays; readers see that the lock is free
                log.warning("lock_note_not_removed root=%s: %s", self.root, error)
            del _held[self._file_id]
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors.clear()

    def record_opened(self) -> None:
        self.foreign = False
        try:
            os.pwrite(self._descriptors[0], OUR_TEXT, 0)
        except OSError as error:  # the next start does not see it then
            log.warning("lock_note_not_written root=%s: %s", self.root, error)

    def keep_open(self, descriptor: int) -> None:
        """Keep a descriptor open if closing it would release the lock. The caller has the guard."""
        self._descriptors.append(descriptor)


_guard = threading.Lock()
_held: dict[FileId, StoreLock] = {}  # by this process


def lock_store(root: str, what: str) -> StoreLock:
    """Lock the directory, which is created if missing. `what` describes this process to later
    callers. Never waits for the lock. Blocking. Raises StoreInUse, OSError."""
    root = os.path.abspath(root)
    make_directory(root)
    path = os.path.join(root, LOCK_FILE)
    with _guard:
        while True:
            _refuse_own(root, _file_id_at(path))
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            file_id = _file_id_of(descriptor)
            if file_id in _held:  # the file was created between the two lines
                _held[file_id].keep_open(descriptor)
                _refuse_own(root, file_id)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            except OSError as error:
                owner = _owner_of(descriptor)
                os.close(descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise StoreInUse(root, owner) from None
                raise OSError(error.errno, f"{path} cannot be locked: {error.strerror}") from error
            if file_id == _file_id_at(path):
                break
            os.close(descriptor)  # the directory was emptied and has a new file
        owner = Owner(socket.gethostname(), os.getpid(), what)
        text = os.pread(descriptor, len(OUR_TEXT), 0)
        foreign = text != OUR_TEXT
        _write_owner(descriptor, APACHE_TEXT if foreign else OUR_TEXT, owner, path)
        _held[file_id] = lock = StoreLock(root, file_id, descriptor, owner, foreign=foreign)
        return lock


def owner_of(root: str) -> Owner | None:
    """Return the lock's current owner, or None, without changing anything. Other processes are
    visible on Linux only. Raises OSError."""
    path = os.path.join(root, LOCK_FILE)
    with _guard:
        file_id = _file_id_at(path)
        if file_id is None:
            return None
        if file_id in _held:  # opening and closing the file would release its lock
            return _held[file_id].owner
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return None if _locking_pid(descriptor) is None else _owner_of(descriptor)
        finally:
            os.close(descriptor)


def make_directory(path: str, mode: int = DIRECTORY_MODE) -> None:
    """Make a directory and its missing parents, each with mode `mode`. Raises OSError."""
    missing = []
    at = os.path.abspath(path)
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    for one in reversed(missing):
        Path(one).mkdir(mode, exist_ok=True)


def _refuse_own(root: str, file_id: FileId | None) -> None:
    """Raise StoreInUse if this process has the lock. The caller has the guard."""
    if file_id is not None and file_id in _held:
        raise StoreInUse(root, _held[file_id].owner)


def _file_id_at(path: str) -> FileId | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _file_id_of(descriptor: int) -> FileId:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _write_owner(descriptor: int, text: bytes, owner: Owner, path: str) -> None:
    """Write the lock's owner. The lock holds without it, so a full disk does not matter."""
    note = text + b"\n" + orjson.dumps(owner) + b"\n"
    try:
        os.pwrite(descriptor, note, 0)
        os.ftruncate(descriptor, len(note))
    except OSError as error:
        log.warning("lock_note_not_written path=%s: %s", path, error)


def _owner_of(descriptor: int) -> Owner:
    """Return the owner of the lock by its text, unless the kernel contradicts it."""
    pid = _locking_pid(descriptor) or 0
    here = socket.gethostname()
    recorded = _parse_owner(os.pread(descriptor, OWNER_BYTES_MAX, len(APACHE_TEXT)))
    if recorded is not None and (not pid or (recorded.host, recorded.pid) == (here, pid)):
        return recorded
    return Owner(here if pid else "", pid, "")  # the text is from a killed process


def _locking_pid(descriptor: int) -> int | None:
    """Return the lock holder's pid, 0 if unknown here, or None if the kernel shows no holder."""
    if not sys.platform.startswith("linux"):
        return None
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, lock))
    return None if kind == fcntl.F_UNLCK else max(0, int(pid))


def _parse_owner(text: bytes) -> Owner | None:
    """Return the owner in the text; None if there is none of ours."""
    try:
        fields = orjson.loads(text)
        return Owner(str(fields["host"]), int(fields["pid"]), str(fields["what"]))
    except (ValueError, KeyError, TypeError):
        return None
