"""Which frame was the last one at a moment, with clocks that were wrong for a while."""

import re
from types import SimpleNamespace

import pytest

from raftmq.broker.backup.manifest import BackupError
from raftmq.broker.backup.moment import last_by
from raftmq.store.frame import FrameKind, seal_frame
from raftmq.store.record import encode_record
from tests.store.make import record

HOUR_MS = 3_600_000
NOON_MS = 1_700_000_000_000


def frames(*stamped):
    """A frame a second: its stamp (None: as it was), of a message unless `born` is None."""
    made, position, stamp = [], 0, 0
    for index, (at, born) in enumerate(stamped, 1):
        stamp = max(stamp, at)  # as brokers stamp
        payload = b"" if born is None else encode_record(record(body=b"x", born_timestamp_ms=born))
        kind = FrameKind.NOOP if born is None else FrameKind.MESSAGES
        count = 0 if born is None else 1
        made.append(seal_frame(index, 1, position, stamp, kind, count, payload))
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
def test_right_clocks_say_it(second):
    moment = last_by(frames(*RIGHT), manifest(at(70), (60, at(70))), at(second))
    assert (moment.index, moment.next_ms) == (second + 1, at(second + 1))


def test_nothing_is_left_out_at_the_end():
    moment = last_by(frames(*RIGHT), manifest(at(70), (60, at(70))), at(80))
    assert (moment.index, moment.next_ms) == (60, None)


@pytest.mark.parametrize("seconds", [1, 5])
@pytest.mark.parametrize("taken", [at(70), at(0) + 2 * HOUR_MS], ids=["soon", "afterwards"])
def test_a_clock_that_was_ahead_for_a_moment_is_found(taken, seconds):
    """Else all that came in the hour behind it would be left out in silence."""
    there = frames(*((at(s) + HOUR_MS * (10 <= s < 10 + seconds), at(s) - 5) for s in range(60)))
    assert last_by(there, manifest(taken), at(9)).index == 10
    with pytest.raises(BackupError) as refused:
        last_by(there, manifest(taken), at(40))
    assert re.findall(r"--to-index (\d+)", str(refused.value)) == ["10", "41"]


def test_a_clock_that_was_set_back_is_found():
    """Else what was sent in the hour after the moment would be restored with it, in silence."""
    minutes = range(0, 90 * 60, 60)
    there = frames(*((at(s) - HOUR_MS * (600 <= s < 4_200), at(s) - 5) for s in minutes))
    for minute in (5, 8, 80):
        assert last_by(there, manifest(at(9_000)), at(60 * minute)).index == minute + 1
    with pytest.raises(BackupError, match="a clock that was behind") as refused:
        last_by(there, manifest(at(9_000)), at(20 * 60))
    assert re.findall(r"--to-index (\d+)", str(refused.value)) == ["22", "70"]


def test_tables_that_were_there_before_are_believed_more_than_stamps():
    """Nothing but commands, whose producers have no clock."""
    there = frames(*((stamp, None) for stamp, _ in AHEAD))
    taken = at(0) + 2 * HOUR_MS
    assert last_by(there, manifest(taken), at(200)).index == 10
    with pytest.raises(BackupError, match="--to-index 10 "):
        last_by(there, manifest(taken, (60, at(70))), at(200))


def test_a_message_that_was_delayed_is_no_sign_of_a_wrong_clock():
    late = [*RIGHT, (at(3_000), at(2)), (at(3_001), at(3_001))]
    moment = last_by(frames(*late), manifest(at(4_000)), at(100))
    assert (moment.index, moment.next_ms) == (60, at(3_000))


def test_a_producer_whose_clock_is_ahead_is_no_sign_of_a_wrong_stamp():
    theirs = [(stamp, born + HOUR_MS) for stamp, born in RIGHT]
    assert last_by(frames(*theirs), manifest(at(70)), at(30)).index == 31
