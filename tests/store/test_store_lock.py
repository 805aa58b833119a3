"""One owner a store: against other processes, against this one, against Apache's way of locking."""

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.store.store_lock import StoreInUse, lock_store, owner_of

PATIENCE_S = 60.0

# As a JVM does it: FileChannel.tryLock(0, 1, false) is fcntl's F_SETLK on the first byte.
FOREIGN = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1] + "/lock", os.O_RDWR | os.O_CREAT, 0o644)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)
except OSError:
    print("refused", flush=True)
else:
    os.pwrite(descriptor, b"lock", 0)
    print("locked", flush=True)
    sys.stdin.readline()
"""
OURS = """
import sys
from raftmq.store.store_lock import StoreInUse, lock_store
try:
    lock = lock_store(sys.argv[1], "another")
except StoreInUse as error:
    print("refused " + str(error), flush=True)
else:
    print("locked", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def process(program, root):
    """A process that tries for the lock; its first words. It ends at the end of the block."""
    running = subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdin is not None and running.stdout is not None
    try:
        yield running, running.stdout.readline().strip()
    finally:
        running.kill()
        running.wait(PATIENCE_S)
        running.stdin.close()
        running.stdout.close()


def said(program, root):
    with process(program, root) as (_, text):
        return text


def digest(root):
    """Of every name, content, size and time of change below a directory."""
    result = hashlib.sha256()
    for path in sorted([root, *root.rglob("*")]):
        state = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        result.update(repr((path.name, state.st_mtime_ns, state.st_ctime_ns, content)).encode())
    return result.hexdigest()


@pytest.mark.parametrize("program", [FOREIGN, OURS])
def test_store_lock_excludes_other_processes_until_released(tmp_path, program):
    lock = lock_store(str(tmp_path), "the first")
    assert said(program, tmp_path).startswith("refused")
    lock.release()
    lock.release()  # harmless
    assert said(program, tmp_path) == "locked"


def test_rejected_store_lock_names_the_owner_and_changes_nothing(tmp_path):
    (tmp_path / "commitlog").mkdir()
    with process(OURS, tmp_path) as (other, text):
        assert text == "locked"
        before = digest(tmp_path)
        with pytest.raises(StoreInUse) as refused:
            lock_store(str(tmp_path), "the second")
        assert digest(tmp_path) == before
    owner = refused.value.owner
    assert (owner.host, owner.pid, owner.what) == (socket.gethostname(), other.pid, "another")
    assert str(other.pid) in str(refused.value)
    assert refused.value.retriable


def test_unnamed_store_owner_is_reported_by_its_pid(tmp_path):
    with process(FOREIGN, tmp_path) as (apache, text):
        assert text == "locked"
        with pytest.raises(StoreInUse, match=f"process {apache.pid} .*does not say") as refused:
            lock_store(str(tmp_path), "ours")
    assert refused.value.owner.what == ""


def test_record_of_a_killed_owner_is_not_used_for_the_next(tmp_path):
    with process(OURS, tmp_path) as (_, text):
        assert text == "locked"
    with process(FOREIGN, tmp_path) as (apache, text):
        assert text == "locked"
        assert b"another" in (tmp_path / "lock").read_bytes()
        with pytest.raises(StoreInUse) as refused:
            lock_store(str(tmp_path), "ours")
    assert (refused.value.owner.pid, refused.value.owner.what) == (apache.pid, "")


def test_owner_of_returns_the_owner_and_changes_nothing(tmp_path):
    assert owner_of(str(tmp_path)) is None
    assert owner_of(str(tmp_path / "missing")) is None
    lock = lock_store(str(tmp_path), "the first")
    assert owner_of(str(tmp_path)) == lock.owner
    assert said(FOREIGN, tmp_path) == "refused"  # to ask has not let go of it
    lock.release()
    with process(OURS, tmp_path) as (other, _):
        before = digest(tmp_path)
        owner = owner_of(str(tmp_path))
        assert owner is not None and (owner.pid, owner.what) == (other.pid, "another")
        assert digest(tmp_path) == before
    assert owner_of(str(tmp_path)) is None


def test_store_lock_excludes_the_same_process_by_any_path(tmp_path):
    store = tmp_path / "store"
    lock = lock_store(str(store), "the first")
    (tmp_path / "alias").symlink_to(store)
    os.link(store / "lock", tmp_path / "link")
    for name in ("store", "alias", "store/../store"):
        with pytest.raises(StoreInUse, match="the first"):
            lock_store(str(tmp_path / name), "the second")
    # None of them opened and closed the file: that would have let go of the lock.
    assert said(FOREIGN, store) == "refused"
    lock.release()
    lock_store(str(store), "the third").release()


def test_lock_file_that_appears_during_the_check_is_not_closed(tmp_path, monkeypatch):
    """The look at what this process holds comes first; a directory may be moved behind it."""
    lock = lock_store(str(tmp_path), "the first")
    monkeypatch.setattr("raftmq.store.store_lock._file_id_at", lambda path: None)
    with pytest.raises(StoreInUse):
        lock_store(str(tmp_path), "the second")
    assert said(FOREIGN, tmp_path) == "refused"
    monkeypatch.undo()
    before = len(os.listdir("/proc/self/fd"))
    lock.release()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert said(FOREIGN, tmp_path) == "locked"


def test_store_lock_keeps_apaches_text_and_private_permissions(tmp_path):
    store = tmp_path / "deep" / "store"
    lock = lock_store(str(store), "ours")
    assert (store / "lock").read_bytes().startswith(b"lock\n{")
    lock.release()
    assert (store / "lock").read_bytes() == b"lock"
    assert (store / "lock").stat().st_mode & 0o7 == 0
    assert store.stat().st_mode & 0o7 == store.parent.stat().st_mode & 0o7 == 0


def test_emptied_store_directory_is_locked_again(tmp_path):
    """Its lock file was replaced while nobody had it: the name counts, not the old file."""
    lock_store(str(tmp_path), "ours").release()
    Path(tmp_path / "lock").unlink()
    lock = lock_store(str(tmp_path), "ours")
    assert said(FOREIGN, tmp_path) == "refused"
    lock.release()


def test_full_disk_does_not_prevent_the_store_lock(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "full")

    monkeypatch.setattr(os, "pwrite", full)
    lock = lock_store(str(tmp_path), "ours")
    assert said(FOREIGN, tmp_path) == "refused"
    lock.release()


def test_store_lock_reports_a_foreign_last_owner(tmp_path):
    def found():
        lock = lock_store(str(tmp_path), "a tool")
        lock.release()
        return lock.foreign

    assert found()  # nobody of ours has opened it yet
    lock = lock_store(str(tmp_path), "a broker")
    lock.record_opened()
    assert not lock.foreign
    owner = owner_of(str(tmp_path))  # the note is still read
    assert owner is not None and not owner.what.startswith("ours")
    lock.release()
    assert not found()
    with process(FOREIGN, tmp_path) as (_, text):
        assert text == "locked"
    assert found() and found()  # a tool does not change that
