"""The core's own verbs and limits; what the paper says is in tests/dledger/test_paper.py."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Configurations, founding
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.errors import Busy, MessageRefused, NotLeader, OtherHistory, UnknownTarget
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import (
    TERM_MAX,
    AppendOrder,
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Role,
    TimeoutNow,
    VoteRequest,
)
from raftmq.dledger.raft.progress import STRANDED
from tests.dledger.group import Group, Member, make_frame, make_log


def led(config: CoreConfig | None = None, names: str = "abc") -> Group:
    group = Group(names, config)
    group.elect("a")
    return group


def test_new_core_has_no_ready() -> None:
    assert Member("a", list("abc")).core.ready() is None


def test_first_frame_of_a_term_is_its_no_op() -> None:
    group = Group("a")
    core = group["a"].core
    group.campaign("a")
    assert core.wants_noop
    assert not core.can_propose
    with pytest.raises(AssertionError):
        core.propose(make_frame(1, 1, 0, b"not a no-op"))
    group.work()
    assert core.can_propose
    assert core.leader_ready


def test_ready_has_the_hard_state_with_the_message_that_needs_it() -> None:
    member = Member("a", list("abc"))
    member.core.step(VoteRequest("b", "a", 3, 0, 0, pre_vote=False), 0)
    ready = member.core.ready()
    assert ready is not None
    assert ready.hard_state == HardState(3, "b")
    assert len(ready.messages) == 1
    assert member.core.ready() is None


def test_pre_vote_does_not_change_the_voters_hard_state() -> None:
    member = Member("a", list("abc"))
    member.core.step(VoteRequest("b", "a", 3, 0, 0, pre_vote=True), 0)
    (ready,) = member.work()
    assert ready.hard_state is None
    assert (member.core.term, member.core.ballot.voted_for) == (0, None)


def test_core_restores_its_term_from_frames_after_a_crash_before_the_save() -> None:
    member = Member("a", list("abc"), [1, 4], HardState(3, "c"))
    assert (member.core.term, member.core.ballot.voted_for) == (4, None)
    member.work()
    assert member.saved == HardState(4, None)


def test_messages_addressed_to_another_replica_are_dropped() -> None:
    core = Member("a", list("abc")).core
    core.step(Heartbeat("b", "c", 9, 0, 1), 0)
    core.step(Heartbeat("a", "a", 9, 0, 1), 0)
    assert (core.term, core.ready()) == (0, None)


def test_heartbeat_of_an_unknown_leader_is_accepted() -> None:
    """It may have become a member in a frame that is still on its way here."""
    core = Member("a", list("abc")).core
    core.step(Heartbeat("x", "a", 9, 0, 1), 0)
    assert (core.term, core.leader) == (9, "x")


# -- limits -----------------------------------------------------------------------------------


def test_uncommitted_bytes_are_limited() -> None:
    group = led(CoreConfig(uncommitted_bytes_max=200))
    for name in "bc":
        group[name].down = True
    member = group["a"]
    member.propose(bytes(1000))  # one frame always may be under way
    group.work()
    assert not member.core.can_propose
    last = member.core.last_index
    with pytest.raises(Busy):
        member.propose(b"x")
    assert member.core.last_index == last
    group["b"].down = group["c"].down = False
    group.run(1_000)
    assert member.core.can_propose
    member.propose(b"x")


def test_proposal_at_exactly_the_limit_of_uncommitted_bytes_is_accepted() -> None:
    size = len(make_frame(1, 1, 0, b"x").data)
    group = led(CoreConfig(uncommitted_bytes_max=3 * size))
    for name in "bc":
        group[name].down = True
    for _ in range(3):
        group["a"].propose(b"x")
        group.work()
    with pytest.raises(Busy):
        group["a"].propose(b"x")


def test_pending_reads_are_limited() -> None:
    group = led(CoreConfig(reads_waiting_max=3))
    core = group["a"].core
    for token in range(3):
        core.read_index(token)
    with pytest.raises(Busy):
        core.read_index(3)
    group.settle()
    assert group["a"].reads == [(0, 1), (1, 1), (2, 1)]
    core.read_index(3)
    with pytest.raises(NotLeader):
        group["b"].core.read_index(1)


def test_append_requests_are_limited_in_bytes_and_in_flight() -> None:
    size = len(make_frame(1, 1, 0, b"0123").data)
    config = CoreConfig(append_bytes_max=2 * size, inflight_messages_max=3)
    group = led(config)
    core, end = group["a"].core, group["a"].log[-1].end
    for number in range(20):
        core.propose(make_frame(core.last_index + 1, 1, end + number * size, b"0123"))
    ready = core.ready()
    assert ready is not None
    orders = [m for m in ready.messages if isinstance(m, AppendOrder) and m.to == "b"]
    assert [(m.first_index, m.last_index) for m in orders] == [(2, 3), (4, 5), (6, 7)]
    assert core.ready() is None


def test_leader_sends_no_appends_to_a_disconnected_peer() -> None:
    """With its connection closed a follower gets heartbeats, and frames only once it answers."""
    group = led()
    member = group["a"]
    member.core.peer_closed("b", group.now_ms)
    member.propose(b"x")
    orders = [m for r in member.work() for m in r.messages if m.to == "b"]
    assert orders == []
    member.core.peer_opened("b")
    sent = [type(m) for r in member.work() for m in r.messages if m.to == "b"]
    assert sent == [Heartbeat, AppendOrder]


# -- durability -------------------------------------------------------------------------------


def follower(terms: list[int]) -> Member:
    member = Member("a", list("abc"), terms)
    member.holding = True
    return member


def request(index: int, *, count: int = 1, term: int = 1, prev_term: int = 1) -> AppendRequest:
    position = make_log([1] * (index - 1))[-1].end if index > 1 else 0
    frames = []
    for at in range(index, index + count):
        frames.append(make_frame(at, term, position, b"x%d" % at))
        position = frames[-1].end
    return AppendRequest("b", "a", term, index - 1, prev_term, 0, tuple(frames))


def test_follower_acknowledges_only_durable_frames() -> None:
    member = follower([1])
    member.core.step(request(2, count=3), 0)
    member.work()
    assert member.outbox == []
    member.core.durable(3)
    member.work()
    (first,) = member.outbox
    assert isinstance(first, AppendResponse)
    assert (first.success, first.match_index) == (True, 3)
    member.core.durable(4)
    member.work()
    assert member.outbox[1].match_index == 4  # type: ignore[union-attr]
    member.core.durable(4)
    assert member.core.ready() is None


def test_durable_frames_without_a_proven_match_are_not_acknowledged() -> None:
    member = follower([1, 1, 1, 1])
    member.core.step(AppendRequest("b", "a", 2, 2, 1, 0, ()), 0)
    member.work()
    assert member.outbox[0].match_index == 2  # type: ignore[union-attr]


def test_durability_of_truncated_frames_does_not_count_for_new_frames() -> None:
    member = follower([1, 1, 1])
    member.core.step(request(2, count=2, term=2), 0)
    member.core.durable(3)  # of the old frames: the cut is not performed yet
    assert member.core.durable_index == 1
    member.work()
    assert member.outbox == []
    assert member.terms == [1, 2, 2]


def test_pending_acknowledgement_is_dropped_when_the_term_changes() -> None:
    member = follower([1])
    member.core.step(request(2), 0)
    member.work()
    member.core.step(Heartbeat("c", "a", 2, 0, 1), 0)
    member.work()
    member.outbox.clear()
    member.core.durable(2)
    assert member.core.ready() is None


def test_leaders_own_copy_counts_only_when_durable() -> None:
    group = led(names="ab")
    group["a"].holding = True
    group["a"].propose(b"x")
    group.settle()
    assert group["a"].core.commit_index == 1
    group["a"].core.durable(2)
    assert group["a"].core.commit_index == 2


def test_frames_overwritten_before_the_write_are_truncated_in_memory() -> None:
    member = follower([1])
    member.core.step(request(2, count=2, term=1), 0)
    member.core.step(request(2, count=1, term=2), 0)
    (ready,) = member.work()
    assert ready.truncate_from is None
    assert [(f.index, f.term) for f in ready.append] == [(2, 2)]


def test_core_never_truncates_committed_frames() -> None:
    member = Member("a", list("abc"), [1, 1])
    member.core.step(AppendRequest("b", "a", 1, 2, 1, 2, ()), 0)
    assert member.core.commit_index == 2
    with pytest.raises(OtherHistory, match="frames 2 of terms 2 and 1, committed"):
        member.core.step(request(2, term=2), 0)
    assert (member.core.last_index, member.core.commit_index) == (2, 2)


# -- heartbeats as a second chance -----------------------------------------------------------------


def test_lost_acknowledgement_is_repeated_with_the_next_heartbeat() -> None:
    group = led()
    group.dropped |= {("b", "a"), ("c", "a")}
    group["a"].propose(b"x")
    group.settle()
    assert group["a"].core.commit_index == 1
    group.dropped.clear()
    group.run(75)
    assert group["a"].core.commit_index == 2
    assert group["a"].core.progress["b"].state.value == "replicate"


def test_slow_disk_of_a_follower_causes_no_resend() -> None:
    group = led()
    group["b"].holding = True
    group["a"].propose(b"x")
    group.settle()
    group.run(5_000)
    sent = [m for r in group["a"].readies for m in r.messages if isinstance(m, AppendOrder)]
    assert len([m for m in sent if m.to == "b" and m.last_index == 2]) == 1


def test_lost_append_is_resent_with_growing_pauses() -> None:
    group = led()
    group.dropped.add(("a", "b"))
    group["a"].propose(b"x")
    group.settle()
    answers = 0
    core = group["a"].core
    for _ in range(400):  # 30 s in which b answers heartbeats but never gets a frame
        group.now_ms += 75
        core.tick(group.now_ms)
        for member in "bc":
            answers += 1
            core.step(HeartbeatResponse(member, "a", 1, 1, core.round, 1, 1, 1), group.now_ms)
        group["a"].work()
    sent = [m for r in group["a"].readies for m in r.messages if isinstance(m, AppendOrder)]
    again = [m for m in sent if m.to == "b" and m.first_index == 2]
    assert 5 <= len(again) <= 12, len(again)


def test_answer_to_a_later_round_reveals_that_a_follower_lost_frames() -> None:
    """ASYNC_FLUSH and a power cut: the follower is fed again instead of being left behind."""
    group = led()
    group["a"].propose(b"x")
    group.settle()
    group.run(75)
    core = group["a"].core
    core.step(HeartbeatResponse("b", "a", 1, 1, 1, 1, 0, 0), group.now_ms)
    assert core.progress["b"].regressions == 0  # an answer from before it had acknowledged
    group.dropped |= {("a", "b")}
    group.run(75)  # a round that b has not answered yet
    core.step(HeartbeatResponse("b", "a", 1, 1, core.round, 1, 0, 0), group.now_ms)
    assert core.progress["b"].regressions == 1
    orders = [m for r in group["a"].work() for m in r.messages if isinstance(m, AppendOrder)]
    assert [(m.to, m.first_index) for m in orders] == [("b", 2)]
    assert core.commit_index == 2


# -- retention ---------------------------------------------------------------------------------


def test_follower_that_needs_trimmed_frames_is_stranded() -> None:
    group = led()
    group["b"].down = True
    for _ in range(5):
        group["a"].propose(b"x")
        group.settle()
    group["a"].core.trim(5)
    group["b"].down = False
    group["b"].log.clear()
    group["b"].boot()
    group.run(2_000)
    core = group["a"].core
    assert core.progress["b"].state is STRANDED
    core.step(HeartbeatResponse("b", "a", 1, 1, core.round, 5), group.now_ms)
    assert core.progress["b"].state is not STRANDED  # files were copied: its log reaches ours


def test_follower_with_a_longer_divergent_log_is_stranded_until_replaced() -> None:
    """Its end lies behind ours, and no frame of it is ours that we still have."""
    group = Group()
    group.add("b", [1] * 2 + [2] * 20, HardState(2, None))
    for name in "ac":
        group.add(name, [1] * 2 + [3] * 8, HardState(3, None))
    group["b"].down = True
    group.elect("a")
    group["a"].core.trim(5)
    group["b"].down = False
    group.run(1_000)
    core = group["a"].core
    assert group["b"].core.last_index == 22 > core.last_index
    assert core.progress["b"].state is STRANDED
    said = [m for ready in group["a"].readies for m in ready.messages]
    assert sum(isinstance(m, AppendOrder) and m.to == "b" for m in said) < 10
    group["a"].readies.clear()
    group.run(1_000)  # nothing is tried again
    assert core.progress["b"].state is STRANDED
    said = [m for ready in group["a"].readies for m in ready.messages]
    assert not any(isinstance(m, AppendOrder) and m.to == "b" for m in said)
    core.step(HeartbeatResponse("b", "a", core.term, core.term, core.round, 4), group.now_ms)
    assert core.progress["b"].state is not STRANDED  # another log took its place


def test_core_with_a_trimmed_log_starts_with_the_trimmed_part_committed() -> None:
    index = LogIndex(first_index=11, previous_term=3, start_position=1000)
    core = RaftCore(
        "a",
        Configurations(0, founding((name, "") for name in "ab")),
        CoreConfig(),
        index,
        HardState(3, None),
        Random(1),
        0.0,
        incarnation=1,
    )
    assert (core.commit_index, core.last_index, core.durable_index) == (10, 10, 10)
    core.step(Heartbeat("b", "a", 3, 10, 1), 0.0)
    frames = make_log([3] * 12)[7:]
    moved = tuple(make_frame(f.index, 3, 1000 + 62 * (f.index - 11), b"xx") for f in frames)
    core.step(AppendRequest("b", "a", 3, 7, 3, 12, moved), 0.0)
    ready = core.ready()
    assert ready is not None
    assert [f.index for f in ready.append] == [11, 12]
    assert core.commit_index == 12


# -- elections ------------------------------------------------------------------------------------


def test_closed_leader_connection_starts_a_pre_vote_within_the_jitter() -> None:
    for seed in range(20):
        member = Member("a", list("abc"), seed=seed)
        member.core.step(Heartbeat("b", "a", 1, 0, 1), 10.0)
        member.core.peer_closed("b", 20.0)
        assert 20.0 <= member.core.next_deadline_ms <= 50.0


def test_closed_follower_connection_changes_no_timer() -> None:
    member = Member("a", list("abc"))
    member.core.step(Heartbeat("b", "a", 1, 0, 1), 10.0)
    due = member.core.next_deadline_ms
    member.core.peer_closed("c", 20.0)
    assert member.core.next_deadline_ms == due


def test_pre_vote_is_granted_when_the_leader_is_silent_or_disconnected() -> None:
    for silent_ms, closed, granted in ((349, False, False), (350, False, True), (1, True, True)):
        member = Member("a", list("abc"))
        member.core.step(Heartbeat("b", "a", 1, 0, 1), 10.0)
        if closed:
            member.core.peer_closed("b", 10.0)
        member.work()
        member.outbox.clear()
        member.core.step(VoteRequest("c", "a", 2, 0, 0, pre_vote=True), 10.0 + silent_ms)
        member.work()
        assert member.outbox[0].granted is granted  # type: ignore[union-attr]


def test_follower_yields_once_to_the_first_pre_candidate() -> None:
    member = Member("a", list("abc"))
    member.core.step(Heartbeat("b", "a", 1, 0, 1), 10.0)
    member.core.peer_closed("b", 20.0)
    member.core.step(VoteRequest("c", "a", 2, 0, 0, pre_vote=True), 20.0)
    yielded = member.core.next_deadline_ms
    assert yielded >= 95.0
    for at in (30.0, 60.0, 90.0):  # c may not hear the grants: it is not waited for for ever
        member.core.step(VoteRequest("c", "a", 2, 0, 0, pre_vote=True), at)
    assert member.core.next_deadline_ms == yielded


def test_vote_request_cannot_depose_a_live_leader_except_by_transfer() -> None:
    group = led()
    group.run(75)
    vote = VoteRequest("c", "b", 9, 9, 9, pre_vote=False)
    group["b"].core.step(vote, group.now_ms)
    assert group["b"].core.term == 1
    by_transfer = VoteRequest("c", "b", 9, 9, 9, pre_vote=False, transfer=True)
    group["b"].core.step(by_transfer, group.now_ms)
    assert (group["b"].core.term, group["b"].core.ballot.voted_for) == (9, "c")


def test_two_followers_of_a_closed_leader_seldom_split_the_vote() -> None:
    """The promise of a fast failover: with the default jitter and 1 ms links, nearly every
    election after a kill is decided in its first term."""
    first_term = 0
    for seed in range(100):
        group = Group("abc")
        for offset, name in enumerate("abc"):
            group.members[name] = Member(name, list("abc"), seed=1000 * seed + offset)
        group.elect("a")
        group.run(75)
        term = group["a"].core.term
        group["a"].down = True
        for name in "bc":
            group[name].core.peer_closed("a", group.now_ms)
        while not any(group[n].core.role is Role.LEADER for n in "bc"):
            group.tick(1.0)
            arrived, group.queue = group.queue, []
            for message in arrived:
                if not group[message.to].down:
                    group[message.to].core.step(message, group.now_ms)
        first_term += max(group[n].core.term for n in "bc") == term + 1
    assert first_term >= 85, first_term


def test_step_down_of_a_follower_has_no_effect() -> None:
    group = led()
    group["b"].core.step_down("disk")
    assert group["b"].core.ready() is None


def test_transfer_ends_when_the_targets_connection_closes() -> None:
    group = led()
    group["b"].holding = True
    group["a"].propose(b"x")
    group.settle()
    core = group["a"].core
    core.transfer("b", group.now_ms)
    assert not core.can_propose
    core.peer_closed("b", group.now_ms)
    assert core.can_propose
    (ready,) = group["a"].work()
    assert ready.role is not None
    assert ready.role.reason == "transfer to b given up: its connection closed"


def test_transfer_to_the_leader_itself_reports_that_it_leads() -> None:
    group = led()
    for target, text in (("a", "a leads already"), ("x", "x is no other voter of this group")):
        with pytest.raises(UnknownTarget, match=text):
            group["a"].core.transfer(target, group.now_ms)
    assert group["a"].core.can_propose


def test_core_deadline_is_the_next_due_action() -> None:
    group = led()
    core = group["a"].core
    assert core.next_deadline_ms - group.now_ms <= 75
    core.transfer("b", group.now_ms)
    assert core.next_deadline_ms <= group.now_ms + 75


# -- whom it believes ------------------------------------------------------------------------------


def test_non_member_cannot_start_an_election_by_transfer() -> None:
    group = led()
    follower = group["b"].core
    before = (follower.term, follower.role, follower.leader)
    group.inject(TimeoutNow("zz", "b", follower.term))
    group.inject(TimeoutNow("zz", "b", follower.term + 5))
    group.inject(VoteRequest("zz", "b", follower.term + 5, 99, 99, False, transfer=True))
    assert (follower.term, follower.role, follower.leader) == before
    group.inject(TimeoutNow("a", "b", follower.term))  # its leader does
    assert follower.role is Role.CANDIDATE


def test_core_at_the_last_term_does_not_campaign() -> None:
    member = Member("a", list("abc"), [1], HardState(TERM_MAX, None))
    member.core.tick(1e6)
    assert (member.core.term, member.core.role) == (TERM_MAX, Role.FOLLOWER)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (AppendResponse("b", "a", 1, 1, True, 9, 0, 0, 0, 9), "acknowledges frame 9"),
        (AppendResponse("b", "a", 1, 1, False, 0, 1, 2, 0, 9), "refuses frames behind 1 for 2"),
        (HeartbeatResponse("b", "a", 1, 1, 1, 9, 9, 9), "acknowledges frame 9"),
        (HeartbeatResponse("b", "a", 1, 1, 99, 1, 1, 1), "answers round 99"),
        (Heartbeat("b", "a", 1, 0, 1), "leads term 1, as a does"),
        (AppendRequest("b", "a", 1, 0, 0, 0, ()), "leads term 1, as a does"),
    ],
)
def test_leader_rejects_messages_that_no_correct_peer_sends(message: Message, why: str) -> None:
    group = led()
    core = group["a"].core
    before = (core.role, core.term, core.commit_index, core.last_index)
    with pytest.raises(MessageRefused, match=why):
        core.step(message, group.now_ms)
    assert (core.role, core.term, core.commit_index, core.last_index) == before
    group["a"].propose(b"goes on")
    group.settle()
    assert core.commit_index == core.last_index
