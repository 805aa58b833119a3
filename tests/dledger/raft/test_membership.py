"""Changes that a leader's core refuses, and who counts while members change. No shell, no time."""

from __future__ import annotations

import pytest

from raftmq.dledger.raft.configuration import Change, ChangeKind, encode_configuration
from raftmq.dledger.raft.errors import ChangeRefused, NotLeader
from raftmq.store.frame import FrameKind, seal_frame
from tests.dledger.group import Group, Member

REMOVE_C = Change(ChangeKind.REMOVE, "c")
ADD_D = Change(ChangeKind.ADD_LEARNER, "d", "d:1")


def led() -> Group:
    group = Group("abc")
    group.elect("a")
    return group


def make(member: Member, change: Change) -> None:
    core = member.core
    payload = encode_configuration(core.configuration_after(change))
    index, position = core.last_index + 1, member.log[-1].end
    core.propose(seal_frame(index, core.term, position, 0, FrameKind.CONFIGURATION, 0, payload))


def test_only_the_leader_changes_members() -> None:
    group = led()
    with pytest.raises(NotLeader):
        group["b"].core.configuration_after(REMOVE_C)


def test_member_change_needs_a_committed_frame_of_the_leaders_term() -> None:
    group = led()
    for name in "bc":
        group[name].holding = True  # their disks are slow: the no-op is written, not durable
    group["a"].core.step_down("test")
    group.settle()
    leader = next(m for m in group.members.values() if m.core.role.value == "leader")
    assert not leader.core.leader_ready
    with pytest.raises(ChangeRefused, match="no frame of term"):
        leader.core.configuration_after(ADD_D)


def test_second_member_change_is_rejected_until_the_first_commits() -> None:
    group = led()
    make(group["a"], ADD_D)
    with pytest.raises(ChangeRefused, match="not committed yet"):
        group["a"].core.configuration_after(REMOVE_C)
    group.settle()
    make(group["a"], REMOVE_C)


def test_voter_without_an_answer_does_not_count_for_a_member_change() -> None:
    """It may be recovering: with a alone it would be a group of two that tolerates no such one."""
    group = Group("abc")
    group["c"].down = True
    group.elect("a")
    remove_b = Change(ChangeKind.REMOVE, "b")
    with pytest.raises(ChangeRefused, match="1 of 2 voters would be recovered and answer"):
        group["a"].core.configuration_after(remove_b)
    group["c"].down = False
    group.run(75)
    make(group["a"], remove_b)


def test_voter_with_a_new_link_does_not_count_before_it_answers() -> None:
    """Behind the new link may be a process that has lost its disk, and has not said so yet."""
    group = led()
    group.run(75)
    core = group["a"].core
    remove_b = Change(ChangeKind.REMOVE, "b")
    core.peer_closed("c", group.now_ms)
    for _ in range(2):
        with pytest.raises(ChangeRefused, match="1 of 2 voters would be recovered and answer"):
            core.configuration_after(remove_b)
        core.peer_opened("c")
    group.run(75)
    make(group["a"], remove_b)


def move(name: str) -> Change:
    return Change(ChangeKind.MOVE, name, f"elsewhere-{name}:1")


@pytest.mark.parametrize("moved", ["a", "b"])
def test_voter_that_moves_does_not_count_by_its_old_link(moved: str) -> None:
    """Its new address may be a typo: then the group would have lost it."""
    group = led()
    group.run(75)
    core = group["a"].core
    group["c"].down = True
    core.peer_closed("c", group.now_ms)
    text = f"1 of 3 voters .* without {moved}, which was not found at elsewhere-{moved}:1"
    with pytest.raises(ChangeRefused, match=text):
        core.configuration_after(move(moved))
    assert core.configuration_after(move(moved), there=True)
    assert core.configuration_after(move("c"))  # the other two carry it
    assert core.configuration_after(Change(ChangeKind.ADD_LEARNER, "d", "d:1"))


