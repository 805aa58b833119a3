"""When a disk counts as full, when as having room again, and when it will be full."""

import pytest

from raftmq.broker.disk_space import SAMPLE_MS, WARN_MS, DiskRoom, Forecast
from raftmq.store.disk import DiskMark, DiskUsage

GIB = 1 << 30


def disk(size_gib, free_gib):
    return DiskUsage(int((size_gib - free_gib) * GIB), int(free_gib * GIB))


@pytest.mark.parametrize(
    ("usage", "percent_max", "free_gib", "full"),
    [
        (disk(100, 50), 90, 16, False),
        (disk(100, 10), 90, 16, True),
        (disk(100, 10.5), 90, 16, True),  # 89.5 percent are 90, as df says
        (disk(100, 11), 90, 16, False),
        (disk(1000, 100), 90, 16, False),  # 90 percent, but 100 GiB are free
        (disk(1000, 16), 90, 16, False),
        (disk(1000, 15.9), 90, 16, True),
        (disk(1000, 100), 90, 0, True),  # the percentage alone
        (disk(10, 8), 90, 16, False),  # little is free, but the disk is small
        (disk(100, 0), 100, 16, True),
        (disk(100, 0.9), 100, 16, True),
        (disk(100, 1), 100, 16, False),
        (DiskUsage(0, 0), 90, 16, False),  # a file system that does not say
    ],
)
def test_disk_is_full_by_percentage_and_free_bytes(usage, percent_max, free_gib, full):
    room = DiskRoom()
    room.poll(usage, DiskMark(percent_max, free_gib * GIB))
    assert (room.full, room.short) == (full, full)
    assert room.percent == usage.used_percent


@pytest.mark.parametrize(
    ("size", "free_bytes_min", "steps"),
    [  # (GiB free, full, short of room) one after the other
        (100, 0, [(11, False, False), (10, True, True), (11, False, True), (15, False, True),
                  (10, True, True), (16, False, False), (11, False, False)]),
        (1000, 16, [(16, False, False), (15, True, True), (17, False, True), (19, False, True),
                    (20, False, False), (17, False, False), (15, True, True)]),
    ],
)  # fmt: skip
def test_disk_that_was_full_stays_short_until_well_below_the_limit(size, free_bytes_min, steps):
    room = DiskRoom()
    for free, full, short in steps:
        room.poll(disk(size, free), DiskMark(90, free_bytes_min * GIB))
        assert (free, room.full, room.short) == (free, full, short)


def test_raised_disk_limit_takes_effect_at_once():
    room = DiskRoom()
    room.poll(disk(100, 8), DiskMark(90, 16 * GIB))
    assert room.short
    room.poll(disk(100, 8), DiskMark(98, 16 * GIB))
    assert not room.full
    assert not room.short


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("rooms", "full_in_ms"),
    [  # the room in GiB, every 30 s
        ([100 - n for n in range(9)], None),  # a burst of four minutes
        ([100 - n for n in range(11)], 90 * SAMPLE_MS),
        ([100] * 60, None),
        ([100 + n for n in range(60)], None),  # retention
        ([100 - n // 10 for n in range(60)], 95 * SAMPLE_MS * 59 // 5),  # whole segments
        ([100] * 1000 + [100 - n for n in range(60)], 41 * SAMPLE_MS),  # it has just begun
        ([50 - n for n in range(51)], 0),
    ],
)
def test_disk_forecast_uses_the_rate_of_half_an_hour(rooms, full_in_ms):
    forecast = Forecast()
    for n, room in enumerate(rooms):
        for again in range(3):  # looks in between are no samples
            forecast.poll(room * GIB, n * SAMPLE_MS + again)
    assert forecast.full_in_ms == full_in_ms


@pytest.mark.parametrize(
    ("full_in_ms", "warning"),
    [
        (3 * HOUR_MS + 90_000, "the disk is full in 3 h 1 min at this rate"),
        (WARN_MS, ""),
        (None, ""),
    ],
)
def test_disk_forecast_warning_has_the_hours(monkeypatch, full_in_ms, warning):
    monkeypatch.setattr(Forecast, "full_in_ms", full_in_ms)
    assert Forecast().warning == warning
