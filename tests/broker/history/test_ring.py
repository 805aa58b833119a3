"""The ring of samples: its bound, what a start finds, and what a crash leaves."""

import pytest

from raftmq.broker.history.ring import DIRECTORY, LEFT_OUT_MAX, Ring
from raftmq.store.disk import OsDisk

BYTES_MAX = 2_000


def line(time_ms, size=100):
    head = b'{"t":%d,"x":"' % time_ms
    return head + b"x" * (size - len(head) - 3) + b'"}\n'


def times(ring):
    result, at = [], 1 << 60
    while (one := ring.latest(at)) is not None:
        result.append(one[0])
        at = one[0] - 1
    return result[::-1]


def test_history_ring_keeps_at_least_half_of_its_bytes(tmp_path):
    disk = OsDisk(str(tmp_path))
    ring = Ring(disk, BYTES_MAX)
    for n in range(1, 58):
        ring.append(n, line(n))
        kept = times(ring)
        assert kept == list(range(n + 1 - len(kept), n + 1))
        assert len(kept) >= min(n, 10)
        assert sum(path.stat().st_size for path in (tmp_path / DIRECTORY).iterdir()) <= BYTES_MAX
    ring.close()
    again = Ring(disk, BYTES_MAX)
    assert times(again) == kept
    again.append(58, line(58))
    assert times(again)[-2:] == [57, 58]


def test_history_ring_returns_the_last_line_up_to_a_time(tmp_path):
    ring = Ring(OsDisk(str(tmp_path)), BYTES_MAX)
    for n in (10, 20, 30):
        ring.append(n, line(n, 40 + n))
    assert ring.latest(9) is None
    assert ring.latest(10) == (10, line(10, 50)[:-1])
    assert ring.latest(29) == (20, line(20, 60)[:-1])
    assert ring.latest(99) == (30, line(30, 70)[:-1])


def test_history_ring_omits_lines_of_a_clock_set_back_and_long_lines(tmp_path):
    ring = Ring(OsDisk(str(tmp_path)), BYTES_MAX)
    for n in (10, 10, 9, 11):
        ring.append(n, line(n))
    ring.append(12, line(12, BYTES_MAX // 2 + 1))
    assert times(ring) == [10, 11]


@pytest.mark.parametrize("before, ahead", [(3, 1), (3, 15), (0, 1), (0, 60)])
@pytest.mark.parametrize("restarted", [False, True])
def test_history_ring_drops_lines_of_a_clock_that_was_ahead(tmp_path, before, ahead, restarted):
    disk = OsDisk(str(tmp_path))
    ring = Ring(disk, BYTES_MAX)
    for n in (*range(before), *range(10_000, 10_000 + ahead)):
        ring.append(n, line(n))
    if restarted:
        ring.close()
        ring = Ring(disk, BYTES_MAX)
    right = range(100, 105 + LEFT_OUT_MAX)
    kept = [n for n in times(ring) if n < 10_000]
    for n in right[:LEFT_OUT_MAX]:
        ring.append(n, line(n))
    assert times(ring)[-1] == 9_999 + ahead
    for n in right[LEFT_OUT_MAX:]:
        ring.append(n, line(n))
    expected = [*kept, *right[LEFT_OUT_MAX:]]
    assert times(ring) == expected
    ring.close()
    assert times(Ring(disk, BYTES_MAX)) == expected
    assert sum(path.stat().st_size for path in (tmp_path / DIRECTORY).iterdir()) <= BYTES_MAX


def test_history_ring_keeps_lines_when_the_clock_is_briefly_wrong(tmp_path):
    ring = Ring(OsDisk(str(tmp_path)), BYTES_MAX)
    for n in range(1_000, 1_005):
        ring.append(n, line(n))
        for _ in range(LEFT_OUT_MAX):
            ring.append(1, line(1))
    assert times(ring) == list(range(1_000, 1_005))


def test_history_ring_skips_unreadable_lines_after_a_crash(tmp_path):
    ring = Ring(OsDisk(str(tmp_path)), BYTES_MAX)
    for n in (10, 20, 30):
        ring.append(n, line(n))
    ring.close()
    path = tmp_path / DIRECTORY / "1"
    data = path.read_bytes()
    for damaged, expected in (
        (data[:-1], [10, 20]),
        (data + bytes(50), [10, 20, 30]),
        (data[:100] + bytes(100) + data[200:], [10]),  # zeros have no end of a line
        (b"\xff" + data[1:], [20, 30]),
        (data.replace(b'"t":20', b'"t":xx'), [10, 30]),
        (b"", []),
    ):
        path.write_bytes(damaged)
        again = Ring(OsDisk(str(tmp_path)), BYTES_MAX)
        assert times(again) == expected
        again.append(40, line(40))
        assert times(again) == [*expected, 40]
        again.close()
