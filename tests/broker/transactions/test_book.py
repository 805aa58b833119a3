"""Which halves are open: the book against a list of what happened, and its bounds."""

import random
from typing import Any

import pytest

from raftmq.broker.messages.half_message import Half, Root
from raftmq.broker.transactions import book as room
from raftmq.broker.transactions.book import COMMIT, ROLLBACK, HalfBook
from tests.present import present


def rooted(offset, topic="Orders", group="g", key="K"):
    return Root(offset, topic, group, key)


def half(offset, root=None, due_ms=100, checks=0, **of):
    return Half(
        offset, rooted(offset if root is None else root, **of), 1000 + offset, due_ms, checks
    )


def test_half_message_is_open_until_it_ends_once():
    book = HalfBook(0, 0)
    assert book.add_half(half(0))
    assert book.add_half(half(1))
    assert book.progress() == (0, 0)
    book.close(0, COMMIT)
    assert book.find(rooted(0)) is None
    assert (book.decision(rooted(0)), book.decision(rooted(1))) == (COMMIT, None)
    book.close(0, ROLLBACK)  # it has ended: nothing happens
    assert book.decision(rooted(0)) == COMMIT
    assert book.progress() == (1, 0)
    book.add_op(0, [0])
    assert book.progress() == (1, 1)


def test_op_message_may_be_read_before_its_half_message():
    book = HalfBook(5, 3)
    book.add_op(3, [6, 4])  # 4 is below where this book begins
    assert book.add_half(half(5))
    assert not book.add_half(half(6))
    assert book.progress() == (5, 3)
    book.close(5)
    assert book.progress() == (7, 4)


def test_half_message_stored_again_is_found_by_its_root():
    book = HalfBook(0, 0)
    book.add_half(half(0))
    book.close(0)  # stored again by a check
    assert book.find(rooted(0)) is None
    book.add_half(half(1, root=0, checks=1))
    assert present(book.find(rooted(0))).checks == 1
    book.close(1)
    book.add_half(half(2, root=0, checks=2))
    assert present(book.find(rooted(0))).offset == 2
    book.close(2, COMMIT)
    assert book.find(rooted(0)) is None
    assert book.decision(rooted(0)) == COMMIT
    assert book.progress() == (3, 0)


@pytest.mark.parametrize("other", [{"topic": "Bait"}, {"group": "h"}, {"key": "L"}])
@pytest.mark.parametrize("moved", [False, True])
def test_half_message_with_a_copied_root_does_not_end_the_original(other, moved):
    """Older brokers stored what a client had copied from another half."""
    book = HalfBook(0, 0)
    book.add_half(half(0))
    if moved:
        book.close(0)
        book.add_half(half(1, root=0))
    book.add_half(half(2, root=0, **other))
    assert present(book.find(rooted(0))).offset == int(moved)
    assert present(book.find(rooted(0, **other))).offset == 2
    book.close(2, ROLLBACK)
    assert book.find(rooted(0, **other)) is None
    assert present(book.find(rooted(0))).offset == int(moved)
    assert book.decision(rooted(0)) is None
    assert book.decision(rooted(0, **other)) == ROLLBACK


def test_due_half_message_is_returned_once_per_schedule():
    book = HalfBook(0, 0)
    for offset, due_ms in enumerate((300, 100, 200, 100)):
        book.add_half(half(offset, due_ms=due_ms))
    book.close(3)
    assert [h.offset for h in book.due(200, 1)] == [1]
    assert [h.offset for h in book.due(200, 9)] == [2]
    assert book.due(299, 9) == []
    book.schedule(2, 250)
    assert [h.offset for h in book.due(300, 9)] == [2, 0]


def test_half_and_op_messages_removed_by_retention_are_skipped():
    book = HalfBook(0, 0)
    book.add_half(half(0))
    book.add_op(0, [9])
    book.skip_halves(20)
    assert book.open == {}
    book.add_half(half(20))
    book.add_op(7, [20])  # ops 1 to 6 are gone
    assert book.progress() == (21, 8)
    book.skip_ops(9)
    book.skip_ops(3)  # not back
    assert book.progress() == (21, 9)


def test_remembered_transaction_ends_are_limited(monkeypatch):
    monkeypatch.setattr(room, "ENDED_MAX", 3)
    book = HalfBook(0, 0)
    for offset in range(5):
        book.add_half(half(offset))
        book.close(offset, COMMIT)
    assert [book.decision(rooted(offset)) for offset in range(5)] == [None, None, 8, 8, 8]


@pytest.mark.parametrize("seed", range(50))
def test_half_book_restored_from_any_progress_has_the_same_open_halves(seed):
    """As a new leader's: whatever the old one noted, reading on from there gives what is open."""
    rng = random.Random(seed)
    old = HalfBook(0, 0)
    notes = [(0, 0)]
    halves: list[Any] = []
    ops: list[Any] = []
    for _ in range(300):
        if rng.random() < 0.55 or not old.open:
            new = half(len(halves))
            halves.append(new)
            old.add_half(new)
        else:
            chosen = rng.choice(list(old.open))
            old.close(chosen, COMMIT)
            old.add_op(len(ops), [chosen])
            ops.append([chosen])
        if rng.random() < 0.1:
            notes.append(old.progress())
    for half_from, op_from in notes:
        fresh = HalfBook(half_from, op_from)
        queues: list[list] = [
            [(fresh.add_half, (h,)) for h in halves[half_from:]],
            [(fresh.add_op, (n, ops[n])) for n in range(op_from, len(ops))],
        ]
        while any(queues):  # the two queues in any order of each other
            queue = rng.choice([q for q in queues if q])
            take, args = queue.pop(0)
            take(*args)
        assert list(fresh.open) == list(old.open)
        assert fresh.progress() == old.progress()
