import errno

import pytest

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import DiskMark, DiskUsage, OsDisk
from raftmq.store.get_message import GetStatus
from raftmq.store.record import decode_record
from raftmq.store.retention import (
    CLOCK_JUMP_MS,
    HOUR_MS,
    LogClock,
    LogNow,
    RetentionPolicy,
    SegmentAge,
    expired_before,
)
from tests.store.make import (
    recover,
)
from tests.store.stores import SEGMENT, fill, raft_store

NOW = 1000 * HOUR_MS
GIB = 1 << 30


def segments(*ages_hours: float) -> list[SegmentAge]:
    return [
        SegmentAge(100 * (n + 5), 100 * (n + 6), int(NOW - age * HOUR_MS))
        for n, age in enumerate(ages_hours)
    ]


def decide(
    ages: list[SegmentAge],
    hour: int = 4,
    percent: int = 50,
    limit: int = 10**9,
    *,
    forced: bool = False,
    usage: DiskUsage | None = None,
) -> int:
    return expired_before(
        ages,
        RetentionPolicy(72, segments_at_once_max=3, forced=forced),
        now=LogNow(NOW, NOW),
        hour=hour,
        usage=usage or DiskUsage(percent, 100 - percent),
        limit=limit,
    )


@pytest.mark.parametrize(
    ("ages", "hour", "percent", "limit", "expected"),
    [
        ((100, 90, 10, 1), 4, 50, 10**9, 700),  # two are old
        ((100, 90, 10, 1), 5, 50, 10**9, 500),  # not the hour
        ((100, 90, 10, 1), 5, 75, 10**9, 700),  # filling up: any hour, but only the old
        ((100, 90, 10, 1), 5, 100, 10**9, 700),  # full: no other
        ((1, 1, 1, 1), 4, 100, 10**9, 500),
        ((100, 90, 80, 70), 4, 50, 10**9, 800),  # never the last
        ((100,), 4, 99, 10**9, 500),
        ((72, 1), 4, 50, 10**9, 500),  # not older than 72 hours
        ((72.01, 1), 4, 50, 10**9, 600),
        ((100, 10, 100, 1), 4, 50, 10**9, 600),  # stops at the first young one
        ((100, 90, 80, 1), 4, 50, 699, 600),  # reaches beyond the limit
        ((100, 90, 80, 1), 4, 90, 700, 700),
        ((90,) * 9, 4, 50, 10**9, 800),  # three at once
    ],
)
def test_retention_decision_by_age_hour_and_disk_usage(
    ages: tuple[float, ...], hour: int, percent: int, limit: int, expected: int
) -> None:
    assert decide(segments(*ages), hour, percent, limit) == expected


def test_retention_of_an_empty_log() -> None:
    assert decide([]) == 0


@pytest.mark.parametrize("percent", range(80, 101))
@pytest.mark.parametrize("forced", [False, True])
def test_unexpired_segments_are_deleted_only_if_forced(percent: int, forced: bool) -> None:
    young = segments(1, 1, 1, 1)
    expected = 800 if forced and percent >= 85 else 500
    assert decide(young, 5, percent, forced=forced) == expected


@pytest.mark.parametrize(
    ("size", "free", "percent", "floor", "reached"),
    [
        (1000, 140, 85, 24, False),  # 86 percent are used, but there is room
        (1000, 24, 85, 24, False),
        (1000, 23, 85, 24, True),
        (1000, 140, 85, 0, True),  # the percentage alone
        (100, 20, 85, 24, False),  # little is free, but the disk is small
        (100, 15, 85, 24, True),
    ],
)
def test_disk_mark_is_reached_by_percentage_and_free_bytes(
    size: int, free: int, percent: int, floor: int, reached: bool
) -> None:
    usage = DiskUsage((size - free) * GIB, free * GIB)
    assert DiskMark(percent, floor * GIB).is_reached(usage) is reached


@pytest.mark.parametrize(
    ("free", "floor", "room"), [(30, 0, 20), (10, 0, 0), (5, 0, 0), (30, 4, 26), (30, 16, 20)]
)
def test_space_before_a_disk_mark(free: int, floor: int, room: int) -> None:
    usage = DiskUsage((100 - free) * GIB, free * GIB)
    assert DiskMark(90, floor * GIB).capacity_bytes(usage) == room * GIB
    full = DiskUsage((100 - free + room) * GIB + 1, (free - room) * GIB - 1)
    assert DiskMark(90, floor * GIB).is_reached(full)


S, HOUR, DAY = 1000, HOUR_MS, 24 * HOUR_MS
YEAR = 365 * DAY
ALIVE = 1_700_000_000_000  # noted when the store was last open
WALL = ALIVE + 60 * S  # the true time of the start
BOOT = 5_000


@pytest.mark.parametrize(
    "rounds",
    [
        # Each: ms since the start, by how much the wall clock is off then, its lead over the log.
        [(0, 0, 0), (YEAR, 0, 0)],
        [(0, CLOCK_JUMP_MS - 60 * S, 0), (10 * S, -CLOCK_JUMP_MS - 60 * S, 0)],  # in the bound
        [(0, YEAR, YEAR + 60 * S), (YEAR, YEAR, YEAR + 60 * S)],  # ahead at the start, for good
        [(0, -YEAR, 60 * S - YEAR), (YEAR, -YEAR, 60 * S - YEAR)],  # behind
        [(0, YEAR, YEAR + 60 * S), (HOUR, 0, 0), (DAY, 0, 0)],  # put right
        [(0, -YEAR, 60 * S - YEAR), (HOUR, 0, 0)],
        [(0, 0, 0), (HOUR, YEAR, YEAR + 60 * S), (2 * HOUR, 0, 0)],  # a jump while it runs
        [(0, 0, 0), (HOUR, -YEAR, 60 * S - YEAR), (2 * HOUR, 0, 0)],
        [  # small steps add up
            (0, 0, 0),
            (10 * S, 100 * S, 0),
            (20 * S, 200 * S, 0),
            (30 * S, 300 * S, 360 * S),
        ],
    ],
)
def test_wall_clock_is_compared_with_the_logs_own_time(rounds: list[tuple[int, int, int]]) -> None:
    clock = LogClock(BOOT, ALIVE)
    for elapsed, off, lead in rounds:
        now = clock.compare(WALL + elapsed + off, BOOT + elapsed)
        assert now.lead_ms == lead
        assert now.age_ms(ALIVE) <= elapsed + CLOCK_JUMP_MS  # as old as it is, whatever the clock


