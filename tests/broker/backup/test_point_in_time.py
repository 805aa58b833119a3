"""Which frame was the last one at a moment, with clocks that were wrong for a while."""

import re
from types import SimpleNamespace

import pytest

from raftmq.broker.backup.manifest import BackupError
from raftmq.broker.backup.point_in_time import last_by
from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.record import encode_record
from tests.store.make import record

HOUR_MS = 3_600_000
NOON_MS = 1_700_000_000_000
HOST, OTHER, THIRD = ("10.0.0.1", 5001), ("10.0.0.2", 5002), ("10.0.0.3", 5003)


def frames(*stamped):
    """A frame a second: its stamp (None: as it was), and its messages' births, each one's or with
    the host that it comes from; None: it has no message."""
    made, position, stamp = [], 0, 0
    for index, (at, *births) in enumerate(stamped, 1):
        stamp = max(stamp, at)  # as brokers stamp
        born = [one if isinstance(one, tuple) else (one, HOST) for one in births if one is not None]
        payload = b"".join(
            encode_record(record(body=b"x", born_timestamp_ms=ms, born_host=host))
            for ms, host in born
        )
        kind = FrameKind.MESSAGES if born else FrameKind.NOOP
        made.append(seal_frame(index, 1, position, stamp, kind, len(born), payload))
        position = made[-1].end
    return made


def manifest(taken_ms, *states):
    return SimpleNamespace(
        first_index=1,
        taken_ms=taken_ms,
        states=[SimpleNamespace(index=index, time_ms=time_ms) for index, time_ms in states],
    )


def at(second):
    return NOON_MS + second * 1_000


RIGHT = [(at(second), at(second) - 5) for second in range(60)]
# Ahead by an hour in its tenth second, and right again.
AHEAD = [(at(s) + HOUR_MS * (s == 10), at(s) - 5) for s in range(60)]


@pytest.mark.parametrize("second", [0, 9, 30, 58])
def test_point_in_time_is_found_with_correct_clocks(second):
    moment = last_by(frames(*RIGHT), manifest(at(70), (60, at(70))), at(second))
    assert (moment.index, moment.next_ms) == (second + 1, at(second + 1))


def test_point_in_time_after_the_last_frame_includes_every_frame():
    moment = last_by(frames(*RIGHT), manifest(at(70), (60, at(70))), at(80))
    assert (moment.index, moment.next_ms) == (60, None)


@pytest.mark.parametrize("seconds", [1, 5])
@pytest.mark.parametrize("taken", [at(70), at(0) + 2 * HOUR_MS], ids=["soon", "afterwards"])
def test_point_in_time_detects_a_clock_that_was_briefly_ahead(taken, seconds):
    """Else all that came in the hour behind it would be left out in silence."""
    there = frames(*((at(s) + HOUR_MS * (10 <= s < 10 + seconds), at(s) - 5) for s in range(60)))
    assert last_by(there, manifest(taken), at(9)).index == 10
    with pytest.raises(BackupError) as refused:
        last_by(there, manifest(taken), at(40))
    assert re.findall(r"--to-index (\d+)", str(refused.value)) == ["10", "41"]


def test_point_in_time_detects_a_clock_that_was_set_back():
    """Else what was sent in the hour after the moment would be restored with it, in silence."""
    minutes = range(0, 90 * 60, 60)
    there = frames(*((at(s) - HOUR_MS * (600 <= s < 4_200), at(s) - 5) for s in minutes))
    for minute in (5, 8, 80):
        assert last_by(there, manifest(at(9_000)), at(60 * minute)).index == minute + 1
    with pytest.raises(BackupError, match="a clock that was behind") as refused:
        last_by(there, manifest(at(9_000)), at(20 * 60))
    assert re.findall(r"--to-index (\d+)", str(refused.value)) == ["21", "70"]


