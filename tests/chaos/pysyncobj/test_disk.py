"""Faults of stock pysyncobj 0.3.17 on disk; each schedule or file is tried on both."""

from __future__ import annotations

import select
import socket
import struct
from pathlib import Path
from random import Random

import pysyncobj.pickle as wire
import pytest
from pysyncobj.config import FAIL_REASON
from pysyncobj.journal import FileJournal
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import TcpConnection

from raftmq.dledger.node.proposals import Proposals
from raftmq.dledger.raft.errors import Busy
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.dledger.transport.wire import MessageReader, WireError
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import Disk, OsDisk
from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import Frame, FrameKind, seal_frame
from tests.chaos.pysyncobj.conftest import MakeWorld, start
from tests.chaos.pysyncobj.worlds import StockWorld, sync_calls
from tests.dledger.trims import trimmed
from tests.simulator.disk import SimCrash, SimDisk
from tests.store.make import recover_frames

# The package leaves its meta file to the collector after reading it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

SEGMENT_SIZE_BYTES = 4096
OFFSET_BITS_32 = 1 << 32


def open_log(disk: Disk, start_offset: int = 0, segment_size_bytes: int = 4096) -> RaftLog:
    """Our log as a member has it."""
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open()
    commitlog = CommitLog(disk, "commitlog", segment_size_bytes, checkpoint)
    commitlog.open(start_offset)
    log = RaftLog(commitlog, SlotFile(disk, "raft/trim"))
    log.open()
    return log


def append(log: RaftLog, payload: bytes) -> Frame:
    index, position = log.last_index + 1, log.allocate(len(payload))
    frame = seal_frame(index, 1, position, 0, FrameKind.COMMAND, 0, payload)
    log.append([frame])
    return frame


def sync(log: RaftLog) -> None:
    ticket = log.start_sync()
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)


# -- nothing is fsynced -----------------------------------------------------------------------


