"""The core's log: what is durable and committed never runs ahead, and never falls behind commit."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.raft_log import CoreLog
from raftmq.dledger.raft.ready import Outbox
from tests.dledger.group import make_log

FRAMES = make_log([1, 1, 2, 2])


def make(commit_index: int = 0) -> tuple[CoreLog, Outbox]:
    index = LogIndex()
    for frame in FRAMES:
        index.append(frame)
    outbox = Outbox(index.last_index)
    return CoreLog(index, commit_index, outbox), outbox


@pytest.mark.parametrize(("applied", "commit_index"), [(0, 0), (2, 2), (9, 4)])
def test_applied_frames_are_committed_up_to_the_end_of_the_log(
    applied: int, commit_index: int
) -> None:
    log, outbox = make(applied)
    assert (log.commit_index, log.durable_index) == (commit_index, 4)
    assert log.uncommitted_bytes == sum(len(f.data) for f in FRAMES[commit_index:])
    assert outbox.take() is None


def test_raft_log_copies_its_index() -> None:
    index = LogIndex()
    log = CoreLog(index, 0, Outbox(0))
    log.append(FRAMES[0])
    assert (log.index.last_index, index.last_index) == (1, 0)


def test_only_frames_in_a_ready_can_become_durable() -> None:
    outbox = Outbox(0)
    log = CoreLog(LogIndex(), 0, outbox)
    log.append(FRAMES[0])
    assert not log.durable(1)
    outbox.take()
    log.append(FRAMES[1])
    assert log.durable(2)
    assert log.durable_index == 1
    assert not log.durable(1)


def test_truncation_lowers_the_durable_index_and_never_commit() -> None:
    log, outbox = make(commit_index=2)
    log.truncate(3)
    assert (log.index.last_index, log.durable_index, outbox.truncate_from) == (2, 2, 3)
    with pytest.raises(AssertionError):
        log.truncate(2)


@pytest.mark.parametrize("index", [0, 1, 2, 5])
def test_commit_index_neither_falls_nor_exceeds_the_last_index(index: int) -> None:
    log, _ = make(commit_index=2)
    with pytest.raises(AssertionError):
        log.commit(index)


def test_commit_index_is_in_the_next_ready() -> None:
    log, outbox = make()
    log.commit(3)
    ready = outbox.take()
    assert ready is not None
    assert ready.commit_index == log.commit_index == 3


@pytest.mark.parametrize(
    ("last_term", "last_index", "up_to_date"),
    [(1, 9, False), (2, 3, False), (2, 4, True), (2, 5, True), (3, 1, True)],
)
def test_log_with_the_later_term_wins_then_the_longer_one(
    last_term: int, last_index: int, up_to_date: bool
) -> None:
    assert make()[0].is_matched_by(last_term, last_index) == up_to_date


def test_raft_log_lag_and_trim() -> None:
    log, _ = make(commit_index=3)
    ends = [0, *(frame.end for frame in FRAMES)]
    assert [log.lag_bytes(at) for at in range(5)] == [ends[-1] - end for end in ends]
    log.trim(3)
    assert log.lag_bytes(0) == ends[-1]
    with pytest.raises(AssertionError):
        log.trim(5)
