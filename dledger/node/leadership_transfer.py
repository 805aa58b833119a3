"""Leadership transfer to a preferred leader, from an unwilling leader, or before a stop.

Before a stop the leader accepts proposals until a follower is *able*: a recovered voter, connected,
recently heard, and nearly caught up. So proposals wait only for a single transfer (thesis 3.10: the
last frames, a vote, a no-op). Afterwards the former leader stays until it has met the new leader,
has reported it to its application, and has applied its own proposals, because their senders wait
for the answer. It leaves without a successor if no follower is able in time, or connected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ..raft.core import RaftCore
from ..raft.errors import RaftError
from ..raft.leader_placement import GroupView, PreferredLeader, SuccessorSearch
from ..raft.messages import NodeId, Role
from ..raft.pace import Paces
from ..raft.progress import Progress
from ..snapshot.transfer import Installer
from .ready_loop import Pump

log = logging.getLogger("raftmq.dledger.node.leadership_transfer")

LAG_FRAMES_MAX = 16  # twice the frames in flight under full load
HEARD_HEARTBEATS = 3  # a follower silent for longer is frozen, or its link is
POLL_S = 0.002  # a fraction of the transfer itself, for a moment at a process's end


@dataclass(slots=True, eq=False)
class LeadershipTransfer:
    """Chooses a member's successor, and transfers leadership."""

    pump: Pump
    installer: Installer
    preferred_leader: PreferredLeader
    paces: Paces
    clock_ms: Callable[[], float]
    search: SuccessorSearch = field(default_factory=SuccessorSearch)
    _leaving: bool = field(default=False, init=False)  # for a planned stop

    def transfer(self, target: NodeId) -> None:
        """Start a transfer to `target`. Raises NotLeader, UnknownTarget, Busy."""
        self.pump.ask(self.pump.core.transfer, target, self.pump.core_ms())

    def blocker(self, target: NodeId) -> str:
        """Return the reason why `target` would immediately give up leadership, or ""."""
        core = self.pump.core
        progress = core.progress.get(target)
        if progress is None or not progress.no_room:
            return ""
        # It keeps leadership if no other replica is willing.
        others_willing = core.election.is_willing or willing_voters(core, self.pump.links.is_open)
        return unwilling_reason(target) if others_willing else ""

    def successor(self) -> NodeId | None:
        """Return the able follower with most of the log, preferably willing, or None."""
        return best_successor(self.pump.core, self.pump.links.is_open, self.pump.core_ms())

    def preferred_successor(self) -> NodeId | None:
        """Return the preferred leader if this leader should transfer to it now, else None."""
        core = self.pump.core
        preferred = core.membership.configurations.current.preferred or ""
        ready = core.role is Role.LEADER and self.pump.roles.serving
        blocker, caught_up = "", False
        if ready and preferred not in ("", core.node_id):
            blocker, caught_up = blocker_of(
                preferred, core, self.pump.links.is_open, self.pump.core_ms()
            )
        view = GroupView(
            core.node_id,
            core.term,
            core.leader,
            preferred,
            ready,
            core.transfer_target is not None,
            blocker,
            self._busy() if ready else "",
            caught_up,
        )
        return self.preferred_leader.check(view, self.clock_ms())

    def willing_successor(self, needed: bool, faster: bool) -> NodeId | None:
        """Return the replica to which this unwilling leader should transfer (`needed`), else None.
        With `faster`, only a replica with a lower cost (dledger/raft/pace.py)."""
        core, is_open = self.pump.core, self.pump.links.is_open
        willing: list[NodeId] = []
        able: list[Progress] = []
        needed = needed and core.role is Role.LEADER and self.pump.roles.serving
        needed = needed and not self._leaving
        if needed:
            willing = willing_voters(core, is_open)
            if faster:
                willing = [peer for peer in willing if self.paces.is_faster(peer)]
            able = [
                progress
                for progress in able_successors(core, is_open, self.pump.core_ms())
                if progress.recovering is not None and progress.peer in willing
            ]
            able.sort(key=lambda progress: (-progress.match_index, -progress.heard_ms))
        transferring = core.transfer_target is not None
        best = [progress.peer for progress in able]
        return self.search.check(needed, transferring, willing, best, self.clock_ms())

    def _busy(self) -> str:
        """Return the work of this leader that a successor would have to restart, or ""."""
        core = self.pump.core
        if (
            core.membership.configurations.index > core.commit_index
            or self.pump.proposer.change_waits
        ):
            return "the members are being changed"
        refilled = self.installer.refilled()
        if refilled:
            return f"{', '.join(refilled)} is being refilled"
        return f"{core.node_id} is leaving" if self._leaving else ""

    async def hand_over(self, timeout_ms: float) -> NodeId | None:
        """Transfer leadership to the able follower with most of the log, preferably willing. Return
        the new leader, or None, with the reason logged. No effect on a replica that does not lead.
        """
        core = self.pump.core
        self._leaving = True
        if core.role is not Role.LEADER:
            return None
        deadline_ms = self.clock_ms() + timeout_ms
        outcome = "nobody is within reach"
        while core.role is Role.LEADER and self.pump.life.running:
            if not self._is_connected():
                break
            if self.clock_ms() >= deadline_ms:
                outcome = "nobody took over in time"
                break
            if core.transfer_target is None and not core.wants_noop:
                self._try_transfer()
            await asyncio.sleep(POLL_S)
        else:
            outcome = "no news of a successor"
            if await self._successor_known(core.last_index, deadline_ms):
                log.info("handed_over node=%s to=%s", core.node_id, core.leader)
                return core.leader
        log.warning("not_handed_over node=%s reason=%s", core.node_id, outcome)
        return None

    async def _successor_known(self, last_index: int, deadline_ms: float) -> bool:
        """Wait until the new leader is known and this node's own frames are applied; return whether
        that happened in time."""
        core, roles = self.pump.core, self.pump.roles
        while self.pump.life.running and self._is_connected() and self.clock_ms() < deadline_ms:
            known = core.leader not in (None, core.node_id) and roles.reported_leader == core.leader
            if known and self.pump.applier.applied_index >= last_index:
                return True
            await asyncio.sleep(POLL_S)
        return False

    def _is_connected(self) -> bool:
        """Return True if another voter is connected. Learners cannot lead."""
        core = self.pump.core
        voters = core.membership.voters
        return any(self.pump.links.is_open(peer) for peer in voters if peer != core.node_id)

    def _try_transfer(self) -> None:
        """Start a transfer if a follower is able now."""
        successor = self.successor()
        if successor is None:
            return
        try:
            self.transfer(successor)
        except RaftError as error:  # the state has just changed, so try again
            log.info("transfer_refused target=%s: %s", successor, error)


