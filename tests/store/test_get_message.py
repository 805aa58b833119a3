import pytest

from raftmq.store.dispatch import QUEUE_ENTRY
from raftmq.store.get_message import (
    GAP_BYTES_MAX,
    SPAN_BYTES_MAX,
    GetStatus,
    Limits,
    Span,
    offset_status,
    scan_count,
    select,
    spans,
)


def packed(*entries: tuple[int, int, int]) -> bytes:
    return b"".join(QUEUE_ENTRY.pack(*entry) for entry in entries)


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
def test_pull_offset_statuses(
    offset: int, minimum: int, maximum: int, expected: tuple[GetStatus, int] | None
) -> None:
    assert offset_status(offset, minimum, maximum) == expected


def count(entries: bytes, within: Limits) -> int:
    return len(select(entries, 0, within, None).positions)


def test_pull_stops_at_count_and_bytes_for_hot_and_cold_data() -> None:
    many = packed(*((1000 * n, 100, n) for n in range(40)))
    assert count(many, limits()) == 10  # 1000 bytes
    assert count(many, limits(size=1099)) == 10
    assert count(many, limits(count=3)) == 3
    assert count(many, limits(count=0)) == 1  # the first always fits
    assert count(many, limits(size=1)) == 1
    assert count(many, limits(hot_from=10**6)) == 2  # cold: 200 bytes
    small = packed(*((1000 * n, 10, n) for n in range(40)))
    assert count(small, limits(hot_from=10**6)) == 8  # cold: 8 messages
    assert count(small, limits(count=5, hot_from=10**6)) == 5
    assert count(small, limits()) == 32
    assert count(small, limits(hot_from=1)) == 8  # by the first message
    nothing = select(b"", 7, limits(), None)
    assert (len(nothing.positions), nothing.scanned) == (0, 0)


def test_pull_selection_returns_parallel_lists() -> None:
    chosen = select(packed((50, 10, 1), (60, 20, 2), (90, 30, 3)), 7, limits(count=2), None)
    assert (chosen.positions, chosen.sizes) == ([50, 60], [10, 20])
    assert (list(chosen.offsets), chosen.scanned) == ([7, 8], 2)
    later = chosen.from_position(60)
    assert (later.positions, later.sizes) == ([60], [20])
    assert (list(later.offsets), later.scanned) == ([8], 2)


def test_filtered_pull_reports_scanned_entries() -> None:
    many = packed(*((1000 * n, 100, n % 4) for n in range(40)))
    chosen = select(many, 500, limits(count=3), {1, -5})
    assert chosen.positions == [1000, 5000, 9000]
    assert chosen.sizes == [100, 100, 100]
    assert list(chosen.offsets) == [501, 505, 509]
    assert chosen.scanned == 13  # up to the fourth match, which did not fit
    none = select(many, 500, limits(), {9})
    assert (len(none.positions), none.scanned) == (0, 40)
    assert scan_count(32) == 800
    assert scan_count(2000) == 2000


def found_spans(
    records: list[tuple[int, int]], segment_size_bytes: int = 1 << 40, first_segment: int = 0
) -> list[Span]:
    entries = packed(*((position, size, 0) for position, size in records))
    chosen = select(entries, 0, limits(count=99, size=1 << 40), None)
    return spans(chosen, segment_size_bytes, first_segment)


def test_adjacent_messages_are_read_together() -> None:
    gap = GAP_BYTES_MAX
    records = [(0, 10), (10, 10), (20 + gap, 5), (26 + 2 * gap, 5)]
    behind = 26 + 2 * gap
    assert found_spans(records) == [
        Span(0, 25 + gap, 0, [(0, 20), (20 + gap, 25 + gap)]),
        Span(behind, 5, 3, [(behind, behind + 5)]),
    ]
    assert found_spans([(7, 3), (10, 90)]) == [Span(7, 93, 0, [(7, 100)])]
    assert found_spans([(3, 4)]) == [Span(3, 4, 0, [(3, 7)])]
    big = SPAN_BYTES_MAX // 2
    far = [(n * big, big - 1) for n in range(3)]
    assert [span.length for span in found_spans(far)] == [2 * big - 1, big - 1]
    assert len(found_spans([(500, 10), (100, 10)])) == 2  # never backwards


def test_pull_read_never_spans_two_segments() -> None:
    apart = [Span(90, 10, 0, [(90, 100)]), Span(100, 10, 1, [(100, 110)])]
    assert found_spans([(90, 10), (100, 10)], 100) == apart
    assert found_spans([(80, 5), (90, 10), (100, 10)], 100)[1] == Span(100, 10, 2, [(100, 110)])
    assert len(found_spans([(190, 10), (200, 10)], 100, 50)) == 1  # segments begin at 50