def test_nothing_is_ever_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 9: a thousand acknowledged entries, three elections, no fsync of anything. Ours calls
    it for every vote and every group commit."""
    monkeypatch.setattr("pysyncobj.syncobj.monotonicTime", lambda: 0.0)
    calls = sync_calls(monkeypatch)
    w = StockWorld(tmp_path)
    for leader, others in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        assert w.elect(leader, *others)
        w.beat(leader, *others)
        for n in range(333):
            w.nodes[leader].append(f"{leader}{n}", callback=lambda _, e: w.acked.append(str(e)))
        w.beat(leader, *others)
    w.close()
    assert w.acked == ["0"] * 999
    assert calls == []

    disk = OsDisk(str(tmp_path / "ours"))
    log = open_log(disk)
    before = len(calls)
    append(log, b"x")
    sync(log)
    HardStateFile(disk, "raft/hardstate").save(HardState(1, "a"))
    assert calls[before:].count("fdatasync") >= 2
    log.commitlog.close()


def test_power_cut_of_all_loses_everything(make: MakeWorld) -> None:
    """Fault 9. Three replicas lose power at once, after entries were acknowledged. One of them may
    have a slow disk."""
    w = start(make)
    w.hold("c")
    for n in range(5):
        w.write("a", f"v{n}")
    w.beat("a", "b", "c")
    assert len(w.acked) == 6
    for name in "abc":
        w.power_cut(name)
    for name in "abc":
        w.restart(name)
    leader = w.elect_one_of("a", "b", "c")
    assert w.lost(leader) == (w.acked if w.stock else [])
    assert w.goes_on(leader)


def test_power_cut_of_one_loses_what_two_had(make: MakeWorld) -> None:
    """Fault 9. An entry on the leader and a follower is acknowledged. That follower loses its
    power, returns with less than it promised, and the leader is killed, so the rest decides."""
    w = start(make)
    w.disconnect("a", "c")
    for n in range(5):
        w.write("a", f"v{n}")
    for _ in range(3):
        w.step("a")
        w.drop("a", "c")
        w.exchange("a", "b")
    assert len(w.acked) == 6
    w.power_cut("b")
    w.crash("a")
    w.forget("a")
    w.restart("b")
    leader = w.elect_one_of("c", "b")
    assert w.lost(leader) == (w.acked[1:] if w.stock else [])


def test_commit_index_ahead_of_the_journal_acknowledges_alone(make: MakeWorld) -> None:
    """Issue 197. The commit index is in a file apart from the journal, without order between them.
    After a power cut it may cover missing entries; entries of a new leader at these indexes are
    acknowledged at once, before a second node has them."""
    w = start(make)
    for n in range(8):
        w.write("a", f"v{n}")
    w.beat("a", "b", "c", times=12)  # over a second, so the commit index is written
    for name in "abc":
        w.power_cut(name, written_back=["meta"])
    for name in "abc":
        w.restart(name)
    leader = w.elect_one_of("a", "b", "c")
    for name in "abc":
        w.drop(leader, name)
    w.write(leader, "alone")
    for _ in range(3):
        w.step(leader)
        w.drop(leader, *"abc")
    assert ("alone" in w.acked) is w.stock
    w.crash(leader)
    w.forget(leader)
    other = w.elect_one_of(*(n for n in "abc" if n != leader))
    assert ("alone" in w.lost(other)) is w.stock
    assert ("v0" in w.lost(other)) is w.stock  # and earlier entries were lost with the journal


def test_a_vote_that_was_never_fsynced_is_given_twice(make: MakeWorld) -> None:
    """Issues 201 and 202 after 0.3.17's repair. Term and vote are saved now, but renamed into place
    without an fsync. A voter that loses its power votes again in the same term."""
    w = make()
    for _ in range(3):
        if w.elect("a", "b"):
            break
    term = w.term("a")
    w.drop("a", "b", "c")
    w.power_cut("b", written_back=["journal"])
    w.restart("b")
    for _ in range(3):
        w.drop("c", "a")
        if w.elect("c", "b"):
            break
    assert w.leads("c")
    assert w.terms_led_twice() == ([term] if w.stock else [])


# -- the journal ------------------------------------------------------------------------------


def test_compaction_without_a_dump_file_loses_what_it_compacted(make: MakeWorld) -> None:
    """With `journalFile` and without `fullDumpFile`, both as shipped, compaction keeps the snapshot
    in memory only. A clean stop and start of all three loses everything below it. (The threshold is
    lowered from 5,000 entries.)"""
    w = start(make, logCompactionMinEntries=40)
    for n in range(100):
        w.write("a", f"v{n}")
    w.beat("a", "b", "c", times=8)
    assert len(w.acked) == 101
    assert w.applied("b") == w.acked
    for name in "abc":
        w.crash(name)
        w.forget(name)
    for name in "abc":
        w.restart(name)
    leader = w.elect_one_of("a", "b", "c")
    w.beat(leader, *(n for n in "abc" if n != leader), times=6)
    missing = [value for value in w.acked if value not in w.applied(leader)]
    if w.stock:
        assert len(missing) > 50
    else:
        assert missing == []


class Killed(BaseException):
    """The process ends here."""


class KilledWhileAdding(FileJournal):
    """A FileJournal whose process is killed at the first `add` after the flag is set."""

    dying = False

    def add(self, command: bytes, idx: int, term: int) -> None:
        if self.dying:
            raise Killed
        super().add(command, idx, term)


def test_killed_while_dropping_the_beginning_stock_loses_the_rest(tmp_path: Path) -> None:
    """Fault 8. deleteEntriesTo empties the journal and rewrites the remaining entries."""
    journal = KilledWhileAdding(str(tmp_path / "journal"))
    for index in range(1, 11):
        journal.add(b"\0entry", index, 1)
    journal.dying = True
    with pytest.raises(Killed):
        journal.deleteEntriesTo(5)
    journal._destroy()
    again = FileJournal(str(tmp_path / "journal"))
    assert len(again) == 0  # five were to be kept
    again._destroy()


def test_killed_while_dropping_the_beginning_ours_loses_nothing() -> None:
    """Retention removes whole segments; killed at any operation, every frame above is there."""
    operation, finished = 0, False
    while not finished:
        operation += 1
        disk = SimDisk(Random(operation))
        log = open_log(disk)
        frames = [append(log, b"%03d" % n + bytes(400)) for n in range(30)]
        sync(log)
        keep_from = frames[20]
        disk.crash_after(operation)
        try:
            trimmed(log, keep_from.position)
            finished = True
        except SimCrash:
            pass
        disk.kill_process()
        log = open_log(disk)
        assert log.frames(keep_from.index, 30) == tuple(frames[20:])
    assert operation > 3


def test_the_journal_ends_at_4_gib_stock(tmp_path: Path) -> None:
    """Fault 8. Its offset has 32 bits, and the entry is already in memory at the error. (The
    journal's offset is set; the file is sparse.)"""
    journal = FileJournal(str(tmp_path / "journal"))
    journal.add(b"\0first", 1, 1)
    journal._FileJournal__currentOffset = OFFSET_BITS_32 - 100
    with pytest.raises(struct.error):
        journal.add(b"\0" + bytes(200), 2, 1)
    assert len(journal) == 2  # it continues as if the entry were stored
    journal._destroy()
    again = FileJournal(str(tmp_path / "journal"))
    assert len(again) == 1
    again._destroy()


def test_the_log_goes_on_beyond_4_gib_ours(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    size = 1 << 16
    log = open_log(disk, OFFSET_BITS_32 - size, size)
    frames = [append(log, bytes(30_000)) for _ in range(4)]
    assert frames[0].position < OFFSET_BITS_32 < frames[-1].position
    sync(log)
    assert log.frames(1, 4) == tuple(frames)
    log.commitlog.close()
    again = CommitLog(disk, "commitlog", size)
    again.open()
    assert recover_frames(again).end_offset == frames[-1].end
    assert again.read(frames[-1].position, len(frames[-1].data)) == frames[-1].data
    again.close()


def flip(path: Path, text: bytes) -> None:
    """Flip a bit of the first occurrence of `text`."""
    data = bytearray(path.read_bytes())
    data[data.index(text)] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_read_as_data_stock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 8, no checksum. The replica applies an entry that was never written."""
    monkeypatch.setattr("pysyncobj.syncobj.monotonicTime", lambda: 0.0)
    w = StockWorld(tmp_path)
    assert w.elect("a", "b", "c")
    w.write("a", "pay Bob")
    w.beat("a", "b", "c", times=12)
    assert w.acked == ["pay Bob"]
    w.crash("b")
    flip(w.file("b", "journal"), b"Bob")
    w.restart("b")
    w.beat("a", "b", "c")
    assert w.applied("b") == ["pay Cob"]
    assert w.applied("a") == ["pay Bob"]
    w.close()


def test_a_flipped_bit_is_an_error_ours(tmp_path: Path) -> None:
    log = open_log(OsDisk(str(tmp_path)))
    append(log, b"pay Bob")
    sync(log)
    log.commitlog.close()
    flip(tmp_path / "commitlog" / f"{0:020d}", b"Bob")
    with pytest.raises(StoreDamaged):
        open_log(OsDisk(str(tmp_path)))


# -- arriving messages ------------------------------------------------------------------------

RAN: list[str] = []


def run(what: str) -> str:
    RAN.append(what)
    return what


class Stranger:
    """A pickle that makes its reader run code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return run, ("anything",)


def test_a_message_runs_code_stock() -> None:
    """Fault 8. Messages are pickles, so any client of the port runs code there."""
    near, far = socket.socketpair()
    near.setblocking(False)
    poller = createPoller("auto")
    received: list[object] = []
    connection = TcpConnection(poller, onMessageReceived=received.append, socket=near)
    sender = TcpConnection(createPoller("auto"), socket=far)
    RAN.clear()
    sender.send(Stranger())
    select.select([near], [], [], 10)
    poller.poll(0)
    connection.disconnect()
    sender.disconnect()
    assert RAN == ["anything"]
    assert received == ["anything"]


def test_a_message_runs_no_code_ours() -> None:
    RAN.clear()
    with pytest.raises(WireError):
        MessageReader("b", "a").receive_data(wire.dumps(Stranger()).ljust(64, b"\0"))
    assert RAN == []


def test_many_commands_fill_a_pipe_stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 121 again. Without batching every command writes a byte into a pipe. The 65,537th
    between two ticks raises out of `append`, although the entry is in the queue."""
    monkeypatch.setattr("pysyncobj.syncobj.monotonicTime", lambda: 0.0)
    pipe_bytes = 1 << 16
    w = StockWorld(tmp_path, appendEntriesUseBatch=False, commandsQueueSize=pipe_bytes + 1)
    for _ in range(pipe_bytes):
        w.nodes["a"].append("x")
    with pytest.raises(BlockingIOError):
        w.nodes["a"].append("x")
    answers: list[int] = []
    w.nodes["a"].append("x", callback=lambda _, error: answers.append(error))
    assert answers == [FAIL_REASON.QUEUE_FULL]  # so the raising command has the last slot
    w.close()


async def test_many_commands_are_refused_ours() -> None:
    """The limit is documented, and rejected commands are not stored."""
    proposals = Proposals(waiting_max=10, waiting_bytes_max=1_000, timeout_ms=1_000)
    for _ in range(10):
        proposals.submit(b"x", 0)
    with pytest.raises(Busy):
        proposals.submit(b"x", 0)
    assert proposals.waiting == 10
    proposals.close("the test ends")