def blocker_of(
    peer: NodeId, core: RaftCore, is_open: Callable[[NodeId], bool], now_ms: float
) -> tuple[str, bool]:
    """Return the reason why a follower could not lead now, or ""; and whether it is at most
    LAG_FRAMES_MAX frames behind."""
    progress = core.progress.get(peer)
    if progress is None or peer not in core.membership.voters:
        return f"{peer} is no other voter of this group", False
    reason = ""
    lag_bytes = core.lag_bytes(progress)
    if not is_open(peer):
        reason = f"{peer} is not connected"
    elif progress.recovering is None:
        reason = f"{peer} has not been heard yet"
    elif progress.recovering:
        reason = f"{peer} is recovering"
    elif progress.heard_ms < now_ms - core.config.election_ms_min:
        reason = f"{peer} is silent"
    elif lag_bytes > core.config.learner_lag_bytes_max:
        reason = f"{peer} lacks {lag_bytes} bytes of the log"
    elif progress.no_room:
        reason = unwilling_reason(peer)
    return reason, core.last_index - progress.match_index <= LAG_FRAMES_MAX


def unwilling_reason(peer: NodeId) -> str:
    return f"{peer} should not lead: its disk is short of room or slow, or its clock is wrong"


def willing_voters(core: RaftCore, is_open: Callable[[NodeId], bool]) -> list[NodeId]:
    """Return the connected voters that may be willing to lead, or are not heard yet."""
    return [
        progress.peer
        for progress in core.progress.values()
        if progress.peer in core.membership.voters
        and not progress.recovering
        and not progress.no_room
        and is_open(progress.peer)
    ]


def best_successor(
    core: RaftCore, is_open: Callable[[NodeId], bool], now_ms: float
) -> NodeId | None:
    """Return the best of the `able_successors`, or None."""
    able = able_successors(core, is_open, now_ms)
    best = max(able, key=lambda p: (not p.no_room, p.match_index, p.heard_ms), default=None)
    return None if best is None else best.peer


def able_successors(
    core: RaftCore, is_open: Callable[[NodeId], bool], now_ms: float
) -> list[Progress]:
    """Return the followers that could lead at once. `now_ms` is the core's time."""
    heard_since_ms = now_ms - HEARD_HEARTBEATS * core.config.heartbeat_ms
    return [
        progress
        for progress in core.progress.values()
        if progress.peer in core.membership.voters
        and not progress.recovering
        and is_open(progress.peer)
        and progress.heard_ms >= heard_since_ms
        and core.last_index - progress.match_index <= LAG_FRAMES_MAX
    ]
