"""The outcomes of proposals, and when each may be told."""

from __future__ import annotations

import pytest

from raftmq.dledger.node.proposals import COMMAND_SIZE_BYTES_MAX, Proposals, command_bytes_max
from raftmq.dledger.raft.errors import Busy, CommandTooLarge, NotLeader, OutcomeUnknown
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameKind, seal_frame
from raftmq.store.record import BLANK_SIZE_BYTES


def frame(index: int, term: int) -> Frame:
    return seal_frame(index, term, index * 100, 0, FrameKind.COMMAND, 0, b"")


def proposals(**limits: int) -> Proposals:
    return Proposals(limits.get("count", 100), limits.get("size", 10_000), 1000)


def proposed(p: Proposals, index: int, term: int):
    future = p.submit(b"x", 0)
    assert p.take(index, term) == b"x"
    p.note(index, term)
    return future


async def test_proposal_applied_with_its_term_is_stored() -> None:
    p = proposals()
    future = proposed(p, 5, 2)
    p.applied([frame(4, 2)])
    assert not future.done()
    p.applied([frame(5, 2)])
    assert future.result() == 5


async def test_lost_leadership_fails_only_unproposed_commands() -> None:
    p = proposals()
    out = proposed(p, 5, 2)
    waiting = p.submit(b"y", 0)
    p.leadership_lost("n1")
    with pytest.raises(NotLeader) as caught:
        waiting.result()
    assert caught.value.leader == "n1"
    assert not out.done()
    p.applied([frame(5, 2)])  # the next leader had it
    assert out.result() == 5


@pytest.mark.parametrize("index", [3, 4, 5])
async def test_committed_frame_of_a_higher_term_refutes_an_earlier_proposal(index: int) -> None:
    p = proposals()
    out = proposed(p, 5, 2)
    p.leadership_lost(None)
    frames = [frame(index, 3)]
    assert p.refuted_by(frames) == index
    p.applied(frames)
    with pytest.raises(NotLeader):
        out.result()
    assert p.refuted_by([frame(index + 1, 3)]) is None  # told once


async def test_committed_frames_up_to_the_proposal_do_not_refute_it() -> None:
    p = proposals()
    future = proposed(p, 5, 2)
    p.leadership_lost(None)
    assert p.refuted_by([frame(4, 2), frame(5, 2), frame(6, 3)]) is None
    p.applied([frame(4, 2), frame(5, 2), frame(6, 3)])
    assert future.result() == 5


async def test_own_no_op_after_reelection_refutes_truncated_proposals() -> None:
    p = proposals()
    out = proposed(p, 9, 2)
    p.leadership_lost(None)
    p.note(7, 4)  # the new term's no-op, at a lower index
    assert p.refuted_by([frame(6, 2), frame(7, 4)]) == 7
    p.applied([frame(6, 2), frame(7, 4)])
    with pytest.raises(NotLeader):
        out.result()


async def test_proposals_of_two_past_terms_are_refuted_separately() -> None:
    p = proposals()
    proposed(p, 9, 2)
    p.leadership_lost(None)
    proposed(p, 12, 4)
    p.leadership_lost(None)
    assert p.refuted_by([frame(8, 3)]) == 8  # term 2 only
    assert p.refuted_by([frame(9, 4), frame(10, 5)]) == 10
    assert p.refuted_by([frame(11, 5)]) is None


async def test_time_out_is_unknown_for_proposed_and_not_stored_for_waiting() -> None:
    p = proposals()
    out = proposed(p, 5, 2)
    waiting = p.submit(b"y", 500)
    p.expire(999)
    assert not out.done()
    p.expire(1000)
    with pytest.raises(OutcomeUnknown):
        out.result()
    assert not waiting.done()
    p.expire(1500)
    with pytest.raises(Busy, match="not stored"):
        waiting.result()
    p.applied([frame(5, 2)])  # too late to be told
    assert (p.waiting, p.proposed) == (0, 0)


async def test_cancelled_command_is_not_proposed() -> None:
    p = proposals()
    first, second = p.submit(b"1", 0), p.submit(b"2", 0)
    first.cancel()
    assert p.take(5, 2) == b"2"
    assert p.take(6, 2) is None
    second.cancel()
    p.applied([frame(5, 2)])


async def test_proposals_are_limited_in_count_and_size() -> None:
    p = proposals(count=2)
    p.submit(b"1", 0)
    p.submit(b"2", 0)
    with pytest.raises(Busy, match="2 commands"):
        p.submit(b"3", 0)
    p.take(1, 1)
    with pytest.raises(Busy):  # proposed ones count, too
        p.submit(b"3", 0)
    p.applied([frame(1, 1)])
    p.submit(b"3", 0)

    q = proposals(size=10)
    q.submit(b"x" * 50, 0)  # one alone always may
    with pytest.raises(Busy, match="50 bytes"):
        q.submit(b"y", 0)
    with pytest.raises(CommandTooLarge):
        q.submit(b"x" * (COMMAND_SIZE_BYTES_MAX + 1), 0)


async def test_largest_command_fits_into_a_segment() -> None:
    p = Proposals(100, 10_000, 1000, command_bytes_max(1 << 18))
    p.submit(b"x" * ((1 << 18) - HEADER_SIZE_BYTES - BLANK_SIZE_BYTES), 0)
    with pytest.raises(CommandTooLarge):
        p.submit(b"x" * ((1 << 18) - HEADER_SIZE_BYTES - BLANK_SIZE_BYTES + 1), 0)
    assert command_bytes_max(1 << 30) == COMMAND_SIZE_BYTES_MAX


async def test_closed_proposals_end_every_waiting_command() -> None:
    p = proposals()
    out, waiting = proposed(p, 5, 2), p.submit(b"y", 0)
    p.close("the node stops")
    with pytest.raises(OutcomeUnknown, match="the node stops"):
        out.result()
    with pytest.raises(NotLeader):
        waiting.result()