@pytest.mark.parametrize("moved", ["a", "b"])
def test_voter_of_two_moves_only_after_it_is_reached_at_the_new_address(moved: str) -> None:
    group = Group("ab")
    group.elect("a")
    group.run(75)
    with pytest.raises(ChangeRefused, match="1 of 2 voters would be recovered and answer"):
        group["a"].core.configuration_after(move(moved))
    assert group["a"].core.configuration_after(move(moved), there=True)


def test_only_voter_and_learners_move_without_conditions() -> None:
    group = Group("a")
    group.elect("a")
    make(group["a"], Change(ChangeKind.ADD_LEARNER, "d", "d:1"))
    group.settle()
    make(group["a"], move("d"))
    group.settle()
    make(group["a"], move("a"))
    group.settle()
    core = group["a"].core
    assert core.membership.configurations.index == core.commit_index == core.last_index


def test_configuration_is_in_force_from_append_until_truncation() -> None:
    group = led()
    group.dropped = {("a", "b"), ("a", "c")}
    make(group["a"], REMOVE_C)
    group.settle()
    assert group["a"].core.membership.voters == {"a", "b"}
    group.dropped = {("b", "a"), ("c", "a"), ("a", "b"), ("a", "c")}
    group.elect("b")
    group.dropped = set()
    group.run(2_000)
    assert group["a"].core.membership.voters == {"a", "b", "c"}


def test_learner_does_not_count_for_majorities() -> None:
    group = led()
    make(group["a"], ADD_D)
    group.settle()
    core = group["a"].core
    assert core.membership.peers == ("b", "c", "d")
    assert core.membership.voters == {"a", "b", "c"}
    core.progress["d"].recovered_index = core.last_index + 10
    for name in "bc":
        group[name].down = True
    group["a"].propose(b"x")
    before = core.commit_index
    group.settle()
    assert core.commit_index == before


def test_removed_unreachable_replica_gets_appends_for_a_limited_time() -> None:
    group = led()
    group.dropped = {("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")}
    make(group["a"], REMOVE_C)
    group.settle()
    core = group["a"].core
    assert core.membership.configurations.index == core.commit_index
    news = []
    rounds = 0
    begun_ms = group.now_ms
    while "c" in core.progress:
        rounds += 1
        group.now_ms = group["a"].now_ms = core.next_deadline_ms
        core.tick(group.now_ms)
        news += [ready.configuration_changed for ready in group["a"].work()]
        group.settle()
    assert group.now_ms - begun_ms >= group.config.departure_ms
    assert rounds > 50
    assert news.count(True) == 1  # when it went, and not with each heartbeat
    assert "c" not in core.membership.peers


def test_copy_on_a_learner_commits_nothing() -> None:
    group = Group("ab")
    group.add("c")
    group.elect("a")
    make(group["a"], Change(ChangeKind.ADD_LEARNER, "c", "c:1"))
    added = group["a"].core.last_index
    group.run(500)
    assert group["c"].core.commit_index == added
    group.dropped = {("a", "b")}
    group["a"].propose(b"x")
    group.run(100)
    assert group["c"].core.last_index == added + 1
    assert group["a"].core.commit_index == added


def test_leader_that_is_removed_does_not_count_itself() -> None:
    group = led()
    group.run(500)
    group.dropped = {("a", "c")}
    make(group["a"], Change(ChangeKind.REMOVE, "a"))
    removed = group["a"].core.last_index
    group.run(100)
    assert group["b"].core.last_index == removed
    assert group["a"].core.commit_index == removed - 1


def test_first_of_two_member_changes_is_in_force_once_committed() -> None:
    """A removed follower campaigns for its removal no longer, although a later change is open."""
    membership = led()["c"].core.membership
    removed = membership.configurations.current.after(REMOVE_C)
    for index, configuration in ((2, removed), (3, removed.after(ADD_D))):
        payload = encode_configuration(configuration)
        frame = seal_frame(index, 1, 0, 0, FrameKind.CONFIGURATION, 0, payload)
        membership.append(frame, 1)
    assert membership.may_campaign(recovered=True)
    assert not membership.commit(2)
    assert not membership.may_campaign(recovered=True)
    assert membership.commit(3)
    assert not membership.may_campaign(recovered=True)
