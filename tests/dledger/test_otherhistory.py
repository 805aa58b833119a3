"""Two logs with other frames of one index and term: nobody takes them for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.peer_info import PeerInfoExchange
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Configurations, founding
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.errors import OtherHistory
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import AppendRequest, HardState, PrevFrame
from raftmq.dledger.transport.peer_info_message import CommittedFrame, PeerInfo
from raftmq.store.frame import Frame
from tests.dledger.group import Random, make_frame


def frames(terms: list[int], mark: bytes, same: int) -> list[Frame]:
    """Frames of these terms; those behind the first `same` bear the mark."""
    made: list[Frame] = []
    for index, term in enumerate(terms, 1):
        payload = mark if index > same else b"-"
        made.append(make_frame(index, term, made[-1].end if made else 0, payload))
    return made


def replica(log: list[Frame], commit_index: int = 0) -> RaftCore:
    """Replica a of a, b and c, whose log this is."""
    index = LogIndex()
    for frame in log:
        index.append(frame)
    return RaftCore(
        "a",
        Configurations(0, founding((name, "") for name in "abc")),
        CoreConfig(),
        index,
        HardState(log[-1].term, None),
        Random(1),
        0,
        commit_index,
        incarnation=1,
        crc_of=lambda index: log[index - 1].header_crc if index <= len(log) else None,
    )


def leads(core: RaftCore, log: list[Frame], first: int, last: int, term: int = 5) -> None:
    """b, whose log this is, sends frames first..last as its shell does."""
    prev = log[first - 2]
    core.step(PrevFrame("b", "a", term, prev.index, prev.term, prev.header_crc), 0)
    sent = tuple(log[first - 1 : last])
    core.step(AppendRequest("b", "a", term, prev.index, prev.term, 0, sent), 0)


OURS = frames([1, 1, 2, 2], b"x", 2)
THEIRS = frames([1, 1, 2, 2, 2, 5], b"y", 2)


@pytest.mark.parametrize("first", [4, 5])
def test_leader_with_a_different_preceding_frame_is_rejected(first: int) -> None:
    core = replica(OURS)
    with pytest.raises(OtherHistory, match=f"different frames {first - 1} of term 2"):
        leads(core, THEIRS, first, 6)
    assert core.last_index == 4


@pytest.mark.parametrize("last", [3, 4, 6])
def test_leader_with_a_different_repeated_frame_is_rejected(last: int) -> None:
    core = replica(OURS)
    with pytest.raises(OtherHistory, match=f"different frames {min(last, 4)} of term 2"):
        leads(core, THEIRS, 3, last)
    assert core.last_index == 4


def test_leader_that_truncated_a_committed_frame_is_rejected() -> None:
    core = replica(OURS, commit_index=4)
    with pytest.raises(OtherHistory, match="frames 3 of terms 5 and 2, committed"):
        leads(core, frames([1, 1, 5, 5], b"y", 2), 3, 4)


def test_leader_that_truncated_a_frame_recorded_as_committed_is_rejected() -> None:
    other = frames([1, 1, 5, 5], b"y", 2)
    core = replica(OURS)
    core.note_held(3)
    leads(core, [*OURS[:3], *frames([1, 1, 2, 5], b"y", 3)[3:]], 4, 4)  # above that it is Raft's
    core = replica(OURS)
    core.note_held(3)
    with pytest.raises(OtherHistory, match="frames 3 of terms 5 and 2, committed"):
        leads(core, other, 3, 4)
    core.lose_promises(7, "its store is an older one")
    leads(core, other, 3, 4)
    assert core.last_index == 4


def test_equal_frames_are_accepted_and_unknown_frames_follow_raft() -> None:
    core = replica(OURS)
    leads(core, [*OURS, *THEIRS[4:]], 4, 6)
    assert core.last_index == 6
    core = replica(OURS)
    core.step(PrevFrame("b", "a", 5, 6, 5, 1), 0)  # not here
    core.step(PrevFrame("b", "a", 5, 3, 3, 1), 0)  # of another term
    leads(core, frames([1, 1, 5, 5], b"y", 2), 3, 4)  # what nobody committed gives way
    assert (core.last_index, core.leader) == (4, "b")


def test_frame_proven_in_this_term_is_not_compared_again() -> None:
    core = replica(OURS)
    leads(core, [*OURS, *THEIRS[4:]], 5, 6)
    core.step(PrevFrame("b", "a", 5, 4, 2, 1), 0)
    core.step(PrevFrame("b", "a", 4, 4, 2, 1), 0)  # and one of an earlier term is not heard
    assert core.last_index == 6


def test_accepted_unwritten_frames_are_compared() -> None:
    core = replica(OURS)
    leads(core, [*OURS, *THEIRS[4:]], 5, 5)
    wrong = frames([1, 1, 2, 2, 2, 5], b"z", 4)
    with pytest.raises(OtherHistory, match="different frames 5 of term 2"):
        leads(core, wrong, 6, 6, term=6)


class Committing:
    """Replica a, whose log this is, committed up to `commit_index`; its files have less of that if
    `in_files` is lower."""

    def __init__(self, log: list[Frame], commit_index: int, in_files: int | None = None) -> None:
        committed = commit_index if in_files is None else in_files
        index = LogIndex()
        for frame in log:
            index.append(frame)
        kept = SimpleNamespace(
            index=index,
            commitlog=SimpleNamespace(min_offset=0),
            header_crc=lambda at: log[at - 1].header_crc if at else None,
        )
        self.sent: list[PeerInfo] = []
        self.exchange = PeerInfoExchange(
            replica(log, commit_index),
            cast(Any, kept),
            dict,
            lambda: 0,
            lambda: committed,
            self.sent.append,
            lambda peer, text: None,
        )

    @property
    def committed(self) -> CommittedFrame | None:
        return self.exchange.completed(PeerInfo("a", "b")).committed


def committed_by(index: int, term: int, crc: int) -> PeerInfo:
    return PeerInfo("b", "a", committed=CommittedFrame(index, term, crc))


def test_committed_frames_are_reported_on_new_links_and_periodically() -> None:
    world = Committing(OURS, 3)
    assert world.committed == CommittedFrame(3, 2, OURS[2].header_crc)
    world.exchange.tick(0)
    assert [(info.to, info.committed) for info in world.sent] == [
        (peer, world.committed) for peer in "bc"
    ]
    assert Committing(OURS, 0).committed is None


@pytest.mark.parametrize(
    ("log", "index", "different"),
    [(THEIRS, 3, "different frames 3 of term 2"), (frames([1, 1, 5], b"y", 2), 3, "terms 5 and 2")],
)
def test_replicas_with_different_committed_frames_disconnect(
    log: list[Frame], index: int, different: str
) -> None:
    reported = committed_by(index, log[index - 1].term, log[index - 1].header_crc)
    with pytest.raises(OtherHistory, match=different):
        Committing(OURS, 3).exchange.take(reported)
    Committing(OURS, 2).exchange.take(reported)  # here it may give way still
    Committing(OURS, 3).exchange.take(committed_by(3, 2, OURS[2].header_crc))


def test_core_ahead_of_its_files_reports_only_written_frames() -> None:
    """While a vote is being saved, the files still have frames that the core has truncated."""
    world = Committing(OURS, 3, in_files=2)
    world.exchange.take(committed_by(3, 5, 77))
    assert world.committed == CommittedFrame(2, OURS[1].term, OURS[1].header_crc)
