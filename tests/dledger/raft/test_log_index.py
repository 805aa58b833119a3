from __future__ import annotations

import gc
import tracemalloc
from random import Random

import pytest

from raftmq.dledger.raft import log_index as index_module
from raftmq.dledger.raft.log_index import LogIndex
from tests.dledger.group import make_log


def build(terms: list[int]) -> LogIndex:
    index = LogIndex()
    for frame in make_log(terms):
        index.append(frame)
    return index


def test_empty_log_index() -> None:
    index = LogIndex()
    assert (index.first_index, index.last_index, index.last_term) == (1, 0, 0)
    assert index.end_position == 0
    assert index.term_at(0) == 0
    assert index.last_at_most(0, 9) == 0


def test_log_index_returns_terms_and_positions() -> None:
    terms = [1, 1, 2, 5, 5]
    frames = make_log(terms)
    index = build(terms)
    assert [index.term_at(i) for i in range(6)] == [0, *terms]
    for frame in frames:
        assert index.position_of(frame.index) == frame.position
        assert index.size_of(frame.index) == len(frame.data)
        assert index.end_of(frame.index) == frame.end
    assert index.end_position == frames[-1].end
    assert index.first_index_of_term(5) == 4
    assert index.first_index_of_term(3) is None


@pytest.mark.parametrize(
    "index, term, expected",
    [(5, 5, 5), (5, 4, 3), (5, 2, 3), (5, 1, 2), (5, 0, 0), (2, 5, 2), (3, 1, 2), (9, 9, 5)],
)
def test_log_index_returns_the_last_entry_of_a_term_at_most(
    index: int, term: int, expected: int
) -> None:
    assert build([1, 1, 2, 5, 5]).last_at_most(index, term) == expected


def test_log_index_rejects_a_gap_and_a_falling_term() -> None:
    index = build([1, 2])
    with pytest.raises(AssertionError):
        index.add(4, 2, index.end_position, 60)
    with pytest.raises(AssertionError):
        index.add(3, 1, index.end_position, 60)
    with pytest.raises(AssertionError):
        index.add(3, 2, index.end_position - 1, 60)


def test_truncation_removes_the_gap_after_a_closed_segment() -> None:
    index = LogIndex()
    index.add(1, 1, 0, 100)
    index.add(2, 1, 4096, 100)  # rolled: a blank record lies between
    index.truncate(2)
    assert index.end_position == 100
    index.add(2, 2, 100, 60)
    assert index.last_term == 2


def test_log_index_copy_is_independent() -> None:
    index = build([1, 2, 2])
    other = index.copy()
    other.truncate(2)
    assert (index.last_index, index.last_term) == (3, 2)
    assert (other.last_index, other.last_term) == (1, 1)


def test_trim_keeps_the_term_before_the_first_frame() -> None:
    index = build([1, 1, 2, 2, 3])
    end = index.end_of(3)
    index.trim(4)
    assert (index.first_index, index.previous_term, index.start_position) == (4, 2, end)
    assert [index.term_at(i) for i in (3, 4, 5)] == [2, 2, 3]
    assert index.first_index_of_term(2) == 4
    index.trim(6)
    assert (index.first_index, index.last_index, index.last_term) == (6, 5, 3)
    assert index.end_position == index.start_position
    with pytest.raises(AssertionError):
        index.term_at(4)


def test_log_index_returns_the_last_entry_within_bytes_and_by_position() -> None:
    index = build([1] * 9)
    for first in range(1, 10):
        for size in range(0, 700, 7):
            limit = index.position_of(first) + size
            fits = [i for i in range(first, 10) if index.end_of(i) <= limit]
            assert index.last_within(first, size) == max(fits, default=first)
    for position in range(index.end_position + 5):
        fits = [i for i in range(1, 10) if index.end_of(i) <= position]
        assert index.last_ending_by(position) == max(fits, default=0)


@pytest.mark.parametrize("block", [1, 3, 256])
def test_log_index_equals_a_plain_list_over_random_operations(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random appends, truncations and trims agree with a list of (term, position, size)."""
    monkeypatch.setattr(index_module, "BLOCK", block)
    rng = Random(1)
    for _ in range(200):
        index = LogIndex()
        model: dict[int, tuple[int, int, int]] = {}
        first, term = 1, 0
        for _ in range(60):
            choice = rng.random()
            last = max(model, default=first - 1)
            if choice < 0.7:
                term = max(index.last_term, 1) + (rng.random() < 0.3)
                position = index.end_position + rng.choice((0, 0, 0, 8))
                size = 60 + rng.choice((rng.randrange(9), 0xFFFF, 0xFFFF - 60))
                model[last + 1] = (term, position, size)
                index.add(last + 1, *model[last + 1])
            elif choice < 0.85:
                at = rng.randint(first, last + 1)
                index.truncate(at)
                model = {i: entry for i, entry in model.items() if i < at}
            elif model:
                first = rng.randint(first, last + 1)
                index.trim(first)
                model = {i: entry for i, entry in model.items() if i >= first}
            assert index.last_index == max(model, default=first - 1)
            for i, entry in model.items():
                assert (index.term_at(i), index.position_of(i), index.size_of(i)) == entry
                assert index.end_of(i) == entry[1] + entry[2]
            if rng.random() < 0.2:
                index = index.copy()
            if model:
                low, high = sorted(rng.choices(sorted(model), k=2))
                assert index.spans(low, high) == tuple(model[i] for i in range(low, high + 1))
                expected = rng.randrange(model[low][1], index.end_position + 2)
                ends = [i for i in model if index.end_of(i) <= expected]
                assert index.last_ending_by(expected) == max(ends, default=first - 1)
                assert index.last_ending_by(index.end_of(low)) == low
                assert index.last_ending_by(index.end_of(low) - 1) == low - 1
                assert index.last_ending_by(model[low][1] - 1) in range(first - 1, low)
                assert index.last_ending_by(-1) == first - 1
                assert index.last_ending_by(1 << 60) == max(model)
                assert index.last_within(low, expected - model[low][1]) == max([low, *ends])
                assert index.last_term == model[max(model)][0]
                t = rng.randrange(6)
                smaller = [i for i in model if model[i][0] <= t]
                assert index.last_at_most(max(model), t) == max(smaller, default=first - 1)


def test_log_index_entry_takes_little_memory() -> None:
    """A log of three days has some hundred million frames."""
    frames = 200 * index_module.BLOCK
    index = LogIndex()
    gc.collect()
    tracemalloc.start()
    for n in range(1, frames + 1):
        index.add(n, 1, index.end_position + 8 * (n % 5000 == 0), 300)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / frames < 3, taken / frames


def test_log_index_copies_share_no_later_change() -> None:
    index = LogIndex()
    for n in range(1, 2 * index_module.BLOCK + 1):
        index.add(n, 1, index.end_position, 100)
    other = index.copy()
    index.add(index.last_index + 1, 1, index.end_position + 40, 100)  # a blank before it
    other.truncate(10)
    other.add(10, 2, other.end_position + 50, 70_000)
    last = 2 * index_module.BLOCK
    assert index.spans(9, 10) == ((1, 800, 100), (1, 900, 100))
    assert index.size_of(last) == 100
    assert index.position_of(last + 1) == last * 100 + 40
    assert other.spans(9, 10) == ((1, 800, 100), (2, 950, 70_000))