def test_segment_stored_under_a_doubted_clock_ages_by_that_clock() -> None:
    clock = LogClock(BOOT, ALIVE)
    clock.compare(WALL + YEAR, BOOT)
    now = clock.compare(WALL + YEAR + HOUR, BOOT + HOUR)
    assert now.age_ms(WALL + YEAR) == HOUR
    assert now.age_ms(ALIVE - DAY) == HOUR + DAY


def test_clock_doubt_survives_a_restart() -> None:
    clock = LogClock(BOOT, ALIVE)
    clock.compare(WALL + YEAR, BOOT)
    noted = clock.compare(WALL + YEAR + HOUR, BOOT + HOUR)
    again = LogClock(0, noted.own_ms, noted.since_ms)
    now = again.compare(WALL + YEAR + 2 * HOUR, 0)
    assert now.age_ms(ALIVE) == HOUR  # the hour in which it was off is none
    assert now.age_ms(WALL + YEAR) == 2 * HOUR


@pytest.mark.parametrize("by", ["operator", "nothing is left from before"])
def test_clock_doubt_ends(by: str) -> None:
    clock = LogClock(BOOT, ALIVE)
    wall = WALL + YEAR
    since = clock.compare(wall, BOOT).since_ms
    if by == "operator":
        clock.trust(wall, BOOT)
    else:
        assert clock.compare(wall, BOOT, since - 1).lead_ms
    assert clock.compare(wall, BOOT, since) == LogNow(wall, wall)
    assert clock.compare(wall + DAY, BOOT + DAY) == LogNow(wall + DAY, wall + DAY)


EMPTY = DiskUsage(0, 100)


@pytest.mark.parametrize("damage", ["header", "unreadable"])
def test_damaged_frame_does_not_stop_retention(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    policy = RetentionPolicy(reserved_hours=1, delete_when=frozenset({4}))
    store = raft_store(disk)
    fill(store, 40)
    store.flush()
    later, last = 100 * HOUR_MS, store.commitlog.segments()[-1]
    assert store.expiry.expired(policy, LogNow(later, later), EMPTY, 4).before == last.start
    spoilt = store.commitlog.segments()[1]
    if damage == "header":
        file = disk.open(spoilt.path)
        file.pwrite(20, bytes([file.pread(20, 1)[0] ^ 1]))
        file.close()
    else:
        read = CommitLog.read

        def fail(log: CommitLog, offset: int, size: int) -> bytes:
            if offset == spoilt.start:
                raise OSError(errno.EIO, "cannot read, says the test")
            return read(log, offset, size)

        monkeypatch.setattr(CommitLog, "read", fail)
    assert (
        store.expiry.expired(policy, LogNow(later, later), DiskUsage(90, 10), 3).before
        == last.start
    )
    assert store.expiry.expired(policy, LogNow(later, later), EMPTY, 4).before == last.start
    young = HOUR_MS + 1_500  # only the first frames are older
    assert store.expiry.expired(policy, LogNow(young, young), EMPTY, 4).before == 0


def test_expired_segments_and_their_queue_entries_are_deleted(disk: OsDisk) -> None:
    policy = RetentionPolicy(reserved_hours=1, delete_when=frozenset({4}))
    store = raft_store(disk)
    assert store.expiry.expired(policy, LogNow(0, 0), EMPTY, 4).before == 0
    fill(store, 40)
    later = 100 * HOUR_MS
    segments = store.commitlog.segments()
    assert len(segments) > 3
    assert (
        store.expiry.expired(policy, LogNow(later, later), EMPTY, 4).before == 0
    )  # nothing is confirmed durable yet
    store.flush()
    assert store.expiry.expired(policy, LogNow(later, later), EMPTY, 3).before == 0
    assert (
        store.expiry.expired(policy, LogNow(later, later), DiskUsage(90, 10), 3).before
        == segments[-1].start
    )
    young = HOUR_MS + 15_000  # frames 0..14 are older than an hour
    offset = store.expiry.expired(policy, LogNow(young, young), EMPTY, 4).before
    assert 0 < offset < segments[-1].start
    assert store.delete_before(offset) == offset // SEGMENT
    result = store.reads.get_messages("T", 0, 0, 32, 9999)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == result.min_offset > 0
    messages = store.reads.get_messages("T", 0, result.min_offset, 1, 9999)
    assert messages.status is GetStatus.FOUND
    assert decode_record(messages.buffers[0]).physical_offset >= offset
    assert (
        store.reads.earliest_store_time("T", 0)
        == decode_record(messages.buffers[0]).store_timestamp_ms
    )
    assert store.expiry.log_start_time() >= 1000
    assert store.reads.message_at(60) is None
    with pytest.raises(AssertionError):
        store.delete_before(1 << 40)
    store.close()
    store = raft_store(disk)
    recover(store)
    queue = store.queues.queue("T", 0)
    assert queue is not None
    assert queue.min_offset == result.min_offset
