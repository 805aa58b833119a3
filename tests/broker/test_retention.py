"""Retention by clocks and disks that are not as they should be, over a real store."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.broker.checkpointer import (
    FOR_BACKUP,
    FOR_DELIVERY,
    FOR_OTHERS,
    FOR_SNAPSHOTS,
    ClassicKeeper,
    RaftKeeper,
)
from raftmq.broker.config import BrokerConfig
from raftmq.broker.durations import DURATIONS
from raftmq.broker.retention import Retained, Retention, Unexpired
from raftmq.broker.scheduler import IDLE_MS
from raftmq.broker.tables.offsets import OffsetTable
from raftmq.broker.tables.state import BrokerState
from raftmq.store.config import StoreConfig, StoreMode
from raftmq.store.disk import DiskUsage, OsDisk
from raftmq.store.message_store import MessageStore
from raftmq.store.retention import HOUR_MS, Expiry
from tests.store.make import append_classic, record

NOW = 1_700_000_000_000
MONTH = 30 * 24 * HOUR_MS
YEAR = 365 * 24 * HOUR_MS
HALF_FULL, FULL = DiskUsage(50, 50), DiskUsage(90, 10)


class Clocks:
    """Both in ms; the wall clock is off by `off`."""

    def __init__(self):
        self.now = 0
        self.off = 0

    def wall(self):
        return NOW + self.now + self.off

    def monotonic(self):
        return self.now


class Usage(OsDisk):
    """A disk that is as full as it is told to be."""

    space = HALF_FULL

    def usage(self):
        return self.space


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def disk(tmp_path):
    return Usage(str(tmp_path))


CONFIG = StoreConfig(mode=StoreMode.CLASSIC, segment_size_bytes=4096, entries_per_file=100)


def written(disk):
    """Return an open store of several segments, all written at NOW."""
    store = MessageStore(disk, CONFIG)
    store.open()
    append_classic(store, [record(body=bytes(500)) for _ in range(40)], now_ms=NOW)
    store.flush()
    assert len(store.commitlog.segments()) > 4
    return store


@pytest.fixture
def store(disk):
    store = written(disk)
    yield store
    store.close()


def retention_of(store, clocks, **settings):
    """Any hour is right for deleting."""
    settings = {"delete_when": ";".join(map(str, range(24))), **settings}
    return Retention(store, BrokerConfig(**settings), clocks.wall, clocks.monotonic)


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "raftmq.broker.retention"]


def test_clock_jump_of_a_month_expires_nothing(store, clocks, caplog):
    retention = retention_of(store, clocks)
    assert retention.expired().before == 0
    nothing = {"clockAheadOfLogMs": "0", "clockContradiction": "", "retentionDoubtedBytes": "0"}
    assert retention.info() == nothing
    clocks.off = MONTH
    for clocks.now in range(10_000, 48 * HOUR_MS, HOUR_MS):
        assert retention.expired().before == 0
    info = retention.info()
    assert info["clockAheadOfLogMs"] == str(MONTH)
    assert info["clockContradiction"].startswith("the clock is 30 d 0 h 0 min ahead of the time")
    assert int(info["retentionDoubtedBytes"]) == store.commitlog.segments()[-1].start
    assert warnings(caplog) == [
        "clock_doubted seconds=+2592000.000: messages from before do not age by it"
    ]
    # The log's own time passes all the same.
    clocks.now = 73 * HOUR_MS
    assert retention.expired().before == store.commitlog.segments()[-1].start


def test_operator_confirms_the_clock_for_retention(store, clocks):
    retention = retention_of(store, clocks)
    retention.poll()
    clocks.off = MONTH
    assert retention.expired().before == 0
    retention.trust_clock()
    assert retention.contradiction == ""
    assert retention.expired().before == store.commitlog.segments()[-1].start


def test_time_that_passes_on_both_clocks_expires_segments(store, clocks):
    retention = retention_of(store, clocks)
    retention.poll()
    clocks.now = MONTH
    assert retention.expired().before == store.commitlog.segments()[-1].start


def restarted(store, disk, clean=True):
    if clean:
        store.close()
    else:
        store.close_unclean()
    again = MessageStore(disk, CONFIG)
    again.open()
    return again


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize(
    ("off", "contradiction"),
    [
        (0, ""),
        (3 * HOUR_MS, ""),  # the store was off for the night, maybe
        (YEAR, "the clock is 365 d 0 h 0 min ahead"),
        (-YEAR, "the clock is 365 d 0 h 0 min behind"),
    ],
)
def test_start_with_a_wrong_clock_expires_nothing(disk, clocks, clean, noted, off, contradiction):
    """Messages were stored a moment ago, then the broker starts again, a year ahead, say."""
    store = written(disk)
    if noted:  # else by a version that noted no time
        retention_of(store, clocks).poll()
    store = restarted(store, disk, clean)
    clocks.now, clocks.off = 1000, off - 1000
    retention = retention_of(store, clocks)
    for clocks.now in range(1000, 72 * HOUR_MS, 12 * HOUR_MS):
        assert retention.expired(at_once=True).before == 0
    assert retention.contradiction.startswith(contradiction)
    assert bool(retention.contradiction) == bool(contradiction)
    assert bool(retention.clock_lead_ms) == bool(off)
    # And once more.
    retention.note()
    store = restarted(store, disk)
    again = retention_of(store, clocks)
    assert again.expired(at_once=True).before == 0
    store.close()


def test_nearly_full_disk_expires_nothing(store, disk, clocks):
    retention = retention_of(store, clocks)
    for percent in range(50, 101):
        disk.space = DiskUsage(percent, 100 - percent)
        assert retention.expired(at_once=True).before == 0


def test_forced_deletion_uses_no_clock(store, disk, clocks):
    retention = retention_of(store, clocks, clean_file_forcibly_enable=True)
    clocks.off = -MONTH
    assert retention.expired().before == 0
    disk.space = FULL
    assert retention.expired().before == store.commitlog.segments()[-1].start


@pytest.mark.parametrize("at_once", [False, True])
async def test_retention_reads_segment_ages_once_per_pass(
    store, disk, clocks, monkeypatch, at_once
):
    _, retention = aged(store, disk, clocks, HALF_FULL)
    keeper = keeper_of(store, disk, retention, Engine(store, []))
    checks, ages = [], Expiry._ages

    def counted(*args):
        checks.append(1)
        return ages(*args)

    monkeypatch.setattr(Expiry, "_ages", counted)
    await keeper.retain(at_once=at_once)
    assert len(checks) == 1


NOTHING: Any = None  # a part that the keeper does not use here


class Events:
    def __init__(self):
        self.told = []

    def publish(self, kind, detail):
        self.told.append((kind, detail))


class Engine:
    """Its log may go as far as it is asked to."""

    def __init__(self, store, refilled, agreed=1 << 40):
        self.store = store
        self.refilled = refilled
        self.agreed = agreed
        self.told = []
        self.log = self.index = self

    first_index = last_index = 1

    def end_of(self, index):
        return self.store.commitlog.max_offset

    def frame_is_damaged(self, position):
        return False

    def agree_expired(self, position):
        self.told.append(position)
        return min(position, self.agreed)

    async def delete_before(self, position):
        self.store.commitlog.delete_before(position)
        return self.store.commitlog.min_offset


def aged(store, disk, clocks, space, **settings):
    """Let a month pass by steady clocks; return where segments begin, and who decides."""
    retention = retention_of(store, clocks, **settings)
    retention.poll()
    clocks.now = MONTH
    disk.space = space
    return [segment.start for segment in store.commitlog.segments()], retention


def keeper_of(store, disk, retention, engine, needed_from=None, unexpired=None):
    context: Any = SimpleNamespace(
        config=BrokerConfig(),
        durations=DURATIONS,
        disk=disk,
        state=BrokerState(),
        store=store,
        log=SimpleNamespace(raft=engine),
    )
    return RaftKeeper(
        context,
        NOTHING,
        retention,
        unexpired or Unexpired(store.queues, OffsetTable(), cast(Any, Events())),
        covered_index=0,
        spare=lambda position: position,
        needed_from=lambda: needed_from,
    )


@pytest.mark.parametrize(
    ("refilled", "space", "kept"),
    [([], HALF_FULL, False), (["n1"], HALF_FULL, True), (["n1"], FULL, False)],
)
async def test_frames_for_a_snapshot_install_are_kept_unless_the_disk_is_full(
    store, disk, clocks, refilled, space, kept
):
    _, retention = aged(store, disk, clocks, space)
    engine = Engine(store, refilled)
    keeper = keeper_of(store, disk, retention, engine)
    keeper.fallback_index = 1
    retained = await keeper.retain()
    assert (store.commitlog.min_offset == 0) is kept
    assert ("n1" in retained.kept_for) is kept


class OneFrameASegment(Engine):
    """Its log has a frame in each segment, the first at index 1."""

    def __init__(self, store, refilled):
        super().__init__(store, refilled)
        self.last_index = len(store.commitlog.segments())

    def end_of(self, index):
        return self.store.commitlog.segments()[index - 1].end


@pytest.mark.parametrize(
    ("snapshots", "bak", "kept_from"), [(3, 2, 2), (3, 0, 0), (3, 3, 3), (99, 99, -1)]
)
@pytest.mark.parametrize("space", [HALF_FULL, FULL])
async def test_frames_without_a_snapshot_are_kept_on_any_disk(
    store, disk, clocks, space, snapshots, bak, kept_from
):
    """A replica that starts from .bak files has to apply all that came after them once more."""
    starts, retention = aged(store, disk, clocks, space)
    keeper = keeper_of(store, disk, retention, OneFrameASegment(store, []))
    keeper.covered_index, keeper.fallback_index = snapshots, bak
    retained = await keeper.retain()
    assert store.commitlog.min_offset == retained.deleted == starts[kept_from]
    assert retained.kept_for == (FOR_SNAPSHOTS if kept_from >= 0 else "")


@pytest.mark.parametrize(
    ("space", "forced", "kept_from"),
    [(HALF_FULL, True, 2), (FULL, False, 2), (FULL, True, -1)],
)
async def test_frames_not_expired_on_a_majority_are_kept_unless_forced(
    store, disk, clocks, space, forced, kept_from
):
    agreed = 2
    starts, retention = aged(store, disk, clocks, space, clean_file_forcibly_enable=forced)
    engine = Engine(store, [], starts[agreed])
    keeper = keeper_of(store, disk, retention, engine)
    keeper.fallback_index = 1
    retained = await keeper.retain()
    assert store.commitlog.min_offset == starts[kept_from]
    kept = starts[-1] - starts[kept_from]
    assert retained == Retained(starts[kept_from], kept, FOR_OTHERS if kept else "")


async def test_expiry_is_reported_to_peers_during_a_snapshot_install(store, disk, clocks):
    retention = retention_of(store, clocks)
    keeper = keeper_of(store, disk, retention, engine := Engine(store, ["n1"]))
    await keeper.retain()
    clocks.now = MONTH
    await keeper.retain()
    assert engine.told == [0, store.commitlog.segments()[-1].start]


async def test_forced_deletion_on_a_full_disk_is_not_reported_as_expiry(store, disk, clocks):
    retention = retention_of(store, clocks, clean_file_forcibly_enable=True)
    disk.space = FULL
    keeper = keeper_of(store, disk, retention, engine := Engine(store, []))
    keeper.fallback_index = 1
    for _ in range(2):
        await keeper.retain()
    assert store.commitlog.min_offset > 0
    assert engine.told == [0, 0]


@pytest.mark.parametrize(
    ("needed", "space", "kept_from"), [(2, HALF_FULL, 2), (None, HALF_FULL, -1), (2, FULL, -1)]
)
async def test_frames_for_a_backup_are_kept_unless_the_disk_is_full(
    store, disk, clocks, needed, space, kept_from
):
    starts, retention = aged(store, disk, clocks, space)
    engine = Engine(store, [])
    needed_from = None if needed is None else starts[needed]
    keeper = keeper_of(store, disk, retention, engine, needed_from)
    keeper.fallback_index = 1
    retained = await keeper.retain()
    assert store.commitlog.min_offset == retained.deleted == starts[kept_from]
    assert retained.kept_for == (FOR_BACKUP if kept_from >= 0 else "")


@pytest.mark.parametrize(
    ("role", "space", "kept_from"),
    [("SLAVE", HALF_FULL, 2), ("SLAVE", FULL, -1), ("ASYNC_MASTER", FULL, 2)],
)
async def test_frames_for_delivery_are_kept_except_on_a_full_classic_slave(
    store, disk, clocks, role, space, kept_from
):
    starts, retention = aged(store, disk, clocks, space)
    context: Any = SimpleNamespace(
        config=BrokerConfig(broker_role=role),
        store=store,
        log=SimpleNamespace(engine=Engine(store, [])),
    )
    keeper = ClassicKeeper(
        context,
        NOTHING,
        retention,
        Unexpired(store.queues, OffsetTable(), cast(Any, Events())),
        files=NOTHING,
        spare=lambda position: min(position, starts[2]),
    )
    retained = await keeper.retain()
    assert store.commitlog.min_offset == retained.deleted == starts[kept_from]
    assert retained.kept_for == (FOR_DELIVERY if kept_from >= 0 else "")


async def test_queues_follow_a_retention_during_a_flush(store, disk, clocks):
    retention = retention_of(store, clocks)
    keeper = keeper_of(store, disk, retention, Engine(store, []))
    flush = store.flushes.start()
    store.delete_before(store.commitlog.segments()[2].start)
    store.flushes.finish(flush, synced=False)
    assert store.queues.corrected_to < store.commitlog.min_offset
    (repair,) = (chore for chore in keeper.chores() if chore.name == "queue_repair")
    assert repair.rest_ms() == 0
    await keeper.repair_queues()
    assert repair.rest_ms() == IDLE_MS
    assert store.queues.corrected_to == store.commitlog.min_offset
    (queue,) = store.queues.queues()
    assert queue.entry(queue.min_offset)[0] == store.commitlog.min_offset


@pytest.mark.parametrize("mode", ["raft", "classic"])
@pytest.mark.parametrize("forced", [False, True])
async def test_early_deletion_is_counted(store, disk, clocks, caplog, mode, forced):
    """Of two groups one has consumed 30 messages, and one 5."""
    retention = retention_of(store, clocks, clean_file_forcibly_enable=forced)
    disk.space, table, events = FULL, OffsetTable(), Events()
    (queue,) = store.queues.queues()
    table.commit([(queue.topic, "fast", 0, 30), (queue.topic, "slow", 0, 5)])
    unexpired, engine = Unexpired(store.queues, table, cast(Any, events)), Engine(store, [])
    keeper = keeper_of(store, disk, retention, engine, unexpired=unexpired)
    keeper.fallback_index = 1
    if mode == "classic":
        context: Any = SimpleNamespace(
            config=BrokerConfig(), store=store, log=SimpleNamespace(engine=engine)
        )
        keeper = ClassicKeeper(
            context,
            NOTHING,
            retention,
            unexpired,
            files=NOTHING,
            spare=lambda position: position,
        )
    await keeper.retain()
    store.derived.correct_min_offset()
    gone = queue.min_offset
    if not forced:
        assert (gone, unexpired.messages, events.told) == (0, 0, [])
        return
    assert gone > 20
    size_bytes = store.commitlog.min_offset
    result = (unexpired.messages, unexpired.unconsumed, unexpired.size_bytes)
    assert result == (gone, gone - 5, size_bytes)
    detail = {
        "messages": gone,
        "bytes": size_bytes,
        "unconsumed": gone - 5,
        "topics": {queue.topic: gone - 5},
    }
    assert events.told == [("unexpiredDeleted", detail)]
    (said,) = warnings(caplog)
    assert said.startswith(f"unexpired_deleted messages={gone} bytes={size_bytes} unconsumed=")


async def test_expired_segments_are_no_early_deletion(store, disk, clocks):
    _, retention = aged(store, disk, clocks, FULL, clean_file_forcibly_enable=True)
    unexpired = Unexpired(store.queues, OffsetTable(), cast(Any, Events()))
    keeper = keeper_of(store, disk, retention, Engine(store, []), unexpired=unexpired)
    keeper.fallback_index = 1
    assert (await keeper.retain()).deleted
    assert unexpired.messages == 0
