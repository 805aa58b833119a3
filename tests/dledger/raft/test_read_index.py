"""ReadIndex: a read is confirmed by a round that began after it, and by no earlier one."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.errors import Busy
from raftmq.dledger.raft.read_index import ReadIndex


def test_reads_between_two_rounds_are_confirmed_together() -> None:
    reads = ReadIndex(10)
    assert not reads
    for token in (1, 2):
        reads.ask(token, 5, 8)
    reads.ask(3, 5, 9)
    reads.ask(4, 6, 9)
    assert (reads.oldest_round, reads.newest_round, reads.count) == (5, 6, 4)
    assert reads.confirm(4) == []
    assert reads.confirm(5) == [(1, 8), (2, 8), (3, 9)]
    assert (reads.oldest_round, reads.newest_round, reads.count) == (6, 6, 1)
    assert reads.confirm(7) == [(4, 9)]
    assert (reads.oldest_round, reads.newest_round, reads.count) == (0, 0, 0)


def test_reads_before_the_no_op_wait_for_its_commit() -> None:
    reads = ReadIndex(10)
    reads.hold(1)
    reads.hold(2)
    assert not reads
    assert reads.confirm(99) == []
    reads.release(3, 7)
    assert reads
    assert reads.confirm(3) == [(1, 7), (2, 7)]
    assert reads.count == 0


def test_pending_reads_fail_with_the_leadership() -> None:
    reads = ReadIndex(10)
    reads.ask(1, 1, 0)
    reads.ask(2, 2, 0)
    reads.hold(3)
    assert reads.fail() == [1, 2, 3]
    assert reads.fail() == []
    assert reads.count == 0


def test_read_limit_counts_waiting_and_unconfirmed_reads() -> None:
    reads = ReadIndex(2)
    reads.check_room()
    reads.ask(1, 1, 0)
    reads.hold(2)
    with pytest.raises(Busy, match="2 reads wait"):
        reads.check_room()
    reads.confirm(1)
    reads.check_room()
