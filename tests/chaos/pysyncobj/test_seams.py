"""The seams of mode pysyncobj, which are journal, meta file, framing and configuration."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from pysyncobj.pickle import dumps

from raftmq.chaos.pysyncobj.journal import READ_BYTES_MAX, FrameJournal, JournalError
from raftmq.chaos.pysyncobj.meta import Meta, MetaFile
from raftmq.chaos.pysyncobj.replica import configuration
from raftmq.chaos.pysyncobj.transport import MESSAGE_SIZE_BYTES_MAX, PickleReader
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.messages import Role
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.transport.transport import PeerAddress
from raftmq.dledger.transport.wire import WireError
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.disk import OsDisk
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameKind, seal_frame
from raftmq.store.message_store import MessageStore
from tests.store.make import FrameWriter, record, recover

SEGMENT_SIZE_BYTES = 1 << 20
MORE_THAN_HALF_BYTES = SEGMENT_SIZE_BYTES // 2 + 1  # of a segment, so two do not fit
SEND = b"\0frame"  # SyncObj's command of a leader
NO_OP = b"\x01"


class Store:
    """A journal over real files, and its reports."""

    def __init__(self, root: Path) -> None:
        self.disk = OsDisk(str(root))
        self.cuts: list[int] = []
        self.open()

    def open(self) -> None:
        commitlog = CommitLog(self.disk, "commitlog", SEGMENT_SIZE_BYTES)
        commitlog.open()
        log = RaftLog(commitlog)
        log.open()
        self.journal = FrameJournal(
            log,
            MetaFile(self.disk, "raft/pysyncobj.meta"),
            wall_ms=lambda: 1_000,
            on_cut=self.cuts.append,
        )

    def reopen(self) -> None:
        self.journal.log.commitlog.close()
        self.open()

    def send(self, payload: bytes, term: int = 1) -> Frame:
        """Like the member on a leader, hold the frame; then SyncObj adds its command."""
        log = self.journal.log
        index, position = log.last_index + 1, log.allocate(len(payload))
        frame = seal_frame(index, term, position, 5, FrameKind.COMMAND, 0, payload)
        self.journal.held = frame
        self.journal.add(SEND, index, term)
        return frame

    def close(self) -> None:
        self.journal.log.commitlog.close()


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "a")
    yield opened
    opened.close()


@pytest.fixture
def other(tmp_path):
    opened = Store(tmp_path / "b")
    yield opened
    opened.close()


def copy_of(store: Store) -> list[tuple[bytes, int, int]]:
    return list(store.journal[:])


def test_followers_journal_gets_the_same_bytes(store, other):
    for one in (store, other):
        one.journal.add(NO_OP, 1, 0)  # SyncObj's first entry
    store.journal.add(NO_OP, 2, 1)
    store.send(b"x" * 100)
    store.send(b"y" * MORE_THAN_HALF_BYTES)
    store.send(b"z" * MORE_THAN_HALF_BYTES)  # rolls
    for entry in copy_of(store)[1:]:
        other.journal.add(*entry)
    assert store.journal.opening_index == 2
    end = store.journal.log.commitlog.max_offset
    assert end > SEGMENT_SIZE_BYTES
    for start in (0, SEGMENT_SIZE_BYTES):
        mine = store.journal.log.commitlog.read(start, SEGMENT_SIZE_BYTES)
        assert other.journal.log.commitlog.read(start, SEGMENT_SIZE_BYTES) == mine
    assert copy_of(other) == copy_of(store)


def test_journal_slices_equal_a_lists(store):
    store.journal.add(NO_OP, 1, 0)
    for n in range(9):
        store.send(b"%d" % n, term=1 + n // 4)
    plain = copy_of(store)
    assert [(index, term) for _, index, term in plain] == [
        (1, 0),
        *((n + 2, 1 + n // 4) for n in range(9)),
    ]
    journal = store.journal
    assert len(journal) == 10
    for at in (0, 1, -1, 9):
        entry = journal[at]
        assert (entry[0], entry[1], entry[2]) == plain[at]
    for part in (slice(3, 4), slice(3, None), slice(8, 99), slice(12, 15), slice(4, 4)):
        result = journal[part]
        assert len(result) == len(plain[part])
        assert list(result) == plain[part]
        assert result[:2] == plain[part][:2]
        assert bool(result) is bool(plain[part])
    with pytest.raises(IndexError):
        journal[10]


def test_long_journal_walk_reads_the_file_in_runs(store):
    store.journal.add(NO_OP, 1, 0)
    for n in range(40):
        store.send(b"%02d" % n * 10_000)
    store.reopen()
    before = store.journal.log.reads_from_file
    assert len(list(store.journal[:])) == 41
    runs = store.journal.log.reads_from_file - before
    assert runs <= 40 * 20_000 // READ_BYTES_MAX + 3


def test_journal_truncation_is_reported_and_survives_a_restart(store):
    store.journal.add(NO_OP, 1, 0)
    frames = [store.send(b"%d" % n) for n in range(5)]
    store.journal.deleteEntriesFrom(3)  # keeps three entries
    assert store.cuts == [4]
    assert len(store.journal) == 3
    assert store.journal.log.index.end_position == frames[1].end
    store.journal.deleteEntriesFrom(3)  # nothing is there any more
    assert store.cuts == [4]
    store.reopen()
    assert len(store.journal) == 3
    store.journal.clear()
    assert len(store.journal) == 0


def test_command_with_a_frame_for_another_index_becomes_a_no_op(store):
    store.journal.add(NO_OP, 1, 0)
    store.journal.held = seal_frame(2, 1, HEADER_SIZE_BYTES, 5, FrameKind.COMMAND, 0, b"x")
    store.journal.add(SEND, 2, 3)  # leadership changed in between
    store.journal.add(SEND, 3, 3)  # and a command without any frame
    frames = store.journal.log.frames(1, 3)
    assert [(f.kind, f.term) for f in frames] == [
        (FrameKind.NOOP, 0),
        (FrameKind.NOOP, 3),
        (FrameKind.NOOP, 3),
    ]


def test_frame_that_does_not_fit_is_rejected_and_changes_nothing(store, other):
    store.journal.add(NO_OP, 1, 0)
    store.send(b"x", term=2)
    store.send(b"y", term=2)
    other.journal.add(NO_OP, 1, 0)
    command, index, term = copy_of(store)[2]
    damaged = bytes([*command[:-1], command[-1] ^ 1])
    for wrong in (
        (command, index, term),  # not the next index
        (command, 2, term),  # a frame of a different index
        (command, index, term + 1),
        (b"\x01junk", 2, 2),
        (damaged, index, term),
    ):
        with pytest.raises(JournalError):
            other.journal.add(*wrong)
    other.send(b"longer than x", term=2)
    with pytest.raises(JournalError, match="the replicas parted"):
        other.journal.add(command, index, term)
    with pytest.raises(JournalError):
        other.journal.deleteEntriesTo(1)
    assert len(other.journal) == 2


def test_term_vote_and_commit_index_survive_and_are_never_synced(store, monkeypatch):
    def no_sync(*_: object) -> None:
        raise AssertionError("SyncObj's journal never syncs")

    monkeypatch.setattr("os.fsync", no_sync)
    monkeypatch.setattr("os.fdatasync", no_sync)
    store.journal.add(NO_OP, 1, 0)
    store.send(b"x")
    store.journal.setCurrentTerm(7, "n2")
    store.journal.setRaftCommitIndex(2)
    saves = store.journal.saves
    store.journal.setRaftCommitIndex(2)
    assert store.journal.saves == saves  # the commit index waits for the timer
    store.journal.onOneSecondTimer()
    store.journal.onOneSecondTimer()
    assert store.journal.saves == saves + 1
    monkeypatch.undo()
    store.reopen()
    journal = store.journal
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (7, "n2")
    assert journal.getRaftCommitIndex() == 2


def test_unsaved_commit_index_is_saved_later_and_an_unsaved_vote_raises(store, monkeypatch):
    journal, save = store.journal, MetaFile.save

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(MetaFile, "save", full)
    journal.setRaftCommitIndex(2)
    journal.onOneSecondTimer()
    journal._destroy()
    assert journal.saves == 0
    with pytest.raises(OSError, match="too many open files"):
        journal.setCurrentTerm(7, "n2")
    monkeypatch.setattr(MetaFile, "save", save)
    journal.onOneSecondTimer()
    assert journal.saves == 1
    store.reopen()
    assert store.journal.getRaftCommitIndex() == 2


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"currentTerm":"x"}', b"\xff"])
def test_unreadable_meta_file_is_read_as_empty(tmp_path, text):
    (tmp_path / "meta").write_bytes(text)
    assert MetaFile(OsDisk(str(tmp_path)), "meta").load() == Meta()


def open_store(root: Path) -> MessageStore:
    config = StoreConfig(mode=StoreMode.RAFT, segment_size_bytes=4096, entries_per_file=50)
    store = MessageStore(OsDisk(str(root)), config)
    store.open()
    return store


def queue_ends(store: MessageStore) -> list[int]:
    queues = [store.queues.queue("T", n) for n in (0, 1)]
    return [queue.max_offset for queue in queues if queue is not None]


def test_store_truncates_its_queues_with_the_log(tmp_path):
    """A kill immediately afterwards leaves no hole, because the checkpoint has the queues' ends."""
    store = open_store(tmp_path)
    writer = FrameWriter(store.commitlog)
    frames = [writer.messages([record(), record(queue_id=1)]) for _ in range(30)]
    for frame in frames:
        store.derived.dispatch_frame(frame)
    store.flush()
    assert store.checkpoint.fields.confirm_offset == frames[-1].end
    end = frames[9].end
    flush = store.flushes.start()
    store.commitlog.truncate(end)
    assert not store.derived.truncate(end)
    assert queue_ends(store)[:1] == [30]
    flush.run()
    store.flushes.finish(flush, synced=True)
    assert store.checkpoint.fields.confirm_offset > end
    assert store.derived.truncate(end)
    assert store.derived.truncate(end)  # nothing more to cut
    assert store.derived.dispatched_offset == store.checkpoint.fields.confirm_offset == end
    assert queue_ends(store) == [10, 10]
    store.queues.close()  # a kill, so nothing is flushed
    store.commitlog.close()
    store.checkpoint.close()
    store = open_store(tmp_path)
    recover(store)
    assert store.derived.dispatched_offset == end
    writer = FrameWriter(store.commitlog, term=2, index=10)
    writer.offsets = {("T", 0): 10, ("T", 1): 10}
    store.derived.dispatch_frame(writer.messages([record(), record(queue_id=1)]))
    assert queue_ends(store) == [11, 11]
    store.close()


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_pickled_messages_are_read_from_any_pieces():
    messages = [{"type": "t", "n": n, "data": bytes(n)} for n in range(5)]
    stream = b"".join(framed(dumps(message)) for message in messages)
    for size in (1, 7, 64, len(stream)):
        reader = PickleReader("n1", "n0")
        result = []
        for at in range(0, len(stream), size):
            result += reader.receive_data(stream[at : at + size])
        assert result == [("n1", message) for message in messages]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MESSAGE_SIZE_BYTES_MAX + 1),  # refused before it is waited for
        framed(b"no pickle"),
        framed(dumps(["a", "list"])),
        framed(dumps({"no": "type"})),
    ],
)
def test_malformed_message_closes_the_connection(data):
    with pytest.raises(WireError):
        PickleReader("n1", "n0").receive_data(data)


def test_settings_become_syncobjs():
    peers = {n: PeerAddress(n, "h", 1) for n in ("n0", "n1", "n2")}
    core = CoreConfig(heartbeat_ms=75, election_ms_min=300, election_ms_max=600)
    roles: list[Role] = []
    conf = configuration(MemberConfig("n0", "g", peers, core=core), roles.append)
    conf.validate()
    assert (conf.raftMinTimeout, conf.raftMaxTimeout) == (0.3, 0.6)
    assert conf.appendEntriesPeriod == 0.075
    assert conf.appendEntriesBatchSizeBytes == 64 << 10  # as shipped, which shows fault 1
    assert conf.leaderFallbackTimeout == 30.0  # as shipped
    conf.onStateChanged(0, 2)
    assert roles == [Role.LEADER]
    slow = CoreConfig(heartbeat_ms=150, election_ms_min=300, election_ms_max=600)
    configuration(MemberConfig("n0", "g", peers, core=slow), roles.append).validate()
