"""Group snapshots on disk: what a donor says of itself, and a start that is killed at any operation
finds the old store or the new one, never a mixture."""

from random import Random
from typing import Any, cast

import pytest

from raftmq.broker.errors import StateError
from raftmq.broker.state_machine import BrokerApplication
from raftmq.broker.tables import snapshot
from raftmq.broker.tables import snapshot_install as broker_side
from raftmq.broker.tables.state import BrokerState, commit_offsets, put_topic
from raftmq.broker.tables.topics import TopicConfig
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.raft.snapshot_install import GroupSnapshot
from raftmq.dledger.snapshot import marker as snapshotmarker
from raftmq.dledger.storage.hard_state import HardStateFile
from raftmq.dledger.storage.log_storage import RaftLog
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.store.config import StoreConfig
from raftmq.store.errors import QueuesLost, StoreDamaged
from raftmq.store.message_store import MessageStore
from tests.dledger.trims import trimmed
from tests.present import present
from tests.simulator.cluster.repairbreaks import marker_goes_first, marker_goes_too_early
from tests.simulator.disk import SimCrash, SimDisk
from tests.store.make import FrameWriter, record

CONFIG = StoreConfig(segment_size_bytes=4096, entries_per_file=8, index_enable=True)
RAFT = "raft"


class Replica:
    """A store, its tables and its log over a disk, opened as a broker's start does."""

    def __init__(self, disk):
        self.disk = disk
        self.installed_index = broker_side.prepare(disk, CONFIG, RAFT)
        self.state = BrokerState()
        self.store = MessageStore(disk, CONFIG)
        self.store.open()
        self.covered = snapshot.load(disk, self.state)
        self.log = RaftLog(self.store.commitlog, SlotFile(disk, f"{RAFT}/trim"))
        self.log.open()
        self.recovering = False
        self.application = BrokerApplication(
            self.state,
            cast(Any, Sends()),
            self.store.derived,
            log_index=lambda: self.log.index,
            on_entries=lambda _: None,
            on_topics=lambda _: None,
            on_role=lambda _: None,
            recovering=lambda: self.recovering,
            installed_index=self.installed_index,
        )
        self.applied = self.application.applied_index
        self.apply()

    def apply(self):
        while self.applied < self.log.last_index:
            frames = self.log.frames(self.applied + 1, self.log.last_index)
            self.application.apply(frames)
            self.applied = frames[-1].index

    def append(self, frames):
        for frame in frames:
            self.log.append((frame,))
        self.sync()
        self.apply()

    def sync(self):
        ticket = self.log.start_sync()
        if ticket is not None:
            ticket.run()
            self.log.finish_sync(ticket)

    def flush(self):
        self.store.flush()
        snapshot.write(self.disk, snapshot.capture(self.state))

    def queues(self):
        """Of each queue where it begins and ends, and what it points at."""
        return {
            (q.topic, q.queue_id): (
                q.min_offset,
                q.max_offset,
                q.entries(q.min_offset, q.max_offset - q.min_offset),
            )
            for q in self.store.queues.queues()
        }

    def tables(self):
        state = self.state
        return [table.to_json() for table in (state.topics, state.groups, state.offsets)]

    def snapshot(self):
        captured = present(broker_side.capture(self.state, self.store))
        index = self.log.index
        return GroupSnapshot(
            index.first_index,
            index.previous_term,
            self.store.commitlog.min_offset,
            captured.applied_index,
            CONFIG.segment_size_bytes,
            b"",
            captured.encode(),
        )


class Sends:
    """Nobody sends."""

    stamp_ms = 0

    def applied(self, frame):
        return None

    def topic_changed(self, name):
        pass


def records(count, **of):
    return [record(body=b"x" * 200, **of) for _ in range(count)]


def written(replica, term, commands, batches):
    """Appends frames as a leader does, the records of each batch in one."""
    writer = FrameWriter(replica.store.commitlog, term)
    writer.offsets = {key: end for key, (_, end, _) in replica.queues().items()}
    writer.index = replica.log.last_index
    frames = []
    for payload in commands:
        frames.append(writer.command(payload))
        replica.log.index.append(frames[-1])
    for batch in batches:
        frames.append(writer.messages(batch))
        replica.log.index.append(frames[-1])
    replica.log._cache_first = replica.log.last_index + 1  # written past it
    replica.sync()
    replica.apply()
    return frames


@pytest.fixture
def donor():
    """Its beginning is gone; of queues A/0 and B/1 all that was in them."""
    replica = Replica(SimDisk(Random(1)))
    batches = [records(8, topic="A"), records(3, topic="B", queue_id=1), records(5)]
    batches += [records(6) for _ in range(4)]
    written(replica, 1, [put_topic(TopicConfig("T", 4, 4))], batches)
    written(replica, 2, [commit_offsets([("T", "g", 0, 7)])], [records(6) for _ in range(6)])
    replica.flush()
    trimmed(replica.log, replica.store.commitlog.segments()[-3].start)
    replica.store.derived.correct_min_offset()
    written(replica, 2, [commit_offsets([("T", "g", 0, 9)])], [records(2, topic="C")])
    assert replica.log.index.first_index > 5
    queues = replica.queues()
    assert queues["A", 0] == (8, 8, b"") and queues["B", 1] == (3, 3, b"")
    return replica


def stranded(seed):
    """A replica that stopped early, with a vote and an index of its own."""
    disk = SimDisk(Random(seed))
    votes = HardStateFile(disk, f"{RAFT}/hardstate")
    votes.load()
    votes.save(HardState(9, "n2"))
    replica = Replica(disk)
    written(replica, 1, [put_topic(TopicConfig("Old", 1, 1))], [records(4, topic="Old")] * 3)
    replica.flush()
    return replica


