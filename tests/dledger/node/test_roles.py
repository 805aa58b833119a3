"""When the application is told which role its member has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from raftmq.dledger.node.roles import Roles
from raftmq.dledger.raft.messages import Role, RoleEvent

LEADS = RoleEvent(Role.LEADER, 2, "n0", True, "")
FOLLOWS = RoleEvent(Role.FOLLOWER, 3, "n1", False, "")


def made() -> tuple[Roles, list[object], SimpleNamespace]:
    """Roles, what was told to whom, and the proposer."""
    reported: list[object] = []
    application = SimpleNamespace(role_changed=reported.append)
    proposer = SimpleNamespace(
        frame_due=False, leadership_lost=lambda leader: reported.append(("lost", leader))
    )
    return Roles("n0", cast(Any, application), cast(Any, proposer)), reported, proposer


def test_leader_role_is_reported_after_all_committed_frames_are_applied() -> None:
    roles, reported, proposer = made()
    roles.changed(LEADS, commit_index=7, applied_index=5)
    roles.applied(6)
    assert (reported, roles.serving, proposer.frame_due) == ([], False, False)
    roles.applied(7)
    assert (reported, roles.serving, proposer.frame_due) == ([LEADS], True, True)
    roles.applied(8)
    assert reported == [LEADS]


def test_pending_role_event_is_dropped_when_a_newer_one_arrives() -> None:
    roles, reported, _ = made()
    roles.changed(LEADS, commit_index=7, applied_index=5)
    roles.changed(FOLLOWS, commit_index=7, applied_index=5)
    roles.applied(7)
    assert reported == [("lost", "n1"), FOLLOWS]
    assert roles.reported_leader == "n1"
    assert not roles.serving


def test_lost_leadership_fails_waiting_commands_before_it_is_reported() -> None:
    roles, reported, _ = made()
    roles.changed(LEADS, commit_index=7, applied_index=7)
    roles.changed(FOLLOWS, commit_index=7, applied_index=7)
    roles.changed(FOLLOWS, commit_index=7, applied_index=7)
    assert reported == [LEADS, ("lost", "n1"), FOLLOWS, FOLLOWS]
