import pytest

from raftmq.store.dispatch import UNIT
from raftmq.store.selection import (
    GAP_BYTES_MAX,
    SPAN_BYTES_MAX,
    GetStatus,
    Limits,
    cut_records,
    offset_status,
    scan_count,
    select,
    spans,
)


def packed(*units: tuple[int, int, int]) -> bytes:
    return b"".join(UNIT.pack(*unit) for unit in units)


def limits(count: int = 32, size: int = 1000, hot_from: int = 0) -> Limits:
    return Limits(count, size, 8, 200, hot_from)


@pytest.mark.parametrize(
    ("offset", "minimum", "maximum", "expected"),
    [
        (0, 0, 0, (GetStatus.NO_MESSAGE_IN_QUEUE, 0)),
        (7, 0, 0, (GetStatus.NO_MESSAGE_IN_QUEUE, 0)),
        (4, 5, 9, (GetStatus.OFFSET_TOO_SMALL, 5)),
        (9, 5, 9, (GetStatus.OFFSET_OVERFLOW_ONE, 9)),
        (9, 9, 9, (GetStatus.OFFSET_OVERFLOW_ONE, 9)),
        (10, 5, 9, (GetStatus.OFFSET_OVERFLOW_BADLY, 9)),
        (5, 5, 9, None),
        (8, 5, 9, None),
    ],
)
def test_offsets(
    offset: int, minimum: int, maximum: int, expected: tuple[GetStatus, int] | None
) -> None:
    assert offset_status(offset, minimum, maximum) == expected


def test_stop_rules() -> None:
    many = packed(*((1000 * n, 100, n) for n in range(40)))
    assert len(select(many, limits(), None)[0]) == 10  # 1000 bytes
    assert len(select(many, limits(size=1099), None)[0]) == 10
    assert len(select(many, limits(count=3), None)[0]) == 3
    assert len(select(many, limits(count=0), None)[0]) == 1  # the first always fits
    assert len(select(many, limits(size=1), None)[0]) == 1
    assert len(select(many, limits(hot_from=10**6), None)[0]) == 2  # cold: 200 bytes
    small = packed(*((1000 * n, 10, n) for n in range(40)))
    assert len(select(small, limits(hot_from=10**6), None)[0]) == 8  # cold: 8 messages
    assert len(select(small, limits(count=5, hot_from=10**6), None)[0]) == 5
    assert len(select(small, limits(), None)[0]) == 32
    assert select(b"", limits(), None) == ([], 0)


def test_filtering_counts_what_it_looked_at() -> None:
    many = packed(*((1000 * n, 100, n % 4) for n in range(40)))
    chosen, looked_at = select(many, limits(count=3), {1, -5})
    assert chosen == [(1000, 100), (5000, 100), (9000, 100)]
    assert looked_at == 13  # up to the fourth match, which did not fit
    assert select(many, limits(), {9}) == ([], 40)
    assert scan_count(32) == 800
    assert scan_count(2000) == 2000


def test_neighbours_are_read_together() -> None:
    gap = GAP_BYTES_MAX
    chosen = [(0, 10), (10, 10), (20 + gap, 5), (26 + 2 * gap, 5)]
    assert spans(chosen, 1 << 30, 0) == [
        (0, 25 + gap, chosen[:3]),
        (26 + 2 * gap, 5, chosen[3:]),
    ]
    assert spans([(90, 10), (100, 10)], 100, 0) == [(90, 10, [(90, 10)]), (100, 10, [(100, 10)])]
    assert len(spans([(190, 10), (200, 10)], 100, 50)) == 1  # segments begin at 50
    assert len(spans([(500, 10), (100, 10)], 1 << 30, 0)) == 2  # never backwards
    big = SPAN_BYTES_MAX // 2
    assert [s[1] for s in spans([(n * big, big) for n in range(3)], 1 << 40, 0)] == [2 * big, big]


def test_records_that_touch_stay_in_one_piece() -> None:
    data = bytes(range(100))
    whole = [(7, 40), (47, 60)]
    assert cut_records(data, 7, whole) == [data]
    pieces = cut_records(data, 0, [(0, 10), (10, 10), (30, 5), (36, 64)])
    assert pieces == [data[:20], data[30:35], data[36:]]
    assert cut_records(data, 0, [(3, 4)]) == [data[3:7]]