def frames_of(replica):
    index = replica.log.index
    frames: list[Any] = []
    while index.first_index + len(frames) <= index.last_index:
        frames += replica.log.frames(index.first_index + len(frames), index.last_index)
    return frames


def assert_refilled(replica, donor):
    assert replica.log.index.first_index == donor.log.index.first_index
    have = replica.log.last_index - donor.log.index.first_index + 1
    replica.append(frames_of(donor)[have:])
    assert replica.queues() == donor.queues()
    assert replica.tables() == donor.tables()
    assert frames_of(replica) == frames_of(donor)
    assert replica.log.index.previous_term == donor.log.index.previous_term > 0
    ends = [(s.start, s.end) for s in replica.store.commitlog.segments()]
    assert ends == [(s.start, s.end) for s in donor.store.commitlog.segments()]


def test_empty_replica_installs_the_donors_snapshot(donor):
    disk = SimDisk(Random(2))
    snapshotmarker.note(disk, RAFT, donor.snapshot().encode())
    replica = Replica(disk)
    assert replica.log.last_index == donor.log.index.first_index - 1
    assert replica.queues()["A", 0] == (8, 8, b"")  # the last unit of a file
    assert replica.tables() == donor.tables()  # ahead of the log, and not believed to be wrong
    assert_refilled(replica, donor)
    replica.flush()
    disk.kill_process()
    assert_refilled(Replica(disk), donor)


def test_empty_queue_continues_at_its_offset_after_a_snapshot_install(donor):
    disk = SimDisk(Random(2))
    snapshotmarker.note(disk, RAFT, donor.snapshot().encode())
    for _ in range(2):  # also when it is started once more before that
        disk.lose_power()
        replica = Replica(disk)
    replica.append(frames_of(donor))
    more = [records(1, topic="A"), records(1, topic="B", queue_id=1), records(1)]
    replica.append(written(donor, 3, [], more))
    assert replica.queues() == donor.queues()
    assert replica.queues()["A", 0][:2] == (8, 9)
    assert replica.queues()["B", 1][:2] == (3, 4)


@pytest.mark.parametrize("power", [False, True])
def test_install_killed_at_any_operation_leaves_the_old_or_the_new_store(donor, power):
    data = donor.snapshot().encode()
    operations, outcomes = 0, set()
    while True:
        operations += 1
        replica = stranded(operations)
        disk, before = replica.disk, (replica.tables(), replica.queues(), frames_of(replica))
        disk.crash_after(operations)
        done = False
        try:
            snapshotmarker.note(disk, RAFT, data)
            Replica(disk)
            done = True
        except SimCrash:
            pass
        disk.lose_power() if power else disk.kill_process()
        replica = Replica(disk)
        assert not snapshotmarker.pending(disk, RAFT)
        votes = HardStateFile(disk, f"{RAFT}/hardstate")
        assert votes.load() == HardState(9, "n2")
        if replica.log.index.first_index == 1:
            assert (replica.tables(), replica.queues(), frames_of(replica)) == before
            outcomes.add("old")
        else:
            assert_refilled(replica, donor)
            outcomes.add("new")
        if done:
            break
    assert operations > 60 and outcomes == {"old", "new"}


def test_corrupt_install_marker_empties_the_store_and_loses_promises(donor):
    replica = stranded(3)
    disk = replica.disk
    snapshotmarker.note(disk, RAFT, donor.snapshot().encode())
    disk.kill_process()
    disk.rot(f"{RAFT}/installation", 100)
    for operations in range(1, 200):
        disk.crash_after(operations)
        try:
            replica = Replica(disk)
        except SimCrash:
            disk.lose_power()
            continue
        break
    assert not snapshotmarker.pending(disk, RAFT)
    assert replica.log.last_index == 0 and replica.queues() == {}
    assert replica.tables() == Replica(SimDisk(Random(1))).tables()
    assert HardStateFile(disk, f"{RAFT}/hardstate").load() == HardState(9, "n2", recovered=False)


def test_tables_ahead_of_the_log_without_an_install_are_rejected(donor):
    disk = SimDisk(Random(2))
    snapshotmarker.note(disk, RAFT, donor.snapshot().encode())
    Replica(disk)
    disk.kill_process()
    disk.remove(f"{RAFT}/installed")
    with pytest.raises(StateError, match="the log lost its tail"):
        Replica(disk)


def test_snapshot_is_not_captured_before_queue_starts_are_known(donor):
    assert broker_side.capture(donor.state, donor.store) is not None
    ticket = donor.store.queues.start_flush()
    trimmed(donor.log, donor.store.commitlog.segments()[-1].start)
    donor.store.derived.correct_min_offset()  # left for later
    assert broker_side.capture(donor.state, donor.store) is None
    donor.store.queues.finish_flush(ticket, synced=False)
    donor.store.derived.correct_min_offset()
    captured = present(broker_side.capture(donor.state, donor.store))
    assert ("T", 0, donor.queues()["T", 0][0]) in captured.queues
    donor.store.queues.damaged["T", 0] = "says the test"
    assert broker_side.capture(donor.state, donor.store) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"tables":{},"queues":[]}'])
def test_malformed_snapshot_state_is_rejected(data):
    with pytest.raises(StateError):
        broker_side.decode_state(data)


@pytest.mark.parametrize("plant", [marker_goes_first, marker_goes_too_early])
def test_install_marker_removed_too_early_is_detected(donor, plant):
    with plant(), pytest.raises((AssertionError, StoreDamaged, QueuesLost)):
        test_install_killed_at_any_operation_leaves_the_old_or_the_new_store(donor, False)
