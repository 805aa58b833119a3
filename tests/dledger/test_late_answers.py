"""Answers that a follower gave before it lost its memory reach its leader at any moment after it,
in the same heartbeat round: all orders of them.

A leader notes the standing that a response reports before it asks whether to believe it
(dledger/raft/leader.py, `_update_recovery_state`), and the round alone does not tell an old one:
that is why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest

from raftmq.dledger.raft.leader import Leading
from raftmq.dledger.raft.messages import AppendResponse, HeartbeatResponse, Message
from tests.dledger.group import Group
from tests.dledger.raft.test_recovery import led, lose_disk

STEPS = 14  # messages of the conversation into which the old answers come
ASKED = 8  # the step before which a is asked to confirm that it leads
Plan = Sequence[tuple[int, int]]  # (before this step, this old answer)


def start() -> tuple[Group, list[Message]]:
    """a leads, c is away. b has acknowledged frame 2 and answered a's round; both answers are still
    on their way when b loses its disk, and a has begun no other round."""
    group = led()
    group["c"].down = True
    group.dropped = {("b", "a")}
    group["a"].propose(b"x")
    group.run(75)
    old = [m for m in group.lost if m.sender == "b"]
    group.dropped, group.lost = set(), []
    lose_disk(group, "b")
    group["a"].core.peer_opened("b")  # its heartbeat is of that round
    return group, old


def plans(answers: int) -> Iterator[Plan]:
    """Each old answer may come twice, in any order."""
    moments = list(product(range(STEPS), range(answers)))
    for first in moments:
        yield [first]
        for second in moments:
            if first[0] <= second[0]:
                yield [first, second]


def play(group: Group, old: Sequence[Message], plan: Plan) -> None:
    """Let a and the new b talk, with the old answers between."""
    core, new = group["a"].core, group["b"]
    for step in range(STEPS):
        if step == ASKED:
            core.read_index(1)
        for _, answer in (event for event in plan if event[0] == step):
            core.step(old[answer], group.now_ms)
            group.work()
        if group.queue:
            group.deliver_one()
        else:
            group.now_ms = core.next_deadline_ms
            core.tick(group.now_ms)
        group.work()
        # c has no barrier: nobody but a vouches for b, and b's copy is none.
        assert not new.core.recovered, plan
        assert core.commit_index <= 2, plan  # b did have frame 2, and said so
        assert core.progress["b"].certified == 0, plan
        assert group["a"].reads == [], plan


class GoesByItsNote(Leading):
    """Counts an acknowledgement by the standing that it noted, not by what the message says."""

    __slots__ = ()

    def take_append_response(self, response: AppendResponse, now_ms: float) -> None:
        recovering = bool(self.progress[response.sender].recovering)
        super().take_append_response(replace(response, recovering=recovering), now_ms)


def test_old_answers_are_of_the_round_that_the_new_replica_answers() -> None:
    group, old = start()
    assert [type(answer) for answer in old] == [AppendResponse, HeartbeatResponse]
    assert [m.round for m in old if isinstance(m, HeartbeatResponse)] == [group["a"].core.round]
    for _ in range(2):
        group.work()
        group.deliver_one()
    core = group["a"].core
    assert core.progress["b"].recovering == group["b"].core.ballot.incarnation
    core.step(old[1], group.now_ms)
    assert core.progress["b"].recovering == 0  # noted, though it is old
    group.run(300)
    assert core.progress["b"].recovering == group["b"].core.ballot.incarnation


def test_leader_that_trusts_its_own_record_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.dledger.raft.election.Leading", GoesByItsNote)
    with pytest.raises(AssertionError):
        for plan in plans(2):
            play(*start(), plan)


@pytest.mark.parametrize("comes_back", [False, True])
def test_answer_from_before_a_disk_loss_counts_for_nothing(comes_back: bool) -> None:
    group, old = start()
    played = 0
    for plan in plans(len(old)):
        group, old = start()
        play(group, old, plan)
        played += 1
        if comes_back and played % 7 == 0:  # c's return is the same for most of them
            group["c"].down = False
            group.run(1_000)
            leader = group["a"].core
            assert leader.commit_index == leader.last_index, plan
            assert all(m.core.recovered for m in group.members.values()), plan
            assert all(m.log == group["a"].log for m in group.members.values()), plan
            assert [token for token, _ in group["a"].reads] == [1], plan
    assert played == 28 + 28 * 30 // 2