@pytest.mark.parametrize("skew_ms", [2 * HOUR_MS, -24 * HOUR_MS])
def test_point_in_time_detects_a_wrong_stamp_beside_a_wrong_producer_clock(skew_ms):
    """Nor does it where it sends alone, or in the same frames as others."""

    def births(second):
        yield at(second) - 5
        if second % 5 == 1:
            yield at(second) + skew_ms, OTHER

    there = frames(*((at(s) + HOUR_MS * (20 <= s < 25), *births(s)) for s in range(90)))
    assert last_by(there, manifest(at(2 * 3_600)), at(19)).index == 20
    with pytest.raises(BackupError, match="a clock that was ahead"):
        last_by(there, manifest(at(2 * 3_600)), at(60))
    minutes = range(0, 90 * 60, 60)
    there = frames(
        *(
            (at(s) - HOUR_MS * (600 <= s < 4_200), at(s) - 5, (at(s) + skew_ms, OTHER))
            for s in minutes
        )
    )
    with pytest.raises(BackupError, match="a clock that was behind"):
        last_by(there, manifest(at(9_000)), at(20 * 60))
    alone = frames(
        *((at(s) + HOUR_MS * (20 <= s < 25), (at(s) + skew_ms, OTHER)) for s in range(90))
    )
    with pytest.raises(BackupError, match="a clock that was ahead"):
        last_by(alone, manifest(at(2 * 3_600)), at(60))


def test_point_in_time_detects_a_clock_ahead_across_client_reconnects():
    """After a failover each connection has another port."""

    def host(second):
        return ("10.0.0.1", 5_000 + (second >= 20))

    there = frames(*((at(s) + HOUR_MS * (20 <= s < 25), (at(s) - 5, host(s))) for s in range(90)))
    with pytest.raises(BackupError, match="a clock that was ahead"):
        last_by(there, manifest(at(2 * 3_600)), at(60))


NIGHT = 60 + 3_600  # seconds; nothing was sent since the last second of RIGHT
MORNING = [(at(NIGHT + second), at(NIGHT + second) - 5) for second in range(5)]


@pytest.mark.parametrize("skew_ms", [HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("first", ["delayed", "births that are none", "of a wrong clock"])
def test_point_in_time_accepts_an_idle_period(first, skew_ms):
    """Whatever comes behind it, in however many frames of one millisecond."""
    before = ((at(s), at(s) - 5, (at(s) + skew_ms, THIRD)) for s in range(60))
    births = {
        "delayed": [at(10), at(11), at(12)],
        "births that are none": [0, 0, 0],
        "of a wrong clock": [(at(NIGHT) + skew_ms + n, THIRD) for n in (1, 2, 3)],
    }
    there = frames(*before, *((at(NIGHT), born) for born in births[first]), *MORNING)
    taken = manifest(at(NIGHT + 100))
    for second in (59, 61, 1_800, NIGHT - 1):
        assert last_by(there, taken, at(second)).index == 60
    assert last_by(there, taken, at(NIGHT)).index == 64


def test_point_in_time_accepts_a_backward_step_of_milliseconds():
    there = frames(
        *RIGHT,
        (at(60), at(60)),
        (at(60) - 20, (at(60) + HOUR_MS, OTHER)),
        (at(60) - 10, (at(60) + HOUR_MS + 10, OTHER)),
        (at(62), at(62)),
    )
    assert last_by(there, manifest(at(70)), at(61)).index == 63


def test_point_in_time_prefers_earlier_tables_to_frame_stamps():
    """Nothing but commands, whose producers have no clock."""
    there = frames(*((stamp, None) for stamp, _ in AHEAD))
    taken = at(0) + 2 * HOUR_MS
    assert last_by(there, manifest(taken), at(200)).index == 10
    with pytest.raises(BackupError, match="--to-index 10 "):
        last_by(there, manifest(taken, (60, at(70))), at(200))


def test_point_in_time_accepts_delayed_messages():
    late = [*RIGHT, (at(3_000), at(2)), (at(3_001), at(3_001))]
    moment = last_by(frames(*late), manifest(at(4_000)), at(100))
    assert (moment.index, moment.next_ms) == (60, at(3_000))


def test_point_in_time_accepts_a_producer_clock_that_is_ahead():
    theirs = [(stamp, born + HOUR_MS) for stamp, born in RIGHT]
    assert last_by(frames(*theirs), manifest(at(70)), at(30)).index == 31
